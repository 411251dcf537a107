"""Applies a plan to the simulated site: the counterpart of `flows.scheduler.apply_plan`, in the
same order.

Nothing happens between a snapshot and its plan here, so the nodes that a plan names must still be
as in the snapshot. An act that finds them changed raises `ImpossiblePlan`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from cod.policy.scheduler import leases, preemption
from cod.policy.scheduler.snapshot import (
    WARM,
    PassPlan,
    PowerChange,
    Preempt,
    RequestGrant,
    RequestRefusal,
)
from cod.sim import moves
from cod.sim.cluster import Cluster, ClusterReclaim, SimMachine
from cod.sim.world import World
from cod.states import RequestState, VclusterState


class ImpossiblePlan(Exception):
    """A plan that cannot be applied, because of an error in the policy or the simulator."""


def apply(world: World, plan: PassPlan) -> None:
    """Apply the whole plan."""
    for vcluster_id, ahead in plan.warnings:
        cluster = world.clusters[vcluster_id]
        cluster.warned = ahead
        world.stats.warnings += 1
        cluster.owner.warned(cluster, ahead)
    for vcluster_id in plan.drains:
        _drain(world, world.clusters[vcluster_id])
    for vcluster_id in plan.expired:
        _expire(world, world.clusters[vcluster_id])
    for vcluster_id in plan.deserted:
        world.end(world.clusters[vcluster_id])
    world.remember_odd(dict(plan.odd))
    for grant in plan.grants:
        _grant(world, grant, plan)
    for reduction in plan.reductions:
        # the last of the chosen machines stay
        reclaim = world.reclaims[reduction.reclaim_id]
        chosen = [machine for machine in reclaim.cluster.held if machine.reclaim == reclaim.id]
        if len(chosen) != reduction.left + reduction.count:
            raise ImpossiblePlan(
                f"{reduction.count} of {len(chosen)} nodes that are being taken are not wanted,"
                f" {reduction.left} are"
            )
        for machine in cast(list[SimMachine], leases.victims(cast(Any, chosen), len(chosen)))[
            reduction.left :
        ]:
            world.spare(machine)
    for reclaim_id in plan.overdue:
        _seize(world, world.reclaims.get(reclaim_id))
    for preempt in plan.preemptions:
        _preempt(world, preempt, plan)
    for refusal in plan.refusals:
        _tell(world, refusal)
    for change in plan.power_changes:
        _change_power(world, change)


def _drain(world: World, cluster: Cluster) -> None:
    cluster.drain_until = world.clock.now + world.policy.drain_grace
    cluster.changed()
    world.look(cluster.drain_until)
    world.clock.at(cluster.drain_until, world.stir)
    for request in [one for one in cluster.pending.values() if one.kind == "move"]:
        world.decide(request, RequestState.WITHDRAWN)


def _expire(world: World, cluster: Cluster) -> None:
    """Take all nodes of a vcluster whose grace has ended."""
    if cluster.state is not VclusterState.ACTIVE:
        return
    world.stats.expired += 1
    machines = list(cluster.held)
    world.stats.seized += len(machines)
    world.delete(cluster)
    for machine in machines:
        cluster.owner.lost(machine, cluster, "over")


def _seize(world: World, reclaim: ClusterReclaim | None) -> None:
    """Take the nodes that are still open in a reclaim whose deadline has passed."""
    if reclaim is None:
        return
    cluster = reclaim.cluster
    due = [one for one in cluster.held if one.reclaim == reclaim.id]
    if reclaim.request.source is cluster:
        staying = moves.staying(cluster, due)
        for machine in staying:
            world.spare(machine)
        due = [one for one in due if one not in staying]
    for machine in due:
        world.stats.seized += 1
        cluster.size -= 1
        world.let_go(machine)
        cluster.owner.lost(machine, cluster, "taken")


def _grant(world: World, grant: RequestGrant, plan: PassPlan) -> None:
    request = world.pending[grant.request_id]
    cluster, now = request.cluster, world.clock.now
    try:
        picked = [
            (machine, share.template_id)
            for share in grant.shares
            for machine in world.pool.pick(share.free_nodes, share.count)
        ]
    except LookupError as error:
        raise ImpossiblePlan(f"request {request.id}: {error}") from None
    if len(picked) != request.count and request.source is None:
        raise ImpossiblePlan(
            f"request {request.id} wants {request.count} nodes and is granted {len(picked)}"
        )
    for machine, template_id in picked:
        world.lifecycle.take(machine, request.cluster, request.id, template_id)
        request.cluster.held[machine] = None
    if request.source is None:
        world.decide(request, RequestState.GRANTED)
    if request.kind == "create":
        if not cluster.preemptible:
            nodes = [machine for machine, _ in picked]
            cluster.creation_size = world.creation_size(cluster, nodes, plan.sharing)
        cluster.state, cluster.leased_at = VclusterState.ACTIVE, now
        world.lease(cluster, now + cluster.lease_time)
    elif request.kind in ("grow", "move"):
        cluster.size += len(picked)
    cluster.changed()
    world.stats.assigned += len(picked)
    cluster.owner.granted(request)
    if request.source is not None:
        for machine, _ in picked:
            world.pool.reserve(machine, 0)
        request.moved += len(picked)
        moves.conclude(world, request)


def _preempt(world: World, preempt: Preempt, plan: PassPlan) -> None:
    """Reclaim nodes. Their holder chooses the nodes, and has until the deadline to give them
    back."""
    request, cluster = world.pending.get(preempt.request_id), world.clusters[preempt.vcluster_id]
    if request is None:
        raise ImpossiblePlan(
            f"{preempt.count} nodes are taken for request {preempt.request_id}, which does not wait"
        )
    now, policy = world.clock.now, world.policy
    inertia = preemption.inertia(cluster.priority, policy)
    mobile = [
        one
        for one in cluster.held
        if one.kind == preempt.kind
        and not one.reclaim
        and (one.assigned_at or 0.0) + inertia <= now
    ]
    pending = replace(request.as_pending(), parts=plan.sharing.parts.get(request.id, ()))
    kept, pool = world.kept(), plan.sharing.pool(preempt.kind.type)
    may_lose = preemption.takeable(
        cluster.as_holder(),
        len(mobile),
        pending.priority,
        pending.vcluster_id,
        now,
        beyond=kept.beyond(cluster.as_holder().group_id, pool),
        within=kept.within(pending) if pool in dict(pending.asked) else "",
    )
    if may_lose < preempt.count and pending.priority <= cluster.as_holder().priority:
        # a grant of this plan has used up the group's right to take nodes: the next pass replans
        return
    deadline = now + preemption.grace(cluster.group, policy)
    reclaim = ClusterReclaim(
        world.new_id(), cluster, request, preempt.kind, deadline, preempt.count
    )
    chosen = cluster.owner.choose(reclaim, mobile)
    if len(chosen) != preempt.count or preempt.count > may_lose or not set(chosen) <= set(mobile):
        raise ImpossiblePlan(
            f"{preempt.count} nodes are taken from vcluster {cluster.name}, of {may_lose} that may"
            " be"
        )
    world.mark(reclaim, chosen)
    world.stats.taken += preempt.count
    world.stats.reclaims += 1
    cluster.owner.asked_back(reclaim, chosen)


def _tell(world: World, refusal: RequestRefusal) -> None:
    request = world.pending.get(refusal.request_id)
    if request is None or refusal.code == "ended":
        if request is not None:
            moves.conclude(world, request)
        return
    if not refusal.final:
        request.reason, request.pending = refusal.sentence, None
        return
    world.decide(request, RequestState.REJECTED)
    if request.kind == "create":
        world.end(request.cluster)
    elif request.kind == "replace":
        request.cluster.size -= 1
    request.cluster.owner.refused(request)


def _change_power(world: World, change: PowerChange) -> None:
    """Wake free nodes, or put them to sleep, if the plan has not granted them."""
    idle_time = (
        world.energy.idle_time if change.sleep and change.free_nodes.readiness == WARM else None
    )
    try:
        picked = world.pool.pick(change.free_nodes, change.count, idle_time)
    except LookupError as error:
        raise ImpossiblePlan(
            f"{'sleep' if change.sleep else 'wake'} ({change.why}): {error}"
        ) from None
    for machine in picked:
        if change.sleep:
            world.lifecycle.sleep(machine)
        else:
            world.lifecycle.wake(machine)
