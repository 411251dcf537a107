"""Reads for people: nodes, vclusters and requests with names in place of ids; events; counts for
the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from cod.core.nodes import selection
from cod.core.preemption import protected
from cod.model import (
    ALL,
    Binding,
    Listed,
    Node,
    NodeView,
    NoticeView,
    Page,
    Policy,
    Refused,
    Siblings,
    VclusterView,
    Who,
)
from cod.model.names import natural_key
from cod.policy import following
from cod.policy.hardware import bmcs, equal
from cod.states import NodeState
from cod.store import claims, lists, metrics, views, watermarks
from cod.store.engine import Tx
from cod.store.nodes import bindings, conflicts, host_keys, nodes, types
from cod.store.notices import events, notices
from cod.store.scheduler import overview

T = TypeVar("T")
last_event = lists.last_event
Following = following.Following
AT_ONCE = events.AT_ONCE
counts = metrics.counts
under_way = overview.under_way
NEWEST = 12  # nodes out of service, and new ones, that the overview shows
SHOWN = 100  # transitions that are shown with a node


def filtered(
    tx: Tx, *, flow: Callable[[Tx], T], filters: Mapping[str, Any], groups: frozenset[int] | None
) -> T:
    """Run `flow`, which lists something, and return the list. Raises `Refused` if a filter names a
    thing that does not exist or that these groups (None: all) may not see, because a misspelt name
    would give an empty list."""
    for kind, name in filters.items():
        if name and not lists.known(tx, kind, name, groups):
            raise Refused("invalid", f"there is no {kind} {name!r}", kind)
    return flow(tx)


def node_list(
    tx: Tx,
    *,
    page: Page = ALL,
    policy: Policy | None = None,
    groups: frozenset[int] | None = None,
    state: str | None = None,
    vcluster: str | None = None,
    type: str | None = None,
    block: str | None = None,
    power: str | None = None,
    group: str | None = None,
    names: str = "",
    where: str = "",
    who: Who | None = None,
    now: float = 0.0,
) -> Listed[NodeView]:
    """Return the nodes that these groups hold (None: all nodes), by name. With `policy`, each has
    the time until which it is immune. `names` and `where` select nodes in the language of
    `cod.filters`, with the rights of `who`; for the other filters see `store.lists.nodes`. Raises
    `Refused`."""
    ids, tree = None, None
    if who is not None and where.strip():
        tree = selection.filter_of(where, who, now)
    if who is not None and names.strip():
        chosen = selection.named(tx, names, who)
        if chosen.missing:
            raise Refused("invalid", chosen.missing[0][1], "names")
        ids = [node_id for node_id, _ in chosen.nodes]
    found = lists.nodes(
        tx,
        page,
        groups,
        where=tree,
        ids=ids,
        state=state,
        vcluster=vcluster,
        type=type,
        block=block,
        power=power,
        group=group,
    )
    if policy is None:
        return found
    return Listed(protected(found, policy), found.next, found.total)


watched = views.watched
vcluster_list = lists.vclusters
vcluster_alone = views.vcluster
active_vclusters = lists.active_vclusters
request, request_list = views.request, lists.requests
conflict_list = lists.conflicts
history = lists.history


def node(tx: Tx, name: str, policy: Policy | None = None) -> NodeView:
    """Return one node."""
    found = protected(views.nodes(tx, name=name), policy)
    if not found:
        raise Refused("not_found", f"there is no node {name!r}", "name")
    return found[0]


def node_in_full(
    tx: Tx, name: str, policy: Policy | None = None, groups: frozenset[int] | None = None
) -> tuple[NodeView, list[Binding], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return one node with its host keys, its bindings, its newest `SHOWN` transitions, the oldest
    first, and the newest conflicts about its MACs. For `groups` (None: for administrators), return
    only transitions while they held the node, no conflicts, and nothing about its BMC."""
    view = node(tx, name, policy)
    view = replace(
        view,
        host_keys=tuple(host_keys.of_nodes(tx, [view.node.id]).get(view.node.id, ())),
        bmcs=tuple(
            bmcs.used(each, nodes.switched_by(tx, each.address))
            for each in (bmcs.proposed(view.node.attributes) if groups is None else ())
        ),
        siblings=_siblings(tx, view.node),
    )
    if groups is not None:
        report = bmcs.without(view.node.attributes)
        view = replace(view, node=replace(view.node, attributes=report))
    found = history(tx, Page(limit=SHOWN), groups, node=name)
    return (
        view,
        bindings.of_node(tx, view.node.id),
        found[::-1],
        conflicts.every(tx, 20, macs=view.macs) if groups is None else [],
    )


def _siblings(tx: Tx, node: Node) -> Siblings | None:
    """Return the differences between a node and most nodes of its product; None before its product
    is known."""
    own = None if node.type_id is None else types.get(tx, node.type_id)
    system = equal.system(own.attributes) if own else ""
    usual = types.most_like(tx, system) if system else None
    if own is None or usual is None:
        return None
    differences = equal.beside_siblings(usual.attributes, own.attributes)
    return Siblings(usual.name, usual.nodes, tuple(differences))


