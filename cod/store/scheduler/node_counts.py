"""What the resource manager counts: nodes that are alike, never single ones; and which rows such a
count means.

Whatever is counted is grouped by columns of the index ix_nodes_census alone, in its order, so that
a hundred thousand nodes are counted without reading one of their wide rows. Nodes with reservations
are few: their rows are read (`kept`), and taken off the counts.

In all functions `many` says whether the site has more than one subnet. If not, the subnet of every
node is '', whatever its row says: they are all on the one. A block of 0 is no block. `apart` says
whether nodes with and without a usable switch port (`store.nodes.switch_ports.usable`), and nodes
in different maintenance windows, are counted apart; for ports their wide rows are read.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BindParameter,
    CompoundSelect,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    or_,
    select,
    union_all,
)
from sqlalchemy.sql.elements import ColumnElement

from cod.model import Node
from cod.states import POWER_CONTROL, UNAPPROVED, Disk, NodeState
from cod.store import tables as t
from cod.store.engine import Tx, slices
from cod.store.nodes import nodes, switch_ports
from cod.store.rows import Rows

_TOGETHER = 8  # sorts of free nodes that are asked for by one statement
PERIOD = 10.0
"""Seconds to which times of nodes on their way are rounded."""
_n = t.nodes.c
_READY = (NodeState.INACTIVE, NodeState.OFF)
_ON_THE_WAY = (NodeState.TRAMPOLINE, NodeState.WIPE, NodeState.CAPTURE, NodeState.BURNIN)
_NOT_OURS = (*sorted(UNAPPROVED), NodeState.RETIRED)
_NOBODYS = and_(_n.vcluster_id.is_(None), _n.type_id.is_not(None))
# What no switch can wake stays asleep until somebody presses its button.
_AT_HAND = or_(_n.state == NodeState.INACTIVE, _n.power_driver != "none")
# What does not answer its power commands is passed over: nobody knows when it is there.
_silent = t.nodes.alias("silent").c
_ANSWERS = _n.id.not_in(select(_silent.id).where(_silent.waits_for == POWER_CONTROL))
_ABLE = and_(_NOBODYS, _n.released == 0, _AT_HAND, _ANSWERS)
_FREE = and_(_ABLE, _n.state.in_(_READY))
_COMING = and_(_NOBODYS, _n.state.in_(_ON_THE_WAY), _ANSWERS)
_CLEAN_SOON = and_(_n.released == 0, _n.state == NodeState.TRAMPOLINE, _n.disk != Disk.DIRTY)
_USABLE = switch_ports.usable(_n.boot_mac)
_m = t.maintenance_nodes.c
_windows = select(func.coalesce(func.sum(_m.bit), 0)).where(_m.node_id == _n.id).scalar_subquery()
_IN_NO_WINDOW = ~select(_m.node_id).where(_m.node_id == _n.id).exists()
_ALIKE = (
    _n.state,
    _n.type_id,
    _n.block_id,
    _n.subnet,
    _n.disk,
    _n.cached_template_id,
    _n.cached_group_id,
)
_KIND = (_n.type_id, _n.block_id, _n.subnet)


class NodeKindRow(NamedTuple):
    """What makes nodes interchangeable for a request; as `policy.scheduler.snapshot.NodeKind`.
    `port`: usable or unusable; '': nobody asked. `windows`: sum of the bits of its maintenance
    windows."""

    type: int
    block: int
    subnet: str
    port: str = ""
    windows: int = 0


class Apart(NamedTuple):
    """The facts by which nodes are told apart, beside those in their index."""

    ports: bool = False
    windows: bool = False

    @property
    def columns(self) -> tuple[ColumnElement[Any], ...]:
        """Return the columns that tell them apart."""
        port = case((_USABLE, "usable"), else_="unusable")
        return (*((port,) if self.ports else ()), *((_windows,) if self.windows else ()))

    def read(self, values: Sequence[Any]) -> tuple[str, int]:
        """Return (port, windows) of what `columns` gave."""
        return values[0] if self.ports else "", int(values[-1]) if self.windows else 0


TOGETHER = Apart()


class FreeKey(NamedTuple):
    """What makes free nodes alike.

    template, group  what a cached disk holds and for whom; None for other disks
    reserved         the request that they are kept for; 0: none
    """

    state: str
    kind: NodeKindRow
    template: int | None
    group: int | None
    reserved: int


class Free(NamedTuple):
    """A count of free nodes that are alike. `idle`: how many of them may be put to sleep (see
    `free`)."""

    key: FreeKey
    nodes: int
    idle: int


class Held(NamedTuple):
    """A count of nodes of one kind that a vcluster holds.

    mobile        how many of them were assigned by a given time (`AssignedBy`) and are not chosen
                  by a reclaim
    first_later   when the first of those was assigned that were assigned later; None: there are
                  none
    started       of preemptible vclusters: (when assigned, how many) of the mobile nodes, the
                  latest first
    """

    vcluster_id: int
    kind: NodeKindRow
    nodes: int
    mobile: int
    first_later: float | None
    started: tuple[tuple[float, int], ...] = ()


class AssignedBy(NamedTuple):
    """A time, and the exceptions for nodes of holders of certain priorities."""

    time: float
    by_priority: Mapping[int, float]


def _kind(row: Sequence[Any], many: bool, port: str = "", windows: int = 0) -> NodeKindRow:
    return NodeKindRow(row[0], row[1] or 0, (row[2] or "") if many else "", port, windows)


# ---------------------------------------------------------------- nodes that nobody holds


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
    flags = (case((one, 1), else_=0) for one in (_FREE, _COMING, _idle(idle_since), _CLEAN_SOON))
    columns: tuple[Any, ...] = (
        case((_n.vcluster_id.is_(None), r.request_id), else_=0),
        _n.vcluster_id,
        *flags,
        *_ALIKE,
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
        port, windows = apart.read(row[fixed:])
        found.append(Kept(*row[:fixed])._replace(port=port, windows=windows))
    return found


def free_rows(idle_since: float, apart: Apart = TOGETHER) -> Select[Any]:
    """Return what `free` reads."""
    alike = *_ALIKE, *apart.columns
    idle = func.sum(case((_idle(idle_since), 1), else_=0))
    counts = func.count().label("nodes"), idle.label("idle")
    return select(*alike, *counts).where(_FREE).group_by(*alike)


def free(
    tx: Tx, kept: Sequence[Kept], many: bool, idle_since: float, apart: Apart = TOGETHER
) -> list[Free]:
    """Return the nodes without a holder that are available now.

    kept        all nodes with reservations
    idle_since  a warm node that its driver can wake is idle if it has been warm since then
    """
    counts: Counter[FreeKey] = Counter()
    idles: Counter[FreeKey] = Counter()
    for row in tx.execute(free_rows(idle_since, apart)).all():
        key = _free_key(row, many, *apart.read(row[7:-2]))
        counts[key] += row[-2]
        idles[key] += int(row[-1])
    for one in kept:
        if one.free:
            key = _free_key(one[7:], many, one.port, one.windows)
            own = key._replace(reserved=one.request_id)
            for part, number in ((counts, one.nodes), (idles, one.nodes * one.idle)):
                part[key] -= number
                part[own] += number
    return [Free(key, count, max(idles[key], 0)) for key, count in counts.items() if count > 0]


def _free_key(row: Sequence[Any], many: bool, port: str = "", windows: int = 0) -> FreeKey:
    state, type_id, block_id, subnet, disk, template, group = row[:7]
    cached = disk == Disk.CACHED
    return FreeKey(
        state,
        _kind((type_id, block_id, subnet), many, port, windows),
        template if cached else None,
        group if cached else None,
        0,
    )


def _idle(since: float) -> ColumnElement[bool]:
    return and_(_n.state == NodeState.INACTIVE, _n.since <= since, _n.power_driver != "none")


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
    """Return how many nodes without a holder are on their way to the reserve. `times`: count those
    that entered their states at different times apart."""
    counts: Counter[Coming] = Counter()
    alike: tuple[Any, ...] = *_KIND, case((_CLEAN_SOON, 1), else_=0)
    alike = *alike, *((_n.since,) if times else ()), *apart.columns
    # two ranges of the index in place of all that nobody holds
    for released in (_n.released == 0, _n.released > 0):
        query = select(*alike, func.count()).where(_COMING, released).group_by(*alike)
        for row in tx.execute(query).all():
            kind = _kind(row, many, *apart.read(row[5 if times else 4 : -1]))
            counts[Coming(kind, 0, bool(row[3]), _period(row[4]) if times else None)] += row[-1]
    for one in kept:
        if one.coming:
            kind = _kept_kind(one, many)
            key = Coming(kind, 0, bool(one.soon), _period(one.since) if times else None)
            counts[key] -= one.nodes
            counts[key._replace(request_id=one.request_id)] += one.nodes
    return {key: count for key, count in counts.items() if count > 0}


def _kept_kind(one: Kept, many: bool) -> NodeKindRow:
    return _kind((one.type, one.block, one.subnet), many, one.port, one.windows)


def _period(since: float) -> float:
    """Return the end of the period that contains a time, so that nodes with nearly equal times are
    counted together."""
    return math.ceil(since / PERIOD) * PERIOD


def waking(tx: Tx) -> int:
    """Return how many nodes are waking now, for requests and for the reserve."""
    return nodes.ROWS.count(tx, _n.state == NodeState.TRAMPOLINE, _n.power_wanted == "on", _ANSWERS)


def silent(tx: Tx, type_ids: Collection[int]) -> int:
    """Return how many nodes of those types without a holder are passed over because their power
    driver does not answer."""
    return nodes.ROWS.count(tx, ~_ANSWERS, _NOBODYS, _n.type_id.in_(list(type_ids)))


# ---------------------------------------------------------------- nodes that vclusters hold


def held_rows(by: AssignedBy, apart: Apart = TOGETHER) -> Select[Any]:
    """Return what `held` reads."""
    time = (
        case(by.by_priority, value=t.groups.c.priority, else_=by.time)
        if by.by_priority
        else by.time
    )
    later = _n.assigned_at > time
    # In the index's order, so that nothing is sorted, unless ports are asked for.
    alike = _n.vcluster_id, _n.released, _n.state, *_KIND, *apart.columns
    query = (
        select(
            _n.vcluster_id,
            *_KIND,
            func.count().label("nodes"),
            func.sum(case((later, 0), else_=1)).label("mobile"),
            func.min(case((later, _n.assigned_at))).label("first_later"),
            *apart.columns,
        )
        .where(_n.vcluster_id.is_not(None), _n.type_id.is_not(None))
        .group_by(*alike)
    )
    if not by.by_priority:
        return query
    return query.join(t.vclusters, t.vclusters.c.id == _n.vcluster_id).join(
        t.groups, t.groups.c.id == t.vclusters.c.group_id
    )


def held(
    tx: Tx, kept: Sequence[Kept], many: bool, by: AssignedBy, apart: Apart = TOGETHER
) -> list[Held]:
    """Return what vclusters hold, by kind."""
    found: dict[tuple[int, NodeKindRow], Held] = {}
    for row in tx.execute(held_rows(by, apart)).all():
        key = row[0], _kind(row[1:4], many, *apart.read(row[7:]))
        found[key] = _sum(found.get(key), Held(*key, row[4], int(row[5]), row[6]))
    chosen: Counter[tuple[int, NodeKindRow]] = Counter()
    for one in kept:
        if one.vcluster_id is not None:
            chosen[one.vcluster_id, _kept_kind(one, many)] += one.nodes
    for own, there in found.items():
        if chosen[own]:  # a node that was chosen was mobile, and stays so
            found[own] = there._replace(mobile=max(there.mobile - chosen[own], 0))
    v = t.vclusters.c
    preemptible = set(tx.scalars(select(v.id).where(v.preemptible, v.live_name.is_not(None))))
    started = _started(tx, preemptible, many, apart) if preemptible else {}
    for own, there in found.items():
        if own[0] in preemptible:  # without inertia
            runs = started.get(own, ())
            found[own] = there._replace(
                mobile=sum(count for _, count in runs), first_later=None, started=runs
            )
    return list(found.values())


def _started(
    tx: Tx, vcluster_ids: Iterable[int], many: bool, apart: Apart
) -> dict[tuple[int, NodeKindRow], tuple[tuple[float, int], ...]]:
    """Return when nodes of those vclusters were assigned that no reclaim has chosen, the latest
    first: how many at each time."""
    counts: Counter[tuple[tuple[int, NodeKindRow], float]] = Counter()
    for part in slices(sorted(vcluster_ids)):
        alike = _n.vcluster_id, *_KIND, _n.assigned_at, *apart.columns
        query = (
            select(*alike, func.count())
            .where(_n.vcluster_id.in_(part), _n.type_id.is_not(None), _kept_for(0))
            .group_by(*alike)
        )
        for row in tx.execute(query).all():
            kind = _kind(row[1:4], many, *apart.read(row[5:-1]))
            counts[(row[0], kind), row[4]] += row[-1]
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
    """Return the maintenance windows of the nodes that open reclaims have chosen, by the reclaim's
    id; where nodes of one are in different windows, of one of them."""
    r = t.reservations.c
    query = (
        select(r.reclaim_id, func.max(_windows))
        .join_from(t.reservations, t.nodes, _n.id == r.node_id)
        .where(r.reclaim_id.is_not(None), _n.vcluster_id.is_not(None))
        .group_by(r.reclaim_id)
    )
    return {row[0]: int(row[1]) for row in tx.execute(query)}


def by_type(tx: Tx, held: Iterable[Held] | None = None) -> dict[int, int]:
    """Return how many nodes the site has of each type, of all holders. Nodes out of service count,
    because they can be restored. `held`: the nodes of vclusters, if counted already."""
    ours = _n.type_id.is_not(None), _n.state.not_in(_NOT_OURS)
    query = select(_n.type_id, func.count()).where(*ours).group_by(_n.type_id)
    if held is not None:
        query = query.where(_n.vcluster_id.is_(None))
    counts = Counter({row[0]: row[1] for row in tx.execute(query).all()})
    for one in held or ():
        counts[one.kind.type] += one.nodes
    return dict(counts)


def expected(tx: Tx) -> int:
    """Return how many nodes have not reported their hardware, or wait for approval."""
    unknown = or_(_n.type_id.is_(None), _n.state.in_(sorted(UNAPPROVED)))
    return nodes.ROWS.count(tx, unknown, _n.state != NodeState.RETIRED)


def by_kind(tx: Tx, vcluster_id: int, many: bool) -> dict[tuple[NodeKindRow, bool], int]:
    """Return how many nodes the site has of each kind, of all holders, and whether that vcluster
    holds them. Nodes out of service are left out."""
    own = case((_n.vcluster_id == vcluster_id, 1), else_=0)
    query = select(*_KIND, own, func.count()).where(
        _n.type_id.is_not(None),
        _n.state.not_in((*_NOT_OURS, NodeState.QUARANTINED)),
        or_(_n.state != NodeState.OFF, _AT_HAND),
    )
    counts: Counter[tuple[NodeKindRow, bool]] = Counter()
    for row in tx.execute(query.group_by(*_KIND, own)).all():
        counts[_kind(row, many), bool(row[3])] += row[4]
    return counts


def by_subnet(tx: Tx, usable: bool = False) -> dict[str, dict[int | None, int]]:
    """Return how many nodes of each type last reported from which subnet; with `usable`, of those
    with switch ports that are usable, or will be when their switches answer again."""
    ports = [switch_ports.usable(_n.boot_mac, away=True)] if usable else []
    query = select(_n.subnet, _n.type_id, func.count()).where(_n.subnet.is_not(None), *ports)
    counts: dict[str, dict[int | None, int]] = {}
    for subnet, type_id, count in tx.execute(query.group_by(_n.subnet, _n.type_id)):
        counts.setdefault(subnet, {})[type_id] = count
    return counts


def with_usable_ports(tx: Tx, node_ids: Collection[int]) -> set[int]:
    """Return the ids of those nodes whose switch port COD can put into a VLAN."""
    return {
        one
        for part in slices(list(node_ids))
        for one in tx.scalars(select(_n.id).where(_n.id.in_(part), _USABLE))
    }


# ---------------------------------------------------------------- which nodes a count means


_Operand = Callable[[str, Any], Any]
"""Gives what a column is compared with: the value of a key's field, or a parameter of its name."""


