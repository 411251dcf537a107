"""Every switch driver that there is, by the name that the site file uses."""

from __future__ import annotations

from typing import Any

from cod.switches.cli import NetmikoDriver
from cod.switches.driver import MacTableDriver, SwitchDriver
from cod.switches.ovs import OvsDriver
from cod.switches.snmp import SnmpDriver


def drivers(reactor: Any) -> dict[str, SwitchDriver]:
    """Return drivers that speak with `reactor`."""
    return {
        "netmiko": NetmikoDriver(reactor),
        "ovs": OvsDriver(reactor),
        "snmp": SnmpDriver(reactor),
    }


def mac_tables(reactor: Any) -> dict[str, MacTableDriver]:
    """Return the drivers that tell on which port a MAC was heard. OVSDB has no such table; command
    lines have no common form for it."""
    return {"snmp": SnmpDriver(reactor)}
