"""Series of reservations in advance, and their starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Series:
    """A row of `reservation_series`: a virtual cluster is reserved for each of its starts.

    asked      the other fields of `AskedVcluster` with which each vcluster is created, as JSON
    starts_at  the first start
    duration   seconds of each lease
    zone       the time zone in whose clock all starts have the same time of day
    days       days of the week, 'mon' …
    count      number of all starts; None: no limit
    ends_at    no start is later; None: no limit
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
    """A row of `series_occurrences`: a start of a series for which a reservation was made or
    refused.

    vcluster  the name of its virtual cluster
    refused   why it could not be reserved, as a sentence; '': it was reserved
    """

    series_id: int
    starts_at: float
    vcluster: str
    refused: str = ""


SeriesStart = Literal["reserved", "late", "running", "ended", "cancelled", "refused"]


@dataclass(frozen=True, slots=True)
class OccurrenceView:
    """A start of a series (see `Occurrence`), and the state of its virtual cluster.

    state  reserved: it will start; late: the time of its start is over, and it has not started;
           running; ended: its lease is over; cancelled: it was ended before its start; refused: it
           could not be reserved, for the reason `refused`
    """

    starts_at: float
    vcluster: str
    refused: str
    state: SeriesStart


@dataclass(frozen=True, slots=True)
class SeriesView:
    """A series with its group's name.

    nodes        number of nodes of each of its vclusters
    template     template of their first nodes
    occurrences  its coming starts that were reserved or refused already
    past         its starts of the last four weeks
    next_start   the next start, reserved already or not; None: there is none
    """

    series: Series
    group: str
    nodes: int
    template: str
    occurrences: tuple[OccurrenceView, ...]
    past: tuple[OccurrenceView, ...]
    next_start: float | None
