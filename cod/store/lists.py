"""Long lists for people, read page by page.

The functions take a `model.Page`, the groups whose things may be seen (None: all groups), and
optional filters. Each raises `Refused` for an invalid cursor.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, String, bindparam, cast, func, literal, select

from cod.choices import DeliveryState
from cod.filters.language import Filter
from cod.model import (
    ALL,
    SITE,
    KnownMachine,
    Listed,
    NodeView,
    Notice,
    NoticeView,
    Page,
    ReclaimView,
    RequestView,
    Send,
    VclusterView,
)
from cod.model.names import natural_key
from cod.states import NodeState, RequestState, VclusterState
from cod.store import tables as t
from cod.store import views
from cod.store.engine import Tx, rows_among, slices
from cod.store.filters import nodes as node_filters
from cod.store.notices import notices as notice_rows
from cod.store.paging import having, merged, page_of
from cod.store.rows import only, theirs

Groups = frozenset[int] | None
_FAR = 1e12  # where a time is not set, it comes after all others


def _several(column: ColumnElement[Any], wanted: str | None) -> list[ColumnElement[bool]]:
    """Return the condition that the column has one of the values of 'a' or 'a,b'; none for None."""
    return [] if wanted is None else [column.in_(wanted.split(","))]


def known(tx: Tx, kind: str, name: str, groups: Groups) -> bool:
    """Return whether a thing of this kind and name exists, or existed, and these groups may see it.
    Types and blocks are visible to everybody. Other kinds are filters that name no thing: True."""
    v, g = t.vclusters.c, t.groups.c
    named: list[ColumnElement[bool]]
    match kind:
        case "type":
            named = [t.node_types.c.name == name]
        case "block":
            named = [t.node_blocks.c.name == name]
        case "node":
            named = [t.nodes.c.name == name]
        case "vcluster":
            named = [v.name == name.partition("@")[0], *theirs(v.group_id, groups)]
        case "group" if name != SITE:
            named = [g.name == name, *theirs(g.id, groups)]
        case _:
            return True
    return tx.scalar(select(literal(1)).where(*named).limit(1)) is not None


def nodes(
    tx: Tx,
    page: Page,
    groups: Groups,
    *,
    state: str | None = None,
    vcluster: str | None = None,
    type: str | None = None,
    block: str | None = None,
    power: str | None = None,
    group: str | None = None,
    where: Filter | None = None,
    ids: Sequence[int] | None = None,
) -> Listed[NodeView]:
    """Return nodes. `state` is one state or several separated by commas; `group` is the group whose
    vclusters hold the nodes; `ids` restricts the list to these nodes."""
    n, kind, near, v = t.nodes.c, t.node_types.c.name, t.node_blocks.c.name, t.vclusters.c
    query = views.node_query(
        groups,
        {v.live_name: vcluster, kind: type, near: block, n.power: power, t.groups.c.name: group},
    )
    query = query.where(
        *_several(n.state, state),
        *having(page.q, n.name, n.hostname, n.boot_mac, v.name, kind, near),
        *([] if where is None else [node_filters.condition(tx, where)]),
        *([] if ids is None else [n.id.in_(ids)]),
    )
    keys = {
        "name": n.name,
        "state": n.state,
        "since": n.since,
        "type": func.coalesce(kind, ""),
        "block": func.coalesce(near, ""),
        "vcluster": func.coalesce(v.name, ""),
        "hostname": _natural(func.coalesce(n.hostname, n.name)),
    }
    rows = page_of(tx, query, page, keys, "name", n.name)
    return Listed(views.node_views(tx, rows), rows.next, rows.total)


def _natural(name: ColumnElement[str]) -> ColumnElement[str]:
    """Return an expression that orders names with numbers as people count: n2 before n10. A shorter
    name comes first; names have less than 100 characters."""
    return func.substr(literal("0") + cast(func.length(name), String), -2) + name


def node_names(
    tx: Tx, groups: Groups, where: Filter, ids: Sequence[int] | None, limit: int
) -> list[tuple[int, str]]:
    """Return (id, name) of the nodes that match the filter, out of `ids` (None: all nodes)."""
    n = t.nodes.c
    query = views.node_query(groups, {}).with_only_columns(n.id, n.name)
    query = query.where(node_filters.condition(tx, where)).limit(limit)
    found = tx.execute(query).all() if ids is None else [*rows_among(tx, query, n.id, ids)]
    return [(row[0], row[1]) for row in found]


def machines(tx: Tx, ids: Sequence[int] | None) -> list[KnownMachine]:
    """Return the recorded facts of the nodes `ids` (None: all) by name, without retired ones."""
    n, b, c = t.nodes.c, t.node_blocks.c, t.nics.c
    query = (
        select(
            *(n.id, n.boot_mac, n.name, n.uuid, n.serial, func.coalesce(b.name, "")),
            *(n.power_driver, n.power_address, n.power_account, n.rack_position, n.tags),
        )
        .select_from(t.nodes.outerjoin(t.node_blocks, b.id == n.block_id))
        .where(n.state != NodeState.RETIRED)
    )
    macs = select(c.node_id, c.mac).order_by(c.mac)
    known: defaultdict[int, list[str]] = defaultdict(list)
    found: list[tuple[Any, ...]] = []
    for part in [None] if ids is None else slices(ids):
        for node_id, mac in tx.execute(macs if part is None else macs.where(c.node_id.in_(part))):
            known[node_id].append(mac)
        found += map(tuple, tx.execute(query if part is None else query.where(n.id.in_(part))))
    listed = []
    for row in sorted(found, key=lambda row: natural_key(row[2])):
        node_id, first, name, uuid, serial, block, driver, address, account, position, tags = row
        cards = dict.fromkeys([*([first] if first else []), *known[node_id]])
        power = (driver, address, account)
        placed = (position, tuple(tags.split()))
        listed.append(KnownMachine(name, tuple(cards), uuid, serial, block, *power, *placed))
    return listed


class Square(NamedTuple):
    """A node on the map. `block`, `type`, `vcluster`, `group`: '' for none."""

    name: str
    state: str
    block: str
    type: str
    vcluster: str
    group: str


def squares(tx: Tx) -> list[Square]:
    """Return all nodes that are not retired."""
    n, v, g, b, k = (
        each.c for each in (t.nodes, t.vclusters, t.groups, t.node_blocks, t.node_types)
    )
    near, kind, holder, group = (
        func.coalesce(each, "") for each in (b.name, k.name, v.name, g.name)
    )
    query = (
        select(n.name, n.state, near, kind, holder, group)
        .select_from(t.nodes)
        .outerjoin(t.node_blocks, n.block_id == b.id)
        .outerjoin(t.node_types, n.type_id == k.id)
        .outerjoin(t.vclusters, n.vcluster_id == v.id)
        .outerjoin(t.groups, v.group_id == g.id)
        .where(n.state != NodeState.RETIRED)
    )
    return [Square(*row) for row in tx.execute(query).all()]


def vclusters(
    tx: Tx,
    page: Page = ALL,
    groups: Groups = None,
    *,
    ended: bool = False,
    state: str | None = None,
    group: str | None = None,
) -> Listed[VclusterView]:
    """Return vclusters, with ended ones only if `ended`."""
    v, g = t.vclusters.c, t.groups.c.name
    query = views.vcluster_query(groups, ended, {g: group})
    query = query.where(
        *_several(v.state, state), *having(page.q, v.name, g, v.description, v.tags)
    )
    keys = {
        "name": v.name,
        "group": g,
        "state": v.state,
        "size": v.size,
        "created_at": v.created_at,
        "expires_at": func.coalesce(v.expires_at, _FAR),
    }
    rows = page_of(tx, query, page, keys, "name", v.id)
    return Listed(views.vcluster_views(tx, rows), rows.next, rows.total)


def active_vclusters(tx: Tx, groups: Groups, limit: int) -> list[tuple[str, int]]:
    """Return (name, group id) of at most `limit` active vclusters of these groups, by name."""
    v = t.vclusters.c
    query = select(v.name, v.group_id).where(v.state == VclusterState.ACTIVE)
    query = query.where(*theirs(v.group_id, groups)).order_by(v.name).limit(limit)
    return [(name, group_id) for name, group_id in tx.execute(query)]


def requests(
    tx: Tx,
    page: Page = ALL,
    groups: Groups = None,
    *,
    vcluster: str | None = None,
    state: str | None = None,
    group: str | None = None,
    kind: str | None = None,
) -> Listed[RequestView]:
    """Return requests for nodes, the newest first."""
    r, v = t.node_requests.c, t.vclusters.c
    query = views.request_query(groups, {r.kind: kind}).where(*views.called(vcluster))
    query = query.where(
        *_several(r.state, state), *_of_group(v.group_id, group), *having(page.q, v.name, r.reason)
    )
    rows = page_of(tx, query, page, {"id": r.id, "priority": r.priority}, "-id", r.id)
    return Listed(views.request_views(tx, rows, groups), rows.next, rows.total)


# made once: each page asks
_WAITING = (
    select(func.count())
    .select_from(t.node_requests)
    .where(t.node_requests.c.state == RequestState.PENDING)
)
_WAITING_OF = _WAITING.join(t.vclusters, t.node_requests.c.vcluster_id == t.vclusters.c.id).where(
    t.vclusters.c.group_id.in_(bindparam("groups", expanding=True))
)


def waiting_requests(tx: Tx, groups: frozenset[int] | None) -> int:
    """Return how many requests of these groups (None: all) wait."""
    query, own = (_WAITING, {}) if groups is None else (_WAITING_OF, {"groups": sorted(groups)})
    return int(tx.execute(query, own).scalar_one())


def reclaims(
    tx: Tx,
    page: Page = ALL,
    groups: Groups = None,
    *,
    vcluster: str | None = None,
    state: str | None = None,
) -> Listed[ReclaimView]:
    """Return reclaims from their vclusters, the newest first."""
    r = t.reclaims.c
    query = views.reclaim_query(groups, {}, vcluster).where(*_several(r.state, state))
    rows = page_of(tx, query, page, {"id": r.id, "deadline": r.deadline}, "-id", r.id)
    return Listed(views.reclaim_views(tx, rows, groups), rows.next, rows.total)


def _of_group(column: ColumnElement[Any], group: str | None) -> list[ColumnElement[bool]]:
    if group is None:
        return []
    return [column == select(t.groups.c.id).where(t.groups.c.name == group).scalar_subquery()]


def notices(
    tx: Tx,
    page: Page = ALL,
    groups: Groups = None,
    *,
    group: str | None = None,
    vcluster: str | None = None,
    kind: str | None = None,
    above: int | None = None,
) -> Listed[NoticeView]:
    """Return notices for people, the newest first; with `above` only those with larger ids."""
    n = t.notices.c
    query = notice_rows.query(groups).where(
        n.events.is_(None),
        *_of_group(n.group_id, group),
        *views.called(vcluster),
        *_several(n.kind, kind),
        *([] if above is None else [n.id > above]),
        *having(page.q, n.subject, n.about),
    )
    rows = page_of(tx, query, page, {"id": n.id}, "-id", n.id)
    return Listed(notice_rows.seen(tx, rows), rows.next, rows.total)


def conflicts(tx: Tx, page: Page = ALL, *, kind: str | None = None) -> Listed[dict[str, Any]]:
    """Return conflicts of addresses and of identities, the newest first, as dictionaries of the
    table's columns."""
    c = t.conflicts.c
    query = select(*c).where(*_several(c.kind, kind), *having(page.q, c.about, c.mac))
    rows = page_of(tx, query, page, {"id": c.id}, "-id", c.id)
    return rows.each(lambda row: dict(zip(c.keys(), row, strict=True)))


