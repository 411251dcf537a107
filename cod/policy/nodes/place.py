"""The place where a node boots: its subnet, its switch port by option 82, and its switch port by
the switch's table of MAC addresses or by LLDP.

The place is remembered when the node is approved, or at its first proven boot after that. A node
that boots at another place gets no answer by DHCP (`policy.nodes.boot.elsewhere`). Its port by the
table or LLDP is compared when its agent reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from cod.model import Node, Policy, Subnet, Switch
from cod.policy.nodes import switch_ports
from cod.states import UNAPPROVED

FIELDS = ("subnet", "circuit", "remote", "port")
FORGOTTEN: dict[str, Any] = dict.fromkeys(
    ("home_at", "home_subnet", "home_circuit", "home_remote", "home_port")
)


def subnet_at(subnets: Iterable[Subnet], address: str) -> Subnet | None:
    """Return the subnet that an address is in; None: it is in none."""
    here = IPv4Address(address)
    return next((subnet for subnet in subnets if here in _network(subnet.network)), None)


_network = lru_cache(IPv4Network)


def port_of(report_xml: str, mac: str, switches: tuple[Switch, ...]) -> str | None:
    """Return the switch port that the NIC with that MAC is connected to by a hardware report, as
    'SWITCH PORT' of the site's switches; None: the report does not tell."""
    if not switches:
        return None
    for seen in switch_ports.neighbours(report_xml):
        if seen.mac == mac and (found := switch_ports.place(switches, seen.switch, seen.port)):
            return " ".join(found)
    return None


def by_switch(
    heard: Sequence[tuple[str, ...]],
    home: str | None,
    known: Sequence[str | None],
    switches: tuple[Switch, ...],
) -> str | None:
    """Return the NIC's port by the switches' tables of MAC addresses; None: they do not tell.

    heard  the ports whose tables have the MAC, at most one for each switch, each with all its names
    home   the node's remembered port; if it is not a port for nodes, no port is returned
    known  names of the port from other sources, such as LLDP
    """
    if home is not None and not _is_for_nodes(home, switches):
        return None
    ports = [port for port in heard if any(_is_for_nodes(name, switches) for name in port)]
    for name in (home, *known):
        if any(name in port for port in ports):  # entries of the other switches are outdated
            return name
    if len(ports) != 1:
        return None
    return next(name for name in ports[0] if _is_for_nodes(name, switches))


def _is_for_nodes(port: str, switches: tuple[Switch, ...]) -> bool:
    switch, _, name = port.partition(" ")
    return switch_ports.is_for_nodes(switches, switch, name)


def moved(node: Node, port: str | None, policy: Policy, source: str) -> str:
    """Return a sentence for a node that reports from another switch port than the remembered one;
    '' if the ports are the same, one of them is unknown, or the site follows moves. `source`: how
    `port` was found out, for people."""
    if policy.moves == "follow" or None in (port, node.home_port) or port == node.home_port:
        return ""
    return (
        f"it is on port {port}, and was on {node.home_port} before ({source}): restore it if it was"
        " moved"
    )


def remembered(node: Node, port: str | None, policy: Policy, now: float) -> dict[str, Any]:
    """Return the columns of an approved node to update after a proven boot from its present place:
    columns that were unknown, or, if the site follows moves, all that differ."""
    if node.state in UNAPPROVED or node.boot_unordered:
        return {}
    here = {
        "home_subnet": node.subnet,
        "home_circuit": node.circuit,
        "home_remote": node.remote,
        "home_port": port,
    }
    follows = policy.moves == "follow"
    differing = {
        name: value
        for name, value in here.items()
        if value is not None and (old := getattr(node, name)) != value and (follows or old is None)
    }
    return differing | {"home_at": now} if differing or node.home_at is None else {}