def vcluster(
    tx: Tx, name: str, policy: Policy | None = None
) -> tuple[VclusterView, list[NodeView]]:
    """Return a vcluster as `vcluster_alone` finds it, with its nodes in the natural order of their
    host names (n2 before n10); one that has ended has none."""
    found = vcluster_alone(tx, name)
    if found.vcluster.ended_at is not None:
        return found, []
    return found, protected(views.members(tx, found.vcluster.name), policy)


Square = lists.Square


def squares(tx: Tx) -> list[Square]:
    """Return all nodes that are not retired, in the natural order of their names."""
    return sorted(lists.squares(tx), key=lambda one: natural_key(one.name))


def resume(
    tx: Tx, known: tuple[int, int | None, str] | None, most: int
) -> tuple[tuple[int, int] | None, str]:
    """Return the ids (transition, notice) after which a client that comes back is sent what it has
    missed, at most the last `most` ids of transitions; None: it is sent what happens from now on.
    Return with them the database's epoch (`claims.epoch`).

    known  the transition and the notice that the client names, and the epoch in which it knew them;
           None: the client is new. A client without a notice is sent those that are newer than its
           transition. A client of an earlier epoch is sent again what the database may have lost.
    """
    epoch, newest = claims.epoch(tx), last_event(tx)
    if known is None:
        return None, epoch
    transition, notice, then = known
    if then not in ("", epoch):
        kept = events.kept(tx, then) or (0, 0)
        transition = min(transition, kept[0])
        notice = None if notice is None else min(notice, kept[1])
    # a higher position is from before the database was restored: its ids are lower now
    if transition > newest:
        return None, epoch
    if notice is None:
        notice = notices.newest_before(tx, transition) if transition else 0
    return (max(transition, newest - most), min(notice, notices.newest(tx))), epoch


class NewEvents(NamedTuple):
    """Transitions and notices that are new to a reader, and the progress of disks being written.

    ids, notice_ids  of all new rows of the two tables; `notices` lacks those for programs
    epoch            the database's (`claims.epoch`)
    """

    rows: list[Mapping[str, Any]]
    notices: list[NoticeView]
    progress: list[Mapping[str, Any]]
    ids: list[int]
    notice_ids: list[int]
    epoch: str


def happened(tx: Tx, transitions: Following, notice_reader: Following) -> NewEvents:
    """Return what is new to readers of the transitions and of the notices: at most `AT_ONCE` rows
    of each table, those with the lowest ids, and the progress."""
    ids = transitions.unseen(events.ids_after(tx, events.TRANSITIONS, transitions.floor))
    notice_ids = notice_reader.unseen(events.ids_after(tx, events.NOTICES, notice_reader.floor))
    ids, notice_ids = ids[:AT_ONCE], notice_ids[:AT_ONCE]
    found = notices.every(tx, after=0, ids=notice_ids) if notice_ids else []
    epoch = claims.epoch(tx)
    return NewEvents(events.among(tx, ids), found, events.progress(tx), ids, notice_ids, epoch)


def past(tx: Tx, transition: int, notice: int) -> tuple[list[Mapping[str, Any]], list[NoticeView]]:
    """Return transitions and notices with ids above these, at most `AT_ONCE` of each."""
    return events.after(tx, transition), notices.every(tx, after=notice, limit=AT_ONCE)


def recent(tx: Tx) -> tuple[list[tuple[int, list[int]]], str]:
    """Return, for the transitions and for the notices, the id before the newest rows, and the ids
    of these rows in ascending order; and the database's epoch (`claims.epoch`)."""
    tables = events.TRANSITIONS, events.NOTICES
    return [events.recent(tx, table) for table in tables], claims.epoch(tx)


def alive(tx: Tx) -> list[tuple[str, str, int]]:
    """Return no counts, after a query which shows that the database answers."""
    watermarks.at(tx, watermarks.POOL)
    return []


# ---------------------------------------------------------------- the overview


@dataclass(frozen=True, slots=True)
class Standing:
    """State of the site at a glance.

    pool     numbers of nodes by state
    aside    the newest nodes in quarantine, `new`: the newest that wait for approval; each with
             name, since, reason
    manager  owner and expires_at of the manager's claim; None: no server ever had it
    """

    pool: Mapping[str, int]
    aside: list[Mapping[str, Any]]
    new: list[Mapping[str, Any]]
    manager: Mapping[str, Any] | None


def attention(tx: Tx, *, groups: frozenset[int] | None) -> dict[str, int]:
    """Return the numbers beside the portal's navigation links, by their paths: waiting requests of
    these groups; where `groups` is None (all), also machines to approve and nodes out of
    service."""
    found = {"/requests": lists.waiting_requests(tx, groups)}
    if groups is None:
        found["/nodes"] = nodes.count_in(tx, NodeState.REGISTERING)
        found["/faults"] = nodes.count_in(tx, NodeState.QUARANTINED)
    return found


def standing(tx: Tx) -> Standing:
    """Return the state of the site at a glance."""
    return Standing(
        overview.pool(tx),
        overview.set_aside(tx, NodeState.QUARANTINED, NEWEST),
        overview.set_aside(tx, NodeState.REGISTERING, NEWEST),
        overview.claim(tx, "manager"),
    )