def _literal(_name: str, value: Any) -> Any:
    return value


def pick_free(
    tx: Tx,
    key: FreeKey,
    count: int,
    many: bool,
    idle_since: float | None = None,
    group_id: int | None = None,
) -> list[Node]:
    """Return `count` free nodes that are equal as of `key`, those with the lowest ids, locked.
    Raises `Changed` if there are fewer.

    idle_since  only those that may be put to sleep (see `free`)
    group_id    the group that gets them: nodes kept for this group come first; nodes kept for
                others, which must be erased before, come last
    """
    query = select(_n.id).where(_FREE, _n.state == key.state, _alike(key, many))
    if idle_since is not None:
        query = query.where(_idle(idle_since))
    ids = list(tx.scalars(query.order_by(*_erased_first(group_id), _n.id).limit(count)))
    locked = nodes.lock(tx, ids)
    # Between picking and locking others may have been quicker: what is locked is looked at once
    # more.
    still = {one for part in slices(ids) for one in tx.scalars(query.where(_n.id.in_(part)))}
    if len(still) < count:
        raise nodes.Changed(f"{count} nodes of a kind were free, {len(still)} are left")
    return [node for node in locked if node.id in still]


def pick_each(tx: Tx, wanted: Mapping[FreeKey, int], many: bool) -> dict[FreeKey, list[Node]]:
    """Return the wanted number of free nodes of each sort, those with the lowest ids, locked; fewer
    if fewer are left. Return none of a sort that is told apart by switch ports or maintenance, or
    whose order in `pick_free` depends on the group."""
    picked: dict[int, FreeKey] = {}
    alike: defaultdict[FreeKey, list[FreeKey]] = defaultdict(list)
    for key in wanted:
        if not key.kind.port and not key.kind.windows:
            alike[_shape(key)].append(key)
    for shape, keys in alike.items():
        for part in slices(keys, _TOGETHER):
            found = tx.execute(_lowest(shape, many), _values(part, wanted)).all()
            tables = {part[place] for place, _, tables in found if tables}
            picked |= {row[1]: key for row in found if (key := part[row[0]]) not in tables}
    ids = sorted(picked)
    locked = nodes.lock(tx, ids)
    still = {  # as in `pick_free`
        row[0]: _free_key(row[2:], many)._replace(reserved=row[1] or 0)
        for part in slices(ids)
        for row in tx.execute(_STILL, {"picked": part}).all()
    }
    chosen: dict[FreeKey, list[Node]] = {key: [] for key in wanted}
    for node in locked:
        if still.get(node.id) == picked[node.id]:
            chosen[picked[node.id]].append(node)
    return chosen


