"""Reservations: nodes that are kept for a request. The nodes may still be held, be on their way
back, or be free.

A reservation begins when a node is chosen to be taken for a request, or is given back in answer to
a reclaim. It ends when the request ends, when the node is given to a vcluster, and when the node
turns out to be unsuitable: it is set aside, or its hardware has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import func, insert, select

from cod.store import tables as t
from cod.store.engine import Tx, rows_among
from cod.store.rows import Rows, remove_all

_r = t.reservations.c


class Reservation(NamedTuple):
    """A row of `reservations`, without its time."""

    node_id: int
    request_id: int
    reclaim_id: int | None


_ROWS = Rows(Reservation, t.reservations)


def every(tx: Tx) -> list[Reservation]:
    """Return all reservations, by node."""
    return _ROWS.every(tx, order=_r.node_id)


def of_reclaims(tx: Tx, reclaim_ids: Sequence[int]) -> dict[int, int]:
    """Return, by node, the reclaim that the node was chosen for or was given in answer to."""
    query = select(_r.node_id, _r.reclaim_id).order_by(_r.node_id)
    return {row[0]: row[1] for row in rows_among(tx, query, _r.reclaim_id, reclaim_ids)}


def add(
    tx: Tx, node_ids: Iterable[int], request_id: int, reclaim_id: int | None, now: float
) -> None:
    """Reserve nodes for a request. Raises IntegrityError when one of them is reserved already."""
    add_all(tx, [Reservation(one, request_id, reclaim_id) for one in node_ids], now)


def add_all(tx: Tx, kept: Iterable[Reservation], now: float) -> None:
    """Reserve nodes for requests. Raises IntegrityError when one of them is reserved already."""
    rows = [one._asdict() | {"at": now} for one in sorted(kept)]
    if rows:
        tx.execute(insert(t.reservations), rows)


def promise(tx: Tx, reclaim_id: int, times: Mapping[int, float]) -> None:
    """Record by when nodes that were chosen for the reclaim are promised, by node. Former promises
    for the reclaim's other nodes are deleted."""
    _ROWS.set_where(tx, _r.reclaim_id == reclaim_id, promised_at=None)
    for node_id, at in times.items():
        _ROWS.set_where(tx, _r.node_id == node_id, _r.reclaim_id == reclaim_id, promised_at=at)


def promises(tx: Tx, reclaim_id: int) -> set[int]:
    """Return the nodes that are promised for the reclaim."""
    return set(
        tx.scalars(
            select(_r.node_id).where(_r.reclaim_id == reclaim_id, _r.promised_at.is_not(None))
        )
    )


def promised(tx: Tx, request_id: int) -> dict[int, tuple[int, float]]:
    """Return, by reclaim, the nodes that VCMs have promised for the request and their vclusters
    still hold: (how many, by when the last of them is promised)."""
    n, c = t.nodes.c, t.reclaims.c
    query = (
        select(_r.reclaim_id, func.count(), func.max(_r.promised_at))
        .join_from(t.reservations, t.nodes, _r.node_id == n.id)
        .join(t.reclaims, _r.reclaim_id == c.id)
        .where(
            _r.request_id == request_id, _r.promised_at.is_not(None), n.vcluster_id == c.vcluster_id
        )
        .group_by(_r.reclaim_id)
    )
    return {row[0]: (row[1], row[2]) for row in tx.execute(query)}


def drop(tx: Tx, node_ids: Sequence[int]) -> None:
    """Delete the reservations of those nodes."""
    remove_all(tx, _r.node_id, node_ids)


def any_for(tx: Tx, request_id: int) -> bool:
    """Return whether any node is reserved for that request."""
    return _ROWS.exists(tx, _r.request_id == request_id)


def moving(tx: Tx, group_id: int) -> dict[int, int]:
    """Return, by type, how many nodes are reserved for moves to vclusters of the group and are not
    held by the group yet."""
    n, r, taker, holder = t.nodes.c, t.node_requests.c, t.vclusters.alias(), t.vclusters.alias()
    query = (
        select(n.type_id, func.count())
        .join_from(t.reservations, t.nodes, _r.node_id == n.id)
        .join(t.node_requests, _r.request_id == r.id)
        .join(taker, r.vcluster_id == taker.c.id)
        .outerjoin(holder, n.vcluster_id == holder.c.id)
        .where(
            r.source_id.is_not(None),
            taker.c.group_id == group_id,
            n.type_id.is_not(None),
            func.coalesce(holder.c.group_id, 0) != group_id,
        )
        .group_by(n.type_id)
    )
    return {row[0]: row[1] for row in tx.execute(query)}


def clear(tx: Tx, request_ids: Sequence[int]) -> None:
    """Delete the reservations for those requests."""
    remove_all(tx, _r.request_id, request_ids)
