"""The page of the pool over time: how many nodes each held, and nodes by state, as charts. The
numbers can be downloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import gmtime, strftime
from typing import Any, Literal

from markupsafe import Markup
from pydantic import Field

from cod import svg
from cod.flows import views
from cod.flows.nodes import energy
from cod.flows.scheduler import usage
from cod.flows.scheduler.usage import Chart
from cod.pool import Tx
from cod.web.api.models import Query
from cod.web.api.routes import Names
from cod.web.portal import links
from cod.web.portal.formatting import TONES, node_word
from cod.web.portal.page import Page, PageCall, api

DAY = 86400.0
WINDOWS = {"day": 1, "week": 7, "month": 30, "year": 365}
TICKS, SHOWN = 6, 6  # dates below a chart, about; series with a colour of their own
REST = "others"


class TimelineQuery(Query):
    """Span of time, selection of nodes, and the key by which they are grouped."""

    window: Literal["day", "week", "month", "year"] = "day"
    by: Literal["vcluster", "group", "type"] = Field(default="vcluster")
    group: str = Field(default="", max_length=63)
    vcluster: str = Field(default="", max_length=63)

    @property
    def whose(self) -> dict[str, str]:
        """Return the group and the vcluster to whose nodes the charts are limited."""
        return {"group": self.group, "vcluster": self.vcluster}


def _timeline(tx: Tx, ask: PageCall[Names, TimelineQuery]) -> dict[str, Any]:
    since = ask.now - WINDOWS[ask.query.window] * DAY
    held = so_far(
        usage.held(
            tx,
            since=since,
            until=ask.now,
            by=ask.query.by,
            limit=SHOWN,
            groups=ask.who.groups,
            now=ask.now,
            **ask.query.whose,
        )
    )
    states = in_words(so_far(usage.states(tx, since=since, until=ask.now, now=ask.now)))
    numbers = partial(links.url, "api", "v1", format="csv", to=int(ask.now), **{"from": int(since)})
    return {
        "used": _used(tx, ask),
        "held": held,
        "held_chart": chart(held, "Nodes held"),
        "states": states,
        "states_chart": chart(states, "Nodes by state", TONES),
        "windows": list(WINDOWS),
        "rest": REST,
        "held_numbers": numbers("timeline", by=ask.query.by, **ask.query.whose),
        "state_numbers": numbers("pool", "history"),
    }


def _used(tx: Tx, ask: PageCall[Names, TimelineQuery]) -> energy.Line | None:
    """Return the energy that the requested vcluster has used since it was created; None if none is
    requested."""
    if not ask.query.vcluster:
        return None
    view = views.vcluster_alone(tx, ask.query.vcluster)
    return energy.of_vcluster(tx, view.vcluster.name, view.vcluster.id, ask.site.energy)


def so_far(shown: Chart) -> Chart:
    """Return the chart up to the end of the counting. The average of the last span is that of its
    counted part; otherwise each chart would fall at its end."""
    until = shown.counted_until or 0.0
    count = sum(start < until for start in shown.starts)
    if not count:
        return replace(shown, starts=(), series=())
    part = min(1.0, (until - shown.starts[count - 1]) / shown.span)
    series = (
        replace(one, nodes=(*one.nodes[: count - 1], one.nodes[count - 1] / part))
        for one in shown.series
    )
    return replace(shown, starts=shown.starts[:count], series=tuple(series))


def in_words(shown: Chart) -> Chart:
    """Return the chart of nodes by state with one series for each of people's words for states, in
    the order of the words."""
    sums: dict[str, tuple[float, ...]] = {}
    for one in shown.series:
        word = node_word(one.key or REST)[0]
        before = sums.get(word, (0.0,) * len(one.nodes))
        sums[word] = tuple(sum(pair) for pair in zip(before, one.nodes, strict=True))
    words = [*TONES, *sums]
    ordered = sorted(sums.items(), key=lambda one: words.index(one[0]))
    made = (replace(shown.series[0], key=word, nodes=nodes) for word, nodes in ordered)
    return replace(shown, series=tuple(made))


def chart(shown: Chart, about: str, classes: Mapping[str, str] = svg.NO_CLASSES) -> Markup | None:
    """Return stacked areas, coloured as in `svg.areas`; None before two spans have been counted."""
    if len(shown.starts) < 2 or not shown.series:
        return None
    middles = [start + shown.span / 2 for start in shown.starts]
    stacked = [
        (one.key or REST, list(zip(middles, one.nodes, strict=True))) for one in shown.series
    ]
    every = max(1, len(middles) // TICKS)
    length = shown.starts[-1] - shown.starts[0]
    ticks = [(at, dated(at, length)) for at in middles[every // 2 :: every]]
    drawn = svg.areas(
        "",
        stacked,
        svg.Axis("UTC", ticks, moments=True, label_of=time_label),
        svg.Axis("nodes", least=1),
        classes,
    )
    return Markup(svg.inline(drawn, about))


def time_label(at: float) -> str:
    """Return a time as charts write it beside their numbers."""
    return strftime("%d %b %Y %H:%M UTC", gmtime(at))


def dated(at: float, length: float) -> str:
    """Return a time as the label of an axis that is `length` seconds long, in UTC: the time of day
    on a short axis, else the date."""
    return strftime("%d %b" if length > 2 * DAY else "%H:%M", gmtime(at))


def life(history: Sequence[Any], now: float) -> Markup | None:
    """Return the chart of one node's states over time, from its transitions (oldest first); None if
    there are fewer than two."""
    if len(history) < 2:
        return None
    ends = [*(row["at"] for row in history[1:]), now]
    spans = [
        svg.Span(
            row["at"],
            end,
            node_word(row["to_state"])[0],
            f"{node_word(row['to_state'])[0]} from {dated(row['at'], 0)}: {row['cause']}",
        )
        for row, end in zip(history, ends, strict=True)
    ]
    length = now - history[0]["at"]
    ticks = dict[str, float]()
    for at in apart([row["at"] for row in history], length / TICKS):
        ticks.setdefault(dated(at, length), at)
    axis = svg.Axis("", [(at, text) for text, at in ticks.items()], moments=True)
    drawn = svg.spans("", [("", spans)], axis, classes=TONES)
    return Markup(svg.inline(drawn, "History of states"))


def apart(moments: Sequence[float], least: float) -> list[float]:
    """Return the ordered times without those less than `least` seconds after the last time kept, so
    that the labels do not overlap."""
    kept: list[float] = []
    for at in moments:
        if not kept or at - kept[-1] >= least:
            kept.append(at)
    return kept


PAGES = (Page("/timeline", "timeline.html", _timeline, api("GET /timeline").claims, TimelineQuery),)
