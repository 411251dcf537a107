"""Requests for nodes: (count, attributes, template) tuples, satisfied or rejected as a whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    and_,
    cast,
    func,
    insert,
    or_,
    select,
    update,
)

from cod.model import AskedNodes, RecordedRequest, Refused, Request, RequestTuple, set_names
from cod.states import UNDECIDED, RequestState
from cod.store import tables as t
from cod.store.engine import Among, Tx, rows_among, slices
from cod.store.rows import RowChange, Rows, update_all

_r = t.node_requests.c
ROWS = Rows(Request, t.node_requests, without=("tuples",))
TUPLES = Rows(RequestTuple, t.request_tuples)
_t = t.request_tuples.c
_TUPLES_OF = (
    select(_t.request_id, *TUPLES.columns)
    .where(Among(_t.request_id, "requests"))
    .order_by(_t.request_id, _t.position)
)
_END = update(t.node_requests).where(Among(_r.id, "requests"), _r.state.in_(UNDECIDED))
_SET = set_names(Request)
_OF_VCM = "vcm"  # keys that VCMs gave begin with it
lock_rows = ROWS.lock  # as `lock`, without tuples


def add(
    tx: Tx,
    *,
    vcluster_id: int,
    kind: str,
    priority: int,
    tuples: Sequence[RequestTuple],
    now: float,
    key: str | None = None,
    may_wait: bool = True,
    may_spread: bool = False,
    source_id: int | None = None,
    deadline: float | None = None,
    starts_at: float | None = None,
    duration: float | None = None,
    asked: AskedNodes | Request | None = None,
) -> Request:
    """Add a pending request and return it. `kind` is create, grow, replace or move; `key` is unique
    (the caller checks that first).

    may_wait    False: it is rejected unless it can be met at once; may_spread: a tuple's nodes may
                be of several blocks
    source_id, deadline  of a move, as in `model.Request`; starts_at, duration: of a reservation in
                         advance
    asked       the source of the other fields that people can set
    """
    made = ROWS.add(
        tx,
        key=key,
        vcluster_id=vcluster_id,
        kind=kind,
        state=RequestState.PENDING,
        priority=priority,
        submitted_at=now,
        may_wait=may_wait,
        may_spread=may_spread,
        source_id=source_id,
        deadline=deadline,
        starts_at=starts_at,
        duration=duration,
        **({} if asked is None else {name: getattr(asked, name) for name in _SET}),
    )
    tx.execute(
        insert(t.request_tuples),
        [
            {"request_id": made.id, "position": position, **asdict(one)}
            for position, one in enumerate(tuples)
        ],
    )
    return replace(made, tuples=tuple(tuples))


def get(tx: Tx, request_id: int, *, lock: bool = False) -> Request | None:
    """Return the request with that id; None if there is none. With `lock`, no other transaction
    decides about it until this one ends."""
    return _one(tx, _r.id == request_id, lock)


def numbered(tx: Tx, request_id: int, *, lock: bool = False) -> Request:
    """Return the request as `get` does. Raises `Refused` if there is none."""
    found = get(tx, request_id, lock=lock)
    if found is None:
        raise Refused("not_found", f"there is no request {request_id}", "id")
    return found


def lock(tx: Tx, request_ids: Collection[int]) -> dict[int, Request]:
    """Return those requests, by id. No other transaction decides about them until this one ends."""
    return {one.id: one for one in _with_tuples(tx, ROWS.lock(tx, request_ids))}


def by_key(tx: Tx, key: str) -> Request | None:
    """Return the request that a client has given that key; None if there is none."""
    return _one(tx, _r.key == key)


def keys(tx: Tx, request_ids: Sequence[int]) -> dict[int, str]:
    """Return the keys that clients gave those requests, by id; requests without a key are left
    out."""
    r = t.node_requests.c
    query = select(r.id, r.key).where(r.key.is_not(None))
    return {row[0]: row[1] for row in rows_among(tx, query, r.id, request_ids)}


def request_key(vcluster_id: int, key: str) -> str:
    """Return a VCM's own key for a request as `node_requests.key` stores it. All clients share that
    column, so the stored key names the vcluster."""
    return f"{_OF_VCM}{vcluster_id}:{key}"


def own_key(key: str | None) -> str:
    """Return the key that the VCM gave a request; '' for requests that no VCM made."""
    return (key or "").partition(":")[2] if (key or "").startswith(_OF_VCM) else ""


def every(
    tx: Tx, *, states: Iterable[str] = (), vcluster_id: int | None = None, limit: int | None = None
) -> list[Request]:
    """Return requests in any of `states` (empty: in any state) for `vcluster_id` (None: for any
    vcluster), the newest last."""
    where = (
        *([_r.state.in_(list(states))] if states else []),
        *([] if vcluster_id is None else [_r.vcluster_id == vcluster_id]),
    )
    return _with_tuples(tx, ROWS.every(tx, *where, order=_r.id.desc(), limit=limit)[::-1])


def reserved(tx: Tx) -> bool:
    """Return whether any nodes are reserved in advance."""
    return ROWS.exists(tx, _r.state == RequestState.PENDING, _r.starts_at.is_not(None))


def dated(tx: Tx) -> list[Request]:
    """Return pending requests whose nodes change hands at a known time: reservations in advance,
    and moves."""
    known = _r.starts_at.is_not(None) | _r.deadline.is_not(None)
    return _with_tuples(tx, ROWS.every(tx, _r.state == RequestState.PENDING, known, order=_r.id))


class Pending(NamedTuple):
    """A pending request as the manager's pass reads it. There may be ten thousand, so requests with
    equal tuples share one tuple object."""

    id: int
    vcluster_id: int
    priority: int
    submitted_at: float
    may_wait: bool
    may_spread: bool
    reason: str
    source_id: int | None
    starts_at: float | None
    duration: float | None
    tuples: tuple[RequestTuple, ...]


_PENDING = Rows(Pending, t.node_requests, without=("tuples",))


def pending_rows() -> Select[Any]:
    """Return the query that `pending` runs each time."""
    return _PENDING.select.where(_r.state == RequestState.PENDING).order_by(_r.id)


def pending(tx: Tx, known: Mapping[int, tuple[RequestTuple, ...]] | None = None) -> list[Pending]:
    """Return all pending requests, by id. `known`: tuples of requests that were read earlier; a
    request's tuples never change."""
    rows = tx.execute(pending_rows()).all()
    tuples = dict(known or {})
    if any(row[0] not in tuples for row in rows):
        tuples |= _pending_tuples(tx)
    return [Pending._make((*row, tuples.get(row[0], ()))) for row in rows]


