"""Whole nodes for shares that are fractions: nodes that cannot be divided evenly go to groups by
turns. Pure.

Seven equal groups have shares of 2.86 out of 20 nodes. Each group has two nodes always. The six
nodes that are left over are extra nodes (`odd` in names), of which a group has at most one for a
turn: first the groups with the largest remainders, then the groups that have fallen most below
their shares. A turn lasts a day, or ten times the inertia if that is longer, so that few nodes
change hands. A group keeps its extra node until the turn ends, unless it needs the node no longer
or fewer are left over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set

from cod.model import Policy

DAY = 86400.0
ROUND = 28
"""Turns after which counting begins anew. By then no group is more than a turn off its share."""


def length(policy: Policy) -> float:
    """Return the length of a turn in seconds."""
    return max(DAY, 10.0 * policy.inertia)


def ends(policy: Policy, now: float) -> float:
    """Return when the present turn ends."""
    return (number(policy, now) + 1) * length(policy)


def number(policy: Policy, now: float) -> int:
    """Return the number of the present turn, counted from the epoch."""
    return int(now // length(policy))


def whole(
    shares: Mapping[int, float], turn: int, keeping: Set[int] = frozenset()
) -> dict[int, int]:
    """Return each group's share in that turn in whole nodes, by the group's id.

    shares   shares in nodes, as fractions. The sum of the result is the rounded sum of the shares
    keeping  groups that have had an extra node since earlier in this turn
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
    # which group had an extra node in which turn of the round is computed anew, never stored
    for count in range(1, turn + 2):
        # rounded, so that rounding errors of floats do not decide which group goes first
        below = {one: round(count * part - had[one], 9) for one, part in rest.items()}
        first_of = keeping if count == turn + 1 else frozenset()
        going = sorted(rest, key=lambda one: (one not in first_of, -below[one], places[one]))[:odd]
        for one in going:
            had[one] += 1
    for one in going:
        found[one] += 1
    return found


def evenness(parts: Mapping[int, float]) -> float | None:
    """Return Jain's fairness index of `parts`, the nodes that each group had per unit of its
    shares: 1 if all had the same, 1/n if one of n groups had everything, None if none had any."""
    squares = sum(part * part for part in parts.values())
    return sum(parts.values()) ** 2 / len(parts) / squares if squares else None
