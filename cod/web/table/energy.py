"""Routes about energy."""

from __future__ import annotations

from functools import partial

from cod.flows.nodes import energy
from cod.flows.people.access import Claim
from cod.model import Right
from cod.web import bodies as b
from cod.web.routes import Call, route


def _reads(ask: Call) -> list[Claim]:
    """Everybody who is signed in, of the groups that they are in; the reserve's is the administrators' to see."""
    return [Claim(Right.SEE, "group", ask.query.group) if ask.query.group else Claim(Right.ANY)]


ENERGY = (
    route("GET", "/energy", _reads, "Show what nodes used, and what the reserve's sleep has saved",
          lambda a: partial(energy.report, since=a.query.from_, until=a.query.to, by=a.query.by, group=a.query.group,
                            groups=a.who.groups, now=a.now),
          reply=b.EnergyReport, query=b.EnergyQuery),
)