_STILL = (
    select(_n.id, t.reservations.c.request_id, *_ALIKE)
    .outerjoin_from(t.nodes, t.reservations, t.reservations.c.node_id == _n.id)
    .where(_FREE, _n.id.in_(bindparam("picked", expanding=True)))
)


@lru_cache(maxsize=64)  # a site may have thousands of sorts, of few shapes
def _lowest(shape: FreeKey, many: bool) -> CompoundSelect[Any]:
    """Return the query for the first free nodes of several sorts: the sort's place among them, a
    node's id, and whether only its tables were erased; those first, then by id. Which sorts, and
    how many nodes of each, is said by `_values`."""
    tables = case((_n.disk == Disk.TABLES, 1), else_=0)
    parts = []
    for place in range(_TOGETHER):

        def value(name: str, _: object = None, place: int = place) -> BindParameter[Any]:
            return bindparam(f"{name}{place}")

        # not `_FREE`: a list of states is made anew for each of the many times that this is asked
        query = select(literal_column(str(place)).label("place"), _n.id, tables.label("tables"))
        query = query.where(_ABLE, _n.state == value("state"), _alike(shape, many, value))
        first = query.order_by(tables.desc(), _n.id).limit(value("most"))
        parts.append(select(first.subquery()))
    return union_all(*parts)


