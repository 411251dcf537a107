"""Routes about the pool over time."""

from __future__ import annotations

from functools import partial

from cod.flows.people.access import Claim
from cod.flows.scheduler import usage
from cod.model import Right
from cod.web import bodies as b
from cod.web.routes import ANYBODY, Call, route


def _reads(ask: Call) -> list[Claim]:
    """Everybody who is signed in, of the groups that they are in."""
    named = [Claim(Right.SEE, kind, getattr(ask.query, kind)) for kind in ("group", "vcluster")
             if getattr(ask.query, kind)]
    return named or [Claim(Right.ANY)]


USAGE = (
    route("GET", "/timeline", _reads, "Show who held how many nodes when",
          lambda a: partial(usage.held, since=a.query.from_, until=a.query.to, groups=a.who.groups, now=a.now,
                            **a.query.model_dump(include={"by", "limit", "group", "vcluster", "type"})),
          reply=b.ChartReply, query=b.TimelineQuery),
    route("GET", "/pool/history", ANYBODY, "Show how many nodes were in which state when",
          lambda a: partial(usage.states, since=a.query.from_, until=a.query.to, type=a.query.type, now=a.now),
          reply=b.ChartReply, query=b.StatesQuery),
)
