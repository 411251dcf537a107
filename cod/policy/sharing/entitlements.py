"""Entitlements of groups: limits, guarantees and shares, by the groups' settings, the site's rules
and the groups' usage. Pure.

The planner, the flows that apply a plan and the simulator all compute them here, so that they agree
about a group's limit, guarantee and share.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from cod.model import Group, Policy, TypeTerms
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.snapshot import (
    ANYTHING,
    OTHERS,
    Entitlement,
    SiteSnapshot,
    TypeEntitlement,
)
from cod.policy.sharing import shares, turns
from cod.policy.sharing.portions import GroupDemand, portions

NONE: Mapping[int, Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True)
class ByType:
    """Guarantees and shares of groups that hold for single types.

    terms  by the group's id and the type's
    site   nodes of the site, by type
    """

    terms: Mapping[int, Mapping[int, TypeTerms]] = field(default_factory=dict)
    site: Mapping[int, int] = field(default_factory=dict)

    @property
    def apart(self) -> list[int]:
        """Return the types for which any group has such terms: their nodes are apart."""
        return sorted({type_id for each in self.terms.values() for type_id in each})

    def others(self, nodes: int) -> int:
        """Return how many of the site's `nodes` are of types that are not apart."""
        return nodes - sum(self.site.get(one, 0) for one in self.apart)


NOTHING_BY_TYPE = ByType()
DIGITS = 6  # of a node: a third of 30 nodes is ten


def standings(groups: Iterable[Group], policy: Policy) -> Mapping[int, shares.ShareStanding]:
    """Return each group's standing by the site's rule for shares, by the group's id; empty if
    shares are off (`fair_half_life` is 0)."""
    if policy.fair_half_life <= 0:
        return {}
    rule = shares.classic if policy.fair == "classic" else shares.fair_tree
    return rule(
        shares.ShareAccount(group.id, group.shares, group.faded_usage or 0.0, group.parent_id or 0)
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
    by_type: ByType = NOTHING_BY_TYPE,
) -> dict[int, Entitlement]:
    """Return the entitlements of the groups that have any, by the groups' ids. Their shares are
    computed among all groups; `among` computes shares among the groups with a demand.

    nodes        number of nodes of the site, whoever holds them
    type_limits  nodes of a type that a group may hold, by the group's id and the type's
    used         node-seconds of the period so far, by the group's id
    now          decides whose turn it is to have extra nodes (`sharing.turns`)
    by_type      guarantees and shares of single types, whose nodes are counted apart
    """
    groups = list(groups)
    places = standings(groups, policy)
    turn = turns.number(policy, now)
    others = by_type.others(nodes)
    parts = turns.whole({one: each.share * others for one, each in places.items()}, turn)
    apart = _by_types(groups, set(places), by_type, turn)
    ranks: dict[int, dict[int, int]] = defaultdict(dict)
    for group in groups:
        if group.id in places:
            ranks[group.priority][group.id] = places[group.id].rank
    found = {}
    for group in groups:
        entitlement = Entitlement(
            limit=policy.node_limit or None if group.node_limit is None else group.node_limit,
            type_limits=type_limits.get(group.id, {}),
            guarantee=group.guarantee,
            used_up=group.hours_limit is not None
            and used.get(group.id, 0.0) >= group.hours_limit * 3600.0,
            apart=apart.get(group.id, {}),
        )
        if (standing := places.get(group.id)) is not None:
            own = sorted(set(ranks[group.priority].values()))
            entitlement = replace(
                entitlement,
                share=parts.get(group.id),
                rank=own.index(standing.rank) + 1,
                weight=group.shares,
                parent=group.parent_id or 0,
                part=standing.share,
                had_odd=group.odd_turn == turn,
            )
        if entitlement != ANYTHING:
            found[group.id] = entitlement
    return found