def _shape(key: FreeKey) -> FreeKey:
    """Return what all keys have in common that are asked for by the same conditions."""
    cached = None if key.template is None else 0
    return FreeKey("", _kind_shape(key.kind), cached, cached, min(key.reserved, 1))


def _kind_shape(kind: NodeKindRow) -> NodeKindRow:
    subnet = "subnet" if kind.subnet else ""
    return NodeKindRow(0, min(kind.block, 1), subnet, kind.port, min(kind.windows, 1))


def _values(keys: Sequence[FreeKey], wanted: Mapping[FreeKey, int]) -> dict[str, Any]:
    return {
        f"{name}{place}": value
        for place in range(_TOGETHER)
        # none of the last sort in the places that are left
        for key, most in [
            (keys[place], wanted[keys[place]]) if place < len(keys) else (keys[-1], 0)
        ]
        for name, value in (key._asdict() | key.kind._asdict() | {"most": most}).items()
    }


def _erased_first(group_id: int | None) -> tuple[ColumnElement[int], ...]:
    if group_id is None:
        return ()
    own = and_(_n.disk == Disk.TABLES, _n.cached_group_id == group_id)
    return (case((own, 0), (_n.disk == Disk.TABLES, 2), else_=1),)


def switched(tx: Tx, key: FreeKey, state: str, many: bool, at: float) -> int:
    """Return how many nodes without a holder, equal as of `key` except for their state, entered
    `state` exactly at `at`."""
    came = _n.state == state, _n.since == at
    return nodes.ROWS.count(tx, _NOBODYS, _n.released == 0, *came, _alike(key, many))


