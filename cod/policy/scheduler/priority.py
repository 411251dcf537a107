"""The order in which requests are decided. Pure. Moves are not in it: they do not compete.

Each of these rules decides between requests that are equal by the rules above it:

1. Requests that fit into their groups' guarantees come first, whatever their priority.
2. The request of higher priority comes first.
3. If shares are on, requests that have waited `Policy.hold_after` seconds come first, the oldest of
   them in front: no rank keeps a request waiting for ever. Next come requests that fit into their
   groups' shares. The others come last: they could lose the nodes beyond their shares again.
4. The request of the group with the better rank comes first (`policy.sharing.shares`). By dominant
   shares (`Policy.fair`) the rank also counts nodes of the group's earlier waiting requests, so
   that requests are in the order of "progressive filling".
5. The older request comes first. Requests whose ages fall into the same step of `Policy.age_step`
   seconds are of one age.
6. The more constraining request comes first, which the fewest nodes of the site match: other
   requests find other nodes more easily.
7. The request that was submitted earlier comes first.

If a group has users' shares, its requests that are equal by rules 1 to 4 exchange their places in
the order of their users' ranks (`policy.sharing.users`), except requests that have waited long.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from fractions import Fraction
from itertools import islice
from typing import NamedTuple

from cod.model import Policy
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.preemption import GroupHoldings
from cod.policy.scheduler.snapshot import PendingRequest, SiteSnapshot
from cod.policy.sharing import users
from cod.policy.sharing.shares import dominant_share


def ordered(
    snapshot: SiteSnapshot, policy: Policy, feasibility: Feasibility, now: float
) -> list[PendingRequest]:
    """Return the waiting requests in their order of precedence. The order of two requests does not
    depend on other requests, except on earlier requests of their groups."""
    return [request for group in peers(snapshot, policy, feasibility, now) for request in group]


def peers(
    snapshot: SiteSnapshot, policy: Policy, feasibility: Feasibility, now: float
) -> list[list[PendingRequest]]:
    """Return the waiting requests in order, in one list for each precedence (`_Place`) and age. No
    list has requests of a group with users' shares by users of different ranks."""
    # requests that have waited long do not have their user's rank: they go first
    user_ranks = {
        request.id: request.user_rank
        for request in snapshot.requests
        if request.user_rank and not _waits_long(request, policy, now)
    }
    places = _places(snapshot, policy, feasibility, now, user_ranks)
    groups: dict[tuple[_Place, float], list[PendingRequest]] = defaultdict(list)
    for request in _competing(snapshot):
        if request.id not in places:
            places[request.id] = _Place(True, -request.priority, BEYOND)
        groups[places[request.id], age(request, policy)].append(request)
    found = [
        sorted(
            groups[rank],
            key=lambda request: (choice(request, feasibility), request.submitted_at, request.id),
        )
        for rank in sorted(groups)
    ]
    return _by_users(found, places, user_ranks) if user_ranks else found


def _waits_long(request: PendingRequest, policy: Policy, now: float) -> bool:
    return 0 < policy.hold_after <= now - request.submitted_at


def _by_users(
    peers: list[list[PendingRequest]],
    places: Mapping[int, _Place],
    user_ranks: Mapping[int, int],
) -> list[list[PendingRequest]]:
    """Return `peers` with the requests of each group and precedence in the order of their users'
    ranks."""

    def rank(request: PendingRequest) -> int:
        return user_ranks.get(request.id, 0)

    def family(request: PendingRequest) -> tuple[int, _Place | int]:
        return request.group_id, places[request.id] if request.user_rank else request.id

    queue = iter(users.in_turn([request for each in peers for request in each], family, rank))
    return [
        part
        for each in peers
        for part in users.apart(
            islice(queue, len(each)), lambda request: (request.group_id, rank(request))
        )
    ]


def _competing(snapshot: SiteSnapshot) -> list[PendingRequest]:
    return [request for request in snapshot.requests if request.source_id is None]


WAITED, WITHIN, BEYOND = range(3)


class _Place(NamedTuple):
    """The precedence of a request, apart from its age; smaller goes first.

    beyond    whether the request exceeds its group's guarantee
    priority  its priority, negative
    stage     WAITED (long), WITHIN (its group's share) or BEYOND
    rank      the rank of its group; by dominant shares: the group's dominant share divided by its
              share of the site
    """

    beyond: bool
    priority: int
    stage: int
    rank: int | float | Fraction = 0


def _places(
    snapshot: SiteSnapshot,
    policy: Policy,
    feasibility: Feasibility,
    now: float,
    user_ranks: Mapping[int, int],
) -> dict[int, _Place]:
    """Return the precedence of each request whose group has an entitlement. Earlier requests of a
    group use up its guarantee and its share. With users' shares, requests that have waited long
    count as the earliest, then those of the best-ranked user."""
    group_nodes = GroupHoldings(snapshot, now)
    holds = _Dominance(snapshot, feasibility) if policy.fair == "dominant" else None
    places = {}
    for request in sorted(
        _competing(snapshot),
        key=lambda one: (
            -one.priority,
            user_ranks.get(one.id, 0),
            one.submitted_at,
            one.id,
        ),
    ):
        entitlement = snapshot.entitlements.get(request.group_id)
        if entitlement is None:
            continue
        within = group_nodes.within(request)
        stage = WITHIN if within else BEYOND
        rank: int | float | Fraction = (
            entitlement.rank if holds is None else holds.rank(request, entitlement.part)
        )
        if (
            _waits_long(request, policy, now)
            and entitlement.share is not None
            and within != "guarantee"
        ):
            stage, rank = WAITED, 0
        places[request.id] = _Place(within != "guarantee", -request.priority, stage, rank)
        if within:
            for pool, count in request.asked:
                group_nodes.add(request.group_id, count, pool)
    return places


class _Dominance:
    """The nodes of each type that groups hold, or wait for with requests ranked already."""

    def __init__(self, snapshot: SiteSnapshot, feasibility: Feasibility) -> None:
        self._site, self._feasibility = snapshot.site, feasibility
        self._held: dict[int, Counter[int]] = defaultdict(Counter)
        for one in snapshot.allocations:
            if (holder := snapshot.holders.get(one.vcluster_id)) is not None:
                self._held[holder.group_id][one.kind.type] += one.count

    def rank(self, request: PendingRequest, part: float) -> float | Fraction:
        """Return the dominant share of a request's group divided by `part`, the group's share of
        the site. Then count the nodes of the request, as nodes of the cheapest matching type."""
        held = self._held[request.group_id]
        found = dominant_share(held, self._site) / Fraction(part) if part else math.inf
        for one in request.tuples if not request.preemptible else ():
            if kinds := self._feasibility.fit(one, request).kinds:
                held[kinds[0].type] += one.count
        return found


def age(request: PendingRequest, policy: Policy) -> float:
    """Return the number of the step of `Policy.age_step` seconds in which a request was submitted;
    without such steps, the time of its submission."""
    return (
        math.floor(request.submitted_at / policy.age_step)
        if policy.age_step > 0
        else request.submitted_at
    )


def choice(request: PendingRequest, feasibility: Feasibility) -> int:
    """Return how many nodes of the site match the request's most constraining tuple, in blocks that
    are large enough."""
    fits = ((one, feasibility.fit(one, request)) for one in request.tuples)
    return min(fit.site if request.may_spread else fit.in_blocks_of(one.count) for one, fit in fits)
