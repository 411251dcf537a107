"""Rows joined with the names of what they refer to, for the API."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from math import inf
from typing import Any

from sqlalchemy import Column, Select, and_, case, func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from cod.model import (
    ExpectedStart,
    Node,
    NodeView,
    ReclaimView,
    Refused,
    RequestTuple,
    RequestView,
    VclusterView,
    VcmView,
    WatchedNode,
    dotted,
    joined,
)
from cod.model.names import natural_key
from cod.states import OWN_SYSTEM, NodeState, ReclaimState, RequestState
from cod.store import tables as t
from cod.store import vcms as vcm_rows
from cod.store import volumes
from cod.store.engine import Tx, grouped, nested, rows_among, slices
from cod.store.nodes import nodes as node_rows
from cod.store.rows import Rows, only, theirs
from cod.store.scheduler import address_blocks, networks
from cod.store.scheduler import reclaims as reclaim_rows
from cod.store.scheduler import requests as request_rows
from cod.store.scheduler import vclusters as vcluster_rows

_NODE, _VCLUSTER = node_rows.ROWS, vcluster_rows.ROWS
_REQUEST, _RECLAIM = request_rows.ROWS, reclaim_rows.ROWS
_STARTS = Rows(ExpectedStart, t.request_starts, elsewhere={"at": t.request_starts.c.starts_at})
_MANY = 2000  # nodes
_HELD = ("bound", "reserved")  # addresses
_REVISION = (t.config_templates.c.name, t.config_templates.c.revision)


# ---------------------------------------------------------------- nodes


def nodes(
    tx: Tx,
    *,
    name: str | None = None,
    vcluster: str | None = None,
    type: str | None = None,
    limit: int = 1000,
    groups: frozenset[int] | None = None,
) -> list[NodeView]:
    """Return nodes for people, by name; each argument that is not None is a filter.

    groups  only nodes that vclusters of these groups hold
    """
    query = node_query(
        groups, {t.nodes.c.name: name, t.vclusters.c.live_name: vcluster, t.node_types.c.name: type}
    )
    return node_views(tx, list(tx.execute(query.order_by(t.nodes.c.name).limit(limit))))


def members(tx: Tx, vcluster: str) -> list[NodeView]:
    """Return a live vcluster's nodes for people, in the natural order of their host names (n2
    before n10)."""
    found = nodes(tx, vcluster=vcluster, limit=100_000)
    return sorted(found, key=lambda view: natural_key(view.node.hostname or view.node.name))


def node_query(groups: frozenset[int] | None, wanted: Mapping[Column[Any], object]) -> Select[Any]:
    """Return the query whose rows `node_views` takes, without an order. `wanted` has columns and
    the values that they must have; None means any value."""
    query = (
        select(
            *_NODE.columns,
            t.node_blocks.c.name,
            case((t.vclusters.c.preemptible.is_(False), t.groups.c.priority)),
            t.node_types.c.name,
            t.vclusters.c.name,
            *_REVISION,
        )
        .select_from(t.nodes)
        .outerjoin(t.node_types, t.nodes.c.type_id == t.node_types.c.id)
        .outerjoin(t.node_blocks, t.nodes.c.block_id == t.node_blocks.c.id)
        .outerjoin(t.vclusters, t.nodes.c.vcluster_id == t.vclusters.c.id)
        .outerjoin(t.groups, t.vclusters.c.group_id == t.groups.c.id)
        .outerjoin(t.config_templates, t.nodes.c.template_id == t.config_templates.c.id)
    )
    return query.where(*only(wanted), *theirs(t.vclusters.c.group_id, groups))


def watched(
    tx: Tx, groups: frozenset[int] | None, *, vcluster: str | None, group: str | None
) -> list[WatchedNode]:
    """Return the active nodes of these groups (None: all) that have an address, by name."""
    n, b = t.nodes.c, t.bindings.c
    query = (
        select(
            n.name,
            func.coalesce(n.hostname, ""),
            b.address,
            t.vclusters.c.name,
            t.groups.c.name,
            func.coalesce(t.node_types.c.name, ""),
            func.coalesce(t.node_blocks.c.name, ""),
            func.coalesce(t.config_templates.c.name, ""),
        )
        .join_from(t.nodes, t.vclusters, n.vcluster_id == t.vclusters.c.id)
        .join(t.groups, t.vclusters.c.group_id == t.groups.c.id)
        .join(t.bindings, and_(b.node_id == n.id, b.kind == "vcluster", b.state.in_(_HELD)))
        .outerjoin(t.node_types, n.type_id == t.node_types.c.id)
        .outerjoin(t.node_blocks, n.block_id == t.node_blocks.c.id)
        .outerjoin(t.config_templates, n.template_id == t.config_templates.c.id)
        .where(n.state == NodeState.ACTIVE, *theirs(t.vclusters.c.group_id, groups))
        .where(*only({t.vclusters.c.live_name: vcluster, t.groups.c.name: group}))
        .order_by(n.name, b.expires_at)
    )
    found = {  # of several addresses the newest
        name: WatchedNode(name, host, dotted(address), *others)
        for name, host, address, *others in tx.execute(query)
    }
    return list(found.values())


def troubled_nodes(tx: Tx, *, begins: str, reason: str, parts: Collection[str]) -> list[NodeView]:
    """Return nodes for people, by name, whose reason begins with `begins` or is `reason`, or that
    wait for one of `parts`."""
    n = t.nodes.c
    query = node_query(None, {}).where(
        or_(n.reason.startswith(begins), n.reason == reason, n.waits_for.in_(list(parts)))
    )
    return node_views(tx, list(tx.execute(query.order_by(n.name))))


def holders(tx: Tx, names: Collection[str]) -> list[str]:
    """Return the names of the vclusters that hold nodes of those names, in order."""
    query = select(t.vclusters.c.name).join_from(
        t.nodes, t.vclusters, t.nodes.c.vcluster_id == t.vclusters.c.id
    )
    return sorted({row[0] for row in rows_among(tx, query, t.nodes.c.name, names)})


def node_views(tx: Tx, rows: Sequence[Any]) -> list[NodeView]:
    """Return nodes for people from rows of `node_query`."""
    parts = [_NODE.with_rest(row) for row in rows]
    found = [node for node, _ in parts]
    query: Select[Any] = select(t.nics.c.node_id, t.nics.c.mac).order_by(t.nics.c.mac)
    macs = grouped(_by_node(tx, query, t.nics.c.node_id, found))
    b = t.bindings.c
    bound: Select[Any] = select(b.node_id, b.kind, b.address).where(b.state.in_(_HELD))
    bound = bound.order_by(b.expires_at)
    addresses = {(row[0], row[1]): dotted(row[2]) for row in _by_node(tx, bound, b.node_id, found)}
    views = []
    for node, (block, priority, type_name, vcluster, template, revision) in parts:
        # A node that boots its own system has the address that its vcluster reserved for it; before
        # that it has an address of the boot pool.
        address = addresses.get((node.id, "vcluster" if node.state in OWN_SYSTEM else "boot"))
        views.append(
            NodeView(
                node,
                tuple(macs.get(node.id, ())),
                type_name,
                vcluster,
                None if template is None else f"{template}@{revision}",
                address,
                block=block,
                priority=priority,
            )
        )
    return views


def _by_node(tx: Tx, query: Select[Any], column: Column[Any], found: list[Node]) -> Iterator[Any]:
    """Yield those rows of the query that belong to the nodes `found`; for many nodes, all rows of
    the query, which is cheaper."""
    if len(found) > _MANY:
        return iter(tx.execute(query))
    return rows_among(tx, query, column, [node.id for node in found])


# ---------------------------------------------------------------- vclusters and requests


def vclusters(tx: Tx, *, name: str | None = None, ended: bool = False) -> list[VclusterView]:
    """Return what people see of vclusters, ordered by name. Vclusters that have ended are included
    only if `ended`.

    name  as in `called`
    """
    query = vcluster_query(None, ended, {}).where(*called(name))
    return vcluster_views(
        tx, list(tx.execute(query.order_by(t.vclusters.c.name, t.vclusters.c.id)))
    )


def vcluster(tx: Tx, name: str) -> VclusterView:
    """Return the vcluster that has this name now, or else the last one that had it. 'name@id' is
    one of those that have or had the name. Raises `Refused` if there is none."""
    found = vclusters(tx, name=name, ended=True)
    if not found:
        raise Refused("not_found", f"there is no vcluster {name!r}", "name")
    return next((one for one in found if one.vcluster.ended_at is None), found[-1])


def called(key: str | None) -> list[ColumnElement[bool]]:
    """Return conditions for the vclusters that `key` names: 'name', or 'name@id' for a single one
    of the vclusters that have or had the name. None gives no conditions."""
    if key is None:
        return []
    name, at, number = key.partition("@")
    plain = number.isascii() and number.isdigit() and len(number) < 19
    return [
        t.vclusters.c.name == name,
        *([t.vclusters.c.id == (int(number) if plain else 0)] if at else []),
    ]


def vcluster_query(
    groups: frozenset[int] | None, ended: bool, wanted: Mapping[Column[Any], object]
) -> Select[Any]:
    """Return the query whose rows `vcluster_views` takes, without an order."""
    query = (
        select(*_VCLUSTER.columns, t.groups.c.name, *_REVISION)
        .join_from(t.vclusters, t.groups, t.vclusters.c.group_id == t.groups.c.id)
        .join(t.config_templates, t.vclusters.c.template_id == t.config_templates.c.id)
        .where(*only(wanted), *theirs(t.vclusters.c.group_id, groups))
    )
    return query if ended else query.where(t.vclusters.c.live_name.is_not(None))


def vcluster_views(tx: Tx, rows: Sequence[Any]) -> list[VclusterView]:
    """Return vclusters for people from rows of `vcluster_query`."""
    parts = [_VCLUSTER.with_rest(row) for row in rows]
    ids = [one.id for one, _ in parts]
    states, waits = _of_nodes(tx, ids)
    blocks = address_blocks.of_each(tx, ids)
    isolated = [one.id for one, _ in parts if one.isolated]
    nets = networks.of_each(tx, isolated) if isolated else {}
    return [
        VclusterView(
            one,
            group,
            f"{template}@{revision}",
            states.get(one.id, {}),
            joined(blocks.get(one.id, ())),
            nets.get(one.id),
            tuple(waits.get(one.id, ())),
        )
        for one, (group, template, revision) in parts
    ]


def _of_nodes(
    tx: Tx, vcluster_ids: Sequence[int]
) -> tuple[dict[int, Counter[str]], dict[int, list[str]]]:
    """Return the number of nodes in each state, and sentences about what nodes wait for, both by
    vcluster."""
    n = t.nodes.c
    by = (n.vcluster_id, n.waits_for, n.state)
    query = select(*by, func.count(), func.min(n.waits_since)).group_by(*by).order_by(*by)
    states: dict[int, Counter[str]] = defaultdict(Counter)
    waits: dict[int, list[str]] = defaultdict(list)
    rows = rows_among(tx, query, n.vcluster_id, vcluster_ids)
    for (vcluster_id, what), parts in groupby(rows, key=lambda row: row[:2]):
        count, since = 0, inf
        for _, _, state, nodes, waits_since in parts:
            states[vcluster_id][state] += nodes
            count, since = count + nodes, min(since, waits_since or 0.0)
        if what:
            at = f"{datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M} UTC"
            waiting = "1 node waits" if count == 1 else f"{count} nodes wait"
            waits[vcluster_id].append(f"{waiting} for {what}, since {at}")
    for part in slices(vcluster_ids):
        for vcluster_id, mounts in volumes.awaited_mounts(tx, part).items():
            waits[vcluster_id] += [f"{mount} waits for {server}" for mount, server in mounts]
    return states, waits


def request(tx: Tx, request_id: int, groups: frozenset[int] | None = None) -> RequestView:
    """Return the node request with that id. The vcluster that a move takes nodes from is shown only
    if it belongs to these groups (None: always). Raises `Refused` if there is no such request."""
    rows = tx.execute(request_query(None, {t.node_requests.c.id: request_id})).all()
    if not rows:
        raise Refused("not_found", f"there is no request {request_id}", "id")
    return request_views(tx, rows, groups)[0]


_source = t.vclusters.alias()


def request_query(
    groups: frozenset[int] | None, wanted: Mapping[Column[Any], object]
) -> Select[Any]:
    """Return the query whose rows `request_views` takes, without an order."""
    query = (
        select(*_REQUEST.columns, t.vclusters.c.name, _source.c.name, _source.c.group_id)
        .join_from(t.node_requests, t.vclusters, t.node_requests.c.vcluster_id == t.vclusters.c.id)
        .outerjoin(_source, t.node_requests.c.source_id == _source.c.id)
    )
    return query.where(*only(wanted), *theirs(t.vclusters.c.group_id, groups))


def request_views(tx: Tx, rows: Sequence[Any], groups: frozenset[int] | None) -> list[RequestView]:
    """Return requests for people from rows of `request_query`. The vcluster that a move takes nodes
    from is shown only if it belongs to these groups (None: always)."""
    parts = [_REQUEST.with_rest(row) for row in rows]
    tuples = _tuples(tx, [one.id for one, _ in parts])
    leaving = _leaving(tx, [one.id for one, _ in parts if one.source_id is not None])
    starts = _starts(tx, [one.id for one, _ in parts if one.state == RequestState.PENDING])
    views = []
    for one, (vcluster, source, source_group) in parts:
        own = tuples.get(one.id, [])
        views.append(
            RequestView(
                replace(one, tuples=tuple(each for each, _ in own)),
                vcluster,
                tuple(name for _, name in own),
                source if groups is None or source_group in groups else None,
                leaving.get(one.id, 0),
                starts.get(one.id),
            )
        )
    return views


def _starts(tx: Tx, ids: list[int]) -> dict[int, ExpectedStart]:
    """Return when requests are expected to start, by request."""
    c = t.request_starts.c
    query = select(c.request_id, *_STARTS.columns).where(c.began_at.is_(None))
    return {row[0]: _STARTS.read(row, 1) for row in rows_among(tx, query, c.request_id, ids)}


def _leaving(tx: Tx, ids: list[int]) -> dict[int, int]:
    """Return the number of nodes that reclaims have still to give back, by request."""
    c = t.reclaims.c
    query = select(c.request_id, func.sum(c["count"] - c.given)).where(c.state == ReclaimState.OPEN)
    query = query.group_by(c.request_id)
    return {row[0]: int(row[1]) for row in rows_among(tx, query, c.request_id, ids)}


def _tuples(tx: Tx, ids: list[int]) -> dict[int, list[tuple[RequestTuple, str]]]:
    rt = t.request_tuples
    query = (
        select(rt.c.request_id, *request_rows.TUPLES.columns, *_REVISION)
        .join_from(rt, t.config_templates, rt.c.template_id == t.config_templates.c.id)
        .where(rt.c.request_id.in_(ids))
        .order_by(rt.c.request_id, rt.c.position)
    )
    tuples: dict[int, list[tuple[RequestTuple, str]]] = {}
    for request_id, *values, name, revision in tx.execute(query):
        tuples.setdefault(request_id, []).append((RequestTuple(*values), f"{name}@{revision}"))
    return tuples


_holder, _taker = t.vclusters.alias(), t.vclusters.alias()


def reclaim(tx: Tx, reclaim_id: int, groups: frozenset[int] | None = None) -> ReclaimView:
    """Return the reclaim with that id. The vcluster that gets the nodes is shown only if it belongs
    to these groups (None: always). Raises `Refused` if there is no such reclaim."""
    rows = tx.execute(reclaim_query(None, {t.reclaims.c.id: reclaim_id})).all()
    if not rows:
        raise Refused("not_found", f"there is no reclaim {reclaim_id}", "id")
    return reclaim_views(tx, rows, groups)[0]


def reclaim_query(
    groups: frozenset[int] | None, wanted: Mapping[Column[Any], object], vcluster: str | None = None
) -> Select[Any]:
    """Return the query whose rows `reclaim_views` takes, without an order: reclaims from vclusters
    of these groups (None: all groups), or from the vcluster of that name alone."""
    r, k, b, q = t.reclaims.c, t.node_types.c, t.node_blocks.c, t.node_requests.c
    query = (
        select(
            *_RECLAIM.columns,
            _holder.c.name,
            _taker.c.name,
            k.name,
            func.coalesce(b.name, ""),
            _taker.c.group_id,
            q.source_id,
        )
        .join_from(t.reclaims, _holder, r.vcluster_id == _holder.c.id)
        .join(t.node_types, r.type_id == k.id)
        .join(t.node_requests, r.request_id == q.id)
        .join(_taker, q.vcluster_id == _taker.c.id)
        .outerjoin(t.node_blocks, r.block_id == b.id)
    )
    return query.where(
        *only(wanted), *only({_holder.c.name: vcluster}), *theirs(_holder.c.group_id, groups)
    )


def reclaim_views(tx: Tx, rows: Sequence[Any], groups: frozenset[int] | None) -> list[ReclaimView]:
    """Return reclaims for people from rows of `reclaim_query`. The vcluster that gets the nodes is
    shown only if it belongs to these groups (None: always)."""
    chosen = _chosen(tx, [row[0] for row in rows])
    return [
        ReclaimView(
            one,
            holder,
            taker if groups is None or group_id in groups else None,
            type_name,
            block,
            tuple(found := chosen.get(one.id, {})),
            {name: at for name, at in found.items() if at is not None},
            source_id is not None,
        )
        for one, (holder, taker, type_name, block, group_id, source_id) in map(
            _RECLAIM.with_rest, rows
        )
    ]


def _chosen(tx: Tx, ids: list[int]) -> dict[int, dict[str, float | None]]:
    """Return, by reclaim, the nodes that were chosen for it and that the reclaim's vcluster still
    holds: each node's name, and the time by which the node is promised."""
    n, s, r = t.nodes.c, t.reservations.c, t.reclaims.c
    query = (
        select(s.reclaim_id, n.name, s.promised_at)
        .join_from(t.reservations, t.nodes, s.node_id == n.id)
        .join(t.reclaims, s.reclaim_id == r.id)
        .where(n.vcluster_id == r.vcluster_id)
        .order_by(n.name)
    )
    return nested(rows_among(tx, query, s.reclaim_id, ids))


def vcms(
    tx: Tx, groups: frozenset[int] | None = None, vcluster: str | None = None
) -> list[VcmView]:
    """Return the VCMs of these groups (None: all groups), or of the named vcluster alone, with
    their vclusters' names and in the order of these."""
    pending = (
        select(func.count()).where(t.outbox.c.vcluster_id == t.vcms.c.vcluster_id).scalar_subquery()
    )
    query = (
        select(t.vclusters.c.name, pending, *vcm_rows.ROWS.columns)
        .join_from(t.vcms, t.vclusters, t.vclusters.c.id == t.vcms.c.vcluster_id)
        .where(*theirs(t.vclusters.c.group_id, groups), *only({t.vclusters.c.name: vcluster}))
        .order_by(t.vclusters.c.name)
    )
    return [VcmView(vcm_rows.ROWS.read(row, 2), row[0], row[1]) for row in tx.execute(query)]


def vcm(tx: Tx, vcluster: str) -> VcmView | None:
    """Return the vcluster's VCM; None where it has none."""
    return next(iter(vcms(tx, vcluster=vcluster)), None)
