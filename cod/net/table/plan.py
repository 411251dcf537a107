"""Routes about the resource manager's next pass: what it would do, and why a request waits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from cod.flows import plan, views
from cod.model import RequestView, Site
from cod.net import bodies as b
from cod.net.routes import ADMINS, listed, number, route, see

Why = tuple[RequestView, Any, Mapping[int, str]]


def _explained(tx: Any, *, request_id: int, site: Site, now: float) -> Why:
    """The request, why it waits, and the names of the vclusters ahead of it, by id."""
    view = views.request(tx, request_id)
    why = plan.explain(tx, request_id=request_id, site=site, now=now)
    return view, why, views.vcluster_names(tx, {one.vcluster_id for one in why.ahead})


PLAN = (
    route("GET", "/plan", ADMINS, "Show what the resource manager's next pass would do, without doing it",
          lambda a: partial(plan.preview, site=a.site, now=a.now),
          shape=listed(b.PlanReply, b.PlannedReply.of), reply=b.PlanReply),
    route("GET", "/requests/{id}/explain", see("request", "id"),
          "Say why a request waits, who holds what it needs, and what would free it",
          lambda a: partial(_explained, request_id=number(a.names["id"]), site=a.site, now=a.now),
          reply=b.ExplainReply),
)
