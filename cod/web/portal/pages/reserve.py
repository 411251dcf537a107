"""The page of the reserve pool and of energy: how many free nodes of each type are awake, and how
much energy the site has used and saved."""

from __future__ import annotations

from functools import partial
from time import gmtime, strftime
from typing import Any

from markupsafe import Markup

from cod import svg
from cod.flows.nodes import energy, types
from cod.model import TypeView
from cod.pool import Tx
from cod.web.api.resources.energy import EnergyReport
from cod.web.api.routes import ADMINS, Call
from cod.web.portal.page import Page
from cod.web.portal.pages.timeline import time_label

TICKS = 8  # dates below the chart, about
AWAKE, ASLEEP = "inactive", "off"


def _reserve(tx: Tx, ask: Call) -> dict[str, Any]:
    report = partial(energy.report, since=None, until=None, rules=ask.site.energy, now=ask.now)
    days, groups = (EnergyReport.of(report(tx, by=by)) for by in ("day", "group"))
    return {
        "days": days,
        "groups": groups,
        "chart": chart(days),
        "rules": ask.site.energy,
        "reserve": [_type(each, ask) for each in types.every(tx)],
    }


def _type(view: TypeView, ask: Call) -> dict[str, Any]:
    """Return a type's free nodes, and the marks that apply to it."""
    rules, own = ask.site.energy, view.type
    return {
        "name": own.name,
        "awake": view.states.get(AWAKE, 0),
        "asleep": view.states.get(ASLEEP, 0),
        "low": rules.warm_low if own.warm_low is None else own.warm_low,
        "high": rules.warm_high if own.warm_high is None else own.warm_high,
    }


def chart(days: EnergyReport) -> Markup | None:
    """Return the chart of energy by day, used and saved by the reserve's sleep; None before two
    days have been counted."""
    if len(days.items) < 2:
        return None
    used = [(line.day or 0.0, line.kwh) for line in days.items]
    saved = [(line.day or 0.0, max(0.0, line.kwh_saved)) for line in days.items]
    ticks = [(at, strftime("%d %b", gmtime(at))) for at, _ in used[:: max(1, len(used) // TICKS)]]
    drawn = svg.areas(
        "",
        [("used", used), ("saved by sleep", saved)],
        svg.Axis("", ticks, label_of=time_label),
        svg.Axis("kWh a day"),
    )
    return Markup(
        svg.inline(
            drawn, f"Energy by day: {days.total.kwh:.0f} kWh used, {days.total.kwh_saved:.0f} saved"
        )
    )


PAGES = (Page("/energy", "energy.html", _reserve, ADMINS),)
