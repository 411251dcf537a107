"""Which requests of one priority and one age are granted out of what is free, so that as many as possible are. Pure.

Among such requests nobody has a claim to be first. They are packed with the more constraining first; where that leaves
any without, also in other orders: those first that want most of what little would do for them; the small ones first
(which satisfies more where there is not enough for all); the large ones first (while blocks are still whole). In each,
where one finds no room, another that has been placed is moved aside, if something else does for it; and one is left out
again where two find room instead. The order that satisfies most requests is taken; of several the cheapest, then the
first. At last any two change places where they cost less together that way. How near this comes to the best there is:
docs/allocation.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from cod.policy.places import Found, Want, at_once
from cod.policy.world import Kind

DEPTH = 2  # how many move one after the other to make room
EFFORT = 50_000  # looks in one order, a bound for the rare crowd that asks at the same time
A_MOVE = 100  # is as much effort as so many looks


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
        self._effort = EFFORT
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
        while self._effort > 0 and self.left and len(self.left) != before:
            before = len(self.left)
            self.left = [want for want in self.left if not (self._put(want) or self._put_by_moving(want))]
            if len(self.left) == before:
                self._exchange()

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

    def _put_by_moving(self, want: Want, depth: int = DEPTH) -> bool:
        """Move one of the placed, for which another may have to move; where that does not help, all is as before."""
        for key, (other, found) in list(self.placed.items()) if self._effort > 0 else ():
            if self._effort > 0 and self._might_help(want, found):
                self._effort -= A_MOVE
                self._take_out(key)
                if self._put(want):
                    if self._put(other) or (depth > 1 and self._put_by_moving(other, depth - 1)):
                        return True
                    self._take_out(want.wish.id)
                self.placed[key] = other, found
                self._use(found, 1)
        return False

    def _exchange(self) -> None:
        """Let one go where two find room instead."""
        for key, (other, found) in list(self.placed.items()):
            if self._effort <= 0:
                return
            if sum(self._might_help(want, found) for want in self.left) < 2:
                continue
            self._effort -= A_MOVE
            self._take_out(key)
            instead = [want for want in self.left if self._put(want)]
            if len(instead) > 1:
                self.left = [want for want in self.left if want not in instead] + [other]
                return
            for want in instead:
                self._take_out(want.wish.id)
            self.placed[key] = other, found
            self._use(found, 1)

    def _take_out(self, request_id: int) -> None:
        self._use(self.placed.pop(request_id)[1], -1)

    def trade(self) -> None:
        """Let two change places, or one move on, where both together then cost less."""
        self._effort = min(EFFORT, 4 * A_MOVE * len(self.placed))
        by_cost = sorted(self.placed, key=lambda one: (-self._cost(self.placed[one][1]), one))
        gained = True
        while gained:
            gained = False
            for one, other in itertools.permutations(by_cost, 2):
                if self._effort <= 0:
                    return
                gained |= self._trade(one, other)

    def _trade(self, one: int, other: int) -> bool:
        self._effort -= 1
        before = {key: self.placed[key] for key in (one, other)}
        (want, found), (_, freed) = before.values()
        dearest = max(self._costs(kind) for place in found.places for kind in place)
        cheaper = any(self._costs(kind) < dearest for place in freed.places for kind in place)
        if not cheaper or not self._might_help(want, freed):
            return False
        self._effort -= A_MOVE
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
        self._effort -= 1
        least = 1 if want.wish.may_spread else min(one.count for one in want.wish.tuples)
        return any(self._free[kind] + count >= least and any(kind in fit.blocks for fit in want.fits)
                   for place in found.places for kind, count in place.items())
