"""Pages about series (reservations that recur): a list, a new series, and one with its starts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from cod import quantity
from cod.flows.scheduler import series
from cod.model import Series, SeriesView
from cod.pool import Tx
from cod.web.api.resources.series import SERIES, SeriesCreate, SeriesQuery
from cod.web.api.routes import ANYBODY, Named, Names, see
from cod.web.portal import forms, requirements_form
from cod.web.portal.forms import Fields
from cod.web.portal.page import Page, PageCall, act, to
from cod.web.portal.pages.wizard import NewQuery, node_choices, own_groups

LIST, NEW, SHOWN = "/series", "/series/new", "/series/{name}"
DAYS = {
    "mon": "Monday",
    "tue": "Tuesday",
    "wed": "Wednesday",
    "thu": "Thursday",
    "fri": "Friday",
    "sat": "Saturday",
    "sun": "Sunday",
}


def repeats(of: Series) -> str:
    """Return when a series starts: 'Every Monday and Friday at 08:00 for 10 h'."""
    *others, last = [DAYS[day] for day in of.days]
    days = f"{', '.join(others)} and {last}" if others else last
    every = "day" if len(of.days) == len(DAYS) else days
    at = datetime.fromtimestamp(of.starts_at, ZoneInfo(of.zone))
    return f"Every {every} at {at:%H:%M} for {quantity.exact_span(of.duration)}"


def local(at: float, zone: str) -> str:
    """Return a start by the clock of the series' time zone: 'Mon 2026-12-07 08:00'."""
    return f"{datetime.fromtimestamp(at, ZoneInfo(zone)):%a %Y-%m-%d %H:%M}"


def _list(tx: Tx, ask: PageCall[Names, SeriesQuery]) -> dict[str, Any]:
    return {"found": SERIES[0].call(ask)(tx), "repeats": repeats, "local": local}


def _new(tx: Tx, ask: PageCall[Names, NewQuery]) -> dict[str, Any]:
    today = datetime.fromtimestamp(ask.now, UTC).replace(hour=8, minute=0)
    monday = today + timedelta(days=7 - today.weekday())
    return node_choices(tx, ask) | {
        "groups": own_groups(tx, ask.who),
        "days": DAYS,
        "monday": f"{monday:%Y-%m-%dT%H:%M}",
    }


def _one(tx: Tx, ask: PageCall[Named]) -> dict[str, Any]:
    view: SeriesView = series.show(tx, name=ask.names.name, now=ask.now)
    return {"view": view, "s": view.series, "repeats": repeats, "local": local}


PAGES = (
    Page(LIST, "series-list.html", _list, ANYBODY, SeriesQuery, "/vclusters"),
    Page(NEW, "series-new.html", _new, ANYBODY, NewQuery, "/vclusters"),
    Page(SHOWN, "series.html", _one, see("series"), nav="/vclusters"),
)


def _wanted(fields: Fields) -> dict[str, Any]:
    """Return the body of a new series. Its times are in the time zone that was typed."""
    moment = partial(forms.moment, clock=_clock(fields.one("zone").strip()))
    spans: dict[str, Callable[[str], float]] = {
        "lease": quantity.read_span,
        "starts_at": moment,
        "last": moment,
    }
    made = forms.body_of(SeriesCreate, requirements_form.without(fields), spans)
    return made | {"attributes": requirements_form.document(fields)}


def _clock(zone: str) -> tzinfo:
    """Return the time zone of that name. For an unknown name return UTC: the route will refuse the
    name."""
    try:
        return ZoneInfo(zone)
    except (KeyError, OSError, ValueError):
        return UTC


ACTIONS = (
    act(
        LIST,
        "POST /series",
        NEW,
        lambda ask, reply: f"The series is made: {reply.occurrences[0].vcluster} is reserved.",
        then=lambda ask, reply: f"/series/{reply.name}",
        body=_wanted,
    ),
    act(
        SHOWN + "/end",
        f"DELETE {SHOWN}",
        SHOWN,
        "Series {reply.name} has ended. Reserved clusters stay.",
        then=to(LIST),
    ),
)
