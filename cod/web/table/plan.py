"""Routes about the resource manager's next pass: what it would do, why a request waits, what would come of another."""

from __future__ import annotations

from functools import partial
from typing import Any

from cod.flows.people.access import Claim
from cod.flows.scheduler import explain, plan
from cod.model import Right, Site
from cod.web import bodies as b
from cod.web.routes import ADMINS, Call, listed, number, route, see
from cod.web.table.documents import checked


def _explained(tx: Any, *, request_id: int, site: Site, groups: frozenset[int] | None, now: float) -> explain.Why:
    seen = plan.look(tx, site, now)
    return explain.waits(tx, request_id=request_id, scene=seen.scene, snapshot=seen.site, site=site, groups=groups,
                         now=now)


def _matched(tx: Any, *, asked: explain.Asked, site: Site, groups: frozenset[int] | None, now: float) -> explain.Match:
    seen = plan.look(tx, site, now)
    return explain.match_(tx, asked=asked, scene=seen.scene, snapshot=seen.site, site=site, groups=groups, now=now)


def _supposed(ask: Call) -> explain.Asked:
    checked(ask.body.attributes, "requires", "attributes")
    return explain.Asked(**ask.body.model_dump())


def _asks(ask: Call) -> list[Claim]:
    """Who may look at the group, or the vcluster; the template is one of that group's, or the site's."""
    whose = ("vcluster", ask.body.vcluster) if ask.body.vcluster else ("group", ask.body.group)
    return [Claim(Right.SEE, *whose)]


PLAN = (
    route("GET", "/plan", ADMINS, "Show what the resource manager's next pass would do, without doing it",
          lambda a: partial(plan.preview, site=a.site, now=a.now),
          shape=listed(b.PlanReply, b.PlannedReply.of), reply=b.PlanReply),
    route("GET", "/requests/{id}/explain", see("request", "id"),
          "Say why a request waits, who holds what it needs, and what would free it",
          lambda a: partial(_explained, request_id=number(a.names["id"]), site=a.site, groups=a.who.groups, now=a.now),
          reply=b.ExplainReply),
    route("POST", "/match", _asks, "Say what would come of a request, without making it",
          lambda a: partial(_matched, asked=_supposed(a), site=a.site, groups=a.who.groups, now=a.now),
          reply=b.MatchReply, body=b.MatchAsk, quiet=True),
)