def _by_types(
    groups: Sequence[Group], ranked: Set[int], by_type: ByType, turn: int
) -> dict[int, dict[int, TypeEntitlement]]:
    """Return the groups' entitlements to nodes of types that are apart, by the group's id and the
    type's. `ranked`: groups that have shares."""
    found: dict[int, dict[int, TypeEntitlement]] = defaultdict(dict)
    for type_id in by_type.apart:
        nodes = by_type.site.get(type_id, 0)
        terms = {one.id: by_type.terms.get(one.id, {}).get(type_id, TypeTerms()) for one in groups}
        weights = {
            one.id: one.shares if (given := terms[one.id].shares) is None else given
            for one in groups
            if one.id in ranked
        }
        demands = [
            GroupDemand(one.id, weights[one.id], nodes, terms[one.id].guarantee, one.parent_id or 0)
            for one in groups
            if one.id in ranked
        ]
        parts = {one: round(part, DIGITS) for one, part in portions(demands, nodes).items()}
        shares = turns.whole(parts, turn)
        for one, each in terms.items():
            made = TypeEntitlement(each.guarantee, shares.get(one), weights.get(one, 0.0))
            if made != TypeEntitlement():
                found[one][type_id] = made
    return found


def among(
    entitled: Mapping[int, Entitlement],
    nodes: int,
    held: Mapping[int, int],
    wanted: Mapping[int, int],
    turn: int,
) -> dict[int, Entitlement]:
    """Return `entitled` with new shares, computed among the groups that hold or request nodes.

    nodes   number of nodes of the site, without types that are apart
    held    nodes that each group holds, including those that are leaving by reclaims: a reclaim
            must not change the numbers that justify it
    wanted  nodes that each group waits for; nodes beyond its limit do not count
    turn    decides whose turn it is to have extra nodes (`sharing.turns`)
    """
    parts = _portions(entitled, OTHERS, nodes, held, wanted)
    found = turns.whole(parts, turn, {one for one, each in entitled.items() if each.had_odd})
    return {
        group_id: (
            replace(one, share=found[group_id], odd=found[group_id] > parts[group_id])
            if group_id in found
            else one
        )
        for group_id, one in entitled.items()
    }


def _portions(
    entitled: Mapping[int, Entitlement],
    pool: int,
    nodes: int,
    held: Mapping[int, int],
    wanted: Mapping[int, int],
) -> dict[int, float]:
    """Return each group's portion of `nodes`, which are of one type or of `OTHERS`, by the group's
    id. Groups without shares get none."""
    demands = [
        GroupDemand(
            group_id,
            one.of(pool).weight,
            held.get(group_id, 0)
            + _within_limits(one, held.get(group_id, 0), wanted.get(group_id, 0)),
            one.of(pool).guarantee,
            one.parent,
        )
        for group_id, one in entitled.items()
        if one.share is not None
    ]
    return {one: round(part, DIGITS) for one, part in portions(demands, nodes).items()}


def _within_limits(one: Entitlement, held: int, wanted: int) -> int:
    """Return how many of the `wanted` nodes a group may get within its limits."""
    if one.used_up:
        return 0
    return wanted if one.limit is None else min(wanted, max(0, one.limit - held))