def _alike(key: FreeKey, many: bool, value: _Operand = _literal) -> ColumnElement[bool]:
    cache = and_(
        _n.disk == Disk.CACHED,
        _n.cached_template_id == value("template", key.template),
        _n.cached_group_id == value("group", key.group),
    )
    return and_(
        _of_kind(key.kind, many, value),
        _n.disk != Disk.CACHED if key.template is None else cache,
        _kept_for(key.reserved, value),
    )


class Member(NamedTuple):
    """What tells nodes of a vcluster apart that are of one kind."""

    id: int
    name: str
    hostname: str | None
    state: str
    assigned_at: float | None


_MEMBERS = Rows(Member, t.nodes)


def members(
    tx: Tx, vcluster_id: int, kind: NodeKindRow, many: bool, assigned_by: float
) -> list[Member]:
    """Return the nodes that `pick_held` does, by id, not locked."""
    values = kind._asdict() | {"holder": vcluster_id, "assigned_by": assigned_by}
    return _MEMBERS.all(tx, _held_alike(_kind_shape(kind), many), values)


@lru_cache(maxsize=16)
def _held_alike(shape: NodeKindRow, many: bool) -> Select[Any]:
    return _MEMBERS.select.where(
        _n.vcluster_id == bindparam("holder"),
        _n.assigned_at <= bindparam("assigned_by"),
        _of_kind(shape, many, lambda name, _: bindparam(name)),
        _kept_for(0),
    ).order_by(_n.id)


