"""In which order requests are looked at. Pure. Moves have no place in it: they compete with nobody.

Requests that stay within their groups' guarantees come first, whatever their priority. Else the
highest priority does. Where a site has shares, of one priority those go first that have waited
`Policy.hold_after` seconds, the oldest in front: no rank keeps a request waiting for ever. Then
those that stay within their groups' shares go before the others, which would lose to these what
they hold beyond; of both the groups' ranks decide (`policy.sharing.shares`). Where a group has
users' shares, its requests of one such place change places with each other by the ranks of their
users (`policy.sharing.users`), and those that have waited long do not. By dominant shares
(`Policy.fair`) a request has the rank of its group with all nodes that the group waits for by
earlier ones: so requests are in the order in which "progressive filling" meets them. Then the
oldest;
requests whose ages fall into the same step of `Policy.age_step` seconds count as of one age. Among
those the more constraining goes first, the one that fewest nodes of the site would do for: what it
needs is rare, and who can do with anything finds something else. Then the older one.
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
    """Return the waiting requests in their order of precedence. The order of two requests depends
    on no third one, except on earlier requests of a group that use its guarantee."""
    return [request for group in peers(snapshot, policy, feasibility, now) for request in group]


def peers(
    snapshot: SiteSnapshot, policy: Policy, feasibility: Feasibility, now: float
) -> list[list[PendingRequest]]:
    """Return the waiting requests by priority, rank and age, a list for each; of a group that has
    users' shares, a list for each rank of the users."""
    # requests that have waited long have no rank of their user: they go first
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
    """Return the peers with the requests of each group and place in the order of their users'
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
    """The precedence of a request before its age counts.

    beyond    it exceeds its group's guarantee
    priority  its priority, negative
    stage     WAITED long, WITHIN its group's share, or BEYOND
    rank      of its group; by dominant shares: the dominant share for each unit of its share
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
    """Return the place of each request whose group has an entitlement. Earlier requests of a group
    use its guarantee and its share first. With users' shares, requests that have waited long come
    first, then those of the best user."""
    kept = GroupHoldings(snapshot, now)
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
        within = kept.within(request)
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
                kept.add(request.group_id, count, pool)
    return places


class _Dominance:
    """Nodes of each type that groups hold, and await by requests that were ranked already."""

    def __init__(self, snapshot: SiteSnapshot, feasibility: Feasibility) -> None:
        self._site, self._feasibility = snapshot.site, feasibility
        self._held: dict[int, Counter[int]] = defaultdict(Counter)
        for one in snapshot.allocations:
            if (holder := snapshot.holders.get(one.vcluster_id)) is not None:
                self._held[holder.group_id][one.kind.type] += one.count

    def rank(self, request: PendingRequest, part: float) -> float | Fraction:
        """Return the dominant share of a request's group for each unit of the group's share of the
        site. Then count the nodes of the request, as nodes of the cheapest matching type."""
        held = self._held[request.group_id]
        found = dominant_share(held, self._site) / Fraction(part) if part else math.inf
        for one in request.tuples if not request.preemptible else ():
            if kinds := self._feasibility.fit(one, request).kinds:
                held[kinds[0].type] += one.count
        return found


def age(request: PendingRequest, policy: Policy) -> float:
    """Return the step that a request was submitted in; where there are no steps, the time."""
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
