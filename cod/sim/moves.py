"""Moves of nodes from one vcluster to another: the counterpart of `flows.scheduler.moves`.

A move is a request of the vcluster that gets the nodes, with reclaims from the one that loses them,
all made at once. Nodes are granted as they come.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, cast

from cod.policy.reservations.forecast import Forecast, reserved
from cod.policy.scheduler import leases, preemption
from cod.policy.scheduler.feasibility import Feasibility, lacking
from cod.policy.scheduler.snapshot import ANYTHING, NodeKind
from cod.sim.cluster import Cluster, ClusterReclaim, ClusterRequest, SimMachine
from cod.sim.world import World
from cod.states import RequestState, VclusterState


class NotMoved(Exception):
    """The move is refused, for the reason in the text."""


def start(
    world: World,
    source: Cluster | None,
    target: Cluster | None,
    count: int,
    within: float | None,
    label: str,
) -> ClusterRequest:
    """Move `count` nodes from `source` to `target`, and return the request. Raises `NotMoved`.

    within  seconds until the source must release the nodes; None: the grace of its group
    """
    now = world.clock.now
    if source is None or target is None:
        raise NotMoved("there is no such vcluster")
    for cluster in (source, target):
        if cluster.state is not VclusterState.ACTIVE:
            raise NotMoved(f"vcluster {cluster.name} is {cluster.state.value}, not active")
    grace = preemption.grace(source.group, world.policy) if within is None else within
    if target.drain_until is not None or (target.expires_at or now) <= now + grace:
        raise NotMoved(f"the lease of vcluster {target.name} ends before the nodes would be there")
    most = preemption.movable(min(len(source.held), source.size), source.leaving)
    if count > most:
        raise NotMoved(f"{most} nodes can move at most")
    able = _able(world, source, target)
    if len(able) < count:
        raise NotMoved(f"{len(able)} nodes match, {count} were asked for")
    chosen = cast(list[SimMachine], leases.victims(cast(Any, able), count))
    if source.group_id != target.group_id:
        _check_room(world, target, chosen)
    before = _failing(world)
    request = ClusterRequest(world.new_id(), target, "move", count, now, source=source, label=label)
    world.add(request)
    taken = _take(world, request, able, chosen, now + grace)
    if _failing(world) - before:
        world.drop(request)
        raise NotMoved("nodes are reserved in advance that would not be there")
    world.stats.submitted(request)
    world.stats.reclaims += len(taken)
    world.stats.taken += count
    for reclaim, machines in taken:
        source.owner.asked_back(reclaim, machines)
    return request


def _able(world: World, source: Cluster, target: Cluster) -> list[SimMachine]:
    """Return the nodes of `source` that may move: they match, and are not leaving already."""
    document = world.templates[target.template_id]
    matching = {
        type_id
        for type_id, row in world.pool.types.items()
        if not lacking(target.needs, document, row.attributes)
    }
    return [one for one in source.held if one.kind.type in matching and not one.reclaim]


def _check_room(world: World, target: Cluster, chosen: Sequence[SimMachine]) -> None:
    """Raise `NotMoved` if the group of `target` may not hold that many further nodes."""
    own = world.snapshot().entitlements.get(target.group_id, ANYTHING)
    held: Counter[int] = Counter()
    for machine in world.pool.machines:
        request = world.pending.get(machine.reserved)
        moving = request is not None and request.source is not None
        holder = machine.cluster if not moving or request is None else request.cluster
        held[machine.kind.type] += holder is not None and holder.group_id == target.group_id
    more = Counter(machine.kind.type for machine in chosen)
    if own.used_up:
        raise NotMoved("the group has used its node-hours of this month")
    if own.limit is not None and held.total() + more.total() > own.limit:
        raise NotMoved(f"the group may hold {own.limit} nodes at once")
    for type_id in more.keys() & own.type_limits.keys():
        if held[type_id] + more[type_id] > own.type_limits[type_id]:
            raise NotMoved(f"the group may hold {own.type_limits[type_id]} nodes of that type")


def _failing(world: World) -> set[int]:
    """Return the ids of the reservations in advance for which the forecast finds no place now."""
    seen = world.snapshot()
    if not reserved(seen):
        return set()
    return Forecast(seen, Feasibility(seen, world.clock.now), world.policy, world.clock.now).failed


def _take(
    world: World,
    request: ClusterRequest,
    able: Sequence[SimMachine],
    chosen: Sequence[SimMachine],
    deadline: float,
) -> list[tuple[ClusterReclaim, list[SimMachine]]]:
    """Make a reclaim for each kind of node; return each with the nodes that their owner chooses."""
    source = request.source
    assert source is not None
    alike: dict[NodeKind, list[SimMachine]] = defaultdict(list)
    for machine in able:
        alike[machine.kind].append(machine)
    taken = []
    for kind, candidates in sorted(alike.items()):
        count = sum(machine.kind == kind for machine in chosen)
        if count:
            reclaim = ClusterReclaim(world.new_id(), source, request, kind, deadline, count)
            taken.append((reclaim, source.owner.choose(reclaim, candidates)))
            world.mark(reclaim, taken[-1][1])
    return taken


def staying(source: Cluster, due: Sequence[SimMachine]) -> list[SimMachine]:
    """Return those of the `due` nodes of a move that stay, so that the source keeps one node."""
    most = preemption.movable(len(source.held), source.leaving - len(due))
    return cast(list[SimMachine], leases.victims(cast(Any, due), len(due)))[most:]


def conclude(world: World, request: ClusterRequest) -> None:
    """End a move that has no reserved nodes and no reclaims any more: all its nodes have come."""
    if any(one.request is request for one in world.reclaims.values()) or any(
        machine.reserved == request.id for machine in world.pool.kept
    ):
        return
    world.decide(request, RequestState.GRANTED if request.moved else RequestState.REJECTED)
