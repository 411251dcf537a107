"""Nodes that are apart by their types, and what requests ask for of them; reckoned without the
policy's own code, but for the comparison of attributes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set

from cod.model import RequestTuple
from cod.policy.hardware.match import satisfies
from cod.policy.scheduler.snapshot import OTHERS, Entitlement, PendingRequest, SiteSnapshot

Key = tuple[int, int]
"""A group, or a holder, and a pool or a type."""


class Pools:
    """The types whose nodes are apart, each a pool of its own, and `OTHERS`, all other nodes; and
    the pools of requests."""

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
        """Return how many nodes of the site are of a pool."""
        return sum(count for one, count in self._seen.site.items() if self.of(one) == pool)

    def types(self, one: RequestTuple) -> list[int]:
        """Return the types that match a tuple of a request, by its attributes alone."""
        return [
            type_id
            for type_id, row in sorted(self._seen.types.items())
            if type_id in self._types and not satisfies(one.attributes, row.attributes)
        ]

    def asked(self, request: PendingRequest) -> Counter[int]:
        """Return the nodes that a request asks for by pool: of the others where any of these would
        do, else of the type that is apart with the smallest number."""
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
    """Yield (vcluster, type, nodes that it keeps) for held nodes of types that are apart."""
    for allocation in seen.allocations:
        if allocation.kind.type in apart:
            yield allocation.vcluster_id, allocation.kind.type, allocation.count
    for reclaim in seen.reclaims:
        if reclaim.kind.type in apart:
            yield reclaim.vcluster_id, reclaim.kind.type, -reclaim.open


def matches_alone(request: PendingRequest, seen: SiteSnapshot) -> bool:
    """Return whether attributes alone say which nodes match a request."""
    documents = [seen.templates.get(one.template_id, "<requires>") for one in request.tuples]
    return not request.isolated and not any(
        "<requires" in one or "<when" in one for one in documents
    )