def _pending_tuples(tx: Tx) -> dict[int, tuple[RequestTuple, ...]]:
    r, rt = t.node_requests.c, t.request_tuples.c
    query = (
        select(rt.request_id, *TUPLES.columns)
        .join_from(t.node_requests, t.request_tuples)
        .where(r.state == RequestState.PENDING)
        .order_by(rt.request_id, rt.position)
    )
    same: dict[tuple[Any, ...], RequestTuple] = {}
    found: dict[int, tuple[RequestTuple, ...]] = {}
    for request_id, *columns in tx.execute(query).all():
        one = same.setdefault(tuple(columns), RequestTuple(*columns))
        found[request_id] = (*found.get(request_id, ()), one)
    return found


def end(tx: Tx, request_id: int, state: RequestState, reason: str, now: float) -> bool:
    """End a request in that state, if it is undecided; return whether it was."""
    return end_all(tx, [request_id], state, reason, now) == 1


def end_all(
    tx: Tx, request_ids: Sequence[int], state: RequestState, reason: str, now: float
) -> int:
    """End those of the requests that are undecided in that state; return how many there were."""
    done = {"state": state, "reason": reason, "decided_at": now}
    return sum(
        tx.execute(_END, {"requests": part, **done}).rowcount for part in slices(request_ids)
    )


def turn(
    tx: Tx, request_id: int, before: RequestState, after: RequestState, reason: str = ""
) -> bool:
    """Change a request's state from the undecided state `before` to `after`. Return False, and
    change nothing, if the request is in another state."""
    r = t.node_requests
    done = ROWS.set_where(tx, r.c.id == request_id, r.c.state == before, state=after, reason=reason)
    return done == 1


