"""The number of free nodes of each type over time, besides all leases and reservations. Pure.

Waiting requests are ignored: a reservation has precedence over them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from cod.model import Policy
from cod.policy.reservations.forecast import Forecast
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.snapshot import SiteSnapshot, WindowTimes

Steps = Sequence[tuple[float, int]]
"""(time from which it holds, number of nodes), in order."""


def of_types(
    snapshot: SiteSnapshot, policy: Policy, now: float, until: float
) -> dict[int, list[tuple[float, int]]]:
    """Return how many nodes are free from `now` to `until`, as steps by type. `snapshot` must have
    the times of nodes on their way (`IncomingNodes.since`)."""
    changes: defaultdict[int, defaultdict[float, int]] = defaultdict(lambda: defaultdict(int))
    found = Forecast(snapshot, Feasibility(snapshot, now), policy, now).free(until)
    for kind, steps in found.items():
        before = 0
        closed = [one for bit, one in snapshot.windows.items() if kind.windows & bit]
        for time, count in _outside(steps, closed, now, until):
            changes[kind.type][time] += count - before
            before = count
    return {type_id: _summed(each) for type_id, each in changes.items()}


def least(steps: Steps, start: float) -> int:
    """Return the smallest number of free nodes at any time from `start` on; 0 without steps."""
    at_start = [count for time, count in steps if time <= start][-1:]
    return min([*at_start, *(count for time, count in steps if time > start)], default=0)


def _outside(
    steps: Steps, closed: Sequence[WindowTimes], now: float, until: float
) -> list[tuple[float, int]]:
    """Return the steps with 0 nodes during the maintenance windows `closed`."""
    if not closed:
        return list(steps)
    edges = {edge for one in closed for edge in (one.begins, one.ends) if now < edge < until}
    found = []
    for time in sorted({now, *edges, *(time for time, _ in steps)}):
        count = next((count for begin, count in reversed(steps) if begin <= time), 0)
        shut = any(one.begins <= time < one.ends for one in closed)
        found.append((time, 0 if shut else count))
    return found


def _summed(changes: dict[float, int]) -> list[tuple[float, int]]:
    steps: list[tuple[float, int]] = []
    total = 0
    for time in sorted(changes):
        total += changes[time]
        if not steps or steps[-1][1] != total:
            steps.append((time, total))
    return steps
