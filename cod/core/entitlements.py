"""What groups may hold and are sure of, by the rows of the moment; `policy.sharing.entitlements`
has the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from cod.model import Group, Policy, Refused, Vcluster
from cod.policy.nodes import energy_accounting
from cod.policy.scheduler import preemption
from cod.policy.scheduler.snapshot import ANYTHING, Entitlement
from cod.policy.sharing import entitlements, turns
from cod.store.engine import Tx
from cod.store.nodes import energy, types
from cod.store.people import groups
from cod.store.scheduler import node_counts, requests, reservations, vclusters


def between(
    tx: Tx,
    holder: int,
    asking: int,
    wanted: int,
    policy: Policy,
    now: float,
    *,
    open_: int = 0,
    equals: bool = True,
) -> tuple[preemption.Beyond, preemption.Within]:
    """Return what group `holder` holds beyond what it is sure of, and what of its own a request of
    group `asking` for `wanted` nodes stays within. `open_`: nodes that leave the holder and count
    as kept. `equals`: they are of one priority; shares matter to nobody else.

    Each act asks: the number of queries is the same however many groups there are.
    """
    fair = equals and policy.fair_half_life > 0
    whose = () if fair else (holder, asking)
    held = vclusters.held_by_groups(tx, now, *whose)
    leaving = vclusters.leaving_by_groups(tx, now, *whose)
    if fair:
        entitled = _shared(tx, held, policy, now)
    else:
        entitled = entitlements.of(groups.every(tx), replace(policy, fair_half_life=0.0), 0)
    kept = {one: held[one] - leaving[one] for one in (holder, asking)}
    beyond = preemption.beyond(entitled.get(holder, ANYTHING), kept[holder] + open_)
    own = entitled.get(asking)
    return beyond, "" if own is None else preemption.within(own, kept[asking], wanted)


def _shared(tx: Tx, held: Mapping[int, int], policy: Policy, now: float) -> dict[int, Entitlement]:
    """Return the entitlements with the shares among groups that hold or want nodes."""
    there = groups.every(tx)
    nodes = sum(node_counts.by_type(tx).values())
    limited = [group.id for group in there if group.hours_limit is not None]
    used = energy.node_seconds(tx, energy_accounting.month(now), limited)
    entitled = entitlements.of(there, policy, nodes, used=used, now=now)
    turn = turns.number(policy, now)
    return entitlements.among(entitled, nodes, held, requests.wanted(tx), turn)


def creation_size(tx: Tx, vcluster: Vcluster, nodes: int) -> int:
    """Return how many of the `nodes` that a vcluster is granted with count for its creation
    size."""
    guarantees = {group.id: group.guarantee for group in groups.every(tx) if group.guarantee}
    if vcluster.preemptible or not guarantees.keys() - {vcluster.group_id}:
        return nodes
    floors: Counter[int] = Counter()
    for group_id, size, _ in vclusters.floors(tx):
        floors[group_id] += size
    there = sum(node_counts.by_type(tx).values())
    return entitlements.creation_size(nodes, vcluster.group_id, guarantees, floors, there)


def check_room(tx: Tx, group: Group, nodes: Mapping[int, int], policy: Policy, now: float) -> None:
    """Raise `Refused` where a group may not hold so many more nodes, by type, as its limits
    stand."""
    used = energy.node_seconds(tx, energy_accounting.month(now), [group.id])
    limits = groups.type_limits(tx, group.id)
    entitlement = entitlements.of([group], policy, 0, limits, used).get(group.id, ANYTHING)
    held = Counter(reservations.moving(tx, group.id))
    for _state, type_id, holder, count in energy.nodes(tx):
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
