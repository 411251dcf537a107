"""Limits on a group's node-hours in a month: how long they let a lease be, and when the group is
warned. Pure.

Three things use up the limit of a month (UTC): the node-hours that the group has used in the month,
those of its running leases until they end, and those of its reservations in advance. The rest
bounds further leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from cod.policy.nodes import energy_accounting
from cod.quantity import span

HOUR = 3600.0
WARNING_PERCENTS = (80, 100)
"""The percentages of its node-hours at which a group is warned."""


class Use(NamedTuple):
    """Nodes that a group will have from `start` to `end`, by a lease or a reservation."""

    nodes: int
    start: float
    end: float


class Bound(NamedTuple):
    """The latest end of a lease by the node-hours of a month.

    month       first day of the month, in days since the epoch
    used        node-hours of the month that are used
    spoken_for  node-hours of the month that other leases and reservations will use
    """

    end: float
    month: int
    used: float
    spoken_for: float


def bound(
    limit: float, used: float, others: Sequence[Use], nodes: int, until: float, now: float
) -> Bound | None:
    """Return the bound of a lease of `nodes` nodes from now on; None: it can last until `until`.

    limit   node-hours of a month
    used    node-hours of this month so far
    others  leases and reservations of the group
    """
    start = now
    while start < until:
        ends = energy_accounting.month_end(start)
        spoken_for = sum(
            use.nodes * max(0.0, min(use.end, ends) - max(use.start, start)) / HOUR
            for use in others
        )
        left = (limit - used - spoken_for) * HOUR
        if nodes * (min(ends, until) - start) > left + 1.0:  # one node-second more is tolerated
            month = energy_accounting.month(start)
            return Bound(start + max(left, 0.0) / nodes, month, used, spoken_for)
        start, used = ends, 0.0
    return None


def sentence(limit: float, found: Bound, nodes: int, until: float, now: float) -> str:
    """Say which month's node-hours bound a lease, and how long a lease could be."""
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
