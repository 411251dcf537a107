"""Nodes behind a count of `node_counts`: rows are chosen, and locked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BindParameter,
    CompoundSelect,
    Select,
    and_,
    bindparam,
    case,
    literal_column,
    select,
    union_all,
)
from sqlalchemy.sql.elements import ColumnElement

from cod.model import Node
from cod.states import Disk
from cod.store import tables as t
from cod.store.engine import Tx, rows_among, slices
from cod.store.nodes import nodes
from cod.store.rows import Among, Rows
from cod.store.scheduler.node_kinds import (
    ABLE,
    ALIKE,
    FREE,
    IN_NO_WINDOW,
    PORT_USABLE,
    UNHELD,
    FreeKey,
    NodeKindRow,
    Operand,
    free_key,
    is_idle,
    kept_for,
    literal,
    window_bits,
)

_TOGETHER = 8  # sorts of free nodes that are asked for by one statement

_n = t.nodes.c


def with_usable_ports(tx: Tx, node_ids: Collection[int]) -> set[int]:
    """Return the ids of those nodes whose switch port COD can put into a VLAN."""
    return {row[0] for row in rows_among(tx, select(_n.id).where(PORT_USABLE), _n.id, node_ids)}


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

    idle_since  only those that may be put to sleep (see `node_counts.free`)
    group_id    the group that gets them: nodes kept for this group come first; nodes kept for
                others, which must be erased before, come last
    """
    query = select(_n.id).where(FREE, _n.state == key.state, _alike(key, many))
    if idle_since is not None:
        query = query.where(is_idle(idle_since))
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
        row[0]: free_key(row[3:], many)._replace(reserved=row[1] or 0)
        for part in slices(ids)
        for row in tx.execute(_STILL, {"picked": part}).all()
        if row[2]
    }
    chosen: dict[FreeKey, list[Node]] = {key: [] for key in wanted}
    for node in locked:
        if still.get(node.id) == picked[node.id]:
            chosen[picked[node.id]].append(node)
    return chosen


# `FREE` is selected, not a condition: SQLite would look through all free nodes for those of the ids
_STILL = (
    select(_n.id, t.reservations.c.request_id, case((FREE, 1), else_=0), *ALIKE)
    .outerjoin_from(t.nodes, t.reservations, t.reservations.c.node_id == _n.id)
    .where(Among(_n.id, "picked"))
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

        # not `FREE`: a list of states is made anew for each of the many times that this is asked
        query = select(literal_column(str(place)).label("place"), _n.id, tables.label("tables"))
        # MariaDB takes six times as long to choose among four indexes as to read this one
        for dialect in ("mysql", "mariadb"):  # as the database's URL calls it
            query = query.with_hint(t.nodes, "FORCE INDEX (ix_nodes_counts)", dialect)
        query = query.where(ABLE, _n.state == value("state"), _alike(shape, many, value))
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
    return nodes.ROWS.count(tx, UNHELD, _n.released == 0, *came, _alike(key, many))


def _alike(key: FreeKey, many: bool, value: Operand = literal) -> ColumnElement[bool]:
    cache = and_(
        _n.disk == Disk.CACHED,
        _n.cached_template_id == value("template", key.template),
        _n.cached_group_id == value("group", key.group),
    )
    return and_(
        _of_kind(key.kind, many, value),
        _n.disk != Disk.CACHED if key.template is None else cache,
        kept_for(key.reserved, value),
    )


class Member(NamedTuple):
    """Attributes that tell nodes of a vcluster apart that are of one kind."""

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
        kept_for(0),
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
        kept_for(0),
    )
    return [node for node in nodes.lock(tx, tx.scalars(query)) if node.vcluster_id == vcluster_id]


def _of_kind(kind: NodeKindRow, many: bool, value: Operand = literal) -> ColumnElement[bool]:
    block = _n.block_id == value("block", kind.block) if kind.block else _n.block_id.is_(None)
    subnet = _n.subnet == value("subnet", kind.subnet) if kind.subnet else _n.subnet.is_(None)
    port = {"": (), "usable": (PORT_USABLE,), "unusable": (~PORT_USABLE,)}[kind.port]
    windows = window_bits == value("windows", kind.windows) if kind.windows else IN_NO_WINDOW
    of_type = _n.type_id == value("type", kind.type)
    return and_(of_type, block, *([subnet] if many else []), *port, windows)
