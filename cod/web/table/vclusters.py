"""Routes about vclusters and their requests for nodes."""

from __future__ import annotations

from functools import partial
from typing import Any

from cod.flows import views
from cod.flows.notices import vcms
from cod.flows.people.access import Claim
from cod.flows.scheduler import requests, vclusters
from cod.model import Refused, Right
from cod.web import bodies as b
from cod.web.routes import ANYBODY, Call, Flow, listed, number, route, see, use
from cod.web.table.documents import checked


def _vcluster_wanted(ask: Call) -> Flow:
    checked(ask.body.attributes, "requires", "attributes")
    words = ask.body.model_dump(exclude={"also"})
    inside = words.pop("vcm_inside")
    also = [vclusters.Also(each.count, checked(each.attributes, "requires", f"also.{place}.attributes"), each.template)
            for place, each in enumerate(ask.body.also)]
    create: Flow = partial(vclusters.create, also=also, key=ask.key, site=ask.site, now=ask.now, **words)
    if not inside:
        return create
    if ask.authority is None or not ask.site.nmp_port:
        raise Refused("conflict", "this site has NMP switched off: [nmp] port in the site file", "vcm_inside")

    def with_vcm(tx: Any) -> Any:
        """In one transaction: before its node is primed."""
        made = create(tx)
        vcms.enrol_inside(tx, vcluster=ask.body.name, head=None, now=ask.now, anew=False)
        return made

    return with_vcm


def _nodes_wanted(ask: Call) -> Flow:
    wanted = [
        requests.Asked(each.count, checked(each.attributes, "requires", f"tuples.{place}.attributes"), each.template)
        for place, each in enumerate(ask.body.tuples)]
    return partial(requests.submit, vcluster=ask.names["name"], key=ask.key, now=ask.now, wanted=wanted,
                   spread=ask.body.spread, wait=ask.body.wait, rules=ask.site.types)


def _creates(ask: Call) -> list[Claim]:
    """Members and owners of the group that it shall belong to. Its templates are that group's, or the site's."""
    return [Claim(Right.MANAGE if ask.body.vcm_inside else Right.USE, "group", ask.body.group)]  # as to enrol a VCM


VCLUSTERS = (
    route("GET", "/vclusters", ANYBODY, "List vclusters",
          lambda a: partial(views.vcluster_list, page=a.query.page, groups=a.who.groups, **a.query.filters),
          shape=listed(b.VclusterList, b.VclusterReply.of), reply=b.VclusterList, query=b.VclusterQuery),
    route("GET", "/vclusters/{name}", see("vcluster"), "Show a vcluster with its nodes",
          lambda a: partial(views.vcluster, name=a.names["name"], policy=a.site.policy), reply=b.VclusterInFull,
          sketch=lambda a: lambda tx: b.VclusterReply.of(views.vcluster_alone(tx, a.names["name"]))),
    route("GET", "/vclusters/{name}/history", see("vcluster"),
          "List the transitions of nodes while a vcluster held them",
          lambda a: partial(views.vcluster_history, name=a.names["name"], page=a.query.page, groups=a.who.groups),
          shape=listed(b.HistoryList, b.Move.model_validate), reply=b.HistoryList, query=b.HistoryQuery),
    route("POST", "/vclusters", _creates, "Create a vcluster; its nodes come when the manager grants them",
          _vcluster_wanted, reply=b.VclusterInFull, body=b.VclusterCreate, status=202, makes="/vclusters/{name}"),
    route("POST", "/vclusters/{name}/resize", use("vcluster"), "Ask for more nodes, or give some back",
          lambda a: partial(vclusters.resize, name=a.names["name"], key=a.key, site=a.site, now=a.now, actor=a.actor,
                            **a.body.model_dump()),
          reply=b.VclusterInFull, body=b.Resize, status=202),
    route("POST", "/vclusters/{name}/extend", use("vcluster"), "Extend the lease",
          lambda a: partial(vclusters.extend, name=a.names["name"], lease=a.body.lease, site=a.site,
                            now=a.now),
          reply=b.VclusterInFull, body=b.Extend),
    route("POST", "/vclusters/{name}/release", use("vcluster"), "Give back some nodes",
          lambda a: partial(vclusters.release, name=a.names["name"], nodes_=a.body.nodes, site=a.site, now=a.now,
                            actor=a.actor),
          reply=b.VclusterInFull, body=b.Release, status=202),
    route("DELETE", "/vclusters/{name}", use("vcluster"), "Give back all nodes and end the vcluster",
          lambda a: partial(vclusters.delete, name=a.names["name"], site=a.site, now=a.now, actor=a.actor),
          reply=b.VclusterInFull, status=202),
)
REQUESTS = (
    route("GET", "/requests", ANYBODY, "List requests for nodes",
          lambda a: partial(views.request_list, page=a.query.page, groups=a.who.groups, **a.query.filters),
          shape=listed(b.RequestList, b.RequestReply.of), reply=b.RequestList, query=b.RequestQuery),
    route("GET", "/requests/{id}", see("request", "id"), "Show a request and why it waits",
          lambda a: partial(views.request, request_id=number(a.names["id"])), reply=b.RequestReply),
    route("POST", "/vclusters/{name}/requests", use("vcluster"), "Ask for more nodes: all of the tuples, or nothing",
          _nodes_wanted, reply=b.RequestReply, body=b.RequestSubmit, status=202, makes="/requests/{id}"),
    route("DELETE", "/requests/{id}", use("request", "id"), "Withdraw a request that waits",
          lambda a: partial(requests.withdraw, request_id=number(a.names["id"]), reason=f"withdrawn by {a.actor}",
                            now=a.now),
          reply=b.RequestReply),
)
