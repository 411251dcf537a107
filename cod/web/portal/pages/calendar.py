"""The calendar of nodes, drawn: the free nodes of each type, and a row for each virtual cluster
with a bar for each time in which it has nodes.

Bars of free nodes are links to the form for a new cluster, which they fill in. `calendar.js` lets a
person draw a time over these bars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import Any, Literal

from markupsafe import Markup

from cod import svg
from cod.flows.people import access
from cod.flows.scheduler import calendar, calendar_feed
from cod.flows.scheduler.calendar import Bar, Calendar, Closed, FreeSpan
from cod.model import Refused, Site
from cod.pool import Tx
from cod.web.api.models import Query
from cod.web.api.routes import Names
from cod.web.http.request import fits, tag
from cod.web.portal import icalendar, links
from cod.web.portal.answers import Answer, PageRequest
from cod.web.portal.formatting import at, count
from cod.web.portal.forms import Fields
from cod.web.portal.front import Portal
from cod.web.portal.page import Page, PageCall, SessionAction, api
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
FREE = "free nodes"
MAINTENANCE = "maintenance"
SOON = 900.0
"""Seconds: a reservation that begins as soon as possible is offered from the next quarter of an
hour on."""


class CalendarQuery(Query):
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
        site=ask.site,
        now=ask.now,
    )
    return {
        "found": found,
        "chart": _chart(found, step, ask.now),
        "edges": (svg.WIDE_LEFT, svg.WIDTH - svg.NARROW_RIGHT),
        "reserve": partial(_reserve, now=ask.now),
        "windows": list(WINDOWS),
        "kinds": KINDS,
    }


def _chart(found: Calendar, step: float, now: float) -> Markup | None:
    """Return the chart, with the rows of each group below its name; None if there is nothing to
    draw."""
    if not found.rows and not found.free and not found.maintenance:
        return None
    length = found.until - found.since
    first = math.ceil(found.since / step) * step
    dates = [first + place * step for place in range(int((found.until - first) // step) + 1)]
    rows: list[tuple[str, list[svg.Span] | None]] = [(FREE, None)] if found.free else []
    for kind in found.free:
        rows.append(
            (
                kind.type,
                [_free(kind.type, one, now) for one in _cut(kind.spans, dates) if one.nodes],
            )
        )
    rows += [(MAINTENANCE, None)] if found.maintenance else []
    rows += [(one.what, [_closed(one)]) for one in found.maintenance]
    for group, members in groupby(found.rows, lambda row: row.group or OTHERS):
        rows.append((group, None))
        for row in members:
            name = row.vcluster or OTHER
            rows += [
                ("" if place else name, [_span(bar, name) for bar in lane])
                for place, lane in enumerate(_lanes(row.bars))
            ]
    drawn = svg.spans(
        "",
        rows,
        svg.Axis("UTC", [(date, dated(date, length)) for date in dates], moments=True),
        window=(found.since, found.until),
        mark=(now, "now"),
        sorts=[*KINDS.values(), FREE, MAINTENANCE],
        classes={FREE: "free", MAINTENANCE: "closed"},
    )
    return Markup(svg.inline(drawn, "Calendar of nodes"))


def _cut(spans: Sequence[FreeSpan], dates: Sequence[float]) -> list[FreeSpan]:
    """Return the spans, cut at the dates below the chart, so that each part is a link of its
    own."""
    found = []
    for span in spans:
        cuts = [span.start, *(date for date in dates if span.start < date < span.end), span.end]
        found += [FreeSpan(start, end, span.nodes) for start, end in pairwise(cuts)]
    return found


def _free(name: str, span: FreeSpan, now: float) -> svg.Span:
    """Return a bar of free nodes that leads to the form for a new cluster."""
    about = f"{name}: {count(span.nodes, 'node')} free from {at(span.start)}"
    return svg.Span(
        span.start, span.end, FREE, about, str(span.nodes), _reserve(name, span.start, now=now)
    )


def _closed(one: Closed) -> svg.Span:
    """Return the bar of a maintenance window, which is a link to the window's page."""
    until = "until it is ended by hand" if one.end is None else f"until {at(one.end)}"
    about = f"maintenance of {one.what}, {count(one.nodes, 'node')}, {until}: {one.reason}"
    ends = math.inf if one.end is None else one.end
    link = links.url("maintenance", one.window)
    return svg.Span(one.start, ends, MAINTENANCE, about, str(one.nodes), link)


def _reserve(name: str, start: float, *, now: float) -> str:
    """Return the address of the form that reserves nodes of a type from `start`, or as soon as
    possible after it."""
    earliest = math.ceil((now + SOON) / SOON) * SOON
    return links.url("vclusters", "new", type=name, starts_at=int(max(start, earliest)))


def _lanes(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Return the bars, ordered by their starts, in as few lanes as possible so that no bar hides
    another. Bars of the kind "leaving" only mark nodes of the first lane, and are in that lane."""
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
    """Return the drawn bar with its number of nodes in it, and its other facts as its tooltip."""
    ends = math.inf if bar.end is None else bar.end
    until = "without an end" if bar.end is None else f"until {at(bar.end)}"
    about = f"{name}: {count(bar.nodes, 'node')} {KINDS[bar.kind]} {until}"
    text = (
        f"{bar.nodes}, no end"
        if bar.end is None
        else ""
        if bar.kind == "leaving"
        else str(bar.nodes)
    )
    return svg.Span(bar.start, ends, KINDS[bar.kind], about, text)


def _subscribed(
    tx: Tx, *, token: str, address: str, base: str, site: Site, now: float
) -> calendar_feed.Feed:
    who = access.subscriber(tx, token, address, now, site.signin)
    if who is None:
        raise Refused("not_found", "This calendar does not exist, or its address was revoked.")
    return calendar_feed.read(tx, who=who, base=base, site=site, now=now)


async def _feed(portal: Portal, asked: PageRequest, fields: Fields) -> Answer:
    """Return the calendar feed for a calendar program, whose address has the token."""
    context = portal.context
    found = await context.pool.read(
        _subscribed,
        token=fields.one("token"),
        address=asked.address,
        base=f"https://{asked.header('host')}",
        site=context.site.current,
        now=context.clock(),
    )
    body = icalendar.calendar(found.name, found.entries)
    headers = {"ETag": tag(body), "Cache-Control": "private, no-cache"}
    if fits(asked.header("if-none-match"), body):
        return Answer(304, headers=headers)
    return Answer(200, body, icalendar.KIND, headers, secret=True)


PAGES = (Page("/calendar", "calendar.html", _calendar, api("GET /calendar").claims, CalendarQuery),)
ACTIONS = (SessionAction("/calendar.ics", "/account", _feed, public=True, get=True),)
