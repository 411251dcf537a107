"""Choice of single nodes, with their rows locked, where `node_counts` has counted them."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, bindparam, case, func, select
from sqlalchemy.sql.elements import ColumnElement

from cod.model import Node
from cod.states import Disk
from cod.store import tables as t
from cod.store.engine import Among, Tx, rows_among, slices
from cod.store.nodes import nodes
from cod.store.rows import Rows
from cod.store.scheduler.node_kinds import (
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
    """Return the `count` free nodes with the lowest ids whose attributes equal `key`, locked.
    Raises `Changed` if there are fewer.

    idle_since  only nodes that may be put to sleep (see `node_counts.free`)
    group_id    the group that gets the nodes: nodes kept for this group come first; nodes kept for
                other groups, which must be erased before, come last
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


class FreeCandidates:
    """Free nodes of the kinds that a plan's grants take, those with the lowest ids first.

    The plan's first transaction reads their ids. Each transaction locks the nodes that it takes and
    checks them again: a candidate that is no longer free is passed over. Nodes that a transaction
    grants stay candidates until it is known to be committed: one that fails has granted none.
    """

    def __init__(self, keys: Iterable[FreeKey], many: bool) -> None:
        self._keys = {key for key in keys if not key.kind.port and not key.kind.windows}
        self._many = many
        self._ids: dict[FreeKey, list[int]] | None = None
        self._seen: Counter[FreeKey] = Counter()  # how many the last transaction has looked at
        self._kept: dict[FreeKey, list[int]] = {}  # what it leaves, once it is committed

    def pick(self, tx: Tx, wanted: Mapping[FreeKey, int]) -> dict[FreeKey, deque[Node]]:
        """Return the wanted number of nodes of each kind, locked; fewer if fewer are left. Kinds
        that are distinguished by switch ports or maintenance, or whose order in `pick_free` depends
        on the group, get none."""
        if self._ids is None:
            self._ids = self._read(tx)
        self._seen, self._kept = Counter(), {}
        chosen: dict[FreeKey, deque[Node]] = {key: deque() for key in wanted}
        while picked := {
            one: key
            for key, count in wanted.items()
            for start in [self._seen[key]]
            for one in self._ids.get(key, [])[start : start + count - len(chosen[key])]
        }:
            self._seen.update(picked.values())
            locked = nodes.lock(tx, picked)
            still = {  # as in `pick_free`
                row[0]: free_key(row[3:], self._many)._replace(reserved=row[1] or 0)
                for part in slices(list(picked))
                for row in tx.execute(_STILL, {"picked": part}).all()
                if row[2]
            }
            for node in locked:
                if still.get(node.id) == picked[node.id]:
                    chosen[picked[node.id]].append(node)
        return chosen

    def keep(self, free: Mapping[FreeKey, Iterable[Node]]) -> None:
        """Note which of the candidates that the last `pick` has examined its transaction leaves
        free; `committed` drops the others."""
        assert self._ids is not None
        self._kept = {
            key: [*(node.id for node in free[key]), *self._ids[key][count:]]
            for key, count in self._seen.items()
        }

    def committed(self) -> None:
        """Drop the candidates that the last transaction did not `keep`, as it is committed."""
        if self._ids is not None:
            self._ids |= self._kept

    def _read(self, tx: Tx) -> dict[FreeKey, list[int]]:
        found: defaultdict[FreeKey, list[int]] = defaultdict(list)
        tables: set[FreeKey] = set()
        values = {
            "types": list({key.kind.type for key in self._keys}),
            "blocks": list({key.kind.block for key in self._keys}),
        }
        for ids, request_id, *alike in tx.execute(_FREE_IDS, values).all():
            key = free_key(alike, self._many)._replace(reserved=request_id or 0)
            if key in self._keys:
                found[key].extend(map(int, ids.split(",")))
                if alike[_DISK] == Disk.TABLES:
                    tables.add(key)
        return {key: sorted(ids) for key, ids in found.items() if key not in tables}


_DISK = ALIKE.index(_n.disk)
# one row for each sort: its ids as one text
_FREE_IDS = (
    select(func.group_concat(_n.id), t.reservations.c.request_id, *ALIKE)
    .outerjoin_from(t.nodes, t.reservations, t.reservations.c.node_id == _n.id)
    .where(FREE, Among(_n.type_id, "types"), Among(func.coalesce(_n.block_id, 0), "blocks"))
    .group_by(t.reservations.c.request_id, *ALIKE)
)
# `FREE` is selected, not a condition: SQLite would look through all free nodes for those of the ids
_STILL = (
    select(_n.id, t.reservations.c.request_id, case((FREE, 1), else_=0), *ALIKE)
    .outerjoin_from(t.nodes, t.reservations, t.reservations.c.node_id == _n.id)
    .where(Among(_n.id, "picked"))
)


def _erased_first(group_id: int | None) -> tuple[ColumnElement[int], ...]:
    if group_id is None:
        return ()
    own = and_(_n.disk == Disk.TABLES, _n.cached_group_id == group_id)
    return (case((own, 0), (_n.disk == Disk.TABLES, 2), else_=1),)


def switched(tx: Tx, key: FreeKey, state: str, many: bool, at: float) -> int:
    """Return how many nodes without a holder entered `state` exactly at `at`. Their other
    attributes equal `key`."""
    came = _n.state == state, _n.since == at
    return nodes.ROWS.count(tx, UNHELD, _n.released == 0, *came, _alike(key, many))


def _alike(key: FreeKey, many: bool) -> ColumnElement[bool]:
    cache = and_(
        _n.disk == Disk.CACHED,
        _n.cached_template_id == key.template,
        _n.cached_group_id == key.group,
    )
    return and_(
        _of_kind(key.kind, many),
        _n.disk != Disk.CACHED if key.template is None else cache,
        kept_for(key.reserved),
    )


class Member(NamedTuple):
    """Attributes that distinguish nodes of one kind within a vcluster."""

    id: int
    name: str
    hostname: str | None
    state: str
    assigned_at: float | None


_MEMBERS = Rows(Member, t.nodes)


def members(
    tx: Tx, vcluster_id: int, kind: NodeKindRow, many: bool, assigned_by: float
) -> list[Member]:
    """Return the nodes that `pick_held` returns, by id, without locking them."""
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


def _kind_shape(kind: NodeKindRow) -> NodeKindRow:
    subnet = "subnet" if kind.subnet else ""
    return NodeKindRow(0, min(kind.block, 1), subnet, kind.port, min(kind.windows, 1))


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
