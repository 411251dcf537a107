"""Node-hours of a month: how long a group's lease can be by them, and when its group is told. Pure.

A month's limit is spent by what the group has used in the month, by its leases that run, until they
end, and by its reservations in advance. What is left bounds further leases, month by month (UTC).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from cod.policy.nodes import energy_accounting
from cod.quantity import span

HOUR = 3600.0
WARNING_PERCENTS = (80, 100)
"""Per cent of its node-hours at which a group is told."""


class Use(NamedTuple):
    """Nodes that a group will have from `start` to `end`, by a lease or a reservation."""

    nodes: int
    start: float
    end: float


class Bound(NamedTuple):
    """The latest end of a lease, and the month (its first day, since the epoch) whose node-hours
    bound it: of these `used` are used, and `spoken_for` by other leases and reservations."""

    end: float
    month: int
    used: float
    spoken_for: float


def bound(
    limit: float, used: float, others: Sequence[Use], nodes: int, until: float, now: float
) -> Bound | None:
    """Return the bound of a lease of `nodes` nodes from now on; None: it can last `until`.

    limit  node-hours of a month; used: node-hours of this month so far
    """
    start = now
    while start < until:
        ends = energy_accounting.month_end(start)
        spoken_for = sum(
            one.nodes * max(0.0, min(one.end, ends) - max(one.start, start)) / HOUR
            for one in others
        )
        left = (limit - used - spoken_for) * HOUR
        if nodes * (min(ends, until) - start) > left + 1.0:  # a second is no breach
            month = energy_accounting.month(start)
            return Bound(start + max(left, 0.0) / nodes, month, used, spoken_for)
        start, used = ends, 0.0
    return None


def sentence(limit: float, found: Bound, nodes: int, until: float, now: float) -> str:
    """Say what bounds a lease, and which one would fit."""
    month = f"{datetime.fromtimestamp(found.month * energy_accounting.DAY, UTC):%Y-%m}"
    lasts = found.end - now
    fits = f"a lease of {span(lasts)} from now fits" if lasts >= 60 else "no lease fits now"
    return (
        f"the group may use {limit:g} node-hours in a month: of {month}, {found.used:,.1f} are used"
        f" and {found.spoken_for:,.1f} bound by its leases and reservations, and {nodes} nodes"
        f" until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M} UTC would exceed"
        f" what is left: {fits}"
    )


def reached(limit: float | None, used: float) -> int:
    """Return the largest of `WARNING_PERCENTS` that the node-hours used have reached; 0: none."""
    if limit is None:
        return 0
    return max((part for part in WARNING_PERCENTS if used * 100.0 >= limit * part), default=0)
