"""The pool over time: nodes by state, and nodes held by each vcluster, recorded once a minute and
summed up for charts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Table, delete, func, select

from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import theirs, upsert

_n, _s, _h, _v, _k = t.nodes.c, t.pool_states.c, t.pool_held.c, t.vclusters.c, t.node_types.c

Piece = tuple[int, int, float]
"""(span, start, seconds), see `policy.usage_buckets`."""


def counts(tx: Tx) -> list[tuple[int, int, str, int]]:
    """Return the present counts of nodes: (vcluster or 0, type or 0, state, how many)."""
    holder, kind = func.coalesce(_n.vcluster_id, 0), func.coalesce(_n.type_id, 0)
    query = select(holder, kind, _n.state, func.count()).group_by(holder, kind, _n.state)
    return [(row[0], row[1], row[2], row[3]) for row in tx.execute(query)]


def add(tx: Tx, counted: Iterable[tuple[int, int, str, int]], pieces: Sequence[Piece]) -> None:
    """Add counts of nodes, as `counts` returns them, to the rows of the time spans `pieces`."""
    states: dict[tuple[int, str], int] = {}
    held: dict[tuple[int, int], int] = {}
    for holder, kind, state, count in counted:
        states[kind, state] = states.get((kind, state), 0) + count
        if holder:
            held[holder, kind] = held.get((holder, kind), 0) + count
    _put(
        tx,
        t.pool_states,
        [
            {
                "span": span,
                "start": start,
                "type_id": kind,
                "state": state,
                "seconds": count * seconds,
            }
            for span, start, seconds in pieces
            for (kind, state), count in states.items()
        ],
    )
    _put(
        tx,
        t.pool_held,
        [
            {
                "span": span,
                "start": start,
                "vcluster_id": holder,
                "type_id": kind,
                "seconds": count * seconds,
            }
            for span, start, seconds in pieces
            for (holder, kind), count in held.items()
        ],
    )


def _put(tx: Tx, table: Table, rows: list[Mapping[str, Any]]) -> None:
    if rows:
        _ADD[table.name][tx.dialect.name].write_all(tx, rows)


_ADD = {table.name: upsert(table, "seconds", add=True) for table in (t.pool_states, t.pool_held)}


def forget(tx: Tx, span: int, before: float) -> None:
    """Delete spans of that length that began before `before`."""
    for table in (t.pool_states, t.pool_held):
        tx.execute(delete(table).where(table.c.span == span, table.c.start < before))


def counted_since(tx: Tx, span: int) -> float | None:
    """Return when the first span of that length began; None if there is none."""
    found: float | None = tx.scalar(select(func.min(_s.start)).where(_s.span == span))
    return found


def held_by_type(tx: Tx, span: int, starts: Collection[int]) -> list[tuple[int, int, float]]:
    """Return (type, start, node-seconds) that all vclusters together held in the spans of that
    length that begin at `starts`."""
    query = select(_h.type_id, _h.start, func.sum(_h.seconds)).where(
        _h.span == span, _h.start.in_(starts)
    )
    return [(row[0], row[1], row[2]) for row in tx.execute(query.group_by(_h.type_id, _h.start))]


# ---------------------------------------------------------------- for people


def by_state(
    tx: Tx, span: int, first: int, last: int, kind: str = ""
) -> list[tuple[str, int, float]]:
    """Return (state, start, node-seconds) of the spans that begin from `first` to `last`; with
    `kind`, of the type of that name alone."""
    query = select(_s.state, _s.start, func.sum(_s.seconds)).where(
        _s.span == span, _s.start.between(first, last)
    )
    if kind:
        query = query.where(_s.type_id == select(_k.id).where(_k.name == kind).scalar_subquery())
    return [(row[0], row[1], row[2]) for row in tx.execute(query.group_by(_s.state, _s.start))]


def held(
    tx: Tx,
    span: int,
    first: int,
    last: int,
    by: str,
    groups: frozenset[int] | None,
    *,
    group: str = "",
    vcluster: str = "",
    type: str = "",
) -> list[tuple[str, int, float]]:
    """Return (name, start, node-seconds) that vclusters of these groups (None: all groups) held, by
    'vcluster', 'group' or 'type'. A named group, vcluster or type narrows the result to it."""
    own = _h.type_id if by == "type" else _h.vcluster_id
    query = select(own.label("own"), _h.start, func.sum(_h.seconds).label("seconds")).where(
        _h.span == span, _h.start.between(first, last), *_holders(groups, group, vcluster)
    )
    if type:
        query = query.where(_h.type_id == select(_k.id).where(_k.name == type).scalar_subquery())
    names = _names(tx, by)
    found: dict[tuple[str, int], float] = {}
    for key, start, seconds in tx.execute(query.group_by(own, _h.start)):
        place = names.get(key, ""), start
        found[place] = found.get(place, 0.0) + seconds
    return [(name, start, seconds) for (name, start), seconds in found.items()]


def _holders(groups: frozenset[int] | None, group: str, vcluster: str) -> list[ColumnElement[bool]]:
    """Return the condition that a row's vcluster matches the arguments; none if every vcluster
    does."""
    g = t.groups.c
    wanted = [
        *theirs(_v.group_id, groups),
        *([_v.name == vcluster] if vcluster else []),
        *([_v.group_id == select(g.id).where(g.name == group).scalar_subquery()] if group else []),
    ]
    return [_h.vcluster_id.in_(select(_v.id).where(*wanted))] if wanted else []


def _names(tx: Tx, by: str) -> dict[int, str]:
    """Return the names of vclusters, types, or vclusters' groups (`by`), by the id in the rows."""
    g = t.groups.c
    query = {
        "vcluster": select(_v.id, _v.name),
        "type": select(_k.id, _k.name),
        "group": select(_v.id, g.name).join_from(t.vclusters, t.groups, _v.group_id == g.id),
    }[by]
    return {row[0]: row[1] for row in tx.execute(query)}
