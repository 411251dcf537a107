"""Open connections of agents: one row a node, owned by the server that holds the connection. A
node's newest connection replaces an older one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from sqlalchemy import (
    ColumnElement,
    Integer,
    String,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    or_,
    select,
    update,
)

from cod.model import AgentSession, ImageReceiver, Node, Peer, Refused
from cod.states import Disk, NodeState
from cod.store import tables as t
from cod.store.engine import Among, Prepared, Tx
from cod.store.nodes import nodes
from cod.store.rows import RowChange, Rows, remove_all, update_all

_s = t.sessions.c
ROWS = Rows(AgentSession, t.sessions)
get, forget, count = ROWS.get, ROWS.remove, ROWS.count
_PEERS = (
    _s.node_id == bindparam("node"),
    _s.server == bindparam("by"),
    _s.epoch == bindparam("begun"),
)
_CLOSE = Prepared(delete(t.sessions).where(*_PEERS))
_FORGET_REPORTS = Prepared(
    update(t.sessions)
    .where(Among(_s.node_id, "nodes"))
    .values(reported=False, epoch=_s.epoch + bindparam("newer"))
)
_REPORTED = Prepared(update(t.sessions).where(*_PEERS).values(reported=True))
_SENT = Prepared(update(t.sessions).where(*_PEERS, _s.reported))
# the node's row comes first: every transaction that locks both rows locks the node's first
_OF_PEER = Prepared(
    nodes.ROWS.select.add_columns(*ROWS.columns)
    .join_from(t.nodes, t.sessions)
    .where(t.nodes.c.id == bindparam("node"), *_PEERS)
    .with_for_update()
)
_n = t.nodes.c
_OF_MAC = Prepared(
    nodes.ROWS.select.add_columns(*ROWS.columns)
    .outerjoin(t.sessions, _s.node_id == _n.id)
    .where(_n.id == nodes.OWNER)
    .with_for_update()
)
_ORDER = cast(_n.id, String(20)) + "." + cast(_n.generation, String(20))
_WAITING = Prepared(
    ROWS.select.add_columns(*nodes.ROWS.columns)
    .join_from(t.sessions, t.nodes)
    .where(_s.server == bindparam("by"), _s.reported, _s.order_sent != _ORDER)
    .where(_n.id.not_in(bindparam("but", expanding=True)))
    .limit(bindparam("limit", type_=Integer))
)
_SILENT = (
    nodes.ROWS.select.outerjoin(t.sessions, _s.node_id == _n.id)
    .where(_n.state == NodeState.INACTIVE, _n.since < bindparam("before"))
    .where(_s.node_id.is_(None) | (_s.last_seen < bindparam("before")))
    .limit(bindparam("limit", type_=Integer))
)
_TO_SETTLE = (
    nodes.ROWS.select.join(t.sessions)
    .where(_n.state == NodeState.TRAMPOLINE, _s.reported, ~nodes.HELD)
    .where(_s.last_seen >= bindparam("since"))
    .order_by(_n.since, _n.id)
    .limit(500)
)


def open(
    tx: Tx, node_id: int, server: str, address: str, now: float, older: AgentSession | None = None
) -> int:
    """Record a new connection of the node in place of `older`, which this transaction has read and
    locked; return the new connection's epoch.

    Epochs are milliseconds since 1970, raised if clocks disagree, so that they grow even if the row
    was deleted. The epoch of `older` may have been raised by one since it began.
    """
    epoch = max(int(now * 1000), older.epoch + 2 if older else 0)
    row = AgentSession(node_id, server, epoch, address, now, now, False, "")
    if older is None or not ROWS.replace(tx, row):
        ROWS.insert(tx, [row])
    return epoch


def of_mac(tx: Tx, mac: str) -> tuple[Node, AgentSession | None] | None:
    """Return the node that owns `mac`, and the newest connection of its agent, both locked; None:
    no node owns it."""
    row = _OF_MAC.row(tx, {"nic": mac})
    if row is None:
        return None
    at = nodes.ROWS.width
    return nodes.ROWS.read(row), None if row[at] is None else ROWS.read(row, at)


def of_peer(tx: Tx, peer: Peer) -> tuple[Node, AgentSession]:
    """Return the node that speaks on that connection, and the connection, both locked. Raises
    `Refused` ('conflict') when a newer connection has replaced it."""
    row = _OF_PEER.row(tx, _values(peer))
    if row is None:
        raise Refused("conflict", "the node has a newer connection")
    return nodes.ROWS.read(row), ROWS.read(row, nodes.ROWS.width)


def close(tx: Tx, peer: Peer) -> bool:
    """Delete the connection of `peer`, which has ended; return False, and delete nothing, when a
    newer connection has replaced it."""
    return _CLOSE.write(tx, _values(peer)) == 1


def connected(tx: Tx, node_ids: Collection[int]) -> set[int]:
    """Return those of the nodes that have an open connection."""
    if not node_ids:
        return set()
    return set(tx.scalars(select(_s.node_id).where(_s.node_id.in_(node_ids))))


def hand_over(tx: Tx, peer: Peer, node_id: int) -> Peer:
    """Give the connection to another node, which must have none, and return its new key."""
    ROWS.set_where(tx, *_is(peer), node_id=node_id)
    return replace(peer, node_id=node_id)


def set_reported(tx: Tx, peer: Peer, order: str = "") -> bool:
    """Record that the agent has reported on this connection, and that the order with this id was
    sent on it; '': the agent waits for one. Return whether the connection is the node's newest."""
    sent = {"order_sent": order} if order else {}
    return _REPORTED.write(tx, _values(peer) | sent) == 1


