"""Packing: the requests of one priority and one age that are granted out of the free nodes, as many
as possible. Pure.

Among such requests nobody has a claim to be first. They are packed with the more constraining
first; where that leaves any without, also in other orders: those first that want most of what
little would do for them; the small ones first (which satisfies more where there is not enough for
all); the large ones first (while blocks are still whole). In each, where one finds no room, another
that has been placed is moved aside, if something else does for it; one is left out again where two
find room instead; and what is placed is pushed together. The order that satisfies most requests is
taken; of several the cheapest, then the first. At last they are moved so that all together cost
less (`policy.scheduler.rebalance`). How near this comes to the best there is: docs/allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cod.policy.scheduler import rebalance
from cod.policy.scheduler.packed import PackedRequests
from cod.policy.scheduler.placement import FoundPlaces, Want
from cod.policy.scheduler.snapshot import NodeKind

DEPTH = 2  # how many move one after the other to make room
EFFORT = 50_000  # looks in one order, a bound for many requests at the same time
A_MOVE = 100  # is as much effort as so many looks
SAVING = 400  # looks for each request that has a place, to make all of them cost less


def pack(
    wants: Sequence[Want], free: Mapping[NodeKind, int], costs: Callable[[NodeKind], float]
) -> dict[int, FoundPlaces]:
    """Return where the requests are served that are granted, by their id. `wants`: the more
    constraining first.

    costs  of one node of a kind
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
        """Return how many are satisfied, and how cheaply."""
        return len(self.placed.found), -self.placed.cost

    def place(self, wants: Sequence[Want]) -> None:
        """Place all that can be, moving others aside as long as that makes room for one more."""
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
        """Let one go where two find room instead."""
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
        """Return whether what the move frees makes room for any tuple that had none."""
        self.placed.effort -= 1
        least = 1 if want.request.may_spread else min(one.count for one in want.request.tuples)
        return any(
            self.placed.free[kind] + count >= least and any(kind in fit.blocks for fit in want.fits)
            for place in found.places
            for kind, count in place.items()
        )
