"""This host's network interfaces, as the program `ip` of iproute2 lists them. Standard library
only."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface


class Unknown(Exception):
    """The interfaces cannot be listed; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface with its IPv4 addresses.

    carrier  True: the link is up; False: no cable, or the other end is off; always False for an
             interface that is down
    """

    name: str
    up: bool
    carrier: bool
    addresses: tuple[IPv4Interface, ...]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(map(str, self.addresses)) or 'no IPv4 address'})"


def interfaces() -> dict[str, Interface]:
    """Return the interfaces of this network namespace by name, without loopback. Raises
    `Unknown`."""
    try:
        done = subprocess.run(
            ["ip", "-j", "addr", "show"], capture_output=True, text=True, check=True, timeout=30
        )
    except FileNotFoundError:
        raise Unknown("the program ip is not installed: install the package iproute2") from None
    except (subprocess.SubprocessError, OSError) as error:
        raise Unknown(f"ip cannot list the interfaces: {error}") from None
    return {
        row["ifname"]: _interface(row)
        for row in json.loads(done.stdout or "[]")
        if row and "LOOPBACK" not in row["flags"]
    }


def addresses(found: Mapping[str, Interface]) -> set[str]:
    """Return the IPv4 addresses of interfaces."""
    return {str(each.ip) for interface in found.values() for each in interface.addresses}


def listed(found: Sequence[Interface]) -> str:
    """Return the interfaces as a phrase: 'eth0 (10.1.2.3/24), eth1 (no IPv4 address)'."""
    return ", ".join(map(str, found)) or "none but loopback"


def _interface(row: dict[str, object]) -> Interface:
    flags, known = row["flags"], row.get("addr_info")
    assert isinstance(flags, list)
    addresses = (
        [each for each in known if each.get("family") == "inet"] if isinstance(known, list) else []
    )
    return Interface(
        str(row["ifname"]),
        "UP" in flags,
        "LOWER_UP" in flags,
        tuple(IPv4Interface(f"{each['local']}/{each['prefixlen']}") for each in addresses),
    )
