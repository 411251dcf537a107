"""Outcomes of reservations in advance and of moves, by the demand that requests them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from cod.policy.scheduler.reasons import PUNCTUAL
from cod.states import RequestState

if TYPE_CHECKING:
    from cod.sim.cluster import ClusterRequest

RESERVATION = ("asked", "refused", "accepted", "begun", "late", "rejected")
MOVE = ("asked", "refused", "nodes", "ended", "moved", "rejected", "withdrawn")


class Bookings:
    """Counters and samples, by the name of a demand.

    reservations  counts of `RESERVATION`; `delays`: seconds from a start until it begins
    moves         counts of `MOVE`; `times`: seconds from the beginning of a move to its end
    """

    def __init__(self) -> None:
        self.reservations: dict[str, Counter[str]] = {}
        self.delays: dict[str, list[float]] = defaultdict(list)
        self.moves: dict[str, Counter[str]] = {}
        self.times: dict[str, list[float]] = defaultdict(list)

    def of_reservations(self, name: str) -> Counter[str]:
        """Return the counts of a demand's reservations."""
        return self.reservations.setdefault(name, Counter(dict.fromkeys(RESERVATION, 0)))

    def of_moves(self, name: str) -> Counter[str]:
        """Return the counts of a demand's moves."""
        return self.moves.setdefault(name, Counter(dict.fromkeys(MOVE, 0)))

    def decided(self, request: ClusterRequest, now: float) -> None:
        """Count a decided reservation, or a move that has ended."""
        granted = request.state is RequestState.GRANTED
        if request.starts_at is not None:
            counts = self.reservations[request.label]
            counts["begun" if granted else request.state.value] += 1
            if granted:
                self.delays[request.label].append(now - request.starts_at)
                counts["late"] += now >= request.starts_at + PUNCTUAL
        else:
            counts = self.moves[request.label]
            counts["ended" if granted else request.state.value] += 1
            counts["moved"] += request.moved
            if granted:
                self.times[request.label].append(now - request.submitted_at)
