"""Limits and guarantees of groups by the present rows; `policy.sharing.entitlements` has the rules.

A pool of nodes is a type that is shared apart from the others, or `OTHERS`: all other types.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from cod import notice_texts
from cod.core.nodes import outages
from cod.model import Group, Policy, Refused, Vcluster
from cod.policy.nodes import energy_accounting
from cod.policy.scheduler import preemption
from cod.policy.scheduler.snapshot import ANYTHING, OTHERS, Sharing, TypeEntitlement
from cod.policy.sharing import entitlements
from cod.store.engine import Tx
from cod.store.nodes import energy, types
from cod.store.people import groups
from cod.store.scheduler import node_counts, reservations, vclusters

GUARANTEES = "guarantees"
"""The name of the outage that the site has fewer nodes than are guaranteed."""


class Kept:
    """Holdings and entitlements of some groups, without nodes that are leaving them; read once for
    many preemptions, and updated after each.

    Only rows of these groups are read, and only if shares or guarantees need them. Sums over the
    whole site were counted once for the plan (`PassPlan.sharing`).
    """

    def __init__(
        self, tx: Tx, groups_: Mapping[int, Group], ids: Set[int], sharing: Sharing, now: float
    ) -> None:
        self._groups, self._sharing = groups_, sharing
        self._shared = bool(sharing.shares or sharing.apart)
        self._terms = groups.type_terms(tx) if sharing.apart else {}
        self._nodes: Counter[tuple[int, int]] = Counter()
        if self._shared or any(groups_[one].guarantee for one in ids):
            self._nodes = _kept(tx, ids, sharing, now)

    def leave(self, group_id: int, type_id: int, count: int) -> None:
        """Count `count` nodes of a type as leaving a group."""
        self._nodes[group_id, self._sharing.pool(type_id)] -= count

    def between(
        self,
        holder: int,
        asking: int,
        asked: Sequence[tuple[int, int]],
        type_id: int,
        *,
        equals: bool = True,
        open_: int = 0,
    ) -> tuple[preemption.Beyond, preemption.Within]:
        """Return by how many nodes of the type's pool group `holder` is beyond its guarantee and
        its share, and whether a request of group `asking` fits into its guarantee, its share or
        neither.

        asked   (pool, number of nodes) of the request
        equals  both have the same priority; shares matter only then
        open_   nodes that are leaving the holder but count as kept
        """
        sure = any(self._groups[one].guarantee for one in (holder, asking))
        if not (sure or self._shared):  # as the planner decides without guarantees and shares
            return preemption.EVERYTHING, ""
        pool, kept = self._sharing.pool(type_id), self._nodes
        found = preemption.weakest(
            preemption.within(self._entitled(asking, one, equals), kept[asking, one], count)
            for one, count in asked
        )
        return (
            preemption.beyond(self._entitled(holder, pool, equals), kept[holder, pool] + open_),
            found if pool in [one for one, _ in asked] else "",
        )

    def _entitled(self, group_id: int, pool: int, equals: bool) -> TypeEntitlement:
        if pool == OTHERS:
            guarantee = self._groups[group_id].guarantee
        else:
            given = self._terms.get(group_id, {}).get(pool)
            guarantee = given.guarantee if given else 0
        share = self._sharing.shares.get((group_id, pool)) if equals else None
        return TypeEntitlement(guarantee, share)


def _kept(tx: Tx, ids: Set[int], sharing: Sharing, now: float) -> Counter[tuple[int, int]]:
    """Return how many nodes groups hold, without nodes that are leaving them, by group and pool."""
    found: Counter[tuple[int, int]] = Counter()
    held = vclusters.held_by_groups(tx, now, *ids)
    leaving = vclusters.leaving_by_groups(tx, now, *ids)
    for one in ids:
        found[one, OTHERS] = held[one] - leaving[one]
    if sharing.apart:
        for (one, type_id), nodes in vclusters.kept_of_types(tx, sharing.apart, now, *ids).items():
            found[one, type_id] += nodes
            found[one, OTHERS] -= nodes
    return found


def creation_size(
    tx: Tx,
    vcluster: Vcluster,
    granted: Mapping[int, int],
    sharing: Sharing,
    guarantees: Mapping[int, Mapping[int, int]],
) -> int:
    """Return the creation size of a vcluster that is granted now. The creation size is smaller than
    the vcluster if other groups' guarantees need some of the nodes.

    granted     nodes by type
    guarantees  as `guaranteed` returns them
    """
    parts: Counter[int] = Counter()
    for type_id, count in granted.items():
        parts[sharing.pool(type_id)] += count
    others = {pool for pool, each in guarantees.items() if each.keys() - {vcluster.group_id}}
    if vcluster.preemptible or not others & parts.keys():
        return vcluster.creation_size
    floors: dict[int, Counter[int]] = defaultdict(Counter)
    if sharing.apart:
        for pool, group_id, size, _ in floors_of(tx, sharing.apart):
            floors[pool][group_id] += size
    else:
        floors[OTHERS].update(vclusters.floors_by_groups(tx))
    firm = sum(
        entitlements.creation_size(
            count, vcluster.group_id, guarantees[pool], floors[pool], sharing.nodes(pool)
        )
        for pool, count in parts.items()
    )
    return min(firm, vcluster.creation_size)


def guaranteed(tx: Tx) -> dict[int, dict[int, int]]:
    """Return the numbers of nodes that groups are guaranteed, by pool and group."""
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for group in groups.every(tx):
        if group.guarantee:
            found[OTHERS][group.id] = group.guarantee
    for group_id, each in groups.type_terms(tx).items():
        for type_id, terms in each.items():
            if terms.guarantee:
                found[type_id][group_id] = terms.guarantee
    return found


def floors_of(tx: Tx, apart: Set[int]) -> list[tuple[int, int, int, float]]:
    """Return (pool, group id, creation size, end of the lease) of running vclusters. A creation
    size is of nodes of any type: for each pool, as much of it counts as the vcluster holds nodes of
    the pool."""
    found, held = [], vclusters.held_of_types(tx, apart) if apart else {}
    for one, group_id, floor, size, ends in vclusters.floors(tx):
        own = held.get(one, {})
        others = size - sum(own.values()) if own else floor
        for pool, count in ((OTHERS, others), *own.items()):
            if min(floor, count) > 0:
                found.append((pool, group_id, min(floor, count), ends))
    return found


def watch(tx: Tx, now: float) -> None:
    """Tell administrators once when groups are guaranteed more nodes than the site has, for example
    because nodes have left, and once when the site has enough nodes again."""
    lacking = [one for one in promised(tx) if one.guarantees.total() > one.nodes]
    if not lacking:
        outages.end(tx, GUARANTEES, notice_texts.guarantees_met(), now)
    elif not outages.begun(tx, GUARANTEES):
        names = {group.id: group.name for group in groups.every(tx)}
        first = lacking[0]
        by_name = {names[one]: count for one, count in first.guarantees.items()}
        notice = notice_texts.guarantees_exceed(first.what, by_name, first.nodes)
        outages.begin(tx, GUARANTEES, notice, now)


class Promised(NamedTuple):
    """The guarantees of a pool by group, and the number of its nodes. `what`: the name of the
    pool's nodes, for people."""

    pool: int
    what: str
    guarantees: Counter[int]
    nodes: int


