"""Deletion of old and finished rows, a batch at a time, so that no table grows for ever. The energy
accounts are kept.

A batch is chosen first and deleted by its ids: MariaDB knows no LIMIT in a subquery of DELETE. The
newest row of a table always stays, however old it is: SQLite would reuse its id, and a client that
follows events by their ids would miss some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Column, ColumnElement, Table, delete, exists, func, select

from cod.states import UNDECIDED, ReclaimState
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.scheduler.maintenance import OPEN

Prune = Callable[[Tx, float, int], int]
"""(tx, seconds since the epoch, how many at most) -> how many rows were deleted that were done
before then."""


def node_history(tx: Tx, before: float, limit: int) -> int:
    """Delete old transitions of nodes. Each node's last transition stays."""
    h, later = t.node_history.c, t.node_history.alias().c
    return _delete(
        tx,
        t.node_history,
        h.at,
        before,
        limit,
        exists().where(later.node_id == h.node_id, later.id > h.id),
    )


def node_requests(tx: Tx, before: float, limit: int) -> int:
    """Delete decided requests with their tuples, except those that a node, a reservation or a
    reclaim names."""
    r = t.node_requests.c
    free = (
        _unnamed(r.id, column)
        for column in (t.nodes.c.request_id, t.reservations.c.request_id, t.reclaims.c.request_id)
    )
    return _delete(
        tx,
        t.node_requests,
        r.decided_at,
        before,
        limit,
        r.state.not_in(UNDECIDED),
        *free,
        with_=(t.request_tuples.c.request_id,),
    )


def reclaims(tx: Tx, before: float, limit: int) -> int:
    """Delete reclaims that are over, except those that a reservation names."""
    c = t.reclaims.c
    return _delete(
        tx,
        t.reclaims,
        c.ended_at,
        before,
        limit,
        c.state != ReclaimState.OPEN,
        _unnamed(c.id, t.reservations.c.reclaim_id),
    )


def notices(tx: Tx, before: float, limit: int) -> int:
    """Delete notices with their deliveries, except notices with a delivery under way."""
    n, s = t.notices.c, t.notice_sends.c
    return _delete(
        tx,
        t.notices,
        n.at,
        before,
        limit,
        ~exists().where(s.notice_id == n.id, s.done_at.is_(None)),
        with_=(s.notice_id, t.notice_reads.c.notice_id, t.notice_digests.c.notice_id),
    )


def conflicts(tx: Tx, before: float, limit: int) -> int:
    """Delete address and identity conflicts."""
    return _delete(tx, t.conflicts, t.conflicts.c.at, before, limit)


def vcluster_history(tx: Tx, before: float, limit: int) -> int:
    """Delete old events of vclusters."""
    return _delete(tx, t.vcluster_history, t.vcluster_history.c.at, before, limit)


def audit(tx: Tx, before: float, limit: int) -> int:
    """Delete old entries of the audit."""
    return _delete(tx, t.audit, t.audit.c.at, before, limit)


def invitations(tx: Tx, before: float, limit: int) -> int:
    """Delete links that were used or have run out."""
    return _delete(tx, t.invitations, t.invitations.c.expires_at, before, limit)


def burnins(tx: Tx, before: float, limit: int) -> int:
    """Delete burn-ins that are over."""
    return _delete(tx, t.burnins, t.burnins.c.ended_at, before, limit)


def maintenance_windows(tx: Tx, before: float, limit: int) -> int:
    """Delete windows that are over or cancelled."""
    w = t.maintenance_windows.c
    return _delete(tx, t.maintenance_windows, w.ends_at, before, limit, w.state.not_in(OPEN))


EVERY: dict[str, Prune] = {
    # What names others goes before what it names.
    "node_history": node_history,
    "reclaims": reclaims,
    "node_requests": node_requests,
    "notices": notices,
    "conflicts": conflicts,
    "vcluster_history": vcluster_history,
    "audit": audit,
    "invitations": invitations,
    "burnins": burnins,
    "maintenance_windows": maintenance_windows,
}


def _unnamed(own: Column[int], column: Column[int | None] | Column[int]) -> ColumnElement[bool]:
    return ~exists().where(column == own)


def _delete(
    tx: Tx,
    table: Table,
    at: Column[float],
    before: float,
    limit: int,
    *where: ColumnElement[bool],
    with_: Sequence[Column[int]] = (),
) -> int:
    """Delete the oldest rows before `before`, at most `limit`, that meet all conditions `where`,
    and the rows of other tables whose columns `with_` refer to them. Return how many."""
    newest = select(func.max(table.alias().c.id)).scalar_subquery()
    query = (
        select(table.c.id).where(at < before, table.c.id < newest, *where).order_by(at).limit(limit)
    )
    old = list(tx.scalars(query))
    if old:
        for column in with_:
            tx.execute(delete(column.table).where(column.in_(old)))
        tx.execute(delete(table).where(table.c.id.in_(old)))
    return len(old)
