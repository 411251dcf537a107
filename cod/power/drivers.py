"""Every power driver that there is, and every console, by the name that the site file and
`nodes.power_driver` use."""

from __future__ import annotations

from typing import Any

from cod.power.console import ConsoleDriver
from cod.power.driver import PowerDriver
from cod.power.ipmi import IpmiDriver
from cod.power.lab import LabDriver
from cod.power.labconsole import LabConsoles
from cod.power.pdu import PduDriver
from cod.power.redfish import RedfishDriver
from cod.power.sol import SolConsoles
from cod.power.wol import WolDriver


def drivers(reactor: Any) -> dict[str, PowerDriver]:
    """Return drivers that speak with `reactor`."""
    return {
        "ipmi": IpmiDriver(reactor),
        "lab": LabDriver(reactor),
        "pdu": PduDriver(reactor),
        "redfish": RedfishDriver(reactor),
        "wol": WolDriver(reactor),
    }


def consoles(reactor: Any) -> dict[str, ConsoleDriver]:
    """Return what follows the consoles of those drivers' machines; `policy.nodes.console` says why
    the others have none."""
    return {"ipmi": SolConsoles(reactor), "lab": LabConsoles(reactor)}
