"""Maintenance windows, and the nodes of windows that are not over."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import case, delete, func, insert, or_, select, update

from cod.model import IN_MAINTENANCE, MaintenanceWindow, Node, RecordedWindow
from cod.states import OWN_SYSTEM, UNAPPROVED, WORKING, NodeState, WindowState
from cod.store import tables as t
from cod.store.engine import Tx, grouped, rows_among, slices
from cod.store.nodes import nodes
from cod.store.rows import Rows
from cod.store.scheduler import node_counts

OPEN = (WindowState.PLANNED, WindowState.RUNNING)
_w, _m, _n = t.maintenance_windows.c, t.maintenance_nodes.c, t.nodes.c
_ROWS = Rows(MaintenanceWindow, t.maintenance_windows, noun="maintenance window")
_NOT_OURS = (*sorted(UNAPPROVED), NodeState.RETIRED)
# Work on a node's disks, and tests, may end, unless the window has begun.
_AT_WORK = (*sorted(WORKING), *sorted(OWN_SYSTEM))
add, get, numbered, change = _ROWS.add, _ROWS.get, _ROWS.numbered, _ROWS.change


def open_(tx: Tx) -> list[MaintenanceWindow]:
    """Return the windows that are not over, by their ids."""
    return _ROWS.every(tx, _w.state.in_(OPEN), order=_w.id)


def every(tx: Tx, since: float) -> list[MaintenanceWindow]:
    """Return the windows that are not over, and those that ended at `since` or later."""
    return _ROWS.every(
        tx, or_(_w.state.in_(OPEN), _w.ends_at >= since), order=(_w.begins_at, _w.id)
    )


def recorded(tx: Tx, since: float, until: float) -> list[RecordedWindow]:
    """Return windows with their nodes, by id, for a replay of the time from `since` to `until`.

    A window counts if it has a beginning, was made before `until` and did not end before `since`.
    The nodes of a window that is over are those that, by the history, were put out of service for
    its reason. Nodes that are out of service for another reason are left out, as are windows
    without nodes.
    """
    h = t.node_history.c
    found = []
    for window in _ROWS.every(
        tx,
        _w.state.in_(OPEN) | ((_w.state == WindowState.OVER) & (_w.ends_at > since)),
        _w.begins_at.is_not(None),
        _w.created_at < until,
        order=_w.id,
    ):
        ids = select(_m.node_id).where(_m.window_id == window.id)
        if window.state == WindowState.OVER:
            ids = select(h.node_id).where(
                h["at"].between(window.since, window.ends_at),
                h.to_state == NodeState.QUARANTINED,
                h.cause.startswith(IN_MAINTENANCE),
                h.cause.endswith(f": {window.reason}", autoescape=True),
            )
        if nodes_of := node_counts.in_service(tx, ids):
            found.append(RecordedWindow(window, nodes_of))
    return found


def close(
    tx: Tx, window: MaintenanceWindow, state: WindowState, **columns: Any
) -> MaintenanceWindow:
    """End the window and return the changed one. All nodes are removed from it, and another window
    may use its bit."""
    clear(tx, window.id)
    return change(tx, window, state=state, bit=-window.id, **columns)


def put(tx: Tx, window: MaintenanceWindow, node_ids: Collection[int]) -> None:
    """Add nodes to the window."""
    existing = set(tx.scalars(select(_m.node_id).where(_m.window_id == window.id)))
    rows = [
        {"node_id": one, "window_id": window.id, "bit": window.bit, "taken": False}
        for one in sorted(set(node_ids) - existing)
    ]
    if rows:
        tx.execute(insert(t.maintenance_nodes), rows)


def clear(tx: Tx, window_id: int, node_ids: Sequence[int] | None = None) -> None:
    """Remove nodes from the window; None: all nodes."""
    own = delete(t.maintenance_nodes).where(_m.window_id == window_id)
    if node_ids is None:
        tx.execute(own)
    for part in slices(node_ids or ()):
        tx.execute(own.where(_m.node_id.in_(part)))


def ours(tx: Tx, node_ids: Sequence[int] | None = None) -> list[int]:
    """Return the ids of those of the nodes `node_ids` (None: of all nodes) that can be in a window:
    those that are approved and not retired."""
    query = select(_n.id).where(_n.state.not_in(_NOT_OURS))
    if node_ids is None:
        return list(tx.scalars(query))
    return [row[0] for row in rows_among(tx, query, _n.id, node_ids)]


def to_take(tx: Tx, window_id: int, most: int, *, held: bool) -> list[Node]:
    """Return at most `most` nodes of the window that have still to be put out of service, locked.
    `held`: also nodes that have a holder or are at work; otherwise only free ones."""
    query = (
        select(_n.id)
        .join_from(t.maintenance_nodes, t.nodes, _m.node_id == _n.id)
        .where(
            _m.window_id == window_id,
            _n.state.not_in((*_NOT_OURS, NodeState.QUARANTINED)),
            ~nodes.HELD,  # when the window is over its disks would be erased
        )
    )
    if not held:
        query = query.where(_n.vcluster_id.is_(None), _n.state.not_in(_AT_WORK))
    return nodes.lock(tx, tx.scalars(query.order_by(_n.id).limit(most)))


def set_taken(tx: Tx, window_id: int, node_ids: Sequence[int]) -> None:
    """Record that the window has put the nodes out of service."""
    for part in slices(node_ids):
        tx.execute(
            update(t.maintenance_nodes)
            .where(_m.window_id == window_id, _m.node_id.in_(part))
            .values(taken=True)
        )


def taken(tx: Tx, type_ids: Collection[int]) -> dict[str, int]:
    """Return how many nodes of those types windows have put out of service, by the nodes'
    reason."""
    query = (
        select(_n.reason, func.count())
        .join_from(t.maintenance_nodes, t.nodes, _m.node_id == _n.id)
        .where(_m.taken, _n.state == NodeState.QUARANTINED, _n.type_id.in_(list(type_ids)))
        .group_by(_n.reason)
        .order_by(_n.reason)
    )
    return {row[0]: row[1] for row in tx.execute(query)}


def let_go(tx: Tx, node_id: int | None = None) -> None:
    """Record that windows no longer return the node (None: any node) to service: an administrator
    decides about it."""
    given_up = update(t.maintenance_nodes).where(_m.taken).values(taken=False)
    tx.execute(given_up if node_id is None else given_up.where(_m.node_id == node_id))


def to_return(tx: Tx, window_id: int, most: int) -> list[Node]:
    """Return at most `most` nodes that the window has put out of service and that are still in it,
    locked."""
    query = select(_m.node_id).where(_m.window_id == window_id, _m.taken)
    return nodes.lock(tx, tx.scalars(query.order_by(_m.node_id).limit(most)))


def in_others(tx: Tx, window_id: int, node_ids: Sequence[int]) -> dict[int, int]:
    """Return the nodes that are in another running window, each with the id of such a window."""
    query = (
        select(_m.node_id, _m.window_id)
        .join_from(t.maintenance_nodes, t.maintenance_windows, _w.id == _m.window_id)
        .where(_m.window_id != window_id, _w.state == WindowState.RUNNING)
    )
    return {row[0]: row[1] for row in rows_among(tx, query, _m.node_id, node_ids)}


def set_reason(tx: Tx, window_id: int, reason: str) -> None:
    """Change the reason of the nodes that the window has put out of service."""
    taken = select(_m.node_id).where(_m.window_id == window_id, _m.taken)
    nodes.ROWS.set_where(tx, _n.state == NodeState.QUARANTINED, _n.id.in_(taken), reason=reason)


class WindowCount(NamedTuple):
    """The number of nodes of a window that one vcluster holds (None: nodes without a holder), and
    how many of these nodes are out of service."""

    window_id: int
    vcluster_id: int | None
    nodes: int
    out: int


def counts(tx: Tx, window_ids: Sequence[int]) -> list[WindowCount]:
    """Return the numbers of nodes in these windows, one row for each window and holder."""
    out = case((_n.state == NodeState.QUARANTINED, 1), else_=0)
    query = (
        select(_m.window_id, _n.vcluster_id, func.count(), func.sum(out))
        .join_from(t.maintenance_nodes, t.nodes, _m.node_id == _n.id)
        .group_by(_m.window_id, _n.vcluster_id)
    )
    return [
        WindowCount(row[0], row[1], row[2], int(row[3]))
        for row in rows_among(tx, query, _m.window_id, window_ids)
    ]


def held_names(tx: Tx, window_id: int) -> dict[int, list[str]]:
    """Return the names of the window's nodes that vclusters hold, by vcluster id: the host name, or
    the node's own name if it has no host name."""
    query = (
        select(_n.vcluster_id, func.coalesce(_n.hostname, _n.name))
        .join_from(t.maintenance_nodes, t.nodes, _m.node_id == _n.id)
        .where(_m.window_id == window_id, _n.vcluster_id.is_not(None))
        .order_by(_n.vcluster_id, _n.name)
    )
    return grouped(tx.execute(query))


def of_vcluster(tx: Tx, vcluster_id: int) -> list[tuple[MaintenanceWindow, list[str]]]:
    """Return the windows that are not over and contain nodes of the vcluster, each with the host
    names of these nodes."""
    query = (
        select(_m.window_id, func.coalesce(_n.hostname, _n.name))
        .join_from(t.maintenance_nodes, t.nodes, _m.node_id == _n.id)
        .where(_n.vcluster_id == vcluster_id)
        .order_by(_n.id)
    )
    names = grouped(tx.execute(query))
    return [(one, names[one.id]) for one in open_(tx) if one.id in names] if names else []


def node_names(tx: Tx, window_id: int) -> list[str]:
    """Return the names of the nodes of the window."""
    query = select(_n.name).join_from(t.maintenance_nodes, t.nodes, _m.node_id == _n.id)
    return list(tx.scalars(query.where(_m.window_id == window_id)))
