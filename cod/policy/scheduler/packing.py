"""Packing: granting as many as possible of the requests of one priority and one age out of the free
nodes. Pure.

None of these requests has precedence over another. They are packed in several orders. The first
order begins with the most constraining requests. If it leaves requests without nodes, three more
orders are tried: those that ask for the largest part of their matching nodes first; the small ones
first (which satisfies more requests when nodes are scarce); and the large ones first (while blocks
are still whole). In each order, three things make room for a request that finds none: a placed
request is moved to other matching nodes; a placed request is left out, if two others find room
instead; and placed requests are moved so that few blocks are partly full. The order that satisfies
most requests is taken; of several the cheapest, then the first. At last the placed requests are
moved so that all together cost less (`policy.scheduler.rebalance`). docs/explain/allocation.md says
how near this is to the optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cod.policy.scheduler import rebalance
from cod.policy.scheduler.packed import PackedRequests
from cod.policy.scheduler.placement import FoundPlaces, Want
from cod.policy.scheduler.snapshot import NodeKind

DEPTH = 2  # placed requests that are moved, one after the other, to make room for one
EFFORT = 50_000  # bound on the attempts in one order, for many requests at the same time
A_MOVE = 100  # attempts that one move counts as
SAVING = 400  # attempts for each placed request to make all of them cost less


def pack(
    wants: Sequence[Want], free: Mapping[NodeKind, int], costs: Callable[[NodeKind], float]
) -> dict[int, FoundPlaces]:
    """Return the places of the requests that are granted, by request id.

    wants  the requests, the more constraining first
    costs  returns the cost of one node of a kind
    """
    best = _Packing(free, costs)
    best.place(wants)
    if best.left:
        for order in (_greed, _size, lambda want: -_size(want)):
            other = _Packing(free, costs)
            other.place(sorted(wants, key=order))
            best = max(best, other, key=_Packing.worth)
    best.placed.effort = min(EFFORT, SAVING * len(best.placed.found))
    rebalance.save(best.placed)
    return {request_id: found for request_id, (_, found) in best.placed.found.items()}


def _greed(want: Want) -> float:
    """Return a sort key that puts large tuples with few matching nodes first."""
    return -max(
        one.count / max(1, fit.site)
        for one, fit in zip(want.request.tuples, want.fits, strict=True)
    )


def _size(want: Want) -> int:
    return sum(one.count for one in want.request.tuples)


class _Packing:
    """Requests placed one after the other."""

    def __init__(self, free: Mapping[NodeKind, int], costs: Callable[[NodeKind], float]) -> None:
        self.placed = PackedRequests(free, costs, EFFORT)
        self.left: list[Want] = []

    def worth(self) -> tuple[int, float]:
        """Return how many requests are placed, and their cost, negative: larger is better."""
        return len(self.placed.found), -self.placed.cost

    def place(self, wants: Sequence[Want]) -> None:
        """Place as many requests as possible. Move placed requests as long as that makes room for
        another one."""
        placed = self.placed
        self.left = [want for want in wants if not placed.put(want)]
        before, pushed = None, True
        while placed.effort > 0 and self.left and (len(self.left) != before or pushed):
            before = len(self.left)
            self.left = [
                want for want in self.left if not (placed.put(want) or self._put_by_moving(want))
            ]
            pushed = len(self.left) == before and not self._exchange() and rebalance.fill_up(placed)

    def _put_by_moving(self, want: Want, depth: int = DEPTH) -> bool:
        """Place the request by moving a placed one, which may have to move another. Restore
        everything if this does not help."""
        placed = self.placed
        for other, found in list(placed.found.values()) if placed.effort > 0 else ():
            if placed.effort > 0 and self._might_help(want, found):
                placed.effort -= A_MOVE
                mark = placed.mark
                placed.move(other, None)
                if placed.put(want) and (
                    placed.put(other) or (depth > 1 and self._put_by_moving(other, depth - 1))
                ):
                    return True
                placed.back(mark)
        return False

    def _exchange(self) -> bool:
        """Take its place from one request if at least two others find room instead. Return whether
        that succeeded."""
        placed = self.placed
        for other, found in list(placed.found.values()):
            if placed.effort <= 0:
                return False
            if sum(self._might_help(want, found) for want in self.left) < 2:
                continue
            placed.effort -= A_MOVE
            mark = placed.mark
            placed.move(other, None)
            instead = [want for want in self.left if placed.put(want)]
            if len(instead) > 1:
                self.left = [want for want in self.left if want not in instead] + [other]
                return True
            placed.back(mark)
        return False

    def _might_help(self, want: Want, found: FoundPlaces) -> bool:
        """Return whether removing a request from the places `found` could make room for a tuple of
        `want`."""
        self.placed.effort -= 1
        least = 1 if want.request.may_spread else min(one.count for one in want.request.tuples)
        return any(
            self.placed.free[kind] + count >= least and any(kind in fit.blocks for fit in want.fits)
            for place in found.places
            for kind, count in place.items()
        )
