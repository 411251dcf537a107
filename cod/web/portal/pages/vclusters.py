"""Pages about virtual clusters: a list, and one virtual cluster with all its actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Literal

from pydantic import Field

from cod import quantity
from cod.filters.language import LONGEST
from cod.flows import views
from cod.flows.images import templates
from cod.flows.notices import notices
from cod.flows.people import groups, sshkeys
from cod.flows.people.access import offered
from cod.flows.scheduler import reclaims, vcluster_names
from cod.flows.vcms import vcms
from cod.flows.volumes import volumes
from cod.model import (
    Listed,
    NodeView,
    ReclaimView,
    Refused,
    Right,
    Site,
    SshKey,
    VclusterView,
    Who,
)
from cod.model import Page as Part
from cod.pool import Tx
from cod.states import ReclaimState, VclusterState
from cod.web.api.models import Paged
from cod.web.api.resources.moves import MoveStart
from cod.web.api.resources.nodes import HistoryQuery
from cod.web.api.resources.requests import RequestReply
from cod.web.api.resources.vclusters import (
    VCLUSTERS,
    Release,
    Resize,
    VclusterInFull,
    VclusterQuery,
)
from cod.web.api.routes import ANYBODY, Call, Named, Names, see
from cod.web.portal import documents, formatting
from cod.web.portal.page import Page, PageCall, act, to
from cod.web.portal.record_fields import columns_of, facts_of

FEW = Part(limit=10)
MOST = 50  # nodes on one page
SHOWN = "/vclusters/{name}"
SHOWN_ABOVE = {
    *("name", "state", "size", "group", "template", "attributes", "lease_time", "expires_at"),
    *("drain_until", "ready_at", "created_at", "ended_at", "isolated", "waits"),
    *("description", "tags"),
}


class MembersQuery(Paged):
    limit: int = Field(default=MOST, ge=1, le=MOST)
    where: str = Field(default="", max_length=LONGEST)
    sort: Literal["hostname", "-hostname", "state", "-state"] = "hostname"


def _list(tx: Tx, ask: PageCall[Names, VclusterQuery]) -> dict[str, Any]:
    return {
        "found": VCLUSTERS[0].call(ask)(tx),
        "groups": [one.name for one in groups.every(tx, ask.who.groups)],
        "more": columns_of(VclusterView, ask, SHOWN_ABOVE),
    }


def _one(tx: Tx, ask: PageCall[Named, MembersQuery]) -> dict[str, Any]:
    name, seen = ask.names.name, ask.who.groups
    view = views.vcluster_alone(tx, name)
    nodes, wrong = _members(tx, view, ask)
    taken = reclaims.every(tx, vcluster=name, page=FEW, groups=seen)
    can_move = view.vcluster.state == VclusterState.ACTIVE and sum(view.states.values()) > 1
    keys = sshkeys.in_group(tx, view.vcluster.group_id)
    run = {
        name: documents.described(templates.resolve(tx, name=name))
        for name in {view.template, *(one.template for one in nodes if one.template)}
    }
    closed = {one.node.name for one in nodes if one.template and run[one.template].root_closed}
    return {
        "view": view,
        "v": view.vcluster,
        "told": facts_of(view, ask.now, without=SHOWN_ABOVE),
        "requests": views.request_list(tx, vcluster=name, page=FEW, groups=seen),
        "reclaims": taken,
        "givable": {one.reclaim.id: _givable(tx, view, one) for one in taken},
        "notices": notices.every(tx, vcluster=name, page=FEW, groups=seen),
        "history": views.history(tx, vcluster=name, page=FEW, groups=seen),
        "vcm": vcms.find(tx, vcluster=name),
        "names": vcluster_names.of(tx, view.vcluster, ask.site),
        "mounts": volumes.mounted(tx, vcluster_id=view.vcluster.id),
        "nodes": nodes,
        "wrong": wrong,
        "ssh": partial(ssh, site=ask.site, closed=closed),
        "keys": keys,
        "group": groups.one(tx, view.group),
        "seeded": run[view.template].seeded,
        "root_closed": run[view.template].root_closed,
        "locked": locked(nodes, keys, run),
        "targets": _targets(tx, ask.who, name) if can_move else [],
    }


def _members(
    tx: Tx, view: VclusterView, ask: PageCall[Named, MembersQuery]
) -> tuple[Listed[NodeView], str]:
    """Return the nodes that the page shows, and the fault of its filter; '' if the filter is
    right."""
    if view.vcluster.ended_at is not None:
        return Listed[NodeView](), ""
    query = ask.query
    try:
        found = views.node_list(
            tx,
            page=query.page,
            groups=ask.who.groups,
            vcluster=view.vcluster.name,
            where=query.where,
            who=ask.who,
            now=ask.now,
        )
    except Refused as refused:  # the page shows the fault with the filter
        if refused.field != "where":
            raise
        return Listed[NodeView](), refused.sentence
    return found, ""


def _targets(tx: Tx, who: Who, name: str) -> list[str]:
    """Return the names of other active vclusters to which `who` may move nodes."""
    return [
        other
        for other, group_id in views.active_vclusters(tx, who.groups, 1000)
        if other != name and offered(who, Right.USE, group_id)
    ]


def _givable(tx: Tx, holder: VclusterView, view: ReclaimView) -> list[NodeView]:
    """Return nodes that the vcluster can give for the reclaim, at most `MOST`."""
    if view.reclaim.state != ReclaimState.OPEN:
        return []
    found = views.node_list(
        tx,
        page=Part(limit=MOST, sort="hostname"),
        vcluster=holder.vcluster.name,
        type=view.type,
        block=view.block,
    )
    return [one for one in found if one.node.block_id == view.reclaim.block_id]


def locked(
    nodes: Iterable[NodeView],
    keys: Sequence[tuple[str, SshKey]],
    templates: Mapping[str, documents.Described],
) -> dict[str, str]:
    """Return, by node, why no key of the group opens the node. A node has the keys that existed
    when it was installed or, if root's login is disabled, the present ones. Nodes whose template
    has SSH keys of its own are left out."""
    first = min((key.created_at for _, key in keys), default=None)
    found: dict[str, str] = {}
    for one in nodes:
        template = templates.get(one.template or "")
        if template is None or template.own_keys:
            continue
        if not template.seeded:
            found[one.node.name] = "up to its image"
        elif template.root_closed:
            if first is None:
                found[one.node.name] = "nobody has a key"
        elif first is None or first > (one.node.assigned_at or 0.0):
            found[one.node.name] = "no key was there when it was installed"
    return found


def _history(tx: Tx, ask: PageCall[Named, HistoryQuery]) -> dict[str, Any]:
    return {
        "found": views.history(
            tx, vcluster=ask.names.name, page=ask.query.page, groups=ask.who.groups
        )
    }


def ssh(node: NodeView, who: Who, site: Site, closed: Set[str] = frozenset()) -> str:
    """Return the command by which `who` logs in to an active node; '' if the node has no address.
    The image decides who `root` is. If COD answers no DNS names, the command has the node's
    address.

    closed  names of nodes without a login for root, where people log in by their own names
    """
    if node.address is None:
        return ""
    named = node.node.hostname and site.dns.port
    at = f"{node.node.hostname}.{node.vcluster}.{site.domain}" if named else node.address
    user = "root" if node.node.name not in closed else who.person or "NAME"
    return f"ssh {user}@{at}"


PAGES = (
    Page("/vclusters", "vclusters.html", _list, ANYBODY, VclusterQuery, "/vclusters", shared=True),
    Page(SHOWN, "vcluster.html", _one, see("vcluster"), MembersQuery, "/vclusters", shared=True),
    Page(
        SHOWN + "/history",
        "vcluster-history.html",
        _history,
        see("vcluster"),
        HistoryQuery,
        "/vclusters",
    ),
)


def _resized(ask: Call[Named, Resize], reply: VclusterInFull) -> str:
    return f"{reply.name} will have {formatting.count(ask.body.size, 'node')}."


def _released(ask: Call[Named, Release], reply: VclusterInFull) -> str:
    return f"Released: {', '.join(ask.body.nodes)}."


def _moved(ask: Call[Named, MoveStart], reply: RequestReply) -> str:
    return (
        f"{formatting.count(ask.body.nodes, 'node')} of {ask.names.name} will move to"
        f" {reply.vcluster}."
    )


def _extended(ask: Call[Any, Any, Any], reply: Any) -> str:
    if reply.expires_at > ask.now + ask.body.lease + 1:
        return f"Nothing is changed: the lease of {reply.name} ends later than that."
    return f"The lease of {reply.name} is extended."


_NAME = SHOWN + "/names/{label}"

ACTIONS = (
    act(SHOWN + "/resize", "POST", SHOWN, _resized),
    act(
        SHOWN + "/extend",
        "POST /vclusters/{name}/extend",
        SHOWN,
        _extended,
        convert={"lease": quantity.read_span},
    ),
    act(
        SHOWN + "/describe",
        f"PATCH {SHOWN}",
        SHOWN,
        "{reply.name} is described.",
        body=lambda fields: {name: fields.one(name) for name in ("description", "tags")},
    ),
    act(
        SHOWN + "/rename",
        f"PATCH {SHOWN}",
        SHOWN,
        "{ask.names.name} is called {reply.name} now.",
        body=lambda fields: {"name": fields.one("new_name").strip()},
        then=lambda ask, reply: f"/vclusters/{reply.name}",
    ),
    act(SHOWN + "/release", "POST /vclusters/{name}/release", SHOWN, _released),
    act(
        SHOWN + "/moves",
        "POST /vclusters/{name}/moves",
        SHOWN,
        _moved,
        convert={"within": quantity.read_span},
    ),
    act(
        SHOWN + "/end",
        "DELETE /vclusters/{name}",
        SHOWN,
        "{reply.name} ends; its nodes go back.",
        then=to("/vclusters"),
    ),
    act(
        SHOWN + "/reclaims/{id}/answer",
        "POST /reclaims/{id}/answer",
        SHOWN,
        lambda ask, reply: f"Released for {reply.wanted_by}: {', '.join(ask.body.nodes)}.",
    ),
    act(
        SHOWN + "/names",
        f"PUT {_NAME}",
        SHOWN,
        "{reply.full} leads to {reply.target}.",
        body=lambda fields: {"target": fields.one("target").strip()},
        names=lambda names, fields: {**names, "label": fields.one("name").strip()},
    ),
    act(_NAME + "/remove", f"DELETE {_NAME}", SHOWN, "{ask.names.label} is removed."),
    act(SHOWN + "/vcm/enrol", "POST /vclusters/{name}/vcm", SHOWN, shows="vcm-enrolled.html"),
    act(
        SHOWN + "/vcm/revoke",
        "DELETE /vclusters/{name}/vcm",
        SHOWN,
        "The autoscaler of {ask.names.name} is revoked.",
    ),
)
