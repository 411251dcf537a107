"""The energy accounts: nodes counted by state, type and holder; energy by day, group and type."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, astuple
from typing import Any

from sqlalchemy import ColumnElement, case, delete, func, or_, select, update

from cod.model import EnergyUse, VclusterEnergy
from cod.states import Disk, NodeState
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Rows, theirs, upsert

DELETED = "(deleted)"

_n, _e, _v = t.nodes.c, t.energy_use.c, t.vcluster_energy.c
ROWS = Rows(EnergyUse, t.energy_use)
_ADD_VCLUSTERS = upsert(t.vcluster_energy, "seconds", "joules", "always_on", "grams", add=True)
_SUMS = (func.sum(_e.seconds), func.sum(_e.joules), func.sum(_e.always_on), func.sum(_e.grams))


def nodes(tx: Tx) -> list[Any]:
    """Return the numbers of nodes that have a type: rows (state, type_id, group of the holder or 0,
    nodes, vcluster or 0)."""
    own = (
        select(_n.vcluster_id, _n.state, _n.type_id, func.count().label("nodes"))
        .where(_n.type_id.is_not(None))
        .group_by(_n.vcluster_id, _n.state, _n.type_id)
        .subquery()
    )
    group, vcluster = func.coalesce(t.vclusters.c.group_id, 0), func.coalesce(own.c.vcluster_id, 0)
    query = select(own.c.state, own.c.type_id, group, own.c.nodes, vcluster).select_from(
        own.outerjoin(t.vclusters, t.vclusters.c.id == own.c.vcluster_id)
    )
    return [tuple(row) for row in tx.execute(query)]


def measured(tx: Tx, since: float) -> list[Any]:
    """Return the watts that BMCs measure of nodes that have been in their state since `since` or
    longer: rows (type_id, state, watts, nodes, vcluster or 0)."""
    holder = func.coalesce(_n.vcluster_id, 0)
    query = select(_n.type_id, _n.state, func.sum(_n.watts), func.count(), holder)
    steady = query.where(_n.watts.is_not(None), _n.type_id.is_not(None), _n.since <= since)
    return [tuple(row) for row in tx.execute(steady.group_by(_n.type_id, _n.state, holder))]


def reserve(tx: Tx) -> dict[tuple[int, str], int]:
    """Return how many free nodes of each type are 'warm', 'cold', or 'waking' (clean, and on their
    way to the trampoline)."""
    names = {NodeState.INACTIVE: "warm", NodeState.OFF: "cold", NodeState.TRAMPOLINE: "waking"}
    query = select(_n.type_id, _n.state, func.count()).where(
        _n.vcluster_id.is_(None),
        _n.released == 0,
        _n.type_id.is_not(None),
        _n.state.in_(names),
        or_(_n.state != NodeState.TRAMPOLINE, _n.disk != Disk.DIRTY),
    )
    rows = tx.execute(query.group_by(_n.type_id, _n.state))
    return {(type_id, names[NodeState(state)]): count for type_id, state, count in rows}


# ---------------------------------------------------------------- the accounts


def add(tx: Tx, uses: Iterable[EnergyUse]) -> None:
    """Add to the accounts; the rows of these days are rewritten. The caller has moved the mark in
    this transaction."""
    new: dict[tuple[int, int, int], tuple[Any, ...]] = {}
    for use in uses:
        _put(new, astuple(use))
    days = sorted({day for day, _, _ in new})
    if not days:
        return
    between = _e.day.between(days[0], days[-1])
    for use in ROWS.every(tx, between):
        _put(new, astuple(use))
    tx.execute(delete(t.energy_use).where(between))
    ROWS.insert(tx, [EnergyUse(*values) for values in new.values()])


def _put(rows: dict[tuple[int, int, int], tuple[Any, ...]], row: tuple[Any, ...]) -> None:
    key = row[:3]
    sums = rows[key][3:] if key in rows else (0.0,) * 4
    rows[key] = (*key, *(old + more for old, more in zip(sums, row[3:], strict=True)))


def add_vclusters(tx: Tx, uses: Iterable[VclusterEnergy]) -> None:
    """Add to the accounts of vclusters."""
    rows = [asdict(use) for use in uses]
    if rows:
        _ADD_VCLUSTERS[tx.dialect.name].write_all(tx, rows)


def node_seconds(tx: Tx, first: int, groups: Collection[int]) -> dict[int, float]:
    """Return the node-seconds that each of the groups has used since the day `first`."""
    query = select(_e.group_id, func.sum(_e.seconds)).where(
        _e.day >= first, _e.group_id.in_(groups)
    )
    return {row[0]: row[1] for row in tx.execute(query.group_by(_e.group_id))}


def in_month(
    tx: Tx, first: int, groups: Collection[int], end: int
) -> dict[int, tuple[float, float, float, float]]:
    """Return (seconds, joules, always_on, grams) that each of the groups has used from the day
    `first` until before the day `end`."""
    query = select(_e.group_id, *_SUMS).where(
        _e.day >= first, _e.day < end, _e.group_id.in_(groups)
    )
    return {
        group: (seconds, joules, always_on, grams)
        for group, seconds, joules, always_on, grams in tx.execute(query.group_by(_e.group_id))
    }


def by_day(tx: Tx, group_id: int) -> list[tuple[int, float]]:
    """Return the node-seconds, weighted by the cost of the nodes' types, of a group on each day."""
    k = t.node_types.c
    query = (
        select(_e.day, func.sum(_e.seconds * func.coalesce(k.cost, 1.0)))
        .select_from(t.energy_use.outerjoin(t.node_types, k.id == _e.type_id))
        .where(_e.group_id == group_id)
        .group_by(_e.day)
        .order_by(_e.day)
    )
    return [(row[0], row[1]) for row in tx.execute(query)]