def set_sent_to(tx: Tx, peer: Peer, order: str) -> bool:
    """Record that the order with this id was sent on the connection; return False, and record
    nothing, if no order may be sent on it, or if it is no longer the node's newest."""
    return _SENT.write(tx, _values(peer) | {"order_sent": order}) == 1


def forget_all(tx: Tx, node_ids: Sequence[int]) -> None:
    """Forget the connections of those nodes."""
    remove_all(tx, _s.node_id, node_ids)


def forget_reports(tx: Tx, node_ids: Sequence[int], *, newer: bool = False) -> None:
    """Send no more orders on the nodes' connections, as the nodes are about to lose their power.
    Their agents have to report again, and on newer connections if `newer`."""
    _FORGET_REPORTS.write(tx, {"nodes": node_ids, "newer": int(newer)})


def set_sent(tx: Tx, sent: Iterable[tuple[int, int, str]]) -> None:
    """Record the order that was sent last on connections: (node id, epoch of the connection, id of
    the order or '')."""
    # by id, as `touch` meets them: two that lock each other's rows would both have to begin again
    rows = (
        RowChange({"node_id": node, "epoch": epoch}, {"order_sent": order})
        for node, epoch, order in sorted(sent)
    )
    update_all(tx, t.sessions, rows)


def waiting(
    tx: Tx, server: str, but: Collection[int] = (), limit: int = 200
) -> list[tuple[Node, AgentSession]]:
    """Return nodes connected to `server` whose present order is not the one sent last on their
    connection, except the nodes `but`."""
    rows = _WAITING.rows(tx, {"by": server, "but": list(but), "limit": limit})
    return [(nodes.ROWS.read(row, ROWS.width), ROWS.read(row)) for row in rows]


def image_receivers(tx: Tx, node_ids: Collection[int]) -> list[ImageReceiver]:
    """Return the nodes that are being primed with the same templates as `node_ids` and whose agents
    have reported. They are in the order in which their priming began; nodes that began together, in
    the order of blocks and switch ports."""
    n, v, some = t.nodes.c, t.vclusters.c, t.nodes.alias().c
    own = and_(n.disk == Disk.TABLES, n.cached_group_id == v.group_id)
    near = (func.coalesce(n.block_id, 0), func.coalesce(n.remote, ""), func.coalesce(n.circuit, ""))
    query = (
        select(
            n.id,
            n.generation,
            n.name,
            n.template_id,
            n.subnet,
            _s.address,
            case((or_(n.disk == Disk.CLEAN, own), True), else_=False),
            n.progress_phase,
        )
        .join_from(t.nodes, t.sessions, _s.node_id == n.id)
        .join(t.vclusters, v.id == n.vcluster_id)
        .where(n.state == NodeState.PRIME, _s.reported)
        .where(n.template_id.in_(select(some.template_id).where(some.id.in_(node_ids))))
        .order_by(n.since, *near, n.id)
    )
    return [ImageReceiver(*row) for row in tx.execute(query)]


def of_server(tx: Tx, server: str) -> dict[int, int]:
    """Return the epochs of the connections that `server` holds, by node."""
    return {
        row[0]: row[1]
        for row in tx.execute(select(_s.node_id, _s.epoch).where(_s.server == server))
    }


def peers_of(tx: Tx, server: str) -> list[Peer]:
    """Return the connections that `server` holds as peers. Their MACs are not stored, so they are
    ''."""
    return [Peer(node_id, server, epoch, "") for node_id, epoch in of_server(tx, server).items()]


def touch(tx: Tx, server: str, now: float) -> None:
    """Record that `server` still holds its connections."""
    ROWS.set_where(tx, _s.server == server, last_seen=now)


def seen(tx: Tx, when: Iterable[tuple[int, float]]) -> None:
    """Record when nodes last sent something: (node, time) pairs."""
    update_all(tx, t.nodes, (RowChange({"id": node}, {"last_seen": at}) for node, at in when))


def silent(tx: Tx, before: float, limit: int = 200) -> list[Node]:
    """Return nodes that have been in the warm reserve since before `before`, and have no connection
    that a server has confirmed since `before`.

    Such nodes remain when the server that held their connections has died for good.
    """
    return nodes.ROWS.all(tx, _SILENT, {"before": before, "limit": limit})


def to_settle(tx: Tx, since: float) -> list[Node]:
    """Return nodes in the trampoline that can be settled: their agents have reported, on
    connections that a server has confirmed since `since`. Nodes that are held are left out."""
    return nodes.ROWS.all(tx, _TO_SETTLE, {"since": since})


def _values(peer: Peer) -> dict[str, int | str]:
    return {"node": peer.node_id, "by": peer.server, "begun": peer.epoch}


def _is(peer: Peer) -> tuple[ColumnElement[bool], ...]:
    return _s.node_id == peer.node_id, _s.server == peer.server, _s.epoch == peer.epoch
