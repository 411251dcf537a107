"""The pool over time."""

from __future__ import annotations

import csv
from functools import partial
from io import StringIO
from typing import Literal

from pydantic import BaseModel, Field

from cod.flows.people.access import RequiredRight
from cod.flows.scheduler import usage
from cod.model import Right
from cod.web.api.models import Filtered, Reply
from cod.web.api.resources.energy import Moment
from cod.web.api.routes import ANYBODY, Call, Names, route

Format = Literal["json", "csv"] | None


class StatesQuery(Filtered):
    """Span of time to show. Its steps are five minutes, an hour or a day, so that there are about
    fifty."""

    from_: Moment = Field(default=None, alias="from", description="left out: a day before 'to'")
    to: Moment = Field(default=None, description="left out: now")
    type: str = Field(default="", max_length=63, description="nodes of this type alone")
    format: Format = Field(default=None, description="left out: as `Accept` has it, else JSON")


class TimelineQuery(StatesQuery):
    """Span of time to show, the nodes, and the key by which they are grouped."""

    by: Literal["vcluster", "group", "type"] = Field(default="vcluster")
    group: str = Field(default="", max_length=63)
    vcluster: str = Field(default="", max_length=63)
    limit: int = Field(
        default=50, ge=1, le=500, description="series; what else there is comes together"
    )


class SeriesReply(Reply):
    """Average number of nodes in each span. `name`: null for all nodes without a series of their
    own."""

    name: str | None
    nodes: list[float]


class ChartReply(Reply):
    """Series over the same spans, the largest first. `starts`: the start of each span; `span`: its
    length.

    counted_until: end of the counting so far, which is done once a minute; null: nothing is counted
    yet
    """

    by: str
    span: int
    starts: list[int]
    series: list[SeriesReply]
    counted_until: float | None

    @classmethod
    def of(cls, chart: usage.Chart) -> ChartReply:
        series = [
            SeriesReply(name=one.key, nodes=[round(each, 3) for each in one.nodes])
            for one in chart.series
        ]
        return cls.read_from(chart, series=series)

    def csv(self) -> str:
        """Return a line for each span and series."""
        out = StringIO()
        lines = csv.writer(out, lineterminator="\r\n")  # RFC 4180
        lines.writerow(["start", "seconds", self.by, "nodes"])
        for place, start in enumerate(self.starts):
            lines.writerows(
                [start, self.span, one.name or "(others)", one.nodes[place]] for one in self.series
            )
        return out.getvalue()


def _reads(ask: Call[Names, BaseModel, TimelineQuery]) -> list[RequiredRight]:
    """Return the rights of everybody who is signed in, for their groups."""
    named = [
        RequiredRight(Right.SEE, kind, getattr(ask.query, kind), field=kind)
        for kind in ("group", "vcluster")
        if getattr(ask.query, kind)
    ]
    return named or [RequiredRight(Right.ANY)]


USAGE = (
    route(
        "GET /timeline",
        _reads,
        "Show nodes held over time",
        lambda a: partial(
            usage.held,
            since=a.query.from_,
            until=a.query.to,
            by=a.query.by,
            limit=a.query.limit,
            groups=a.who.groups,
            group=a.query.group,
            vcluster=a.query.vcluster,
            type=a.query.type,
            now=a.now,
        ),
        reply=ChartReply,
        query=TimelineQuery,
    ),
    route(
        "GET /pool/history",
        ANYBODY,
        "Show nodes by state over time",
        lambda a: partial(
            usage.states, since=a.query.from_, until=a.query.to, type=a.query.type, now=a.now
        ),
        reply=ChartReply,
        query=StatesQuery,
    ),
)
