"""Free nodes over time, by the run times that are asked for: for reservations."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class FreeProfile:
    """The free nodes from a moment on, as steps: from `_times[n]` on, `_free[n]` of them are."""

    def __init__(self, now: float, free: int, ends: Iterable[tuple[float, int]]) -> None:
        """Begin with the nodes that are free `now`, and the times at which others become so."""
        self._times, self._free = [now], [free]
        for at, count in sorted(ends):
            if at > self._times[-1]:
                self._times.append(at)
                self._free.append(self._free[-1])
            self._free[-1] += count

    def earliest(self, size: int, duration: float) -> float:
        """Return when `size` nodes are free for so long, as soon as that can be; infinity:
        never."""
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
        """Begin `now`: drop the steps that are over."""
        first = max(0, bisect_right(self._times, now) - 1)
        del self._times[:first], self._free[:first]
        self._times[0] = max(self._times[0], now)

    def take(self, start: float, size: int, duration: float) -> None:
        """Take `size` nodes, which are free from `start` on for so long; fewer than none: give them
        back."""
        first, last = self._step(start), self._step(start + duration)
        for step in range(first, last):
            self._free[step] -= size

    def _step(self, at: float) -> int:
        """Return the step that begins at that time, made if there is none."""
        step = bisect_left(self._times, at)
        if step == len(self._times) or self._times[step] != at:
            self._times.insert(step, at)
            self._free.insert(step, self._free[step - 1])
        return step
