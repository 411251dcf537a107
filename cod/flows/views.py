"""Reads for people: nodes, vclusters, requests with names in place of ids; what happens; what the metrics count."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cod.model import Binding, NodeView, NoticeView, Policy, Refused, RequestView, VclusterView
from cod.store import bindings, conflicts, nodes, notices, views
from cod.store.engine import Tx


def node_list(
    tx: Tx, *, state: str | None = None, vcluster: str | None = None, type: str | None = None,
    block: str | None = None, after: str = "", limit: int = 1000, policy: Policy | None = None,
    groups: frozenset[int] | None = None,
) -> list[NodeView]:
    """Nodes by name, those after the name `after`, that these groups hold (None: all); with `policy`, until when they
    are immune."""
    return views.nodes(tx, state=state, vcluster=vcluster, type=type, block=block, after=after, limit=limit,
                       policy=policy, groups=groups)


def node(tx: Tx, name: str, policy: Policy | None = None) -> NodeView:
    """One node."""
    found = views.nodes(tx, name=name, policy=policy)
    if not found:
        raise Refused("not_found", f"there is no node {name!r}", "name")
    return found[0]


def node_in_full(
    tx: Tx, name: str, policy: Policy | None = None
) -> tuple[NodeView, list[Binding], list[dict[str, Any]], list[dict[str, Any]]]:
    """One node with its bindings, its history (oldest transition first), and the newest conflicts about its MACs."""
    view = node(tx, name, policy)
    return (view, bindings.of_node(tx, view.node.id), nodes.history(tx, view.node.id),
            conflicts.every(tx, 20, macs=view.macs))


def vcluster_list(tx: Tx, *, ended: bool = False, groups: frozenset[int] | None = None) -> list[VclusterView]:
    """Vclusters by name, of these groups (None: all); those that have ended too if `ended`."""
    return views.vclusters(tx, ended=ended, groups=groups)


def vcluster(tx: Tx, name: str, policy: Policy | None = None) -> tuple[VclusterView, list[NodeView]]:
    """A vcluster that has not ended, with its nodes by name."""
    found = views.vclusters(tx, name=name)
    if not found:
        raise Refused("not_found", f"there is no vcluster {name!r}", "name")
    return found[0], views.nodes(tx, vcluster=name, limit=100_000, policy=policy)


def vcluster_names(tx: Tx, ids: Collection[int]) -> dict[int, str]:
    """The names of those vclusters, by id."""
    return views.vcluster_names(tx, ids)


def request_list(
    tx: Tx, *, vcluster: str | None = None, state: str | None = None, limit: int = 1000,
    groups: frozenset[int] | None = None,
) -> list[RequestView]:
    """The newest requests, of these groups (None: all), oldest first."""
    return views.requests(tx, vcluster=vcluster, state=state, limit=limit, groups=groups)


def request(tx: Tx, request_id: int) -> RequestView:
    """One request."""
    found = views.requests(tx, request_id=request_id)
    if not found:
        raise Refused("not_found", f"there is no request {request_id}", "id")
    return found[0]


def conflict_list(tx: Tx, limit: int = 200) -> list[dict[str, Any]]:
    """The newest address and identity conflicts, newest first."""
    return conflicts.every(tx, limit)


def last_event(tx: Tx) -> int:
    """Id of the newest transition."""
    return views.last_event(tx)


def told_until(tx: Tx, after: int | None) -> int:
    """Id of the newest notice that whoever has seen the transition `after` (None: the newest) has surely seen."""
    if after is None:
        return notices.newest(tx)
    return notices.newest_before(tx, after) if after else 0


def happened(
    tx: Tx, after: int, told: int
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]], list[NoticeView]]:
    """Transitions after the one with the id `after`, the progress of disks being written now, and the notices after the
    one with the id `told`."""
    return views.events(tx, after), views.progress(tx), notices.every(tx, after=told, limit=500)


def counts(tx: Tx) -> list[tuple[str, str, int]]:
    """(what, label, count) for the metrics."""
    return views.counts(tx)
