"""What groups may hold and are sure of, by the rows of the moment; `policy.sharing.entitlements`
has the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cod import notice_texts
from cod.core.nodes import outages
from cod.model import Group, Policy, Refused, Vcluster
from cod.policy.nodes import energy_accounting
from cod.policy.scheduler import preemption
from cod.policy.scheduler.snapshot import ANYTHING, Entitlement
from cod.policy.sharing import entitlements
from cod.store.engine import Tx
from cod.store.nodes import energy, types
from cod.store.people import groups
from cod.store.scheduler import node_counts, reservations, vclusters

GUARANTEES = "guarantees"
"""The name by which it is remembered that the site has fewer nodes than are guaranteed."""


def between(
    tx: Tx,
    holder: int,
    asking: int,
    wanted: int,
    now: float,
    *,
    shares: Mapping[int, int],
    open_: int = 0,
) -> tuple[preemption.Beyond, preemption.Within]:
    """Return what group `holder` holds beyond what it is sure of, and what of its own a request of
    group `asking` for `wanted` nodes stays within. `open_`: nodes that leave the holder and count
    as kept.

    Each act asks: only rows of these two groups are read. What depends on the whole site, the
    `shares`, was counted once for the plan (`Plan.shares`).
    """
    pair = {holder, asking}
    held = vclusters.held_by_groups(tx, now, *pair)
    leaving = vclusters.leaving_by_groups(tx, now, *pair)
    entitled = {
        one: Entitlement(guarantee=groups.get(tx, one).guarantee, share=shares.get(one))
        for one in pair
    }
    kept = {one: held[one] - leaving[one] for one in pair}
    return (
        preemption.beyond(entitled[holder], kept[holder] + open_),
        preemption.within(entitled[asking], kept[asking], wanted),
    )


def creation_size(tx: Tx, vcluster: Vcluster, size: int, nodes: int) -> int:
    """Return how many nodes of a vcluster of `size` that is granted now count for its creation
    size. `nodes`: of the site, counted once for the plan (`Plan.nodes`)."""
    guarantees = {group.id: group.guarantee for group in groups.every(tx) if group.guarantee}
    if vcluster.preemptible or not guarantees.keys() - {vcluster.group_id}:
        return size
    floors = vclusters.floors_by_groups(tx)
    return entitlements.creation_size(size, vcluster.group_id, guarantees, floors, nodes)


def watch(tx: Tx, now: float) -> None:
    """Tell administrators once when groups are guaranteed more nodes than the site has, and once
    when they are no longer: nodes leave, too."""
    guarantees = {group.name: group.guarantee for group in groups.every(tx) if group.guarantee}
    nodes = sum(node_counts.by_type(tx).values()) if guarantees else 0
    if sum(guarantees.values()) <= nodes:
        outages.end(tx, GUARANTEES, notice_texts.guarantees_met(nodes), now)
    elif not outages.begun(tx, GUARANTEES):
        outages.begin(tx, GUARANTEES, notice_texts.guarantees_exceed(guarantees, nodes), now)


def check_room(tx: Tx, group: Group, nodes: Mapping[int, int], policy: Policy, now: float) -> None:
    """Raise `Refused` where a group may not hold so many more nodes, by type, as its limits
    stand."""
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
