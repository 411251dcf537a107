"""Sharing out nodes among the tuples of one request, so that it is satisfied whenever it can be.
Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Kind = Any
"""Nodes that are alike for the request: something hashable."""


@dataclass(frozen=True, slots=True)
class KindDemand:
    """`count` nodes of any of `kinds`, best first."""

    count: int
    kinds: tuple[Kind, ...]


def spread(
    demands: Sequence[KindDemand], capacity: Mapping[Kind, int]
) -> list[Counter[Kind]] | None:
    """Return how many nodes of which kind each demand gets, in the order of the demands; None when
    it cannot be done."""
    used = fill(demands, capacity)
    satisfied = all(
        share.total() == demand.count for demand, share in zip(demands, used, strict=True)
    )
    return used if satisfied else None


def _scarce_first(demands: Sequence[KindDemand]) -> list[int]:
    """Return the order: first who has least choice, then who wants most. The order leaves out what
    is free, so that it lasts."""
    return sorted(range(len(demands)), key=lambda i: (len(demands[i].kinds), -demands[i].count, i))


def fill(demands: Sequence[KindDemand], capacity: Mapping[Kind, int]) -> list[Counter[Kind]]:
    """Return how many nodes of which kind each demand gets, as many as can be had.

    A demand whose best kinds are gone moves others aside along an augmenting path (Ford and
    Fulkerson): where the demands want the same, no way to share out uses more of the capacity.
    """
    spare = Counter({kind: count for kind, count in capacity.items() if count > 0})
    used: list[Counter[Kind]] = [Counter() for _ in demands]

    def place(index: int, need: int, tried: set[Kind]) -> int:
        """Find room for up to `need` more nodes of a demand, moving others aside; how many were
        placed."""
        for kind in demands[index].kinds:
            if kind in tried:
                continue
            tried.add(kind)
            placed = min(need, spare[kind])
            spare[kind] -= placed
            for other in range(len(demands)):
                # nothing is free of it: a demand that has some may find others
                if not placed and other != index and used[other][kind]:
                    placed = place(other, min(need, used[other][kind]), tried)
                    used[other][kind] -= placed
            if placed:
                used[index][kind] += placed
                return placed
        return 0

    for index in _scarce_first(demands):
        need = demands[index].count
        alone = next((kind for kind in demands[index].kinds if spare[kind] >= need), None)
        if alone is not None:
            spare[alone] -= need
            used[index][alone] += need
            continue
        while need and (placed := place(index, need, set())):
            need -= placed
    return used


# ---------------------------------------------------------------- each demand from one kind


class Exhausted(Exception):
    """There are too many ways to look at all of them."""


TryPreempt = Callable[[Kind, int], bool]


def whole(
    demands: Sequence[KindDemand],
    capacity: Mapping[Kind, int],
    preempt: TryPreempt = lambda kind, count: False,
    restore: Callable[[Kind, int], object] = lambda kind, count: None,
    most: int = 1000,
) -> list[Kind] | None:
    """Return the kind that each demand gets all its nodes from; None when there is no such way.

    Of all ways it is the first in the demands' order of kinds, those with fewest kinds to choose
    from first: having less of what it leaves unused would not change it. What is short of a kind is
    asked of `preempt(kind, count)`, which takes all of it or says no; it has taken what the answer
    needs beyond the capacity, the rest has been restored. Raises `Exhausted` when `most` choices
    have been tried: the question is one of packing, which no short way answers.
    """
    left = Counter(dict(capacity))
    chosen: dict[int, Kind] = {}
    tried = 0

    def place(rest: Sequence[int]) -> bool:
        nonlocal tried
        if not rest:
            return True
        count = demands[rest[0]].count
        for kind in demands[rest[0]].kinds:
            have = max(0, min(left[kind], count))
            if have < count and not preempt(kind, count - have):
                continue
            tried += 1
            if tried > most + len(demands):
                restore(kind, count - have)
                raise Exhausted
            left[kind] -= have
            chosen[rest[0]] = kind
            if place(rest[1:]):
                return True
            left[kind] += have
            restore(kind, count - have)
        return False

    return (
        [chosen[index] for index in range(len(demands))] if place(_scarce_first(demands)) else None
    )
