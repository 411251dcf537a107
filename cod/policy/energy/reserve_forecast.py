"""Reserve marks by forecast: how many nodes are awake and spare, by weekday and hour. Pure.

What is forecast of a type is the rise of an hour: by how many more of its nodes are held on the
average, in that hour or the next, than in the hour before. Of the same hour of the same weekday
(UTC) of the last weeks the `quantile` is taken. It is the low mark of that hour, between the two
constants (`warm_low`, `warm_high`) that are the marks without a forecast. Nodes that are needed in
an hour have to be woken before: the low mark is that of the time `wake_time` ahead. The high mark
is the greatest low mark of the hours until a node that falls asleep now could be awake again and
has idled: nobody is put to sleep who is to be woken in an hour.

A type of which less than two weeks are known has no forecast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cod.model import Energy

HOUR = 3600
WEEK = 168  # hours
LEAST = 2
"""Weeks from which on there is a forecast."""
AHEAD = 2
"""Hours for which nodes stay awake that will be needed then."""

Held = Mapping[int, float]
"""Nodes of a type held on the average, by hour since the epoch; an hour that is not there: none."""


def hours(now: float, rules: Energy) -> list[int]:
    """Return the hours since the epoch that a forecast at `now` wants to know of."""
    first = int((now + rules.wake_time) // HOUR)
    wanted = {
        hour - week * WEEK + offset
        for hour in range(first, first + AHEAD + 1)
        for week in range(1, rules.forecast_weeks + 1)
        for offset in (-1, 0, 1)
    }
    return sorted(wanted)


def forecast(held: Held, known_since: float, rules: Energy, now: float) -> tuple[int, int] | None:
    """Return how many spare nodes of a type are likely to be needed soon, and at most within the
    next hours; None where too little is known. `known_since`: when counting began."""
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
    """Return the rises of an hour in the weeks before."""
    then = (hour - week * WEEK for week in range(1, weeks + 1))
    return [
        max(held.get(one, 0.0), held.get(one + 1, 0.0)) - held.get(one - 1, 0.0)
        for one in then
        if (one - 1) * HOUR >= known_since
    ]


def _quantile(values: list[float], quantile: float) -> int:
    """Return the smallest value that so large a share of them is not above, rounded up; 0 at
    least."""
    place = max(0, math.ceil(quantile * len(values)) - 1)
    return max(0, math.ceil(sorted(values)[place] - 1e-9))


def bounded(low: int, high: int, found: tuple[int, int] | None) -> tuple[int, int]:
    """Return the marks by a forecast, between the constants; the constants where there is none."""
    if found is None:
        return low, high
    soon, later = (min(max(low, one), high) for one in found)
    return soon, max(soon, later)
