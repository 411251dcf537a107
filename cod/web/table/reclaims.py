"""Routes about reclaims: nodes that are being taken from a vcluster for a request of higher priority."""

from __future__ import annotations

from functools import partial

from cod.flows.scheduler import reclaims
from cod.web import bodies as b
from cod.web.routes import ANYBODY, listed, number, route, see, use

RECLAIMS = (
    route("GET", "/reclaims", ANYBODY, "List reclaims",
          lambda a: partial(reclaims.every, page=a.query.page, groups=a.who.groups, **a.query.filters),
          shape=listed(b.ReclaimList, b.ReclaimReply.of), reply=b.ReclaimList, query=b.ReclaimQuery),
    route("GET", "/reclaims/{id}", see("reclaim", "id"), "Show a reclaim and the nodes that were chosen for it",
          lambda a: partial(reclaims.show, reclaim_id=number(a.names["id"]), groups=a.who.groups),
          reply=b.ReclaimReply),
    route("POST", "/reclaims/{id}/answer", use("reclaim", "id"),
          "Give nodes of the kind that is taken, in place of those that were chosen",
          lambda a: partial(reclaims.answer, reclaim_id=number(a.names["id"]), nodes_=a.body.nodes, site=a.site,
                            now=a.now, actor=a.actor, groups=a.who.groups),
          reply=b.ReclaimReply, body=b.ReclaimAnswer, status=202),
)
