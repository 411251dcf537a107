"""Pages about requests for nodes: a list, and one request with the reasons why it waits."""

from __future__ import annotations

from typing import Any

from cod.flows import views
from cod.flows.people import groups
from cod.flows.scheduler import explain, plan, requests, starts
from cod.model import RequestView
from cod.pool import Tx
from cod.states import RequestState
from cod.web.api.resources.plan import ExplainReply
from cod.web.api.resources.requests import REQUESTS, RequestQuery
from cod.web.api.routes import ANYBODY, Names, Numbered, number, see
from cod.web.portal import formatting
from cod.web.portal.page import Page, PageCall, act
from cod.web.portal.record_fields import columns_of, facts_of

SHOWN = "/requests/{id}"
SHOWN_ABOVE = {
    *("id", "vcluster", "kind", "state", "reason", "priority", "submitted_at", "decided_at"),
    *("may_wait", "starts_at", "duration"),
}


def _list(tx: Tx, ask: PageCall[Names, RequestQuery]) -> dict[str, Any]:
    return {
        "found": REQUESTS[0].call(ask)(tx),
        "groups": groups.every(tx, ask.who.groups),
        "states": [(str(state), formatting.state_word(state)) for state in RequestState],
        "usually": starts.usually(tx, ask.now),
        "more": columns_of(RequestView, ask, SHOWN_ABOVE),
    }


def _one(tx: Tx, ask: PageCall[Numbered]) -> dict[str, Any]:
    seen = plan.look(tx, ask.site, ask.now)
    found = explain.waits(
        tx,
        request_id=number(ask.names.id),
        scene=seen.scene,
        snapshot=seen.site,
        site=ask.site,
        groups=ask.who.groups,
        now=ask.now,
    )
    view = found.request
    owner = views.vcluster_alone(tx, f"{view.vcluster}@{view.request.vcluster_id}").vcluster
    return {
        "view": view,
        "r": view.request,
        "owner": owner,
        "why": ExplainReply.of(found),
        "told": facts_of(view, ask.now, without=SHOWN_ABOVE),
        "watches": requests.watches(tx, ask.who, view.request.id),
    }


PAGES = (
    Page("/requests", "requests.html", _list, ANYBODY, RequestQuery, shared=True),
    Page(SHOWN, "request.html", _one, see("request"), nav="/requests"),
)
ACTIONS = (
    act(
        SHOWN + "/retry",
        "POST",
        SHOWN,
        "The request is tried again.",
        then=lambda ask, reply: f"/requests/{reply.id}",
    ),
    act(
        SHOWN + "/watch",
        f"PUT {SHOWN}/watch",
        SHOWN,
        "You get an e-mail when the request is granted, rejected or withdrawn.",
    ),
    act(SHOWN + "/unwatch", f"DELETE {SHOWN}/watch", SHOWN, "You get no e-mail."),
    act(
        SHOWN + "/change",
        "POST",
        SHOWN,
        "The request is changed. It keeps its place in the queue.",
        then=lambda ask, reply: f"/requests/{reply.id}",
    ),
    act(
        SHOWN + "/withdraw",
        f"DELETE {SHOWN}",
        SHOWN,
        "The request is withdrawn.",
        then=lambda ask, reply: f"/vclusters/{reply.vcluster}",
    ),
)
