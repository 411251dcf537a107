"""The calendar of nodes, drawn: a row for each virtual cluster, a bar for each time in which it has
nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from markupsafe import Markup

from cod import svg
from cod.flows.scheduler import calendar
from cod.flows.scheduler.calendar import Bar, Calendar
from cod.pool import Tx
from cod.web.api.models import Query
from cod.web.api.routes import Names
from cod.web.portal.formatting import count
from cod.web.portal.page import Page, PageCall, api
from cod.web.portal.pages.timeline import DAY, dated

WINDOWS: Mapping[str, tuple[int, float]] = {
    "day": (1, DAY / 6),
    "week": (7, DAY),
    "month": (30, 5 * DAY),
}
"""Days ahead, and seconds between dates below the chart."""
BEFORE = 1 / 8  # of the time ahead that is shown before now
SHOWN = 60  # rows
KINDS = {
    "held": "in use",
    "draining": "draining",
    "reserved": "reserved in advance",
    "expected": "expected",
    "moving": "arriving by a move",
    "leaving": "leaving",
}
OTHERS, OTHER = "other groups", "another cluster"


class CalendarQuery(Query):
    """How far ahead."""

    window: Literal["day", "week", "month"] = "week"


def _calendar(tx: Tx, ask: PageCall[Names, CalendarQuery]) -> dict[str, Any]:
    days, step = WINDOWS[ask.query.window]
    ahead = days * DAY
    found = calendar.show(
        tx,
        since=ask.now - BEFORE * ahead,
        until=ask.now + ahead,
        limit=SHOWN,
        groups=ask.who.groups,
        now=ask.now,
    )
    return {
        "found": found,
        "chart": _chart(found, step, ask.now),
        "windows": list(WINDOWS),
        "kinds": KINDS,
    }


def _chart(found: Calendar, step: float, now: float) -> Markup | None:
    """Return the chart, rows of one group below its name; None where there is nothing to draw."""
    if not found.rows:
        return None
    length = found.until - found.since
    rows: list[tuple[str, list[svg.Span] | None]] = []
    for group, members in groupby(found.rows, lambda row: row.group or OTHERS):
        rows.append((group, None))
        for row in members:
            name = row.vcluster or OTHER
            rows += [
                ("" if place else name, [_span(bar, name) for bar in lane])
                for place, lane in enumerate(_lanes(row.bars))
            ]
    first = math.ceil(found.since / step) * step
    ticks = [
        (at, dated(at, length))
        for place in range(int(length // step) + 1)
        if (at := first + place * step) <= found.until
    ]
    drawn = svg.spans(
        "",
        rows,
        svg.Axis("UTC", ticks),
        window=(found.since, found.until),
        mark=(now, "now"),
        sorts=list(KINDS.values()),
    )
    return Markup(svg.inline(drawn, "Calendar of nodes"))


def _lanes(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Return bars, ordered by their starts, in as few lanes as possible so that no bar hides
    another. Bars of the kind "leaving" only mark nodes of the first lane, and stand on it."""
    lanes: list[list[Bar]] = [[]]
    ends = [-math.inf]
    for bar in bars:
        if bar.kind == "leaving":
            lanes[0].append(bar)
            continue
        place = next((place for place, end in enumerate(ends) if end <= bar.start), len(lanes))
        if place == len(lanes):
            lanes.append([])
            ends.append(-math.inf)
        lanes[place].append(bar)
        ends[place] = math.inf if bar.end is None else bar.end
    return lanes


def _span(bar: Bar, name: str) -> svg.Span:
    """Return a bar with its number of nodes in it, and the rest as its tooltip."""
    ends = math.inf if bar.end is None else bar.end
    until = (
        "without an end"
        if bar.end is None
        else f"until {dated(bar.end, 3 * DAY)} {dated(bar.end, 0)} UTC"
    )
    about = f"{name}: {count(bar.nodes, 'node')} {KINDS[bar.kind]} {until}"
    text = (
        f"{bar.nodes}, no end"
        if bar.end is None
        else ""
        if bar.kind == "leaving"
        else str(bar.nodes)
    )
    return svg.Span(bar.start, ends, KINDS[bar.kind], about, text)


PAGES = (Page("/calendar", "calendar.html", _calendar, api("GET /calendar").claims, CalendarQuery),)
