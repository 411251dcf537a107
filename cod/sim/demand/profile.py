"""Numbers of free nodes over time, by the requested run times: for reservations within a queue."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class FreeProfile:
    """The number of free nodes over time, as steps: from `_times[n]` on, `_free[n]` nodes are
    free."""

    def __init__(self, now: float, free: int, ends: Iterable[tuple[float, int]]) -> None:
        """Make the profile of the nodes that are free `now`, and of those that become free later:
        `ends` has (time, number of nodes)."""
        self._times, self._free = [now], [free]
        for at, count in sorted(ends):
            if at > self._times[-1]:
                self._times.append(at)
                self._free.append(self._free[-1])
            self._free[-1] += count

    def earliest(self, size: int, duration: float) -> float:
        """Return the earliest time from which `size` nodes are free for `duration`; infinity if
        there is none."""
        start = math.inf
        for at, free in zip(self._times, self._free, strict=True):
            if start + duration <= at:
                return start
            if free < size:
                start = math.inf
            elif start == math.inf:
                start = at
        return start

    def forget(self, now: float) -> None:
        """Drop the steps that are over at `now`."""
        first = max(0, bisect_right(self._times, now) - 1)
        del self._times[:first], self._free[:first]
        self._times[0] = max(self._times[0], now)

    def take(self, start: float, size: int, duration: float) -> None:
        """Occupy `size` free nodes from `start` on for `duration`; a negative size frees nodes."""
        first, last = self._step(start), self._step(start + duration)
        for step in range(first, last):
            self._free[step] -= size

    def _step(self, at: float) -> int:
        """Return the index of the step that begins at that time. If there is none, insert it."""
        step = bisect_left(self._times, at)
        if step == len(self._times) or self._times[step] != at:
            self._times.insert(step, at)
            self._free.insert(step, self._free[step - 1])
        return step
