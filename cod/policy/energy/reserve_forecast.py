"""Forecast of the reserve's marks: how many spare nodes of a type stay awake, by weekday and hour.
Pure.

The forecast for an hour is its rise: how many more nodes of the type are held on average in that
hour or the next than in the hour before. The rises of the same hour of the same weekday (UTC) in
the last weeks are known, and their `forecast_quantile` is the low mark of that hour, limited by the
two constants (`warm_low`, `warm_high`) that are the marks without a forecast. Because nodes have to
be woken before they are needed, the present low mark is that of the time `wake_time` ahead. The
high mark is the largest low mark of the next hours, so that no node is put to sleep that would be
woken again soon.

There is no forecast for a type of which less than two weeks are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cod.model import Energy

HOUR = 3600
WEEK = 168  # hours
LEAST = 2
"""Weeks that have to be known for a forecast."""
AHEAD = 2
"""Hours ahead whose low marks determine the high mark."""

Held = Mapping[int, float]
"""Average number of held nodes of a type, by hour since the epoch; 0 for missing hours."""


def hours(now: float, rules: Energy) -> list[int]:
    """Return the hours since the epoch whose held nodes a forecast at `now` needs."""
    first = int((now + rules.wake_time) // HOUR)
    wanted = {
        hour - week * WEEK + offset
        for hour in range(first, first + AHEAD + 1)
        for week in range(1, rules.forecast_weeks + 1)
        for offset in (-1, 0, 1)
    }
    return sorted(wanted)


def forecast(held: Held, known_since: float, rules: Energy, now: float) -> tuple[int, int] | None:
    """Return how many spare nodes of a type will probably be needed soon, and the largest such
    number of the next hours; None if too few weeks are known. `known_since`: when counting began.
    """
    first = int((now + rules.wake_time) // HOUR)
    likely = [
        _quantile(rises, rules.forecast_quantile)
        for hour in range(first, first + AHEAD + 1)
        if len(rises := _rises(held, known_since, rules.forecast_weeks, hour)) >= LEAST
    ]
    if len(likely) <= AHEAD:
        return None
    return likely[0], max(likely)


def _rises(held: Held, known_since: float, weeks: int, hour: int) -> list[float]:
    """Return the rises of the same hour in earlier weeks."""
    then = (hour - week * WEEK for week in range(1, weeks + 1))
    return [
        max(held.get(one, 0.0), held.get(one + 1, 0.0)) - held.get(one - 1, 0.0)
        for one in then
        if (one - 1) * HOUR >= known_since
    ]


def _quantile(values: list[float], quantile: float) -> int:
    """Return the quantile of the values, rounded up to an integer; at least 0."""
    place = max(0, math.ceil(quantile * len(values)) - 1)
    return max(0, math.ceil(sorted(values)[place] - 1e-9))


def bounded(low: int, high: int, found: tuple[int, int] | None) -> tuple[int, int]:
    """Return the low and high mark by a forecast, limited by the constants `low` and `high`; these
    constants themselves without a forecast."""
    if found is None:
        return low, high
    soon, later = (min(max(low, one), high) for one in found)
    return soon, max(soon, later)
