"""Routes about energy."""

from __future__ import annotations

from functools import partial

from cod.flows import energy
from cod.net import bodies as b
from cod.net.routes import ADMINS, route

ENERGY = (
    route("GET", "/energy", ADMINS, "Show what nodes used, and what the reserve's sleep has saved",
          lambda a: partial(energy.report, since=a.query.from_, until=a.query.to, by=a.query.by, now=a.now),
          reply=b.EnergyReport, query=b.EnergyQuery),
)
