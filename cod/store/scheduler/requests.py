"""Requests for nodes: (count, attributes, template) tuples, satisfied or rejected as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, func, insert, select, update

from cod.model import Request, RequestTuple
from cod.states import UNDECIDED, RequestState
from cod.store import tables as t
from cod.store.engine import Tx, new_id, slices

_COLUMNS = [t.node_requests.c[f.name] for f in dataclasses.fields(Request) if f.name != "tuples"]


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
) -> Request:
    """Return a new pending request. `kind` is create, grow, replace or move; `key` is unique (the
    caller looks first).

    may_wait    False: it is rejected unless it can be met at once; may_spread: a tuple's nodes may
                be of several blocks
    source_id, deadline  of a move, as in `model.Request`; starts_at, duration: of a reservation in
                         advance
    """
    request_id = new_id(
        tx.execute(
            insert(t.node_requests).values(
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
            )
        )
    )
    tx.execute(
        insert(t.request_tuples),
        [
            {
                "request_id": request_id,
                "position": position,
                "count": one.count,
                "attributes": one.attributes,
                "template_id": one.template_id,
            }
            for position, one in enumerate(tuples)
        ],
    )
    request = get(tx, request_id)
    assert request is not None
    return request


def get(tx: Tx, request_id: int, *, lock: bool = False) -> Request | None:
    """Return the request with that id; with `lock`, nobody else decides about it until this
    transaction ends."""
    return _one(tx, t.node_requests.c.id == request_id, lock)


def by_key(tx: Tx, key: str) -> Request | None:
    """Return the request that a client gave that key."""
    return _one(tx, t.node_requests.c.key == key)


def keys(tx: Tx, request_ids: Sequence[int]) -> dict[int, str]:
    """Return the keys that clients gave those requests, by id; requests without a key are left
    out."""
    r = t.node_requests.c
    found: dict[int, str] = {}
    for part in slices(request_ids):
        query = select(r.id, r.key).where(r.id.in_(part), r.key.is_not(None))
        found.update({row[0]: row[1] for row in tx.execute(query)})
    return found


def every(
    tx: Tx, *, states: Iterable[str] = (), vcluster_id: int | None = None, limit: int | None = None
) -> list[Request]:
    """Return requests in any of `states` (all, if empty) for `vcluster_id` (any, if None), newest
    last."""
    query = select(*_COLUMNS).order_by(t.node_requests.c.id.desc()).limit(limit)
    if states:
        query = query.where(t.node_requests.c.state.in_(list(states)))
    if vcluster_id is not None:
        query = query.where(t.node_requests.c.vcluster_id == vcluster_id)
    return _with_tuples(tx, list(tx.execute(query))[::-1])


def reserved(tx: Tx) -> bool:
    """Return whether any nodes are reserved in advance."""
    r = t.node_requests.c
    return (
        tx.scalar(
            select(r.id).where(r.state == RequestState.PENDING, r.starts_at.is_not(None)).limit(1)
        )
        is not None
    )


def dated(tx: Tx) -> list[Request]:
    """Return pending requests whose nodes change hands at a known time: reservations in advance,
    and moves."""
    r = t.node_requests.c
    query = select(*_COLUMNS).where(
        r.state == RequestState.PENDING, r.starts_at.is_not(None) | r.deadline.is_not(None)
    )
    return _with_tuples(tx, list(tx.execute(query.order_by(r.id))))


class Pending(NamedTuple):
    """A pending request as the manager's pass wants it. There may be ten thousand, so equal tuples
    are one object."""

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


def pending_rows() -> Select[Any]:
    """Return what `pending` reads anew each time."""
    r = t.node_requests.c
    return (
        select(
            r.id,
            r.vcluster_id,
            r.priority,
            r.submitted_at,
            r.may_wait,
            r.may_spread,
            r.reason,
            r.source_id,
            r.starts_at,
            r.duration,
        )
        .where(r.state == RequestState.PENDING)
        .order_by(r.id)
    )


def pending(tx: Tx, known: Mapping[int, tuple[RequestTuple, ...]] | None = None) -> list[Pending]:
    """Return all pending requests, by id. `known`: tuples of requests that have been read before;
    they never change."""
    rows = tx.execute(pending_rows()).all()
    tuples = dict(known or {})
    if any(row[0] not in tuples for row in rows):
        tuples |= _pending_tuples(tx)
    return [Pending._make((*row, tuples.get(row[0], ()))) for row in rows]


def _pending_tuples(tx: Tx) -> dict[int, tuple[RequestTuple, ...]]:
    r, rt = t.node_requests.c, t.request_tuples.c
    query = (
        select(rt.request_id, rt["count"], rt.attributes, rt.template_id)
        .join_from(t.node_requests, t.request_tuples)
        .where(r.state == RequestState.PENDING)
        .order_by(rt.request_id, rt.position)
    )
    same: dict[tuple[int, str, int], RequestTuple] = {}
    found: dict[int, tuple[RequestTuple, ...]] = {}
    for request_id, *columns in tx.execute(query).all():
        count, attributes, template_id = columns
        one = same.setdefault(
            (count, attributes, template_id), RequestTuple(count, attributes, template_id)
        )
        found[request_id] = (*found.get(request_id, ()), one)
    return found


def end(tx: Tx, request_id: int, state: RequestState, reason: str, now: float) -> bool:
    """End the wait of a request that is not over. False when it was: nothing was changed."""
    r = t.node_requests
    done = tx.execute(
        update(r)
        .where(r.c.id == request_id, r.c.state.in_(UNDECIDED))
        .values(state=state, reason=reason, decided_at=now)
    )
    return done.rowcount == 1


def turn(
    tx: Tx, request_id: int, before: RequestState, after: RequestState, reason: str = ""
) -> bool:
    """Bring a request from the state `before`, in which it is not over, to another one. False when
    it was in none such: nothing was changed."""
    r = t.node_requests
    done = tx.execute(
        update(r)
        .where(r.c.id == request_id, r.c.state == before)
        .values(state=after, reason=reason)
    )
    return done.rowcount == 1


def use_template(tx: Tx, request_id: int, template_id: int) -> None:
    """Ask for another template in all tuples of a request that no pass has seen."""
    r = t.request_tuples
    tx.execute(update(r).where(r.c.request_id == request_id).values(template_id=template_id))


def count_granted(tx: Tx, request_id: int, nodes: int) -> None:
    """Count further nodes that a move has brought."""
    r = t.node_requests
    tx.execute(update(r).where(r.c.id == request_id).values(granted=r.c.granted + nodes))


def explain(tx: Tx, request_id: int, reason: str) -> None:
    """Say why a pending request waits."""
    r = t.node_requests
    tx.execute(
        update(r)
        .where(r.c.id == request_id, r.c.state == RequestState.PENDING)
        .values(reason=reason)
    )


def rank(tx: Tx, group_id: int, priority: int) -> None:
    """The group's priority has changed: what it waits for has the new one."""
    r, v = t.node_requests, t.vclusters.c
    own = select(v.id).where(v.group_id == group_id)
    tx.execute(
        update(r)
        .where(r.c.state.in_(UNDECIDED), r.c.vcluster_id.in_(own))
        .values(priority=priority)
    )


