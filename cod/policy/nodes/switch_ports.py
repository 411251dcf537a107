"""Mapping of LLDP neighbours in a hardware report to switches and ports of the site file, and the
time at which a failed change of a port is tried again. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from xml.etree import ElementTree

from cod.model import Switch

# seconds after which a failing change is given up: switches take some minutes to reboot
BUDGET = 1800.0
FIRST_PAUSE = 2.0  # seconds after the first failure, twice as long after each further one
LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class PortNeighbour:
    """A switch and its port, as the NIC with that MAC heard by LLDP."""

    mac: str
    switch: str
    port: str


def neighbours(report_xml: str) -> list[PortNeighbour]:
    """Return the switch ports that the NICs of a hardware report heard by LLDP."""
    return [
        PortNeighbour(mac, seen.get("switch", ""), seen.get("port", ""))
        for nic in ElementTree.fromstring(report_xml).findall("nic")
        if (mac := nic.get("mac")) and (seen := nic.find("neighbour")) is not None
    ]


def named(switches: Iterable[Switch], name: str) -> Switch | None:
    """Return the site file's switch with that name."""
    return next((each for each in switches if each.name == name), None)


def place(switches: Iterable[Switch], switch: str, port: str) -> tuple[str, str] | None:
    """Return (the switch's name in the site file, the port's name in its driver) for the names that
    LLDP uses; None if the site file has no such switch.

    LLDP names a switch by its system name, or by its chassis id if it has no name.
    """
    named = switch.lower()
    for each in switches:
        if named == each.name.lower() or any(
            fnmatchcase(named, pattern.lower()) for pattern in each.known_as
        ):
            for pattern, driver_name in each.ports.items():
                if match := re.fullmatch(pattern, port):
                    return each.name, match.expand(driver_name)
            return each.name, port
    return None


def is_for_nodes(switches: Iterable[Switch], name: str, port: str) -> bool:
    """Return whether the site file lets nodes be connected to that port."""
    switch = named(switches, name)
    return (
        switch is None
        or not switch.nodes_on
        or any(fnmatchcase(port, pattern) for pattern in switch.nodes_on)
    )


def retry_after(attempts: int, elapsed: float) -> float | None:
    """Return the seconds to wait after the failed attempt number `attempts`, `elapsed` seconds
    after the change was ordered; None: give up."""
    wait = pause(attempts)
    return wait if elapsed + wait <= BUDGET else None


def pause(failures: int) -> float:
    """Return the seconds to wait after `failures` failures in a row."""
    return min(FIRST_PAUSE * float(1 << min(max(failures - 1, 0), 10)), LONGEST_PAUSE)
