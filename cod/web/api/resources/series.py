"""Series: reservations of virtual clusters that recur."""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import Field

from cod import model
from cod.flows.scheduler import series, vclusters
from cod.model import Refused, Result
from cod.web.api.models import Paged, Reply, ReplyOf
from cod.web.api.resources import vclusters as clusters
from cod.web.api.resources.energy import Moment
from cod.web.api.routes import (
    ANYBODY,
    Call,
    Flow,
    Names,
    in_parts,
    named_route,
    paged,
    route,
    see,
    use,
)

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


class SeriesCreate(clusters.VclusterCreate):
    """A new series: a vcluster for each start, NAME-2026-12-07 and so on. `starts_at` is the first
    start; `lease` or `ends_at` says how long each lease is."""

    zone: str = Field(
        min_length=1, max_length=64, description="time zone whose clock the starts keep"
    )
    days: list[Day] = Field(
        default=[], max_length=7, description="of the week; empty: that of the first start"
    )
    count: int | None = Field(
        default=None, ge=1, le=1000, description="starts in all; null: no limit"
    )
    last: Moment = Field(default=None, description="no start is later; null: no limit")


class SeriesQuery(Paged):
    sort: Literal["name", "-name", "group", "-group"] = "name"


class OccurrenceReply(ReplyOf[model.OccurrenceView], whole=True):
    """A start that was decided. `refused`: why its vcluster could not be reserved yet, which is
    tried again until the start; '': it is reserved.

    state  reserved: it starts at its time; late: that time has passed, and it has not started;
           running; ended: its lease is over; cancelled: it was ended before it started; refused
    """


class ReservationSeries(Reply):
    """A series. Its clusters are reserved four weeks before they start. `occurrences` are decided
    starts to come, `past` those of the last four weeks.

    nodes       nodes of each of its vclusters; template: that of the first nodes
    starts_at   the first start; duration: seconds of each lease
    count       starts in all; last: no start is later; null: no limit
    next_start  the next start, decided or not; null: there is none
    """

    name: str
    group: str
    nodes: int
    template: str
    starts_at: float
    duration: float
    zone: str
    days: list[Day]
    count: int | None
    last: float | None
    created_at: float
    next_start: float | None
    occurrences: list[OccurrenceReply]
    past: list[OccurrenceReply]

    @classmethod
    def of(cls, view: model.SeriesView) -> ReservationSeries:
        return cls.read_from(view.series, view, last=view.series.ends_at)


def _wanted(ask: Call[Names, SeriesCreate]) -> Flow[Result[model.SeriesView]]:
    if ask.body.vcm_inside:
        raise Refused("invalid", "vclusters of a series begin without a VCM", "vcm_inside")
    own_volumes = f"{ask.body.group}/"
    for each in ask.body.volumes:  # others' may be closed to the group when the next one is made
        if "/" in each.volume and not each.volume.startswith(own_volumes):
            raise Refused(
                "invalid", "vclusters of a series mount volumes of their group", "volumes"
            )
    return partial(
        series.create,
        context=ask.context,
        asked=clusters.asked(ask.body),
        zone=ask.body.zone,
        days=ask.body.days,
        count=ask.body.count,
        last=ask.body.last,
        create=vclusters.create,
    )


SERIES = (
    route(
        "GET /series",
        ANYBODY,
        "List series of reservations",
        lambda a: in_parts(
            partial(series.every, groups=a.who.groups, now=a.now),
            a.query.page,
            lambda one: (one.series.name, one.group),
            name=lambda one: one.series.name,
            group=lambda one: one.group,
        ),
        reply=paged(ReservationSeries, "Series.", "SeriesList"),
        query=SeriesQuery,
    ),
    named_route(
        "GET /series/{name}",
        see("series"),
        "Show a series and its starts that were decided",
        lambda a: partial(series.show, name=a.names.name, now=a.now),
        reply=ReservationSeries,
    ),
    route(
        "POST /series",
        clusters.creates,
        "Reserve a vcluster for each day or week; the first one now, the others later",
        _wanted,
        reply=ReservationSeries,
        body=SeriesCreate,
        makes="/series/{name}",
        action="series create",
    ),
    named_route(
        "DELETE /series/{name}",
        use("series"),
        "End a series; the vclusters that are reserved stay",
        lambda a: partial(series.end, name=a.names.name, now=a.now),
        reply=ReservationSeries,
        ends=True,
        action="series end",
    ),
)
