"""The virtual clock. Events happen in the order of their times; at equal times, in the order in
which they were scheduled."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """The simulated clock. `now` is in seconds since the start of the run; `events` counts past
    events."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._made = 0

    def at(self, time: float, call: Callable[..., object], *args: Any) -> None:
        """Call `call(*args)` at `time`, or now if that is past. An event cannot be cancelled:
        `call` has to check whether it still applies."""
        self._made += 1
        heapq.heappush(self._heap, (max(time, self.now), self._made, call, args))

    def after(self, delay: float, call: Callable[..., object], *args: Any) -> None:
        """Call `call(*args)` in `delay` seconds."""
        self.at(self.now + delay, call, *args)

    def run(self, until: float, finished: Callable[[], bool] | None = None) -> None:
        """Run all events that are due up to and including `until`; stop after the event that makes
        `finished` true."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, call, args = heapq.heappop(heap)
            self.events += 1
            call(*args)
            if finished is not None and finished():
                return
        self.now = until
