"""Holders of nodes, past and present: the transitions of nodes and their present rows, for a reader
that sees one moment of the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Select, case, literal, or_, select

from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx, rows_among
from cod.store.rows import theirs

_h, _n, _v, _g = t.node_history.c, t.nodes.c, t.vclusters.c, t.groups.c
_c, _b, _p, _w = t.config_templates.c, t.bindings.c, t.switch_ports.c, t.vcluster_networks.c
BATCH = 10_000
_ERASED = case(
    (_h.erased.is_(None), ""),
    (_h.erased.contains('"tables alone"', autoescape=True), "tables"),
    else_="whole",
)
_TRANSITION = (
    _h.id,
    _h.node_id,
    _h.event,
    _h.from_state,
    _h.to_state,
    _h.generation,
    _h.vcluster_id,
    _h.at,
    _ERASED,
)


def transitions(tx: Tx, node_id: int | None = None, after: int = 0) -> Iterator[tuple[Any, ...]]:
    """Yield the transitions of all nodes, or of one, with ids above `after`. They come node by
    node, each node's in the order of their generations: with several writers, ids need not be in
    the order of commits."""
    query = _of(select(*_TRANSITION).where(_h.id > after), _h.node_id, node_id)
    query = query.order_by(_h.node_id, _h.id)
    rows = tx.execute(query, execution_options={"yield_per": BATCH})
    for _, own in groupby(rows, key=lambda row: row[1]):
        yield from sorted(map(tuple, own), key=lambda row: (row[5], row[0]))


def owners(tx: Tx) -> Iterator[tuple[int, str, str, bool]]:
    """Yield (id, name, name of the group, whether any revision of its templates caches disks) of
    each vcluster that ever existed."""
    caches = _c.document.contains('cache="yes"', autoescape=True)
    named = select(_c.id).where(_c.name.in_(select(_c.name).where(caches)))
    keeping = set(tx.scalars(named))
    r, u = t.node_requests.c, t.request_tuples.c
    asked = select(r.vcluster_id, u.template_id).join_from(t.node_requests, t.request_tuples)
    keepers = {vcluster for vcluster, template in tx.execute(asked) if template in keeping}
    query = select(_v.id, _v.name, _g.name, _v.template_id).join_from(t.vclusters, t.groups)
    for vcluster_id, name, group, template in tx.execute(query):
        yield vcluster_id, name, group, template in keeping or vcluster_id in keepers


def rows(tx: Tx, node_id: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield a dictionary for each node, or for one node: its state, and the facts about its
    holder."""
    users = _lists(tx, _users(node_id))
    addresses = _lists(tx, _addresses(node_id))
    blocks = _lists(tx, select(*(t.vcluster_blocks.c[name] for name in _BLOCK)))
    volumes = _lists(tx, _volumes())
    owner = t.groups.alias()
    query = (
        select(
            _n.id.label("node"),
            _n.name,
            _n.state,
            _n.generation,
            _n.disk,
            _n.vcluster_id.label("holder"),
            _v.state.label("holder_state"),
            _g.name.label("group"),
            owner.c.name.label("template_group"),
            _p.wanted_vlan.label("vlan"),
            _w.vlan.label("own_vlan"),
        )
        .select_from(t.nodes)
        .outerjoin(t.vclusters, _v.id == _n.vcluster_id)
        .outerjoin(t.groups, _g.id == _v.group_id)
        .outerjoin(t.config_templates, _c.id == _n.template_id)
        .outerjoin(owner, owner.c.id == _c.group_id)
        .outerjoin(t.switch_ports, _p.mac == _n.boot_mac)
        .outerjoin(t.vcluster_networks, _w.vcluster_id == _n.vcluster_id)
        .order_by(_n.id)
    )
    for row in tx.execute(_of(query, _n.id, node_id)):
        own = [address for (address,) in addresses.get(row.node, ())]
        strange = [
            address
            for address in own
            if not any(first <= address <= last for first, last in blocks.get(row.holder, ()))
        ]
        yield {
            **row._mapping,
            "users": tuple(group for (group,) in users.get(row.node, ())),
            "addresses": len(own),
            "strange": tuple(strange) if row.holder is not None else (),
            "volumes": tuple(volumes.get(row.holder, ())),
        }


_BLOCK = ("vcluster_id", "first_address", "last_address")


def _users(node_id: int | None) -> Select[Any]:
    p = t.node_permissions.c
    query = select(p.node_id, _g.name).join_from(t.node_permissions, t.groups, _g.id == p.group_id)
    return _of(query.where(p.right == literal("use")), p.node_id, node_id).order_by(_g.name)


def _addresses(node_id: int | None) -> Select[Any]:
    query = select(_b.node_id, _b.address).where(
        _b.kind == "vcluster", _b.node_id.is_not(None), _b.state != "left"
    )
    return _of(query, _b.node_id, node_id)


def _volumes() -> Select[Any]:
    a, o = t.volume_attachments.c, t.volumes.c
    return (
        select(a.vcluster_id, o.name, _g.name)
        .select_from(t.volume_attachments)
        .join(t.volumes, o.id == a.volume_id)
        .join(t.groups, _g.id == o.group_id)
        .where(or_(a.leaving.is_(False), o.deleted_at.is_(None)))
    )


def _of(query: Select[Any], column: ColumnElement[Any], node_id: int | None) -> Select[Any]:
    return query if node_id is None else query.where(column == node_id)


def _lists(tx: Tx, query: Select[Any]) -> dict[Any, list[tuple[Any, ...]]]:
    """Return the rows of a query by their first column, without it."""
    found: dict[Any, list[tuple[Any, ...]]] = {}
    for row in tx.execute(query):
        found.setdefault(row[0], []).append(tuple(row[1:]))
    return found


def taken_out_of_use(tx: Tx, after: int, at: float) -> list[int]:
    """Return the nodes that left state *active* at the time `at`, by transitions with ids above
    `after`."""
    query = select(_h.node_id).where(
        _h.id > after,
        _h.at == at,
        _h.from_state == NodeState.ACTIVE,
        _h.to_state != NodeState.ACTIVE,
    )
    return list(tx.scalars(query))


def holders(
    tx: Tx, node_ids: Sequence[int], groups: frozenset[int] | None
) -> list[tuple[str, str, str]]:
    """Return (vcluster, its group, node), all by name and in order, for those of the nodes that are
    held by vclusters of these groups (None: of any group)."""
    query = (
        select(_v.name, _g.name, _n.name)
        .join_from(t.nodes, t.vclusters, _v.id == _n.vcluster_id)
        .join(t.groups, _g.id == _v.group_id)
        .where(*theirs(_v.group_id, groups))
    )
    return sorted(map(tuple, rows_among(tx, query, _n.id, node_ids)))
