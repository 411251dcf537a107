"""What each group may hold and is sure of, out of its row, the site's rules and what it has used.
Pure.

The planner, the flows that carry a plan out and the simulator reckon it here, so that a group has
one limit, one guarantee and one share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from cod.model import Group, Policy
from cod.policy.scheduler.snapshot import ANYTHING, Entitlement
from cod.policy.sharing import shares, turns

NONE: Mapping[int, Mapping[int, int]] = {}


def standings(groups: Iterable[Group], policy: Policy) -> Mapping[int, shares.Standing]:
    """Return where each group stands by the site's rule; nothing where shares are off
    (`fair_half_life` is 0)."""
    if policy.fair_half_life <= 0:
        return {}
    rule = shares.classic if policy.fair == "classic" else shares.fair_tree
    return rule(
        shares.Account(group.id, group.shares, group.faded_usage or 0.0, group.parent_id or 0)
        for group in groups
    )


def of(
    groups: Iterable[Group],
    policy: Policy,
    nodes: int,
    type_limits: Mapping[int, Mapping[int, int]] = NONE,
    used: Mapping[int, float] = {},
    *,
    now: float = 0.0,
) -> dict[int, Entitlement]:
    """Return the entitlements of those groups that have any, by their ids.

    nodes        of the site, whoever holds them
    type_limits  nodes of a type that a group may hold, by the group's id and the type's
    used         node-seconds of the period so far, by the group's id
    now          decides which groups have the odd nodes of their shares
    """
    groups = list(groups)
    places = standings(groups, policy)
    parts = turns.whole({one: each.share * nodes for one, each in places.items()}, policy, now)
    ranks: dict[int, dict[int, int]] = defaultdict(dict)
    for group in groups:
        if group.id in places:
            ranks[group.priority][group.id] = places[group.id].rank
    found = {}
    for group in groups:
        standing = places.get(group.id)
        own = sorted(set(ranks[group.priority].values()))
        entitlement = Entitlement(
            limit=policy.node_limit or None if group.node_limit is None else group.node_limit,
            type_limits=type_limits.get(group.id, {}),
            guarantee=group.guarantee,
            share=parts.get(group.id),
            rank=0 if standing is None else own.index(standing.rank) + 1,
            used_up=group.hours_limit is not None
            and used.get(group.id, 0.0) >= group.hours_limit * 3600.0,
        )
        if entitlement != ANYTHING:
            found[group.id] = entitlement
    return found
