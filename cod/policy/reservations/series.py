"""Reservations that recur: when the clusters of a series start, by the clock of a time zone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from cod.model import Occurrence, Refused, Series, SeriesStart
from cod.states import VclusterState

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
AHEAD = 28 * 86400.0  # seconds before a start at which its cluster is reserved
KEPT = 28 * 86400.0  # seconds for which the outcome of a start is kept
MOST = 1000  # largest `count` of a series


def zone(name: str) -> ZoneInfo:
    """Return the time zone of that name. Raise `Refused` if there is none."""
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise Refused(
            "invalid", f"there is no time zone {name!r}; one is Europe/Berlin", "zone"
        ) from None


def on_days(days: Sequence[str], starts_at: float, clock: ZoneInfo) -> tuple[str, ...]:
    """Return the weekdays of a series, in order: the named `days`, or, if none is named, the
    weekday of its first start."""
    return tuple(one for one in DAYS if one in days) or (
        DAYS[datetime.fromtimestamp(starts_at, clock).weekday()],
    )


def starts(series: Series, after: float, until: float) -> list[float]:
    """Return the starts of the series after `after`, up to `until`. All starts have the same local
    time of day, in winter and in summer. On a day on which the clock skips this time, the start is
    later by the skipped time."""
    clock = ZoneInfo(series.zone)
    first = datetime.fromtimestamp(series.starts_at, clock).replace(tzinfo=None)
    end = until if series.ends_at is None else min(until, series.ends_at)
    from_ = datetime.fromtimestamp(max(after, series.starts_at), clock).date() - timedelta(days=1)
    found = []
    for day in _dates(series, first.date()):
        if day < from_:
            continue
        at = datetime.combine(day, first.time()).replace(tzinfo=clock).timestamp()
        if at > end:
            break
        if at > after:
            found.append(at)
    return found


def next_start(series: Series, now: float) -> float | None:
    """Return the next start of the series; None if the series has no more starts."""
    return next(iter(starts(series, now, max(now, series.starts_at) + 8 * 86400.0)), None)


def outcome(one: Occurrence, state: str | None, began: bool, now: float) -> SeriesStart:
    """Return the outcome of a start.

    state  state of its vcluster; None: there is no record of the vcluster
    began  whether the vcluster has had nodes
    """
    if one.refused:
        return "refused"
    over = one.starts_at <= now
    if state == VclusterState.ENDED or state is None:
        return "ended" if began or (state is None and over) else "cancelled"
    if not began:
        return "late" if over else "reserved"
    return "running"


def vcluster_name(series: Series, start: float) -> str:
    """Return the name of the cluster that starts at `start`: the series' name and the date."""
    return f"{series.name}-{datetime.fromtimestamp(start, ZoneInfo(series.zone)):%Y-%m-%d}"


def _dates(series: Series, first: date) -> Iterator[date]:
    """Yield the dates of the series from its first start on; without end if it has none."""
    left = series.count
    for number in range((date.max - first).days):
        if left == 0:
            return
        day = first + timedelta(days=number)
        if DAYS[day.weekday()] in series.days:
            left = None if left is None else left - 1
            yield day
