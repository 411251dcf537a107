"""Sharing out nodes among the tuples of one request, so that it is satisfied whenever it can be. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Kind = tuple[int, str]
"""Nodes that are alike for the manager: (type id, name of the subnet they are on, '' where it is not known)."""


@dataclass(frozen=True, slots=True)
class Demand:
    """`count` nodes of any of `kinds`, best first."""

    count: int
    kinds: tuple[Kind, ...]


def spread(demands: Sequence[Demand], capacity: Mapping[Kind, int]) -> list[Counter[Kind]] | None:
    """How many nodes of which kind each demand gets, in the order of the demands; None when it cannot be done.

    A demand whose best kinds are gone moves others aside along an augmenting path (Ford and Fulkerson).
    """
    spare = Counter({kind: count for kind, count in capacity.items() if count > 0})
    used: list[Counter[Kind]] = [Counter() for _ in demands]

    def place(index: int, need: int, tried: set[Kind]) -> int:
        """Find room for up to `need` more nodes of a demand, moving others aside; how many were placed."""
        for kind in demands[index].kinds:
            if kind in tried:
                continue
            tried.add(kind)
            placed = min(need, spare[kind])
            spare[kind] -= placed
            for other in range(len(demands)):
                if not placed and other != index and used[other][kind]:
                    placed = place(other, min(need, used[other][kind]), tried)
                    used[other][kind] -= placed
            if placed:
                used[index][kind] += placed
                return placed
        return 0

    scarce_first = sorted(range(len(demands)), key=lambda i: (sum(spare[kind] for kind in demands[i].kinds), i))
    for index in scarce_first:
        need = demands[index].count
        alone = next((kind for kind in demands[index].kinds if spare[kind] >= need), None)
        if alone is not None:
            spare[alone] -= need
            used[index][alone] += need
            continue
        while need:
            placed = place(index, need, set())
            if not placed:
                return None
            need -= placed
    return used