def shared(snapshot: SiteSnapshot) -> SiteSnapshot:
    """Return the snapshot with shares computed among the groups that hold or request nodes in it.
    Reservations in advance do not count as requests."""
    apart = snapshot.apart
    if apart:
        snapshot = _parted(snapshot, apart)
    if all(one.share is None for one in snapshot.entitlements.values()):
        return snapshot
    held: dict[int, Counter[int]] = defaultdict(Counter)
    groups = {one.id: one.group_id for one in snapshot.holders.values() if one.drain_until is None}
    for one, group_id in groups.items():
        held[OTHERS][group_id] += snapshot.holders[one].held
    for allocation in snapshot.allocations if apart else ():
        if allocation.kind.type in apart and allocation.vcluster_id in groups:
            held[allocation.kind.type][groups[allocation.vcluster_id]] += allocation.count
            held[OTHERS][groups[allocation.vcluster_id]] -= allocation.count
    wanted: dict[int, Counter[int]] = defaultdict(Counter)
    for request in snapshot.requests:
        if request.starts_at is None and not request.preemptible:
            for pool, count in request.asked:
                wanted[pool][request.group_id] += count
    nodes = sum(count for one, count in snapshot.site.items() if one not in apart)
    found = among(snapshot.entitlements, nodes, held[OTHERS], wanted[OTHERS], snapshot.turn)
    for type_id in sorted(apart):
        count = snapshot.site.get(type_id, 0)
        parts = _portions(found, type_id, count, held[type_id], wanted[type_id])
        for group_id, share in turns.whole(parts, snapshot.turn).items():
            group = found[group_id]
            own = replace(group.apart.get(type_id, TypeEntitlement()), share=share)
            found[group_id] = replace(group, apart={**group.apart, type_id: own})
    return replace(snapshot, entitlements=found)


def _parted(snapshot: SiteSnapshot, apart: Set[int]) -> SiteSnapshot:
    """Return the snapshot with `PendingRequest.parts` set: the requested nodes by type that is
    apart. A tuple that also matches types that are not apart counts for `OTHERS`; a tuple that
    matches several types that are apart counts for the one with the smallest id."""
    feasibility = Feasibility(replace(snapshot, windows={}), 0.0)  # maintenance does not matter
    requests = []
    for request in snapshot.requests:
        parts: Counter[int] = Counter()
        for one in request.tuples:
            types = {kind.type for kind in feasibility.fit(one, request).kinds}
            pools = {type_id if type_id in apart else OTHERS for type_id in types} or {OTHERS}
            parts[min(pools)] += one.count
        requests.append(
            request
            if set(parts) <= {OTHERS}
            else replace(request, parts=tuple(sorted(parts.items())))
        )
    return replace(snapshot, requests=requests)


def creation_size(
    size: int,
    group_id: int,
    guarantees: Mapping[int, int],
    floors: Mapping[int, int],
    nodes: int,
) -> int:
    """Return the creation size of a vcluster that is granted `size` nodes now. The creation size is
    less than `size` if some of the nodes are guaranteed to other groups, which may claim them:
    these nodes count as growth.

    guarantees  guaranteed nodes of each group that has any
    floors      sum of the creation sizes of each group's running vclusters
    nodes       number of nodes of the site
    """
    if not any(count for other, count in guarantees.items() if other != group_id):
        return size
    firm = {one: max(0, count - guarantees.get(one, 0)) for one, count in floors.items()}
    spare = max(0, nodes - sum(guarantees.values()) - sum(firm.values()))
    own = max(0, guarantees.get(group_id, 0) - floors.get(group_id, 0))
    return min(size, own + spare)


def guaranteed_from(
    group_id: int,
    guarantees: Mapping[int, int],
    floors: Sequence[tuple[int, int, float]],
    nodes: int,
    now: float,
) -> float | None:
    """Return when a group can claim its whole guarantee, at the latest: `now`, or when enough
    leases of other groups have ended, if none is extended. None: the site has too few nodes.

    floors  (group, creation size, end of the lease) of the running vclusters

    The other arguments are as in `creation_size`.
    """
    firm: Counter[int] = Counter()
    for other, size, _ in floors:
        firm[other] += size

    def left() -> int:
        others = (guarantees.keys() | firm.keys()) - {group_id}
        return nodes - sum(max(guarantees.get(one, 0), firm[one]) for one in others)

    at = now
    for other, size, ends in [*sorted(floors, key=lambda one: one[2]), (group_id, 0, math.inf)]:
        if left() >= guarantees.get(group_id, 0):
            return at
        firm[other] -= size
        at = max(now, ends)
    return None