def fold(tx: Tx, group_id: int, into: int) -> None:
    """Add the accounts of a group to those of the group `into`."""
    for use in ROWS.every(tx, _e.group_id == group_id):
        both = (_e.day == use.day, _e.type_id == use.type_id)
        added = tx.execute(
            update(t.energy_use)
            .where(*both, _e.group_id == into)
            .values(
                seconds=_e.seconds + use.seconds,
                joules=_e.joules + use.joules,
                always_on=_e.always_on + use.always_on,
                grams=_e.grams + use.grams,
            )
        )
        if added.rowcount:
            tx.execute(delete(t.energy_use).where(*both, _e.group_id == group_id))
        else:
            ROWS.set_where(tx, *both, _e.group_id == group_id, group_id=into)


def sums(tx: Tx, first: int, last: int, by: str, groups: frozenset[int] | None = None) -> list[Any]:
    """Return sums of the accounts for the days `first` to `last`: rows (key, seconds, joules,
    always_on, grams), one for each 'group', 'vcluster', 'type' or 'day', in the order of the key;
    only those of `groups` (None: all groups, and the reserve).

    The key is the name of the group (None: the reserve), vcluster or type, '(deleted)', or the day.
    """
    if by == "vcluster":
        return _vcluster_sums(
            tx, _v.day.between(first, last), *theirs(t.vclusters.c.group_id, groups)
        )
    group = case((_e.group_id > 0, func.coalesce(t.groups.c.name, DELETED)))
    key = {"group": group, "type": func.coalesce(t.node_types.c.name, DELETED), "day": _e.day}[by]
    query = (
        select(key, *_SUMS)
        .select_from(t.energy_use)
        .outerjoin(t.groups, t.groups.c.id == _e.group_id)
        .outerjoin(t.node_types, t.node_types.c.id == _e.type_id)
        .where(_e.day.between(first, last), *theirs(_e.group_id, groups))
        .group_by(key)
        .order_by(key)
    )
    return [tuple(row) for row in tx.execute(query)]


def vcluster(tx: Tx, vcluster_id: int) -> tuple[float, float, float, float]:
    """Return (seconds, joules, always_on, grams) that the vcluster's nodes have used in all."""
    rows = _vcluster_sums(tx, _v.vcluster_id == vcluster_id)
    return tuple(rows[0][1:]) if rows else (0.0,) * 4


def _vcluster_sums(tx: Tx, *where: ColumnElement[bool]) -> list[Any]:
    """Return (name, seconds, joules, always_on, grams) for each vcluster, by name."""
    name = t.vclusters.c.name
    query = (
        select(name, *(func.sum(_v[each]) for each in ("seconds", "joules", "always_on", "grams")))
        .select_from(t.vcluster_energy.join(t.vclusters, t.vclusters.c.id == _v.vcluster_id))
        .where(*where)
        .group_by(_v.vcluster_id, name)
        .order_by(name, _v.vcluster_id)
    )
    return [tuple(row) for row in tx.execute(query)]
