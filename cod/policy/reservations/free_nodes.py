"""Nodes of each type that are free beside all leases and reservations, in time. Pure.

Waiting requests are not looked at: a reservation goes before them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from cod.model import Policy
from cod.policy.reservations.forecast import Forecast
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.snapshot import SiteSnapshot

Steps = Sequence[tuple[float, int]]
"""(from when, nodes), in order."""


def of_types(
    snapshot: SiteSnapshot, policy: Policy, now: float, until: float
) -> dict[int, list[tuple[float, int]]]:
    """Return by type how many nodes are free, from `now` to `until`; `snapshot` has the times of
    nodes on their way."""
    changes: defaultdict[int, defaultdict[float, int]] = defaultdict(lambda: defaultdict(int))
    found = Forecast(snapshot, Feasibility(snapshot, now), policy, now).free(until)
    for kind, steps in found.items():
        before = 0
        for time, count in steps:
            changes[kind.type][time] += count - before
            before = count
    return {type_id: _summed(each) for type_id, each in changes.items()}


def least(steps: Steps, start: float) -> int:
    """Return the fewest nodes that are free at any time from `start` on; 0 where nothing is
    known."""
    at_start = [count for time, count in steps if time <= start][-1:]
    return min([*at_start, *(count for time, count in steps if time > start)], default=0)


def _summed(changes: dict[float, int]) -> list[tuple[float, int]]:
    steps: list[tuple[float, int]] = []
    total = 0
    for time in sorted(changes):
        total += changes[time]
        if not steps or steps[-1][1] != total:
            steps.append((time, total))
    return steps
