"""The calendar: vclusters that hold nodes and the ends of their leases, and nodes that change hands
at a known time."""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import Field

from cod.flows.scheduler import calendar
from cod.web.api.models import Query, ReplyOf
from cod.web.api.resources.energy import Moment
from cod.web.api.routes import ANYBODY, route


class CalendarQuery(Query):
    """Span of time of a calendar."""

    from_: Moment = Field(default=None, alias="from", description="left out: now")
    to: Moment = Field(default=None, description="left out: a week after 'from'")
    limit: int = Field(default=200, ge=1, le=1000, description="rows")


class CalendarBar(ReplyOf[calendar.Bar], whole=True):
    """Nodes from `start` to `end`; null: the lease has no end.

    kind     held: until the lease's end; draining: held after it; reserved: in advance; expected:
             for a waiting request, by its expected start; moving: given by another vcluster by
             `start`; leaving: to be given back by `end`
    request  the request that the nodes are for; null for nodes held already, or if the caller may
             not see the request
    """

    kind: Literal["held", "draining", "reserved", "expected", "moving", "leaving"]


class CalendarRow(ReplyOf[calendar.Row], whole=True):
    """A vcluster with its bars, by their starts. `group`, `vcluster`: null if the caller may not
    see them; `types`: number of nodes held now by type, '' for nodes without a type."""

    bars: list[CalendarBar]


class FreeSpanReply(ReplyOf[calendar.FreeSpan], whole=True):
    """Nodes of a type that can be reserved from `start` to `end` without taking any from leases and
    reservations."""


class FreeTypeReply(ReplyOf[calendar.FreeType], whole=True):
    """A type of nodes, and the times at which its nodes are free."""

    spans: list[FreeSpanReply]


class ClosedReply(ReplyOf[calendar.Closed], whole=True):
    """A maintenance window (`GET /maintenance/{id}`): no lease has its nodes from `start` to `end`;
    null: no end is planned."""


class CalendarReply(ReplyOf[calendar.Calendar], whole=True):
    """Rows with bars between `since` and `until`: rows with names first, then those of other
    groups. `omitted`: number of rows beyond `limit`; `free`: nodes that are free from now on;
    `maintenance`: windows in this time."""

    rows: list[CalendarRow]
    free: list[FreeTypeReply]
    maintenance: list[ClosedReply]


CALENDAR = (
    route(
        "GET /calendar",
        ANYBODY,
        "Show nodes held, and coming, in time",
        lambda a: partial(
            calendar.show,
            since=a.query.from_,
            until=a.query.to,
            limit=a.query.limit,
            groups=a.who.groups,
            site=a.site,
            now=a.now,
        ),
        reply=CalendarReply,
        query=CalendarQuery,
    ),
)
