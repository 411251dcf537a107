"""Counters of a running simulation, and the figures computed from them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cod.sim.results.bookings import Bookings
from cod.sim.results.jobstats import JobStats
from cod.states import RequestState

if TYPE_CHECKING:
    from cod.sim.cluster import ClusterRequest, SimMachine


class Stats:
    """Counters and samples. Samples are seconds, by priority; those of reservations in advance and
    moves are in `bookings`.

    granted            from the request to the grant; `ready`: until all nodes of the request run
                       their systems
    jobs               the outcomes of jobs
    wanted, delivered  node-seconds that farms wanted and had
    served             node-seconds in which nodes of farms ran, by group
    """

    def __init__(self) -> None:
        self.passes = self.assigned = self.warnings = self.expired = 0
        self.reclaims = self.taken = self.given = self.seized = 0
        self.asked: Counter[int] = Counter()
        self.outcomes: Counter[tuple[int, str]] = Counter()
        self.granted: dict[int, list[float]] = defaultdict(list)
        self.ready: dict[int, list[float]] = defaultdict(list)
        self.jobs = JobStats()
        self.bookings = Bookings()
        self.wanted: dict[int, float] = defaultdict(float)
        self.delivered: dict[int, float] = defaultdict(float)
        self.served: dict[str, float] = defaultdict(float)
        self._starting: dict[int, ClusterRequest] = {}

    def submitted(self, request: ClusterRequest) -> None:
        """Count a request that was made."""
        self.asked[request.cluster.group.priority] += 1

    def decided(self, request: ClusterRequest, now: float) -> None:
        """Count a request that was granted, rejected or withdrawn."""
        priority = request.cluster.group.priority
        self.outcomes[priority, request.state.value] += 1
        if request.label:
            self.bookings.decided(request, now)
        elif request.state is RequestState.GRANTED:
            self.granted[priority].append(now - request.submitted_at)
            self._starting[request.id] = request

    def up(self, machine: SimMachine, now: float) -> None:
        """Count a machine that runs its holder's system."""
        request = self._starting.get(machine.request_id)
        if request is not None:
            request.up += 1
            if request.up == request.count:
                del self._starting[request.id]
                self.ready[request.cluster.group.priority].append(now - request.submitted_at)

    def gone(self, machine: SimMachine) -> None:
        """Record that a machine left before it ran: its request will never count as ready."""
        self._starting.pop(machine.request_id, None)


def spread(samples: Sequence[float]) -> dict[str, float | int | None]:
    """Return the count, mean, median, 95th and 99th percentile (nearest rank) and maximum of
    samples; None for each figure but the count if there are no samples."""
    if not samples:
        return {"count": 0, "mean": None, "median": None, "p95": None, "p99": None, "max": None}
    order = sorted(samples)

    def rank(share: float) -> float:
        return round(order[max(0, math.ceil(share * len(order)) - 1)], 3)

    return {
        "count": len(order),
        "mean": round(math.fsum(order) / len(order), 3),
        "median": rank(0.5),
        "p95": rank(0.95),
        "p99": rank(0.99),
        "max": round(order[-1], 3),
    }


def by_priority(samples: dict[int, list[float]]) -> dict[str, Any]:
    """Return the `spread` of each priority's samples, the highest priority first, and of 'all'."""
    made = {str(priority): spread(samples[priority]) for priority in sorted(samples, reverse=True)}
    return made | {"all": spread([one for many in samples.values() for one in many])}


def share(part: float, whole: float) -> float | None:
    """Return the quotient to six digits; None if `whole` is 0."""
    return round(part / whole, 6) if whole else None


def priorities(*counted: Iterable[int]) -> list[int]:
    """Return all priorities that occur, highest first."""
    return sorted({one for many in counted for one in many}, reverse=True)