def pick_held(
    tx: Tx, vcluster_id: int, kind: NodeKindRow, many: bool, assigned_by: float
) -> list[Node]:
    """Return the vcluster's nodes of a kind that are not reserved and were assigned at
    `assigned_by` or before, locked."""
    query = select(_n.id).where(
        _n.vcluster_id == vcluster_id,
        _n.assigned_at <= assigned_by,
        _of_kind(kind, many),
        _kept_for(0),
    )
    return [node for node in nodes.lock(tx, tx.scalars(query)) if node.vcluster_id == vcluster_id]


def _of_kind(kind: NodeKindRow, many: bool, value: _Operand = _literal) -> ColumnElement[bool]:
    block = _n.block_id == value("block", kind.block) if kind.block else _n.block_id.is_(None)
    subnet = _n.subnet == value("subnet", kind.subnet) if kind.subnet else _n.subnet.is_(None)
    port = {"": (), "usable": (_USABLE,), "unusable": (~_USABLE,)}[kind.port]
    windows = _windows == value("windows", kind.windows) if kind.windows else _IN_NO_WINDOW
    of_type = _n.type_id == value("type", kind.type)
    return and_(of_type, block, *([subnet] if many else []), *port, windows)


def _kept_for(request_id: int, value: _Operand = _literal) -> ColumnElement[bool]:
    r = t.reservations.c
    one = select(r.node_id).where(r.node_id == _n.id)
    own = r.request_id == value("reserved", request_id)
    return one.where(own).exists() if request_id else ~one.exists()
