"""Types whose nodes are counted apart, and the nodes that requests need of them. Computed without
the policy's own code, except for the comparison of attributes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set

from cod.model import RequestTuple
from cod.policy.hardware.match import satisfies
from cod.policy.scheduler.snapshot import OTHERS, Entitlement, PendingRequest, SiteSnapshot

Key = tuple[int, int]
"""A group, or a holder, and a pool or a type."""


class Pools:
    """The pools: each type that is counted apart is a pool of its own, and `OTHERS` has all other
    nodes; and the pools that requests need."""

    def __init__(self, seen: SiteSnapshot) -> None:
        self._seen = seen
        self.apart = {one for each in seen.entitlements.values() for one in each.apart}
        self._types = set(seen.site)
        for rows in (seen.free_nodes, seen.coming, seen.allocations):
            self._types |= {one.kind.type for one in rows}
        self._asked: dict[int, Counter[int]] = {}

    def of(self, type_id: int) -> int:
        """Return the pool of a type's nodes."""
        return type_id if type_id in self.apart else OTHERS

    def nodes(self, pool: int) -> int:
        """Return how many nodes of the site belong to a pool."""
        return sum(count for one, count in self._seen.site.items() if self.of(one) == pool)

    def types(self, one: RequestTuple) -> list[int]:
        """Return the types that match a request's tuple, by its attributes alone."""
        return [
            type_id
            for type_id, row in sorted(self._seen.types.items())
            if type_id in self._types and not satisfies(one.attributes, row.attributes)
        ]

    def asked(self, request: PendingRequest) -> Counter[int]:
        """Return the numbers of nodes that a request needs of each pool. A tuple that nodes of
        `OTHERS` match counts there, otherwise in the matching pool with the lowest type id."""
        if not self.apart:
            return Counter({OTHERS: size(request)})
        if request.id not in self._asked:
            found: Counter[int] = Counter()
            for one in request.tuples:
                pools = {self.of(type_id) for type_id in self.types(one)}
                found[min(pools, default=OTHERS)] += one.count
            self._asked[request.id] = found
        return self._asked[request.id]


def size(request: PendingRequest) -> int:
    return sum(one.count for one in request.tuples)


def sure(own: Entitlement, pool: int) -> int:
    return max(own.of(pool).guarantee, own.of(pool).share or 0)


def of_type(pool: int) -> str:
    return f" of type {pool}" if pool else ""


def held_apart(seen: SiteSnapshot, apart: Set[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (vcluster, type, nodes) for held nodes of types that are counted apart; nodes still to
    be given back by reclaims follow as negative numbers."""
    for allocation in seen.allocations:
        if allocation.kind.type in apart:
            yield allocation.vcluster_id, allocation.kind.type, allocation.count
    for reclaim in seen.reclaims:
        if reclaim.kind.type in apart:
            yield reclaim.vcluster_id, reclaim.kind.type, -reclaim.open


def matches_alone(request: PendingRequest, seen: SiteSnapshot) -> bool:
    """Return whether attributes alone decide which nodes match a request."""
    documents = [seen.templates.get(one.template_id, "<requires>") for one in request.tuples]
    return not request.isolated and not any(
        "<requires" in one or "<when" in one for one in documents
    )