HISTORY = (
    "id",
    "at",
    "event",
    "from_state",
    "to_state",
    "cause",
    "actor",
    "bytes_written",
    "rate",
    "erased",
)


def last_event(tx: Tx) -> int:
    """Return the id of the newest transition; 0: there is none."""
    return tx.scalar(select(func.max(t.node_history.c.id))) or 0


def history(
    tx: Tx, page: Page, groups: Groups, *, node: str | None = None, vcluster: str | None = None
) -> Listed[dict[str, Any]]:
    """Return transitions, the newest first, with the names of node and vcluster: those of a node,
    or those of nodes while a vcluster held them. `groups` restricts them to transitions while
    vclusters of these groups held the node."""
    h, n, v = t.node_history.c, t.nodes.c, t.vclusters.c
    query = select(*(h[name] for name in HISTORY), n.name.label("node"), v.name.label("vcluster"))
    query = query.join_from(t.node_history, t.nodes, h.node_id == n.id)
    query = query.outerjoin(t.vclusters, h.vcluster_id == v.id).where(*theirs(v.group_id, groups))
    if node is not None:
        query = query.where(h.node_id == select(n.id).where(n.name == node).scalar_subquery())
    query = query.where(*having(page.q, h.cause, h.actor))
    queries = [query]
    if vcluster is not None:
        # The index has the transitions of each in order; those of several would all be sorted.
        held_by = tx.scalars(select(v.id).where(*views.called(vcluster)))
        queries = [query.where(h.vcluster_id == one) for one in held_by]
    rows = merged(
        [page_of(tx, one, page, {"id": h.id}, "-id", h.id, count=False) for one in queries],
        page,
        "-id",
    )
    names = *HISTORY, "node", "vcluster"
    found = rows.each(lambda row: dict(zip(names, row, strict=True)))
    return found.each(
        lambda one: one | {"erased": json.loads(one["erased"]) if one["erased"] else []}
    )


def deliveries(
    tx: Tx, page: Page, group_id: int, *, state: str | None = None, channel: str | None = None
) -> Listed[tuple[Send, Notice]]:
    """Return the past and pending deliveries to a group, the newest first. `state`: only those
    (`choices.DeliveryState`)."""
    s, n = t.notice_sends.c, t.notices.c
    in_state: Mapping[str | None, Sequence[ColumnElement[bool]]] = {
        None: (),
        DeliveryState.WAITING: (s.done_at.is_(None),),
        DeliveryState.DELIVERED: (s.delivered.is_(True),),
        DeliveryState.GIVEN_UP: (s.done_at.is_not(None), s.delivered.is_(False)),
    }
    query = select(*notice_rows.SENDS.columns, *notice_rows.ROWS.columns)
    query = query.join_from(t.notice_sends, t.notices, s.notice_id == n.id).where(
        n.group_id == group_id,
        *only({s.channel: channel}),
        *having(page.q, n.subject, s.error),
        *in_state.get(state, (literal(False),)),
    )
    rows = page_of(tx, query, page, {"id": s.id}, "-id", s.id)
    sends = notice_rows.SENDS
    return rows.each(lambda row: (sends.read(row), notice_rows.ROWS.read(row, sends.width)))
