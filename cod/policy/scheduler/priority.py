"""In which order requests are looked at. Pure. Moves have no place in it: they compete with nobody.

Requests that stay within their groups' guarantees come first, whatever their priority. Else the
highest priority does. Of one priority those that stay within their groups' shares go before the
others, which would lose to these what they hold beyond; of both the groups' ranks decide
(`policy.sharing.shares`), where a site has such. Then the oldest; requests
whose ages fall into the same step of `Policy.age_step` seconds count as of one age. Among those the
more constraining goes first, the one that fewest nodes of the site would do for: what it needs is
rare, and who can do with anything finds something else. Then the older one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

from cod.model import Policy
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.preemption import Kept, Within, size
from cod.policy.scheduler.snapshot import PendingRequest, Snapshot


def ordered(
    snapshot: Snapshot, policy: Policy, fitting: Feasibility, now: float
) -> list[PendingRequest]:
    """Return the requests that wait, the one that is looked at first in front. The order of two
    depends on no third, but for what a group asked for earlier of its guarantee."""
    return [wish for group in peers(snapshot, policy, fitting, now) for wish in group]


def peers(
    snapshot: Snapshot, policy: Policy, fitting: Feasibility, now: float
) -> list[list[PendingRequest]]:
    """Return the same in groups of one priority, one rank and one age."""
    places = _places(snapshot, now)
    groups: dict[tuple[bool, float, bool, int, float], list[PendingRequest]] = defaultdict(list)
    for wish in _competing(snapshot):
        place = places.get(wish.id, _PLAIN)
        first = place.within != "guarantee"
        beyond = place.within == ""
        groups[first, -wish.priority, beyond, place.rank, age(wish, policy)].append(wish)
    return [
        sorted(groups[rank], key=lambda wish: (choice(wish, fitting), wish.submitted_at, wish.id))
        for rank in sorted(groups)
    ]


def _competing(snapshot: Snapshot) -> list[PendingRequest]:
    return [wish for wish in snapshot.wishes if wish.source_id is None]


class _Place(NamedTuple):
    """What of its group's a request stays within, and its group's rank."""

    within: Within
    rank: int


_PLAIN = _Place("", 0)


def _places(snapshot: Snapshot, now: float) -> dict[int, _Place]:
    """Return the place of each request whose group has an entitlement. Of several of a group those
    that were submitted first have the guarantee, and the share."""
    kept = Kept(snapshot, now)
    places = {}
    for wish in sorted(
        _competing(snapshot), key=lambda one: (-one.priority, one.submitted_at, one.id)
    ):
        entitlement = snapshot.entitlements.get(wish.group_id)
        if entitlement is not None:
            within = kept.within(wish)
            places[wish.id] = _Place(within, entitlement.rank)
            if within:
                kept.add(wish.group_id, size(wish))
    return places


def age(wish: PendingRequest, policy: Policy) -> float:
    """Return the step that a request was submitted in; where there are no steps, the time."""
    return (
        math.floor(wish.submitted_at / policy.age_step)
        if policy.age_step > 0
        else wish.submitted_at
    )


def choice(wish: PendingRequest, fitting: Feasibility) -> int:
    """Return how many nodes of the site would do for its most constraining tuple, in blocks that
    are large enough."""
    fits = ((one, fitting.fit(one, wish)) for one in wish.tuples)
    return min(fit.site if wish.may_spread else fit.in_blocks_of(one.count) for one, fit in fits)