def promised(tx: Tx) -> list[Promised]:
    """Return the guarantees of all groups, with the site's nodes, by pool; [] where no group has a
    guarantee."""
    terms = groups.type_terms(tx)
    apart = frozenset(type_id for each in terms.values() for type_id in each)
    found = guaranteed(tx)
    if not found:
        return []
    sharing = Sharing(site=node_counts.by_type(tx), apart=apart)
    names = {each.id: f"nodes of type {each.name}" for each in types.every(tx)} if apart else {}
    others = "nodes of other types" if apart else "nodes"
    return [
        Promised(pool, names.get(pool, others), Counter(each), sharing.nodes(pool))
        for pool, each in sorted(found.items())
    ]


def check_room(tx: Tx, group: Group, nodes: Mapping[int, int], policy: Policy, now: float) -> None:
    """Raise `Refused` if the group's limits do not allow it to hold `nodes`, given by type, in
    addition to those that it holds."""
    used = energy.node_seconds(tx, energy_accounting.month(now), [group.id])
    limits = groups.type_limits(tx, group.id)
    entitlement = entitlements.of([group], policy, 0, limits, used).get(group.id, ANYTHING)
    held = Counter(reservations.moving(tx, group.id))
    for _state, type_id, holder, count, _vcluster in energy.nodes(tx):
        held[type_id] += count if holder == group.id else 0
    total, most = held.total() + sum(nodes.values()), entitlement.limit
    if entitlement.used_up:
        raise Refused(
            "conflict", f"group {group.name} has used its node-hours of this month", "nodes"
        )
    if most is not None and total > most:
        raise Refused(
            "conflict",
            f"group {group.name} may hold {most} nodes at once, and would hold {total}",
            "nodes",
        )
    for type_id, count in nodes.items():
        limit = entitlement.type_limits.get(type_id)
        if limit is not None and held[type_id] + count > limit:
            name = types.get(tx, type_id).name
            raise Refused(
                "conflict",
                f"group {group.name} may hold {limit} nodes of type {name} at once, and would "
                f"hold {held[type_id] + count}",
                "nodes",
            )
