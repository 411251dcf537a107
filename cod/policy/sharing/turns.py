"""Whole nodes of shares that are not whole: what is odd goes round in turns. Pure.

Seven equal groups have 2.86 of 20 nodes each. Each is sure of two, and of the six nodes that are
left each has one for a turn: first those with the largest remainders, then always those that are
most below their share. A turn lasts a day, or ten times the inertia where that is longer, so that
few nodes change hands. A group that has an odd node keeps it until the turn ends, as long as it
wants it and there are as many odd ones: what others want changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set

from cod.model import Policy

DAY = 86400.0
ROUND = 28
"""Turns after which counting begins anew. By then no group is more than a turn from its share."""


def length(policy: Policy) -> float:
    """Return the seconds of a turn."""
    return max(DAY, 10.0 * policy.inertia)


def ends(policy: Policy, now: float) -> float:
    """Return when the turn ends that `now` is in."""
    return (number(policy, now) + 1) * length(policy)


def number(policy: Policy, now: float) -> int:
    """Return the number of the turn that `now` is in."""
    return int(now // length(policy))


def whole(
    shares: Mapping[int, float], turn: int, keeping: Set[int] = frozenset()
) -> dict[int, int]:
    """Return the whole nodes of each group's share in that turn, by its id.

    shares   in nodes. All groups together have the whole nodes of all shares together
    keeping  groups that have had an odd node since earlier in this turn
    """
    found = {one: math.floor(share) for one, share in shares.items()}
    rest = {one: share - found[one] for one, share in shares.items() if share > found[one]}
    odd = round(sum(shares.values())) - sum(found.values())
    if not odd:
        return found
    began, turn = divmod(turn, ROUND)
    had = dict.fromkeys(rest, 0)
    order = sorted(rest)
    first = began % len(order)
    places = {one: place for place, one in enumerate(order[first:] + order[:first])}
    # who had an odd node in which turn is computed from the round's first one on, never stored
    for count in range(1, turn + 2):
        # rounded: which way a sum of floats errs must not decide who goes first
        below = {one: round(count * part - had[one], 9) for one, part in rest.items()}
        first_of = keeping if count == turn + 1 else frozenset()
        going = sorted(rest, key=lambda one: (one not in first_of, -below[one], places[one]))[:odd]
        for one in going:
            had[one] += 1
    for one in going:
        found[one] += 1
    return found


def evenness(parts: Mapping[int, float]) -> float | None:
    """Return Jain's index of what groups had for each unit of their shares: 1 if all had the same,
    1/n if one of n had everything, None if nobody had anything."""
    squares = sum(part * part for part in parts.values())
    return sum(parts.values()) ** 2 / len(parts) / squares if squares else None
