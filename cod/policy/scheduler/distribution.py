"""Distribution of nodes to the tuples of one request. The request is satisfied whenever that is
possible. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Kind = Any
"""A kind of nodes that are alike for the request; any hashable value."""


@dataclass(frozen=True, slots=True)
class KindDemand:
    """`count` nodes of any of `kinds`, best first."""

    count: int
    kinds: tuple[Kind, ...]


def spread(
    demands: Sequence[KindDemand], capacity: Mapping[Kind, int]
) -> list[Counter[Kind]] | None:
    """Return how many nodes of which kind each demand gets, in the order of the demands; None if
    not all demands can be satisfied together."""
    used = fill(demands, capacity)
    satisfied = all(
        share.total() == demand.count for demand, share in zip(demands, used, strict=True)
    )
    return used if satisfied else None


def _scarce_first(demands: Sequence[KindDemand]) -> list[int]:
    """Return the indices of the demands: those with fewest kinds to choose from first, of these the
    largest first. The order does not depend on free nodes, so it is the same in each pass."""
    return sorted(range(len(demands)), key=lambda i: (len(demands[i].kinds), -demands[i].count, i))


def fill(demands: Sequence[KindDemand], capacity: Mapping[Kind, int]) -> list[Counter[Kind]]:
    """Return how many nodes of which kind each demand gets; all demands together get as many nodes
    as possible.

    If the kinds of a demand are used up, other demands are moved to other kinds along an augmenting
    path (Ford and Fulkerson): no other distribution uses more of the capacity.
    """
    spare = Counter({kind: count for kind, count in capacity.items() if count > 0})
    used: list[Counter[Kind]] = [Counter() for _ in demands]

    def place(index: int, need: int, tried: set[Kind]) -> int:
        """Give a demand up to `need` more nodes, moving other demands to other kinds if necessary.
        Return how many nodes it got."""
        for kind in demands[index].kinds:
            if kind in tried:
                continue
            tried.add(kind)
            placed = min(need, spare[kind])
            spare[kind] -= placed
            for other in range(len(demands)):
                # no node of this kind is free: another demand may give some up for other kinds
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
    """The search was given up: there are too many combinations to try all of them."""


TryPreempt = Callable[[Kind, int], bool]


def whole(
    demands: Sequence[KindDemand],
    capacity: Mapping[Kind, int],
    preempt: TryPreempt = lambda kind, count: False,
    restore: Callable[[Kind, int], object] = lambda kind, count: None,
    most: int = 1000,
) -> list[Kind] | None:
    """Return the one kind that each demand gets all its nodes from; None if that is impossible.

    The solution is the first one in the demands' orders of kinds; demands with fewest kinds choose
    first. So it would stay the same if kinds that it does not use had fewer nodes.

    If a kind has too few nodes, `preempt(kind, count)` is asked for the missing ones, and preempts
    all of them or returns False. Preemptions for failed attempts are undone by `restore`; those for
    the returned solution remain. Raises `Exhausted` after `most` attempts: this is a packing
    problem, for which no fast exact method is known.
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
