"""Mapping of a report's neighbours to switches and ports of the site file, and the time at which a
failed change is tried again. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from xml.etree import ElementTree

from cod.model import Switch

# seconds after which a wish that fails is given up: switches reboot for some minutes
BUDGET = 1800.0
FIRST_PAUSE = 2.0  # seconds after the first failure, twice as long after each further one
LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class PortNeighbour:
    """A switch and its port, as LLDP told the NIC with that MAC."""

    mac: str
    switch: str
    port: str


def neighbours(report_xml: str) -> list[PortNeighbour]:
    """Return what the NICs of a hardware report say of the ports that they are on."""
    return [
        PortNeighbour(mac, seen.get("switch", ""), seen.get("port", ""))
        for nic in ElementTree.fromstring(report_xml).findall("nic")
        if (mac := nic.get("mac")) and (seen := nic.find("neighbour")) is not None
    ]


def named(switches: Iterable[Switch], name: str) -> Switch | None:
    """Return the site file's switch with that name."""
    return next((each for each in switches if each.name == name), None)


def place(switches: Iterable[Switch], switch: str, port: str) -> tuple[str, str] | None:
    """Return the name of the site file's switch, and the name by which its driver knows the port,
    for what LLDP calls them; None when the site file does not name such a switch.

    LLDP's name of a switch is its system name, or its chassis id where it has no name.
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
    """Return whether nodes are on that port, as far as the site file says."""
    switch = named(switches, name)
    return (
        switch is None
        or not switch.nodes_on
        or any(fnmatchcase(port, pattern) for pattern in switch.nodes_on)
    )


def retry_after(attempts: int, elapsed: float) -> float | None:
    """Return the seconds to wait after failed attempt number `attempts`, `elapsed` seconds after
    the wish; None: give up."""
    wait = pause(attempts)
    return wait if elapsed + wait <= BUDGET else None


def pause(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row."""
    return min(FIRST_PAUSE * float(1 << min(max(failures - 1, 0), 10)), LONGEST_PAUSE)
