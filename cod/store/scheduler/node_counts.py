"""Counts of nodes for the resource manager: nodes that are alike are counted together.

All counts are grouped by columns of the index ix_nodes_counts alone, in its order, so that a
hundred thousand nodes are counted without reading one of their wide rows. Nodes with reservations
are few: their rows are read (`kept`), and subtracted from the counts. `many` and `apart` are
explained in `node_kinds`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, case, func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from cod.states import UNAPPROVED, Disk, NodeState
from cod.store import tables as t
from cod.store.engine import Tx, nested, slices
from cod.store.nodes import nodes, switch_ports
from cod.store.scheduler.node_kinds import (
    ALIKE,
    ANSWERS,
    AT_HAND,
    FREE,
    KIND,
    TOGETHER,
    UNHELD,
    Apart,
    FreeKey,
    NodeKindRow,
    free_key,
    is_idle,
    kept_for,
    kind_of,
    window_bits,
)

PERIOD = 10.0
"""Seconds to which times of nodes on their way are rounded."""

_n = t.nodes.c

_ON_THE_WAY = (NodeState.TRAMPOLINE, NodeState.WIPE, NodeState.CAPTURE, NodeState.BURNIN)


NOT_OURS = (*sorted(UNAPPROVED), NodeState.RETIRED)


_COMING = and_(UNHELD, _n.state.in_(_ON_THE_WAY), ANSWERS)


_CLEAN_SOON = and_(_n.released == 0, _n.state == NodeState.TRAMPOLINE, _n.disk != Disk.DIRTY)


class Free(NamedTuple):
    """A count of free nodes that are alike. `idle`: how many of them may be put to sleep (see
    `free`)."""

    key: FreeKey
    nodes: int
    idle: int


class Held(NamedTuple):
    """A count of nodes of one kind that a vcluster holds.

    mobile        how many of them were assigned by a given time (`AssignedBy`) and are not chosen
                  for a reclaim
    first_later   the earliest assignment after that time among the nodes; None: there is none
    started       for a preemptible vcluster: (when assigned, how many) of the mobile nodes, the
                  latest first
    """

    vcluster_id: int
    kind: NodeKindRow
    nodes: int
    mobile: int
    first_later: float | None
    started: tuple[tuple[float, int], ...] = ()


class AssignedBy(NamedTuple):
    """A time, and other times for nodes of holders with certain priorities."""

    time: float
    by_priority: Mapping[int, float]


class Kept(NamedTuple):
    """A number of equal nodes with reservations: their holder, their state (as of `free` and
    `coming`) and their kind.

    request_id  the request that has reserved them; 0 while a vcluster still holds them
    since       when they entered their states
    """

    nodes: int
    request_id: int
    vcluster_id: int | None
    free: bool
    coming: bool
    idle: bool
    soon: bool
    state: str
    type: int
    block: int | None
    subnet: str | None
    disk: str
    template: int | None
    group: int | None
    since: float
    port: str = ""
    windows: int = 0


def kept(tx: Tx, idle_since: float, apart: Apart = TOGETHER) -> list[Kept]:
    """Return all nodes with reservations, and a type."""
    r = t.reservations.c
    flags = (case((one, 1), else_=0) for one in (FREE, _COMING, is_idle(idle_since), _CLEAN_SOON))
    columns: tuple[Any, ...] = (
        case((_n.vcluster_id.is_(None), r.request_id), else_=0),
        _n.vcluster_id,
        *flags,
        *ALIKE,
        _n.since,
        *apart.columns,
    )
    query = (
        select(func.count(), *columns)
        .join_from(t.reservations, t.nodes, _n.id == r.node_id)
        .where(_n.type_id.is_not(None))
        .group_by(*columns)
    )
    fixed = Kept._fields.index("port")
    found = []
    for row in tx.execute(query).all():
        port, windows = apart.read(row)
        found.append(Kept(*row[:fixed])._replace(port=port, windows=windows))
    return found


def free(
    tx: Tx, kept: Sequence[Kept], many: bool, idle_since: float, apart: Apart = TOGETHER
) -> list[Free]:
    """Return the nodes without a holder that are available now.

    kept        all nodes with reservations
    idle_since  a warm node that its driver can wake is idle if it has been warm since then
    """
    counts: Counter[FreeKey] = Counter()
    idles: Counter[FreeKey] = Counter()
    alike = *ALIKE, *apart.columns
    idle = func.sum(case((is_idle(idle_since), 1), else_=0))
    query = select(*alike, func.count(), idle).where(FREE).group_by(*alike)
    for *row, count, idle_count in tx.execute(query).all():
        key = free_key(row, many, *apart.read(row))
        counts[key] += count
        idles[key] += int(idle_count)
    for one in kept:
        if one.free:
            row = [one.state, one.type, one.block, one.subnet, one.disk, one.template, one.group]
            key = free_key(row, many, one.port, one.windows)
            own = key._replace(reserved=one.request_id)
            for part, number in ((counts, one.nodes), (idles, one.nodes * one.idle)):
                part[key] -= number
                part[own] += number
    return [Free(key, count, max(idles[key], 0)) for key, count in counts.items() if count > 0]


class Coming(NamedTuple):
    """The facts that make nodes on their way to the reserve equal.

    request_id  the request that has reserved them; 0: none
    soon        they come clean, and soon: from sleep or a reset
    since       when the last of them entered its state, up to `PERIOD` later; None: not requested
    """

    kind: NodeKindRow
    request_id: int
    soon: bool
    since: float | None


def coming(
    tx: Tx, kept: Sequence[Kept], many: bool, apart: Apart = TOGETHER, times: bool = False
) -> dict[Coming, int]:
    """Return how many nodes without a holder are on their way to the reserve. `times`: nodes that
    entered their states at different times are counted apart."""
    counts: Counter[Coming] = Counter()
    alike: tuple[Any, ...] = *KIND, case((_CLEAN_SOON, 1), else_=0)
    alike = *alike, *((_n.since,) if times else ()), *apart.columns
    # two ranges of the index in place of all that nobody holds
    for released in (_n.released == 0, _n.released > 0):
        query = select(*alike, func.count()).where(_COMING, released).group_by(*alike)
        for *row, count in tx.execute(query).all():
            kind = kind_of(row, many, *apart.read(row))
            counts[Coming(kind, 0, bool(row[3]), _period(row[4]) if times else None)] += count
    for one in kept:
        if one.coming:
            kind = _kept_kind(one, many)
            key = Coming(kind, 0, bool(one.soon), _period(one.since) if times else None)
            counts[key] -= one.nodes
            counts[key._replace(request_id=one.request_id)] += one.nodes
    return {key: count for key, count in counts.items() if count > 0}


def _kept_kind(one: Kept, many: bool) -> NodeKindRow:
    return kind_of((one.type, one.block, one.subnet), many, one.port, one.windows)


def _period(since: float) -> float:
    """Return the end of the period that contains a time, so that nodes with nearly equal times are
    counted together."""
    return math.ceil(since / PERIOD) * PERIOD


def waking(tx: Tx) -> int:
    """Return how many nodes are waking now, for requests and for the reserve."""
    return nodes.ROWS.count(tx, _n.state == NodeState.TRAMPOLINE, _n.power_wanted == "on", ANSWERS)


def silent(tx: Tx, type_ids: Collection[int]) -> int:
    """Return how many nodes of those types without a holder are passed over because their power
    drivers do not answer."""
    return nodes.ROWS.count(tx, ~ANSWERS, UNHELD, _n.type_id.in_(list(type_ids)))


def held_nodes(by: AssignedBy, apart: Apart = TOGETHER) -> Select[Any]:
    """Return the query for the nodes that `held` counts, with all columns that the count depends
    on."""
    columns = _n.id, _n.vcluster_id, _n.released, _n.state, *KIND, _n.assigned_at
    later = case((_later(by), 1), else_=0).label("later")
    return _held(select(*columns, later, *apart.columns), by)


def reserve_nodes(idle_since: float, apart: Apart = TOGETHER) -> Select[Any]:
    """Return the query for the nodes that `free`, `coming` and `by_type` count, with all columns
    that these counts depend on."""
    columns = _n.id, _n.released, *ALIKE, _n.power_driver, _n.since
    flags = (case((one, 1), else_=0) for one in (ANSWERS, is_idle(idle_since)))
    return select(*columns, *flags, *apart.columns).where(UNHELD)


def reserved() -> Select[Any]:
    """Return the query for the reservations that `kept` counts."""
    r = t.reservations.c
    return select(r.node_id, r.request_id, r.reclaim_id)


def _later(by: AssignedBy) -> ColumnElement[bool]:
    """Return the condition that a node was assigned later than the time in `by`."""
    time = (
        case(by.by_priority, value=t.groups.c.priority, else_=by.time)
        if by.by_priority
        else by.time
    )
    return _n.assigned_at > time


def _held(query: Select[Any], by: AssignedBy) -> Select[Any]:
    query = query.where(_n.vcluster_id.is_not(None), _n.type_id.is_not(None))
    if not by.by_priority:
        return query
    return query.join(t.vclusters, t.vclusters.c.id == _n.vcluster_id).join(
        t.groups, t.groups.c.id == t.vclusters.c.group_id
    )


def _held_rows(by: AssignedBy, apart: Apart) -> Select[Any]:
    later = _later(by)
    # In the index's order, so that nothing is sorted, unless ports are asked for.
    alike = _n.vcluster_id, _n.released, _n.state, *KIND, *apart.columns
    counts = (
        func.count(),
        func.sum(case((later, 0), else_=1)),
        func.min(case((later, _n.assigned_at))),
    )
    return _held(select(_n.vcluster_id, *KIND, *counts, *apart.columns), by).group_by(*alike)


def held(
    tx: Tx, kept: Sequence[Kept], many: bool, by: AssignedBy, apart: Apart = TOGETHER
) -> list[Held]:
    """Return counts of the nodes that vclusters hold, by kind."""
    found: dict[tuple[int, NodeKindRow], Held] = {}
    for row in tx.execute(_held_rows(by, apart)).all():
        key = row[0], kind_of(row[1:], many, *apart.read(row))
        found[key] = _sum(found.get(key), Held(*key, row[4], int(row[5]), row[6]))
    chosen: Counter[tuple[int, NodeKindRow]] = Counter()
    for one in kept:
        if one.vcluster_id is not None:
            chosen[one.vcluster_id, _kept_kind(one, many)] += one.nodes
    for own, kinds in found.items():
        if chosen[own]:  # a node that was chosen was mobile, and stays so
            found[own] = kinds._replace(mobile=max(kinds.mobile - chosen[own], 0))
    v = t.vclusters.c
    preemptible = set(tx.scalars(select(v.id).where(v.preemptible, v.live_name.is_not(None))))
    started = _started(tx, preemptible, many, apart) if preemptible else {}
    for own, kinds in found.items():
        if own[0] in preemptible:  # without inertia
            runs = started.get(own, ())
            found[own] = kinds._replace(
                mobile=sum(count for _, count in runs), first_later=None, started=runs
            )
    return list(found.values())


def _started(
    tx: Tx, vcluster_ids: Iterable[int], many: bool, apart: Apart
) -> dict[tuple[int, NodeKindRow], tuple[tuple[float, int], ...]]:
    """Return, by vcluster and kind, (when assigned, how many) of the vclusters' nodes that no
    reservation keeps, the latest first."""
    counts: Counter[tuple[tuple[int, NodeKindRow], float]] = Counter()
    for part in slices(sorted(vcluster_ids)):
        alike = _n.vcluster_id, *KIND, _n.assigned_at, *apart.columns
        query = (
            select(*alike, func.count())
            .where(_n.vcluster_id.in_(part), _n.type_id.is_not(None), kept_for(0))
            .group_by(*alike)
        )
        for *row, count in tx.execute(query).all():
            kind = kind_of(row[1:], many, *apart.read(row))
            counts[(row[0], kind), row[4]] += count
    found: dict[tuple[int, NodeKindRow], tuple[tuple[float, int], ...]] = {}
    for (key, time), count in sorted(counts.items(), key=lambda one: -one[0][1]):
        found[key] = (*found.get(key, ()), (time, count))
    return found


def _sum(one: Held | None, other: Held) -> Held:
    if one is None:
        return other
    later = [each.first_later for each in (one, other) if each.first_later is not None]
    return Held(
        one.vcluster_id,
        one.kind,
        one.nodes + other.nodes,
        one.mobile + other.mobile,
        min(later, default=None),
    )


def reclaimed(tx: Tx) -> dict[int, int]:
    """Return, by reclaim id, the bits of the maintenance windows of the nodes that were chosen for
    the reclaim and still have a holder. If its nodes are in different windows, the highest sum of
    bits is returned."""
    r = t.reservations.c
    query = (
        select(r.reclaim_id, func.max(window_bits))
        .join_from(t.reservations, t.nodes, _n.id == r.node_id)
        .where(r.reclaim_id.is_not(None), _n.vcluster_id.is_not(None))
        .group_by(r.reclaim_id)
    )
    return {row[0]: int(row[1]) for row in tx.execute(query)}


def by_type(tx: Tx, held: Iterable[Held] | None = None) -> dict[int, int]:
    """Return how many nodes the site has of each type, free or held. Nodes out of service count,
    because they can be restored. `held`: counts of the nodes of vclusters, if read already."""
    ours = _n.type_id.is_not(None), _n.state.not_in(NOT_OURS)
    query = select(_n.type_id, func.count()).where(*ours).group_by(_n.type_id)
    if held is not None:
        query = query.where(_n.vcluster_id.is_(None))
    counts = Counter({row[0]: row[1] for row in tx.execute(query).all()})
    for one in held or ():
        counts[one.kind.type] += one.nodes
    return dict(counts)


def by_type_and_block(tx: Tx) -> dict[int, dict[int | None, int]]:
    """Return how many nodes in service the site has, by type and block (None: no block). Nodes that
    a maintenance window will return to service count."""
    return nested((*kind, count) for kind, count in in_service(tx).items())


def in_service(tx: Tx, ids: Select[tuple[int]] | None = None) -> dict[tuple[int, int | None], int]:
    """Return the counts of `by_type_and_block` by (type, block); with `ids`, only of nodes whose
    ids this query finds."""
    m = t.maintenance_nodes.c
    returning = _n.id.in_(select(m.node_id).where(m.taken))
    query = select(_n.type_id, _n.block_id, func.count()).where(
        _n.type_id.is_not(None),
        _n.state.not_in(NOT_OURS),
        or_(_n.state != NodeState.QUARANTINED, returning),
        *([] if ids is None else [_n.id.in_(ids)]),
    )
    rows = tx.execute(query.group_by(_n.type_id, _n.block_id))
    return {(type_id, block_id): count for type_id, block_id, count in rows}


def expected(tx: Tx) -> int:
    """Return how many nodes have not reported their hardware, or wait for approval."""
    unknown = or_(_n.type_id.is_(None), _n.state.in_(sorted(UNAPPROVED)))
    return nodes.ROWS.count(tx, unknown, _n.state != NodeState.RETIRED)


def by_kind(tx: Tx, vcluster_id: int, many: bool) -> dict[tuple[NodeKindRow, bool], int]:
    """Return how many nodes the site has, by kind and by whether the vcluster holds them. Nodes out
    of service are left out."""
    own = case((_n.vcluster_id == vcluster_id, 1), else_=0)
    query = select(*KIND, own, func.count()).where(
        _n.type_id.is_not(None),
        _n.state.not_in((*NOT_OURS, NodeState.QUARANTINED)),
        or_(_n.state != NodeState.OFF, AT_HAND),
    )
    counts: Counter[tuple[NodeKindRow, bool]] = Counter()
    for row in tx.execute(query.group_by(*KIND, own)).all():
        counts[kind_of(row, many), bool(row[3])] += row[4]
    return counts


def by_subnet(tx: Tx, usable: bool = False) -> dict[str, dict[int | None, int]]:
    """Return how many nodes last reported from each subnet, by subnet and type. With `usable`, only
    nodes count whose switch ports are usable, or will be when their switches answer again."""
    ports = [switch_ports.usable(_n.boot_mac, away=True)] if usable else []
    query = select(_n.subnet, _n.type_id, func.count()).where(_n.subnet.is_not(None), *ports)
    return nested(tx.execute(query.group_by(_n.subnet, _n.type_id)))
