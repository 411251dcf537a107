"""Which requests of one priority and one age are granted out of what is free, so that as many as possible are. Pure.

Among such requests nobody has a claim to be first. They are packed with the more constraining first; where that leaves
any without, also in other orders: those first that want most of what little would do for them; the small ones first
(which satisfies more where there is not enough for all); the large ones first (while blocks are still whole). In each,
where one finds no room, another that has been placed is moved aside, if something else does for it. The order that
satisfies most requests is taken; of several the cheapest, then the first. At last any two change places where they cost
less together that way. How near this comes to the best there is: docs/allocation.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from cod.policy.places import Found, Want, at_once
from cod.policy.world import Kind

MOST_MOVES = 1000  # looked at in one order; a bound for the rare crowd that asks at the same time


def pack(wants: Sequence[Want], free: Mapping[Kind, int], costs: Callable[[Kind], float]) -> dict[int, Found]:
    """Where the requests are served that are granted, by their id. `wants`: the more constraining first.

    costs  of one node of a kind
    """
    best = _Packing(free, costs)
    best.place(wants)
    if best.left:
        for order in (_greed, _small, _large):
            other = _Packing(free, costs)
            other.place(sorted(wants, key=order))
            best = max(best, other, key=_Packing.worth)
    best.trade()
    return {request_id: found for request_id, (_, found) in best.placed.items()}


def _greed(want: Want) -> float:
    """Large tuples that little would do for first."""
    return -max(one.count / max(1, fit.site) for one, fit in zip(want.wish.tuples, want.fits, strict=True))


def _small(want: Want) -> int:
    return sum(one.count for one in want.wish.tuples)


def _large(want: Want) -> int:
    return -_small(want)


class _Packing:
    """Requests placed one after the other."""

    def __init__(self, free: Mapping[Kind, int], costs: Callable[[Kind], float]) -> None:
        self._free = dict(free)
        self._costs = costs
        self._moves = MOST_MOVES
        self.placed: dict[int, tuple[Want, Found]] = {}
        self.left: list[Want] = []

    def worth(self) -> tuple[int, float]:
        """How many are satisfied, and how cheaply."""
        return len(self.placed), -sum(self._cost(found) for _, found in self.placed.values())

    def _cost(self, found: Found) -> float:
        return sum(self._costs(kind) * count for place in found.places for kind, count in place.items())

    def place(self, wants: Sequence[Want]) -> None:
        """Place all that can be, moving others aside as long as that makes room for one more."""
        self.left = [want for want in wants if not self._put(want)]
        before = None
        while self.left and len(self.left) != before:
            before = len(self.left)
            self.left = [want for want in self.left if not (self._put(want) or self._put_by_moving(want))]

    def _put(self, want: Want) -> bool:
        found = at_once(want, self._free)
        if found is not None:
            self.placed[want.wish.id] = want, found
            self._use(found, 1)
        return found is not None

    def _use(self, found: Found, sign: int) -> None:
        for place in found.places:
            for kind, count in place.items():
                self._free[kind] -= sign * count

    def _put_by_moving(self, want: Want) -> bool:
        for other, found in list(self.placed.values()):
            if self._moves > 0 and self._might_help(want, found):
                self._moves -= 1
                self._use(found, -1)
                if self._put(want):
                    if self._put(other):
                        return True
                    self._use(self.placed.pop(want.wish.id)[1], -1)
                self._use(found, 1)
        return False

    def trade(self) -> None:
        """Let two change places, or one move on, where both together then cost less."""
        self._moves = 4 * len(self.placed)
        by_cost = sorted(self.placed, key=lambda one: (-self._cost(self.placed[one][1]), one))
        while sum(itertools.starmap(self._trade, itertools.permutations(by_cost, 2))):
            pass

    def _trade(self, one: int, other: int) -> bool:
        before = {key: self.placed[key] for key in (one, other)}
        (want, found), (_, freed) = before.values()
        dearest = max(self._costs(kind) for place in found.places for kind in place)
        cheaper = any(self._costs(kind) < dearest for place in freed.places for kind in place)
        if not cheaper or self._moves <= 0 or not self._might_help(want, freed):
            return False
        self._moves -= 1
        for _, place in before.values():
            self._use(place, -1)
        after = [key for key, (moved, _) in before.items() if self._put(moved)]
        gain = self._cost(found) + self._cost(freed) - sum(self._cost(self.placed[key][1]) for key in after)
        if len(after) == 2 and gain > 0:
            return True
        for key in after:
            self._use(self.placed[key][1], -1)
        for key, (moved, place) in before.items():
            self.placed[key] = moved, place
            self._use(place, 1)
        return False

    def _might_help(self, want: Want, found: Found) -> bool:
        """Does what it frees make room for any tuple that had none?"""
        least = 1 if want.wish.may_spread else min(one.count for one in want.wish.tuples)
        return any(self._free[kind] + count >= least and any(kind in fit.blocks for fit in want.fits)
                   for place in found.places for kind, count in place.items())
