"""Expected starts of waiting requests, and the requests' real starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, delete, exists, func, insert, select, update

from cod.states import UNDECIDED, RequestState
from cod.store import tables as t
from cod.store.engine import Tx, rows_among, slices
from cod.store.rows import Rows

_s, _r = t.request_starts.c, t.node_requests.c


class StartRow(NamedTuple):
    """The expected start of a waiting request, as people were last told it."""

    request_id: int
    starts_at: float | None
    why: str
    sooner_nodes: int | None
    sooner_at: float | None


_STARTS = Rows(StartRow, t.request_starts)


class Begun(NamedTuple):
    """A request that began: the first start that people were told, when they were told it, and the
    real start. None if they were told none."""

    first_at: float | None
    first_told_at: float | None
    began_at: float


def waiting(tx: Tx) -> dict[int, StartRow]:
    """Return the expected starts of waiting requests, by request."""
    return {one.request_id: one for one in _STARTS.every(tx, _s.began_at.is_(None))}


class Expected(NamedTuple):
    """A waiting request, its expected start, and the number of nodes that it requests."""

    request_id: int
    vcluster_id: int
    at: float
    nodes: int


def expected(tx: Tx) -> list[Expected]:
    """Return the requests with an expected start, without those that begin at a known time."""
    rt = t.request_tuples.c
    query = (
        select(_r.id, _r.vcluster_id, _s.starts_at, func.sum(rt["count"]))
        .join_from(t.request_starts, t.node_requests, _s.request_id == _r.id)
        .join(t.request_tuples, rt.request_id == _r.id)
        .where(
            _r.state == RequestState.PENDING,
            _s.began_at.is_(None),
            _s.starts_at.is_not(None),
            _r.starts_at.is_(None),
            _r.deadline.is_(None),
        )
        .group_by(_r.id, _r.vcluster_id, _s.starts_at)
        .order_by(_r.id)
    )
    return [Expected(row[0], row[1], row[2], int(row[3])) for row in tx.execute(query)]


def tell(tx: Tx, forecast: Sequence[StartRow], known: Mapping[int, StartRow], now: float) -> None:
    """Store the expected starts of those requests that still wait. `known`: the result of `waiting`
    for these requests."""
    pending = select(_r.id).where(_r.state == RequestState.PENDING)
    asked = [one.request_id for one in forecast]
    still = {row[0] for row in rows_among(tx, pending, _r.id, asked)}
    forecast = [one for one in forecast if one.request_id in still]
    new = [
        {
            **one._asdict(),
            "told_at": now,
            "first_at": one.starts_at,
            "first_told_at": None if one.starts_at is None else now,
        }
        for one in forecast
        if one.request_id not in known
    ]
    if new:
        tx.execute(insert(t.request_starts), new)
    changed = [
        {"own": one.request_id, **dict(zip(StartRow._fields[1:], one[1:], strict=True))}
        for one in forecast
        if one.request_id in known
    ]
    if changed:
        columns: dict[str, Any] = {name: bindparam(name) for name in StartRow._fields[1:]}
        tx.execute(
            update(t.request_starts)
            .where(_s.request_id == bindparam("own"))
            .values(**columns, told_at=now),
            changed,
        )
    first = [one for one in forecast if one.request_id in known and one.starts_at is not None]
    for part in slices([one.request_id for one in first]):
        tx.execute(
            update(t.request_starts)
            .where(_s.request_id.in_(part), _s.first_at.is_(None))
            .values(first_at=_s.starts_at, first_told_at=now)
        )


def settle(tx: Tx, before: float) -> None:
    """Record which requests have begun. Delete the rows of requests that ended otherwise, and of
    those that began before `before`."""
    began = (
        select(_r.decided_at)
        .where(_r.id == _s.request_id, _r.state == RequestState.GRANTED)
        .scalar_subquery()
    )
    granted = exists().where(_r.id == _s.request_id, _r.state == RequestState.GRANTED)
    waits = exists().where(_r.id == _s.request_id, _r.state.in_(UNDECIDED))
    open_ = _s.began_at.is_(None)
    _STARTS.set_where(tx, open_, granted, began_at=began)
    tx.execute(delete(t.request_starts).where(open_, ~waits))
    tx.execute(delete(t.request_starts).where(_s.began_at < before))


def begun(tx: Tx, since: float) -> list[Begun]:
    """Return the requests that have begun since `since`."""
    query = select(_s.first_at, _s.first_told_at, _s.began_at).where(_s.began_at >= since)
    return [Begun(*row) for row in tx.execute(query)]
