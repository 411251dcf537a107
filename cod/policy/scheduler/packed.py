"""The places of requests among the free nodes, while the requests are packed. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cached_property

from cod.policy.scheduler.placement import FoundPlaces, Want, at_once
from cod.policy.scheduler.snapshot import NodeKind


class PackedRequests:
    """The places of requests in a packing, which can be restored to an earlier state.

    sizes   nodes of each kind, used or not
    free    unused nodes
    at      ids of the requests that have nodes of a kind
    found   the placed requests, by id
    cost    of all placed requests
    effort  attempts that are left: a bound for many requests at the same time
    """

    def __init__(
        self, free: Mapping[NodeKind, int], costs: Callable[[NodeKind], float], effort: int
    ) -> None:
        self.sizes = dict(free)
        self.free = dict(free)
        self.at: dict[NodeKind, set[int]] = defaultdict(set)
        self.found: dict[int, tuple[Want, FoundPlaces]] = {}
        self.cost = 0.0
        self.costs = costs
        self.effort = effort
        self._changed: list[tuple[Want, FoundPlaces | None]] = []

    def put(self, want: Want) -> bool:
        """Give the request the best place. Return False if there is none."""
        found = at_once(want, self.free)
        if found is not None:
            self.move(want, found)
        return found is not None

    def move(self, want: Want, found: FoundPlaces | None) -> None:
        """Give the request the place `found`, whose nodes must be free or the request's own; None:
        take its place away."""
        _, before = self.found.pop(want.request.id, (want, None))
        self._changed.append((want, before))
        self._use(want.request.id, before, -1)
        self._use(want.request.id, found, 1)
        if found is not None:
            self.found[want.request.id] = want, found

    def _use(self, request_id: int, found: FoundPlaces | None, sign: int) -> None:
        for place in found.places if found else ():
            for kind, count in place.items():
                self.free[kind] -= sign * count
                self.cost += sign * count * self.costs(kind)
                (self.at[kind].add if sign > 0 else self.at[kind].discard)(request_id)

    @cached_property
    def kinds(self) -> list[NodeKind]:
        """The kinds that have any nodes, the cheapest first; of equal cost the smallest first."""
        return sorted(
            (kind for kind, size in self.sizes.items() if size),
            key=lambda kind: (self.costs(kind), self.sizes[kind], kind),
        )

    @property
    def mark(self) -> int:
        """Return a mark of the present state, for `back`."""
        return len(self._changed)

    def back(self, mark: int) -> None:
        """Restore the state at `mark`, except `effort`."""
        while len(self._changed) > mark:
            self.move(*self._changed.pop())
            self._changed.pop()

    def cost_of(self, found: FoundPlaces) -> float:
        """Return the cost of all nodes of a place."""
        return sum(
            self.costs(kind) * count for place in found.places for kind, count in place.items()
        )
