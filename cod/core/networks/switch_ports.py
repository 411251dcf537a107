"""Switch ports of nodes: the VLAN that a node's port should be in, whether it is, and where its
NICs are plugged in.

A wish is a row (`store.nodes.switch_ports`); the edge in `cod.switches` carries it out and reads it
back. Only the port of a node's boot NIC is changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from cod.model import Effect, Node, Refused, Switch, SwitchPort
from cod.policy.nodes import switch_ports as policy
from cod.store.engine import Tx
from cod.store.nodes import conflicts
from cod.store.nodes import switch_ports as store

WAKE = Effect("wake", "switches")
AGAIN = 3600.0  # seconds in which the same doubt about a port is recorded once


def want(tx: Tx, node: Node, vlan: int | None, now: float) -> tuple[Effect, ...]:
    """Request that the port of the node's boot NIC is put into `vlan`; None: into its switch's
    provisioning VLAN. Return the effect that wakes the switches' edge.

    Nothing changes, and no effect is returned, if the same VLAN is requested already, unless COD
    has given that change up. A port that COD has never changed counts as in the provisioning VLAN.
    Raises `Refused` if the port is not known and `vlan` is not None.
    """
    port = store.of_mac(tx, node.boot_mac, lock=True)
    if port is None:
        if vlan is not None:
            raise Refused(
                "conflict",
                f"node {node.name}: the switch port of its boot NIC {node.boot_mac} is not known:"
                " its switch should send LLDP, or an administrator should enter the port",
                "vlan",
            )
        return ()
    if port.wanted_vlan == vlan and not port.given_up:
        return ()
    store.wish(tx, port, vlan, now)
    return (WAKE,)


def leave(tx: Tx, node: Node, now: float) -> bool:
    """Request that the node's port is put into the provisioning VLAN. Return False if the port is
    not known, or the same is requested already."""
    return bool(want(tx, node, None, now))


def leave_all(tx: Tx, nodes: Sequence[Node], now: float) -> None:
    """Request that the nodes' known ports are put into the provisioning VLAN."""
    known = store.known(tx, [node.boot_mac for node in nodes])
    for node in nodes:
        if node.boot_mac in known:
            leave(tx, node, now)


def arrived(tx: Tx, node: Node) -> bool:
    """Return whether the port of the node's boot NIC was read back from its switch in the wanted
    VLAN. True for a node whose port is not known: no VLAN can be wanted for it."""
    port = store.of_mac(tx, node.boot_mac)
    return port is None or not port.pending


def sighted(
    tx: Tx, node: Node, report_xml: str, macs: Sequence[str], switches: Sequence[Switch], now: float
) -> None:
    """Store to which switch ports the node's NICs are connected, by the node's hardware report.
    `macs` are the addresses of all its NICs."""
    for port in store.of_node(tx, node.id):
        if port.mac not in macs:
            vacate(tx, port, now)
    for seen in policy.neighbours(report_xml):
        found = policy.place(switches, seen.switch, seen.port)
        if found is None or seen.mac not in macs:
            continue
        if policy.is_for_nodes(switches, *found):
            connect(tx, node, seen.mac, *found, source="lldp", now=now)
        else:
            _doubt(tx, node, seen.mac, *found, "which is not for nodes (nodes_on)", now)


def connect(
    tx: Tx,
    node: Node,
    mac: str,
    switch: str,
    port: str,
    *,
    source: str,
    now: float,
    seen_at: float | None = None,
) -> SwitchPort | None:
    """Record that the node's NIC is connected to that port; return the port, or None if the source
    is LLDP and is not believed. `seen_at` is when the source said so; None: now.

    LLDP never changes a manual entry of the NIC or of the port. The requested VLAN of a NIC that
    has moved applies to its new port, and its old port goes back to the provisioning VLAN. A report
    can lie, so LLDP alone cannot take a port from another NIC: that is recorded as a conflict.
    """
    existing = store.at(tx, switch, port, lock=True)
    own = store.of_mac(tx, mac, lock=True)
    heard = source == "lldp"
    seen_at = now if seen_at is None else seen_at
    if own is not None and existing is not None and own.id == existing.id:
        kept = "manual" if own.source == "manual" else source
        return store.change(tx, own, node_id=node.id, source=kept, seen_at=seen_at)
    if heard and own is not None and own.source == "manual":
        return None
    if existing is not None and existing.mac is not None:
        if heard and (existing.node_id != node.id or existing.source == "manual"):
            by = "a manual entry" if existing.source == "manual" else "an earlier report"
            _doubt(tx, node, mac, switch, port, f"where {existing.mac} is by {by}", now)
            return None
        existing = vacate(tx, existing, now)
    wanted = None if own is None else own.wanted_vlan
    if own is not None:
        vacate(tx, own, now)
    if existing is None:
        found = store.add(
            tx, switch=switch, port=port, node_id=node.id, mac=mac, source=source, now=seen_at
        )
    else:
        found = store.change(tx, existing, node_id=node.id, mac=mac, source=source, seen_at=seen_at)
    return found if wanted is None else store.wish(tx, found, wanted, now)


def vacate(tx: Tx, port: SwitchPort, now: float) -> SwitchPort:
    """Remove the NIC from its port, and request that the port is put into the provisioning VLAN.
    Return the changed port."""
    left = store.change(tx, port, node_id=None, mac=None)
    return (
        left if left.wanted_vlan is None and not left.given_up else store.wish(tx, left, None, now)
    )


def _doubt(tx: Tx, node: Node, mac: str, switch: str, port: str, but: str, now: float) -> None:
    about = f"{node.name} says that its NIC is on port {port} of switch {switch}, {but}"
    conflicts.add_once(
        tx, "switch", about, now, within=AGAIN, same=("mac", "about"), subnet=node.subnet, mac=mac
    )
