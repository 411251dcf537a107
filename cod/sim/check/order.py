"""Check of the order of requests from outside. It shares no code with the policy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from cod.model import Policy
from cod.policy.hardware.match import satisfies
from cod.policy.scheduler.snapshot import (
    ANYTHING,
    NodeKind,
    PassPlan,
    PendingRequest,
    RequestGrant,
    SiteSnapshot,
)
from cod.sim.check.groups import Groups
from cod.sim.check.pools import Key, Pools, matches_alone, sure


def passed_over(seen: SiteSnapshot, planned: PassPlan, policy: Policy, now: float) -> Iterator[str]:
    """Yield waiting requests for which the nodes that a later request is granted would have
    sufficed. If nodes are kept for others, or maintenance is planned, leases decide about the use
    of nodes, and nothing is checked."""
    if planned.holds or planned.reserved or seen.dear or seen.windows or not planned.grants:
        return
    if any(request.user_rank for request in seen.requests):
        return
    places = _places(seen, policy, now)
    waits = {refusal.request_id for refusal in planned.refusals if refusal.code == "busy"}
    requests = {request.id: request for request in seen.requests}
    reserved = {free.reserved for free in seen.free_nodes} | {one.reserved for one in seen.coming}
    reserved |= {reclaim.request_id for reclaim in seen.reclaims}
    for one in sorted((waits - reserved) & places.keys()):
        request = requests[one]
        if not _plain(request, seen):
            continue
        for grant in planned.grants:
            other = places.get(grant.request_id)
            if other is None or places[one] >= other:
                continue
            if (request.group_id in seen.entitlements) != (
                requests[grant.request_id].group_id in seen.entitlements
            ):
                continue
            if _enough(request, grant, seen):
                yield (
                    f"request {one} waits, and request {grant.request_id}, which is behind it, gets"
                    " nodes that are enough for it"
                )


Place = tuple[bool, int, int, Fraction | float, float]


def _places(seen: SiteSnapshot, policy: Policy, now: float) -> dict[int, Place]:
    """Return the requests' precedence: within a guarantee first, then by priority; with shares,
    those that have waited long, then those within shares, by ranks; then by age. Requests of
    unknown rank are left out."""
    groups, kept = Groups(seen, PassPlan(), now), Counter[Key]()
    dominance = _DominantRanks(seen, groups.pools) if policy.fair == "dominant" else None
    places: dict[int, Place] = {}
    for request in sorted(seen.requests, key=lambda one: (-one.priority, one.submitted_at, one.id)):
        if request.source_id is not None or request.starts_at is not None:
            continue
        own, asked = groups.of(request.group_id), groups.pools.asked(request)
        age = request.submitted_at
        if policy.age_step > 0:
            age = math.floor(age / policy.age_step)
        had = {
            pool: groups.kept[request.group_id, pool] + kept[request.group_id, pool] + count
            for pool, count in asked.items()
        }
        safe = not request.preemptible and all(
            count <= own.of(pool).guarantee for pool, count in had.items()
        )
        within = not request.preemptible and all(
            count <= sure(own, pool) for pool, count in had.items()
        )
        if within and seen.entitlements:
            for pool, count in asked.items():
                kept[request.group_id, pool] += count
        rank = Fraction(own.rank)
        if dominance is not None and own.share is not None:
            found = dominance.rank(request, own.part)
            if found is None:
                continue
            rank = found
        long = 0 < policy.hold_after <= now - request.submitted_at
        if own.share is not None and long and not safe:
            stage, rank = 0, Fraction(0)
        else:
            stage = 1 if within else 2
        places[request.id] = (not safe, -request.priority, stage, rank, age)
    return places


class _DominantRanks:
    """Dominant shares by progressive filling: the nodes that groups hold of each type, and those of
    their earlier requests. The rank of a group is unknown after a request that does not match one
    cheapest type."""

    def __init__(self, seen: SiteSnapshot, pools: Pools) -> None:
        self._seen, self._pools = seen, pools
        self._held: Counter[Key] = Counter()
        self._unknown: set[int] = set()
        for allocation in seen.allocations:
            if (holder := seen.holders.get(allocation.vcluster_id)) is not None:
                self._held[holder.group_id, allocation.kind.type] += allocation.count

    def rank(self, request: PendingRequest, part: float) -> Fraction | None:
        """Return the group's largest share of a type's nodes before the request, in proportion to
        its share of the site (`part`); None if unknown."""
        group_id = request.group_id
        if group_id in self._unknown or part <= 0:
            return None
        parts = [
            Fraction(self._held[group_id, type_id], count)
            for type_id, count in self._seen.site.items()
            if count
        ]
        for one in request.tuples if not request.preemptible else ():
            types = self._pools.types(one)
            costs = sorted((self._seen.types[type_id].cost, type_id) for type_id in types)
            if (
                not costs
                or (len(costs) > 1 and costs[0][0] == costs[1][0])
                or not matches_alone(request, self._seen)
            ):
                self._unknown.add(group_id)
            else:
                self._held[group_id, costs[0][1]] += one.count
        return max(parts, default=Fraction(0)) / Fraction(part)


def _plain(request: PendingRequest, seen: SiteSnapshot) -> bool:
    """Return whether a request is for nodes of one kind, so that only their number can delay it."""
    own = seen.entitlements.get(request.group_id, ANYTHING)
    return (
        len(request.tuples) == 1
        and own.limit is None
        and not own.type_limits
        and not own.used_up
        and matches_alone(request, seen)
    )


def _enough(request: PendingRequest, grant: RequestGrant, seen: SiteSnapshot) -> bool:
    """Return whether the unreserved nodes granted to another request would suffice for this one."""
    (one,) = request.tuples
    supply: Counter[NodeKind] = Counter()
    for share in grant.shares:
        kind = share.free_nodes.kind
        if share.free_nodes.reserved or kind.port or kind.subnet not in ("", request.subnet):
            continue
        if not satisfies(one.attributes, seen.types[kind.type].attributes):
            supply[kind] += share.count
    return one.count <= (supply.total() if request.may_spread else max(supply.values(), default=0))