def _one(tx: Tx, condition: Any, lock: bool = False) -> Request | None:
    query = select(*_COLUMNS).where(condition)
    found = _with_tuples(tx, list(tx.execute(query.with_for_update() if lock else query)))
    return found[0] if found else None


def _with_tuples(tx: Tx, rows: Sequence[Any]) -> list[Request]:
    r = t.request_tuples.c
    tuples: dict[int, list[RequestTuple]] = {row.id: [] for row in rows}
    for ids in slices(list(tuples)):
        query = select(r.request_id, r["count"], r.attributes, r.template_id).where(
            r.request_id.in_(ids)
        )
        for request_id, *columns in tx.execute(query.order_by(r.request_id, r.position)):
            tuples[request_id].append(RequestTuple(*columns))
    return [dataclasses.replace(Request(*row), tuples=tuple(tuples[row.id])) for row in rows]


def waiting(tx: Tx, group_id: int) -> int:
    """Return how many requests of a group's vclusters wait, replacements of lost nodes aside."""
    r, v = t.node_requests.c, t.vclusters.c
    query = (
        select(func.count())
        .select_from(t.node_requests)
        .join(t.vclusters, r.vcluster_id == v.id)
        .where(r.state == RequestState.PENDING, r.kind != "replace", v.group_id == group_id)
    )
    return tx.scalar(query) or 0