def use_template(tx: Tx, request_id: int, template_id: int) -> None:
    """Set the template in all tuples of a request that no pass has read yet."""
    r = t.request_tuples
    TUPLES.set_where(tx, r.c.request_id == request_id, template_id=template_id)


def count_granted(tx: Tx, request_id: int, nodes: int) -> None:
    """Add to the number of nodes that a move has brought."""
    r = t.node_requests
    ROWS.set_where(tx, r.c.id == request_id, granted=r.c.granted + nodes)


def explain(tx: Tx, reasons: Mapping[int, str]) -> None:
    """Store sentences, by request id, that say why pending requests wait."""
    update_all(
        tx,
        t.node_requests,
        (
            RowChange({"id": one, "state": RequestState.PENDING}, {"reason": reason})
            for one, reason in reasons.items()
        ),
    )


def rank(tx: Tx, group_id: int, priority: int) -> None:
    """Give all undecided requests of the group's vclusters the group's new priority."""
    r, v = t.node_requests, t.vclusters.c
    own = select(v.id).where(v.group_id == group_id)
    tx.execute(
        update(r)
        .where(r.c.state.in_(UNDECIDED), r.c.vcluster_id.in_(own))
        .values(priority=priority)
    )


def _one(tx: Tx, where: ColumnElement[bool], lock: bool = False) -> Request | None:
    found = ROWS.find(tx, where, lock=lock)
    return None if found is None else _with_tuples(tx, [found])[0]


def _with_tuples(tx: Tx, rows: Sequence[Request]) -> list[Request]:
    tuples: dict[int, list[RequestTuple]] = {row.id: [] for row in rows}
    for ids in slices(list(tuples)):
        for request_id, *columns in tx.execute(_TUPLES_OF, {"requests": ids}):
            tuples[request_id].append(RequestTuple(*columns))
    return [replace(row, tuples=tuple(tuples[row.id])) for row in rows]


def waiting(tx: Tx, group_id: int) -> int:
    """Return how many requests of a group's vclusters are pending, without replacements of lost
    nodes."""
    r, v = t.node_requests.c, t.vclusters.c
    query = (
        select(func.count())
        .select_from(t.node_requests)
        .join(t.vclusters, r.vcluster_id == v.id)
        .where(r.state == RequestState.PENDING, r.kind != "replace", v.group_id == group_id)
    )
    return tx.scalar(query) or 0


def recorded(tx: Tx, since: float, until: float, limit: int) -> list[RecordedRequest]:
    """Return requests for more nodes, at most `limit` and in the order of their times, without
    withdrawn ones: those that were to begin from `since` until `until`, and those whose nodes were
    still held at `since`."""
    v, q = t.vclusters.c, t.request_tuples.c
    at = func.coalesce(_r.starts_at, _r.submitted_at)
    first = select(q.attributes).where(q.request_id == _r.id, q.position == 0).scalar_subquery()
    count = select(cast(func.sum(q.count), Integer)).where(q.request_id == _r.id).scalar_subquery()
    granted = and_(_r.state == RequestState.GRANTED, v.ended_at.is_(None) | (v.ended_at > since))
    query = (
        select(
            t.groups.c.name,
            _r.state,
            at,
            _r.decided_at,
            count,
            func.coalesce(first, ""),
            _r.may_wait,
            _r.may_spread,
            v.preemptible,
            v.lease_time,
            v.expires_at,
            v.ended_at,
        )
        .join(t.vclusters, v.id == _r.vcluster_id)
        .join(t.groups, t.groups.c.id == v.group_id)
        .where(
            _r.kind.in_(("create", "grow")),
            _r.state != RequestState.WITHDRAWN,
            at < until,
            or_(at >= since, granted, _r.state.in_(UNDECIDED)),
        )
        .order_by(at, _r.id)
        .limit(limit)
    )
    rows: list[tuple[Any, ...]] = [tuple(one) for one in tx.execute(query)]
    return [RecordedRequest(*one) for one in rows if one[4]]
