"""The jobs that wait in a batch queue, in order and by size."""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import deque
from collections.abc import Iterator

from cod.sim.cluster import SimMachine
from cod.sim.demand.profile import FreeProfile
from cod.sim.results.jobstats import TrackedJob


class QueuedJob:
    """A job in the queue or running.

    rank     its place in the queue: lower ranks come first
    since    when it was last queued
    nodes    the machines that it runs on; none while it waits
    ends_at  its estimated end, while it runs
    passed   jobs behind it may request nodes first
    saved    seconds of its run time that it need not repeat
    kept     if jobs have fixed places: begin and end of the time for which nodes are kept for it
    """

    __slots__ = (
        *("ends_at", "kept", "nodes", "passed", "rank", "saved", "since", "started_at", "tracked"),
    )

    def __init__(self, tracked: TrackedJob) -> None:
        self.tracked, self.nodes, self.rank = tracked, list[SimMachine](), 0
        self.passed, self.kept = False, (0.0, 0.0)
        self.since = self.started_at = self.ends_at = self.saved = 0.0

    @property
    def size(self) -> int:
        """Return how many nodes the job needs."""
        return self.tracked.job.size


class WaitingJobs:
    """Jobs that wait. `nodes`: how many nodes they need in all."""

    def __init__(self) -> None:
        self.nodes = self._count = 0
        self._by_size: dict[int, deque[QueuedJob]] = {}
        self._first = self._last = 0

    def __len__(self) -> int:
        """Return how many jobs wait."""
        return self._count

    def add(self, entry: QueuedJob, now: float, *, first: bool) -> None:
        """Queue a job at the end, or at the front."""
        jobs = self._by_size.setdefault(entry.size, deque())
        if first:
            self._first -= 1
            entry.rank = self._first
            jobs.appendleft(entry)
        else:
            self._last += 1
            entry.rank = self._last
            jobs.append(entry)
        entry.since = now
        self.nodes += entry.size
        self._count += 1

    def remove(self, entry: QueuedJob) -> None:
        """Take a job out of the queue."""
        jobs = self._by_size[entry.size]
        jobs.remove(entry)
        if not jobs:
            del self._by_size[entry.size]
        self.nodes -= entry.size
        self._count -= 1

    def next(self, room: int | None = None) -> QueuedJob | None:
        """Return the first job; with `room`, the first that needs at most so many nodes."""
        firsts = [jobs[0] for size, jobs in self._by_size.items() if room is None or size <= room]
        return min(firsts, key=lambda entry: entry.rank, default=None)

    def smallest(self) -> int:
        """Return how many nodes the smallest job needs."""
        return min(self._by_size)

    def in_order(self) -> Iterator[QueuedJob]:
        """Yield all jobs, the first one first."""
        return heapq.merge(*self._by_size.values(), key=lambda entry: entry.rank)


class FixedPlaces:
    """Fixed places of jobs in a queue with a fixed number of nodes: a job keeps the place that it
    is given when it joins, even if others end early.

    When a job ends early, the rest of its place is for jobs that join later.
    """

    def __init__(self, nodes: int) -> None:
        self._free = FreeProfile(0.0, nodes, ())
        self._jobs: list[tuple[float, int, QueuedJob]] = []  # those that wait, by their places

    def add(self, entry: QueuedJob, now: float, duration: float) -> float:
        """Give a job the earliest free place; return when it begins. A job that is wider than the
        queue gets no place: it begins as soon as it fits."""
        self._free.forget(now)
        start, entry.kept = self._free.earliest(entry.size, duration), (now, now)
        if start == math.inf:
            start = now
        else:
            self._free.take(start, entry.size, duration)
            entry.kept = (start, start + duration)
        insort(self._jobs, (start, entry.rank, entry), key=lambda job: job[:2])
        return start

    def next(self, now: float, room: int) -> QueuedJob | None:
        """Remove and return the first waiting job whose place has begun and that needs at most
        `room` nodes."""
        for number, (start, _, entry) in enumerate(self._jobs):
            if start > now:
                break
            if entry.size <= room:
                del self._jobs[number]
                return entry
        return None

    def leave(self, entry: QueuedJob, now: float) -> None:
        """Leave the rest of a job's place to jobs that join from now on."""
        start, end = max(entry.kept[0], now), entry.kept[1]
        if start < end:
            self._free.forget(now)
            self._free.take(start, -entry.size, end - start)
