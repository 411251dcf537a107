"""Series of reservations in advance, and their starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Series:
    """A row of `reservation_series`: a virtual cluster is reserved for each of its starts.

    asked      what else each of them is created with: fields of `AskedVcluster`, as JSON
    starts_at  the first start; duration: seconds of each lease
    zone       the time zone whose clock the starts keep; days: of the week, 'mon' …
    count      starts in all; ends_at: no start is later; None: no limit
    """

    id: int
    name: str
    group_id: int
    asked: str
    starts_at: float
    duration: float
    zone: str
    days: tuple[str, ...]
    count: int | None
    ends_at: float | None
    created_at: float


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A row of `series_occurrences`: a start of a series that was decided.

    vcluster  the name of its virtual cluster
    refused   why it could not be reserved, as a sentence; '': it was
    """

    series_id: int
    starts_at: float
    vcluster: str
    refused: str = ""


SeriesStart = Literal["reserved", "late", "running", "ended", "cancelled", "refused"]


@dataclass(frozen=True, slots=True)
class OccurrenceView:
    """A start of a series that was decided, and what has become of its virtual cluster.

    state  reserved: it starts then; late: that time is over, and it has not started; running;
           ended: its lease is over; cancelled: it was ended before it started; refused: it could
           not be reserved, for `refused`
    """

    starts_at: float
    vcluster: str
    refused: str
    state: SeriesStart


@dataclass(frozen=True, slots=True)
class SeriesView:
    """A series with its group's name.

    nodes        of each of its vclusters; template: of the first ones
    occurrences  its starts to come that were decided; past: those of the last four weeks
    next_start   the next one, decided or not; None: none is to come
    """

    series: Series
    group: str
    nodes: int
    template: str
    occurrences: tuple[OccurrenceView, ...]
    past: tuple[OccurrenceView, ...]
    next_start: float | None
