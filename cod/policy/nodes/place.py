"""The place where a node boots: its subnet, its switch port by option 82, and its port by LLDP.

The place is remembered when the node is approved, or at its first proven boot after that. DHCP
gives no answer elsewhere (`policy.nodes.boot.elsewhere`); what LLDP says is known when the agent
reports.
"""

from __future__ import annotations

from typing import Any

from cod.model import Node, Policy, Switch
from cod.policy.nodes import switch_ports
from cod.states import NodeState

STRANGE = (NodeState.NEW, NodeState.REGISTERING)
FIELDS = ("subnet", "circuit", "remote", "port")
FORGOTTEN: dict[str, Any] = dict.fromkeys(
    ("home_at", "home_subnet", "home_circuit", "home_remote", "home_port")
)


def port_of(report_xml: str, mac: str, switches: tuple[Switch, ...]) -> str | None:
    """Return the port of the site's switches that the NIC is on, 'SWITCH PORT', as a hardware
    report says; None: it does not say."""
    if not switches:
        return None
    for seen in switch_ports.neighbours(report_xml):
        if seen.mac == mac and (found := switch_ports.place(switches, seen.switch, seen.port)):
            return " ".join(found)
    return None


def moved(node: Node, port: str | None, policy: Policy) -> str:
    """Return why the node, reporting from `port`, is not where it was, a sentence; '' if it is, or
    if nothing tells."""
    if policy.moves == "follow" or None in (port, node.home_port) or port == node.home_port:
        return ""
    return (
        f"it is on port {port}, and was on {node.home_port} before (LLDP): restore it if it was"
        " moved"
    )


def remembered(node: Node, port: str | None, policy: Policy, now: float) -> dict[str, Any]:
    """Return the columns of an approved node that change because it has booted, proven, from where
    it is now: what was not known of its place, or all of it where the site follows moves."""
    if node.state in STRANGE or node.boot_unordered:
        return {}
    here = {
        "home_subnet": node.subnet,
        "home_circuit": node.circuit,
        "home_remote": node.remote,
        "home_port": port,
    }
    follows = policy.moves == "follow"
    news = {
        name: value
        for name, value in here.items()
        if value is not None and (old := getattr(node, name)) != value and (follows or old is None)
    }
    return news | {"home_at": now} if news or node.home_at is None else {}
