"""Small simulated sites for tests: exact times, owners that note what they are told, and an audit
of the books."""

from __future__ import annotations

from collections import Counter
from typing import Any

from cod.sim import apply_plan
from cod.sim.cluster import (
    Cluster,
    ClusterReclaim,
    ClusterRequest,
    IncomingKey,
    PoolKey,
    SimMachine,
)
from cod.sim.demand.owners import BaseOwner
from cod.sim.scenario.records import Jobs, Scenario
from cod.sim.scenario.tables import read
from cod.sim.world import Watch, World
from cod.states import NodeState, RequestState, VclusterState

WAKE, RESET, WIPE, PRIME, BOOT = 100.0, 80.0, 20.0, 50.0, 30.0
LOOK = 1.0  # until the manager sees a change
EXACT = {"wake": WAKE, "reset": RESET, "wipe": WIPE, "prime": PRIME, "boot": BOOT, "spread": 0.0}
GROUPS = [
    {"name": "low", "priority": 0},
    {"name": "middle", "priority": 5},
    {"name": "high", "priority": 10},
]
NOBODY = {"name": "nobody", "model": "jobs", "group": "low", "arrivals": {"per_day": 0}}


def scenario(
    nodes: int = 4,
    *,
    demand: list[dict[str, Any]] | None = None,
    policy: dict[str, Any] | None = None,
    energy: dict[str, Any] | None = None,
    types: list[dict[str, Any]] | None = None,
    **top: Any,
) -> Scenario:
    """A site of one type in one block whose machines take exactly the times above."""
    rules = {
        "inertia": 0,
        "reclaim_grace": 60,
        "drain_grace": 40,
        "lease_warnings": [],
        **(policy or {}),
    }
    return read(
        {
            "type": types or [{"name": "node", "blocks": [nodes], "times": EXACT}],
            "group": GROUPS,
            "demand": demand or [NOBODY],
            "policy": rules,
            "energy": energy or {},
            **top,
        }
    )


class Told(BaseOwner):
    """Does nothing but note what it is told, as (time, what, id of machine or request)."""

    def __init__(
        self, world: World, group: str, *, cache: bool = False, may_spread: bool = False
    ) -> None:
        made = world.groups.get(group) or world.group(
            group, {"low": 0, "middle": 5, "high": 10}[group], 1e6, None
        )
        super().__init__(world, Jobs(group, group, cache=cache, may_spread=may_spread), made)
        self.heard: list[tuple[float, str, int]] = []

    def note(self, what: str, number: int) -> None:
        self.heard.append((self.world.clock.now, what, number))

    def times(self, what: str) -> list[float]:
        return [at for at, heard, _ in self.heard if heard == what]

    def granted(self, request: ClusterRequest) -> None:
        self.note("granted", request.id)

    def refused(self, request: ClusterRequest) -> None:
        self.note("refused", request.id)

    def up(self, machine: SimMachine) -> None:
        self.note("up", machine.id)

    def lost(self, machine: SimMachine, cluster: Cluster, why: str) -> None:
        self.note(why, machine.id)

    def warned(self, cluster: Cluster, ahead: float) -> None:
        self.note("warned", round(ahead))

    def asked_back(self, reclaim: ClusterReclaim, machines: list[SimMachine]) -> None:
        self.note("asked back", len(machines))

    def over(self, cluster: Cluster) -> None:
        self.note("ended", cluster.id)


def world(made: Scenario | None = None, watch: Watch | None = None) -> World:
    """A world at time 0, with its machines warm."""
    return World(made or scenario(), 1, apply_plan.apply, watch)


def audit(site: World) -> list[str]:
    """Return the faults of the books: nodes lost or doubled, requests forgotten, time or energy
    that does not add up."""
    return [*_nodes(site), *_requests(site), *_sums(site)]


def _nodes(site: World) -> list[str]:
    pool, wrong = site.pool, []
    held = Counter(machine for cluster in site.clusters.values() for machine in cluster.held)
    free = Counter(machine for bucket in pool.free.values() for machine in bucket)
    wrong += [f"{machine.name} is held by {count}" for machine, count in held.items() if count > 1]
    wrong += [f"{machine.name} is in {count} pools" for machine, count in free.items() if count > 1]
    wrong += [f"{machine.name} is free and held" for machine in held.keys() & free.keys()]
    for machine in pool.machines:
        if (machine.cluster is not None) != (machine in held) or (
            machine.cluster is not None and machine not in machine.cluster.held
        ):
            wrong.append(f"{machine.name} and its holder disagree")
        if isinstance(machine.counted_as, PoolKey) != (machine in free):
            wrong.append(f"{machine.name} is not in its pool")
        if machine.cluster is not None and machine.state in (
            NodeState.OFF,
            NodeState.INACTIVE,
            NodeState.QUARANTINED,
        ):
            wrong.append(f"{machine.name} is held and {machine.state}")
    coming = Counter(
        machine.counted_as
        for machine in pool.machines
        if isinstance(machine.counted_as, IncomingKey)
    )
    if coming != pool.coming:
        wrong.append(f"{pool.coming} are coming, should be {coming}")
    return wrong


def _requests(site: World) -> list[str]:
    wrong = []
    pending = Counter(request.cluster.group.priority for request in site.pending.values())
    for priority, asked in site.stats.asked.items():
        decided = sum(count for (rank, _), count in site.stats.outcomes.items() if rank == priority)
        if asked != decided + pending[priority]:
            wrong.append(
                f"{asked} requests of priority {priority}, {decided} decided, {pending[priority]}"
                " wait"
            )
    for cluster in site.clusters.values():
        missing = sum(
            request.count for request in cluster.pending.values() if request.kind == "replace"
        )
        missing += cluster.stopped
        if cluster.state is VclusterState.ACTIVE and cluster.size != len(cluster.held) + missing:
            wrong.append(
                f"{cluster.name} has size {cluster.size}, holds {len(cluster.held)}, lacks"
                f" {missing}"
            )
        leaving = sum(machine.reclaim != 0 for machine in cluster.held)
        if leaving != cluster.leaving:
            wrong.append(f"{cluster.name}: {leaving} are leaving, {cluster.leaving} counted")
    for reclaim in site.reclaims.values():
        marked = sum(machine.reclaim == reclaim.id for machine in reclaim.cluster.held)
        if marked != reclaim.open or reclaim.request.state is not RequestState.PENDING:
            wrong.append(
                f"reclaim {reclaim.id}: {reclaim.open} open, {marked} marked, its request "
                f"{reclaim.request.state}"
            )
    wrong += [
        f"{machine.name} is kept for request {machine.reserved}, which does not wait"
        for machine in site.pool.machines
        if machine.reserved and machine.reserved not in site.pending
    ]
    return wrong


def _sums(site: World) -> list[str]:
    pool, wrong = site.pool, []
    for machine in pool.machines:
        pool.count(machine)
    total = len(pool.machines) * site.clock.now
    if abs(sum(pool.spent.values()) - total) > 1e-6 * (total + 1):
        wrong.append(f"{sum(pool.spent.values())} node-seconds were spent in {total}")
    if len(pool.types) == 1:
        joules = sum(seconds * pool.watts(1, state) for state, seconds in pool.spent.items())
        if abs(joules - pool.joules) > 1e-6 * (joules + 1):
            wrong.append(f"{pool.joules} J were counted, {joules} J spent")
    if sum(pool.by_group.values()) > pool.joules * (1 + 1e-9) or pool.held > total * (1 + 1e-9):
        wrong.append("groups used more than all together")
    return wrong
