"""Orders that a node's row alone decides, which its agent gets with the answer to its message.

Every other order waits for `flows.agents.orders.waiting`, which may have to be told to look.
"""

from __future__ import annotations

from contextlib import suppress

from cod.choices import Wipe
from cod.core.nodes import kept_disks
from cod.model import AgentSession, Node, Peer, Refused, Site
from cod.orders import Order
from cod.policy.hardware import keep_marks
from cod.states import NodeState
from cod.store.engine import Tx
from cod.store.nodes import sessions

ACTIONS = {
    NodeState.WIPE: "wipe",
    NodeState.PRIME: "prime",
    NodeState.CAPTURE: "capture",
    NodeState.BURNIN: "burnin",
    NodeState.BOOT: "reboot",
    NodeState.ACTIVE: "reboot",
    NodeState.OFF: "off",
}
# In these states other rows decide. A node in the trampoline may be held.
_DECIDED_ELSEWHERE = frozenset(
    {NodeState.TRAMPOLINE, NodeState.PRIME, NodeState.CAPTURE, NodeState.BURNIN}
)


def order_id(node: Node) -> str:
    """Return the id of the node's order."""
    return f"{node.id}.{node.generation}"


def spared(node: Node, site: Site) -> tuple[str, ...]:
    """Return the marks of the disks that the node's order spares."""
    return keep_marks.for_order(node.attributes, keep_marks.marks(node, site.keep))


def plain(node: Node, site: Site) -> Order:
    """Return the order of a node about which no other row decides."""
    action = ACTIONS.get(NodeState(node.state), "wait")
    tables = action == "wipe" and node.wipe == Wipe.TABLES
    purge = Wipe.PURGE in (node.wipe, site.policy.wipe)
    erases = purge and action == "wipe" and not tables
    kept = spared(node, site)
    return Order(order_id(node), action, keep=kept, purge=erases, tables=tables)


def answer(
    tx: Tx,
    node: Node,
    session: AgentSession,
    peer: Peer,
    site: Site,
    now: float,
    *,
    about: str = "",
    reports: bool = False,
) -> Order | None:
    """Return the order that the agent gets with the answer to its message. The order counts as sent
    from now on, as those of `flows.agents.orders.waiting` do; a message that is handled twice gets
    it twice. None: that flow sends the order, the agent has to report first, or it has the order.

    session  the agent's connection, as this transaction has read it
    about    the order that the message is about, which the agent has
    reports  the message is a report: from now on orders are sent on the connection
    """
    order = _at_once(tx, node, site, now)
    sent = "" if order is None else order.id
    if reports and not session.reported:
        return order if sessions.set_reported(tx, peer, sent) else None
    if order is None or sent == about:
        return None
    return order if sent == session.order_sent or sessions.set_sent_to(tx, peer, sent) else None


def _at_once(tx: Tx, node: Node, site: Site, now: float) -> Order | None:
    """Return the node's order; None if other rows decide, or if it cannot be given."""
    if node.state in _DECIDED_ELSEWHERE:
        return None
    if node.state == NodeState.WIPE:  # disks that the order spares must not count as erased
        with suppress(Refused):
            return plain(kept_disks.remark(tx, node, site, now), site)
        return None
    return plain(node, site)
