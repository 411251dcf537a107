"""Further places of a node, besides the one in its row: places where its MAC was heard, some of
which an administrator has approved."""

from __future__ import annotations

from cod.model import DhcpQuery, Node, NodePlace
from cod.store.engine import Tx
from cod.store.nodes import nodes

AGAIN = 60.0  # seconds between two notes that the same place was heard
MOST = 4  # places of a node that are not approved
KEPT = 86400.0  # seconds after which such a place may be replaced by another


def may_ask(tx: Tx, node_id: int, query: DhcpQuery, subnet: str) -> bool:
    """Return whether the place that a message comes from is approved."""
    here = (subnet, query.circuit, query.remote)
    return any(
        each.approved and (each.subnet, each.circuit, each.remote) == here
        for each in nodes.places(tx, node_id)
    )


def ports(tx: Tx, node_id: int) -> list[str]:
    """Return the ports of the approved places, as far as they are known."""
    return [each.port for each in nodes.places(tx, node_id) if each.approved and each.port]


def of_report(tx: Tx, node: Node, port: str | None) -> NodePlace | None:
    """Return the approved place that a node reports from. Places are compared by their switch
    ports, if both are known; otherwise by subnet and option 82, and the port is stored."""
    here = (node.subnet, node.circuit, node.remote)
    for each in nodes.places(tx, node.id):
        if not each.approved:
            continue
        if each.port and port:
            if each.port == port:
                return each
        elif (each.subnet, each.circuit, each.remote) == here:
            if port:
                nodes.change_place(tx, each.id, port=port)
            return each
    return None


def heard(
    tx: Tx,
    node_id: int,
    now: float,
    *,
    subnet: str | None,
    circuit: str | None,
    remote: str | None,
    port: str | None = None,
) -> None:
    """Record that the node's MAC was heard at a place. Forged messages cannot fill the table: a
    node has at most `MOST` places that are not approved, which may be replaced after a day."""
    here = (subnet, circuit, remote, port)
    unapproved = [place for place in nodes.places(tx, node_id) if not place.approved]
    for place in unapproved:
        if (place.subnet, place.circuit, place.remote, place.port) == here:
            if place.heard_at <= now - AGAIN:
                nodes.change_place(tx, place.id, heard_at=now)
            return
    if len(unapproved) >= MOST:
        oldest = min(unapproved, key=lambda place: place.heard_at)
        if oldest.heard_at > now - KEPT:
            return
        nodes.remove_place(tx, oldest.id)
    nodes.add_place(tx, node_id, now, subnet=subnet, circuit=circuit, remote=remote, port=port)
