"""The simulated site: the actions of owners, the snapshots for the manager, and the times of its
passes.

A pass follows a second after a change that may matter to a request, at each time that the manager
waits for, within a minute after a change that matters to the reserve alone, and at least each
`period` seconds. A pass takes no time. `sim.apply_plan` applies its plan.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from cod.model import Energy, Group, Policy, TypeTerms
from cod.policy.reservations import admission
from cod.policy.scheduler import leases, preemption
from cod.policy.scheduler.plan import plan
from cod.policy.scheduler.snapshot import (
    OTHERS,
    Allocation,
    Entitlement,
    NodeKind,
    OpenReclaim,
    PassPlan,
    Sharing,
    SiteSnapshot,
)
from cod.policy.sharing import entitlements, shares, turns
from cod.sim.blame import Failures
from cod.sim.clock import Clock
from cod.sim.cluster import Cluster, ClusterOwner, ClusterReclaim, ClusterRequest, SimMachine
from cod.sim.imageserver import ImageServer
from cod.sim.lifecycle import MachineLifecycle
from cod.sim.machines import MachinePool
from cod.sim.maintenance import SimWindows
from cod.sim.randomness import HOUR
from cod.sim.results.stats import Stats
from cod.sim.scenario.records import Scenario
from cod.sim.timeline import HeldTimeline, MonthUsage
from cod.states import NodeState, RequestState, VclusterState

DELAY = 1.0  # seconds between a change and the pass that sees it: the manager's own period
MINUTE = 60.0

Watch = Callable[[SiteSnapshot, PassPlan, float], None]
Act = Callable[["World", PassPlan], None]


class World:
    """The whole simulated site. `act` applies a plan (`sim.apply_plan.apply`).

    `watch` is called with each pass's snapshot and plan before the plan is applied.
    """

    def __init__(self, scenario: Scenario, seed: int, act: Act, watch: Watch | None = None) -> None:
        self.policy: Policy = scenario.policy
        self.energy: Energy = scenario.energy
        self.clock = Clock()
        self.stats = Stats()
        self.pool = MachinePool(self.clock, scenario.types, scenario.energy, seed)
        self._timeline = HeldTimeline(scenario.energy, self.pool.types)
        self._hours = MonthUsage()
        self.images = ImageServer(
            self.clock, scenario.image_mb, scenario.image_at_once, scenario.image_mb_per_s
        )
        self.failures = Failures(scenario, seed, self.pool.machines)
        self.lifecycle = MachineLifecycle(
            self.clock,
            self.pool,
            scenario.energy,
            self.images,
            self.failures,
            scenario.policy.patience,
            on_up=self._up,
            on_free=self._free,
            on_broken=self._broken,
            on_stopped=self._stopped,
        )
        self.groups: dict[str, Group] = {}
        self.entitlements: Mapping[int, Entitlement] = {}
        self._terms: dict[int, dict[int, TypeTerms]] = {}  # by group and type
        self._type_limits: dict[int, dict[int, int]] = {}
        self._usage: dict[int, float] = {}  # of groups, faded, at `_faded_at`
        self._faded_at = 0.0
        self.templates: dict[int, str] = {}
        self.clusters: dict[int, Cluster] = {}
        self.pending: dict[int, ClusterRequest] = {}
        self.reclaims: dict[int, ClusterReclaim] = {}
        self._act, self._watch, self._period = act, watch, scenario.period
        self._look_at = float("inf")
        self._minutes: set[float] = set()
        self.ended = self._ids = self._templates = 0
        self.maintenance = SimWindows(
            self.clock,
            self.pool,
            self.lifecycle,
            scenario.policy,
            scenario.windows,
            self.stir,
        )
        self.look(0.0)

    def new_id(self) -> int:
        """Return a new id, unique in the world."""
        self._ids += 1
        return self._ids

    # ------------------------------------------------------------ what owners do

    def group(
        self,
        name: str,
        priority: int,
        default_lease: float | None,
        max_lease: float | None,
        **entitled: Any,
    ) -> Group:
        """Add a group and return it; `entitled`: its shares, guarantee and limit, as in the
        record."""
        group = Group(
            len(self.groups) + 1, name, priority, default_lease, max_lease, 0.0, **entitled
        )
        self.groups[name] = group
        self._usage[group.id] = 0.0
        return group

    def entitle(
        self,
        group: Group,
        guarantees: Mapping[str, int],
        shares_of: Mapping[str, float],
        limits: Mapping[str, int],
    ) -> None:
        """Set a group's guarantees, shares and limits of types, by the types' names."""
        numbers = {row.name: number for number, row in self.pool.types.items()}
        terms = {
            numbers[one]: TypeTerms(guarantees.get(one, 0), shares_of.get(one))
            for one in sorted({*guarantees, *shares_of})
        }
        if terms:
            self._terms[group.id] = terms
        if limits:
            self._type_limits[group.id] = {numbers[one]: most for one, most in limits.items()}

    def template(self, *, cache: bool, wrong: bool = False) -> int:
        """Add a template; return its id. `wrong`: no system becomes ready with it; only one
        vcluster uses such a template."""
        self._templates += 1
        number = self._templates
        if wrong:
            self.failures.wrong.add(number)
            self.failures.asked_wrong += 1
        keep = ' cache="yes"' if cache else ""
        self.templates[number] = (
            f'<template name="t{number}"{keep}><image target="disk" name="t{number}"/></template>'
        )
        return number

    def create(
        self,
        owner: ClusterOwner,
        group: Group,
        size: int,
        template_id: int,
        *,
        name: str,
        needs: str,
        cache: bool,
        lease: float | None,
        may_spread: bool,
        may_wait: bool = True,
        preemptible: bool = False,
        starts_at: float | None = None,
        label: str = "",
    ) -> Cluster:
        """Add a vcluster and return it. It is pending until its request is granted. `starts_at`,
        `label`: as in `ClusterRequest`."""
        lease_time = leases.length(lease, group, self.policy)
        cluster = Cluster(
            self.new_id(),
            name,
            group,
            owner,
            template_id,
            needs,
            cache,
            size,
            lease_time,
            may_spread,
            creation_size=size,
            preemptible=preemptible,
        )
        self.clusters[cluster.id] = cluster
        self._request(cluster, "create", size, may_wait, starts_at=starts_at, label=label)
        return cluster

    def grow(self, cluster: Cluster, count: int) -> ClusterRequest:
        """Request `count` more nodes."""
        return self._request(cluster, "grow", count)

    def _request(
        self, cluster: Cluster, kind: str, count: int, may_wait: bool = True, **booked: Any
    ) -> ClusterRequest:
        request = ClusterRequest(
            self.new_id(), cluster, kind, count, self.clock.now, may_wait, **booked
        )
        self.add(request)
        self.stats.submitted(request)
        return request

    def add(self, request: ClusterRequest) -> None:
        """Queue a request."""
        self.pending[request.id] = request.cluster.pending[request.id] = request
        self.stir()

    def withdraw(self, request: ClusterRequest) -> None:
        """Withdraw the request, if it is pending."""
        if request.state is RequestState.PENDING:
            self.decide(request, RequestState.WITHDRAWN)
            self.stir()

    def restore(self, cluster: Cluster, machines: Iterable[SimMachine]) -> None:
        """Shrink the vcluster by these machines. Reclaimed machines go to the request that their
        reclaim is for."""
        for machine in machines:
            self.stats.given += bool(machine.reclaim)
            cluster.size -= 1
            self.let_go(machine)
        self.stir()

    def delete(self, cluster: Cluster) -> None:
        """Delete a vcluster: withdraw its requests, and give its nodes back."""
        for request in list(cluster.pending.values()):
            self.decide(request, RequestState.WITHDRAWN)
        if cluster.state is VclusterState.PENDING:
            self.end(cluster)
            return
        for machine in list(cluster.held):
            self.let_go(machine)
        cluster.state = VclusterState.RELEASING
        cluster.changed()
        self.stir()

    def extend(self, cluster: Cluster, seconds: float) -> None:
        """Let the lease last `seconds` from now, as far as the group's maximum for the whole
        lease allows; it never becomes shorter."""
        if cluster.state is not VclusterState.ACTIVE:
            return
        bound = leases.latest(cluster.leased_at, cluster.group, self.policy)
        until = max(min(self.clock.now + seconds, bound), cluster.expires_at or 0.0)
        if any(request.starts_at is not None for request in self.pending.values()):
            until, _ = admission.bound(
                self.snapshot(), cluster.id, until, self.policy, self.clock.now
            )
        if until > self.clock.now:
            cluster.drain_until = cluster.warned = None
            self.lease(cluster, until)

    # ------------------------------------------------------------ steps that owners and plans share

    def lease(self, cluster: Cluster, until: float) -> None:
        """Let the lease end at `until`, and schedule passes then and when warnings are due."""
        cluster.expires_at = until
        cluster.changed()
        for ahead in self.policy.lease_warnings:
            self.clock.at(until - ahead, self.stir)
        self.clock.at(until, self.stir)

    def let_go(self, machine: SimMachine) -> None:
        """Take a machine from its holder and send it back to the reserve. It stays reserved for the
        request that it was taken for."""
        cluster = machine.cluster
        assert cluster is not None
        self._leave(machine, cluster)
        cluster.released += 1
        self.lifecycle.release(machine)

    def _leave(self, machine: SimMachine, cluster: Cluster) -> None:
        del cluster.held[machine]
        if machine.state is not NodeState.ACTIVE:
            self.stats.gone(machine)
        if machine.reclaim:
            self._less(machine)
        cluster.changed()

    def _less(self, machine: SimMachine) -> None:
        reclaim, machine.reclaim = self.reclaims[machine.reclaim], 0
        reclaim.open -= 1
        reclaim.cluster.leaving -= 1
        reclaim.cluster.changed()
        if not reclaim.open:
            del self.reclaims[reclaim.id]

    def decide(self, request: ClusterRequest, state: RequestState) -> None:
        """Set the final state of a request, and remove it from the queue."""
        request.state = state
        self.stats.decided(request, self.clock.now)
        self.drop(request)

    def drop(self, request: ClusterRequest) -> None:
        """Remove a request from the queue; cancel its reclaims and its reserved nodes."""
        del self.pending[request.id], request.cluster.pending[request.id]
        for reclaim in [one for one in self.reclaims.values() if one.request is request]:
            self._cancel(reclaim)
        for machine in [one for one in self.pool.kept if one.reserved == request.id]:
            self.pool.reserve(machine, 0)

    def mark(self, reclaim: ClusterReclaim, chosen: Iterable[SimMachine]) -> None:
        """Open a reclaim of the chosen nodes, and reserve them for the request that needs them."""
        for machine in chosen:
            machine.reclaim = reclaim.id
            self.pool.reserve(machine, reclaim.request.id)
        self.reclaims[reclaim.id] = reclaim
        reclaim.cluster.leaving += reclaim.open
        reclaim.cluster.changed()

    def moving(self, cluster: Cluster) -> int:
        """Return how many of a vcluster's nodes are leaving by moves to another."""
        return sum(
            one.open
            for one in self.reclaims.values()
            if one.cluster is cluster and one.request.source is cluster
        )

    def spare(self, machine: SimMachine) -> None:
        """Withdraw a machine's reclaim, and its reservation."""
        self._less(machine)
        self.pool.reserve(machine, 0)

    def _cancel(self, reclaim: ClusterReclaim) -> None:
        reclaim.cluster.leaving -= reclaim.open
        reclaim.cluster.changed()
        for machine in reclaim.cluster.held:
            if machine.reclaim == reclaim.id:
                machine.reclaim = 0
        del self.reclaims[reclaim.id]

    def end(self, cluster: Cluster) -> None:
        cluster.state = VclusterState.ENDED
        del self.clusters[cluster.id]
        self.ended += 1
        if cluster.template_id in self.failures.wrong:
            del self.templates[cluster.template_id]
            self.failures.ended(cluster.template_id)
        cluster.owner.over(cluster)

    # ------------------------------------------------------------ what machines tell

    def _up(self, machine: SimMachine) -> None:
        cluster = machine.cluster
        assert cluster is not None
        self.stats.up(machine, self.clock.now)
        cluster.owner.up(machine)

    def _free(self, machine: SimMachine) -> None:
        self._is_back(machine)
        if self.pending:
            self.stir()
        if self.energy.manage:
            self._look_at_reserve(self.clock.now)
            self._look_at_reserve(self.clock.now + self.energy.idle_time)

    def _is_back(self, machine: SimMachine) -> None:
        cluster = self.clusters.get(machine.released)
        if cluster is not None:
            cluster.released -= 1
            if not cluster.released and cluster.state is VclusterState.RELEASING:
                self.stir()

    def _broken(self, machine: SimMachine) -> None:
        self._is_back(machine)
        self.pool.reserve(machine, 0)
        cluster = machine.cluster
        if cluster is None:
            return
        taken = machine.reclaim
        self._leave(machine, cluster)
        if taken:
            cluster.size -= 1
        else:
            self._request(cluster, "replace", 1)
        machine.cluster = None
        cluster.owner.lost(machine, cluster, "broken")

    def _stopped(self, machine: SimMachine) -> None:
        """Send a machine back to the reserve, and stop the request for another in its place. The
        group is told, and tries again within the hour, unless its template is wrong."""
        cluster, taken = machine.cluster, machine.reclaim
        assert cluster is not None
        if taken:
            cluster.size -= 1
        else:
            self.decide(self._request(cluster, "replace", 1), RequestState.STOPPED)
            cluster.stopped += 1
            if cluster.template_id not in self.failures.wrong:
                self.clock.after(HOUR, self._try_again, cluster)
        self.let_go(machine)
        cluster.owner.lost(machine, cluster, "broken")

    def _try_again(self, cluster: Cluster) -> None:
        if cluster.state is VclusterState.ACTIVE:
            cluster.stopped -= 1
            self._request(cluster, "replace", 1)

    # ------------------------------------------------------------ the manager's pass

    def stir(self) -> None:
        """Schedule a pass, because something has changed that the manager may have to act on."""
        self.look(self.clock.now + DELAY)

    def look(self, at: float) -> None:
        """Schedule a pass at that time, unless an earlier one is scheduled."""
        if at < self._look_at:
            self._look_at = at
            self.clock.at(at, self._look, at)

    def _look_at_reserve(self, time: float) -> None:
        """Schedule a pass at the next full minute after that time. Changes of the reserve alone are
        not urgent, and many may happen within the minute."""
        minute = (time // MINUTE + 1) * MINUTE
        if minute not in self._minutes:
            self._minutes.add(minute)
            self.clock.at(minute, self._minute, minute)

    def _minute(self, minute: float) -> None:
        self._minutes.discard(minute)
        self.look(minute)

    def _look(self, meant: float) -> None:
        if meant != self._look_at:
            return
        self._look_at = float("inf")
        seen = self.snapshot()
        planned = plan(seen, self.policy, self.energy, self.clock.now)
        self.stats.passes += 1
        if self._watch is not None:
            self._watch(seen, planned, self.clock.now)
        self._act(self, planned)
        moved = (
            planned.grants
            or planned.preemptions
            or planned.reductions
            or planned.power_changes
            or planned.expired
            or planned.overdue
        )
        if moved and self.pending:
            self.stir()
        elif moved and self.energy.manage:
            self._look_at_reserve(self.clock.now)
        now = self.clock.now
        times = [now + self._period]
        if self.pending:
            times += [cluster.seen_until for cluster in self.clusters.values() if cluster.held]
        times += [reclaim.deadline for reclaim in self.reclaims.values()]
        self.look(max(min(times), now + DELAY))

    def snapshot(self, *, times: bool = False) -> SiteSnapshot:
        """Return the site as the manager sees it now. `times`: include the times of nodes on their
        way, even if nothing is reserved in advance."""
        times = times or any(one.starts_at is not None for one in self.pending.values())
        now, alive = self.clock.now, self.clusters.values()
        self._fade()
        if self.energy.forecast_weeks:
            held = Counter(one.kind.type for cluster in alive for one in cluster.held)
            self._timeline.count(held, now)
        if any(group.hours_limit is not None for group in self.groups.values()):
            self._hours.count(
                Counter(cluster.group.id for cluster in alive for _ in cluster.held), now
            )
        entitled = entitlements.of(
            self.groups_as_used(),
            self.policy,
            sum(self.pool.site.values()),
            self._type_limits,
            self._hours.used,
            now=now,
            by_type=entitlements.ByType(self._terms, self.pool.site),
        )
        seen = SiteSnapshot(
            types=self.pool.types,
            free_nodes=list(self.pool.free_nodes(self.energy.idle_time)),
            coming=list(self.pool.ways(times=times)),
            allocations=self._allocations(),
            holders={
                one.id: one.as_holder() for one in alive if one.state is not VclusterState.RELEASING
            },
            reclaims=self._open_reclaims(),
            site=self.pool.site,
            requests=[request.as_pending() for request in self.pending.values()],
            templates=self.templates,
            deserted=[
                one.id for one in alive if one.state is VclusterState.RELEASING and not one.released
            ],
            warned={one.id: one.warned for one in alive if one.warned is not None},
            entitlements=entitled,
            turn=turns.number(self.policy, now),
            spare=self._timeline.spare(now) if self.energy.forecast_weeks else {},
            windows=self.maintenance.times,
        )
        seen = entitlements.shared(seen)
        self.entitlements = seen.entitlements
        return seen

    def _allocations(self) -> list[Allocation]:
        return [
            one
            for cluster in self.clusters.values()
            if cluster.held
            for one in cluster.allocations(self.policy, self.clock.now)
        ]

    def _open_reclaims(self) -> list[OpenReclaim]:
        return [
            OpenReclaim(
                one.id,
                one.cluster.id,
                one.request.id,
                self._kind_now(one) if self.maintenance.times else one.kind,
                one.open,
                one.deadline,
            )
            for one in self.reclaims.values()
        ]

    def _kind_now(self, reclaim: ClusterReclaim) -> NodeKind:
        """Return the kind of a reclaim's nodes. If they are in different maintenance windows, the
        largest sum of window bits counts."""
        windows = [one.kind.windows for one in reclaim.cluster.held if one.reclaim == reclaim.id]
        return reclaim.kind._replace(windows=max(windows, default=0))

    def hours_used(self, group: Group) -> float:
        """Return the node-seconds that a group had used in this month at the last pass."""
        return self._hours.used[group.id]

    def groups_as_used(self) -> list[Group]:
        """Return the groups with their faded usage at the last pass."""
        return [replace(group, faded_usage=self._usage[group.id]) for group in self.groups.values()]

    def remember_odd(self, given: Mapping[int, int | None]) -> None:
        """Store the turn in which each group has an extra node of its share; None: it has none."""
        for name, group in self.groups.items():
            if group.id in given:
                self.groups[name] = replace(group, odd_turn=given[group.id])

    def kept(self) -> preemption.GroupHoldings:
        """Return the groups' holdings, as the rules of preemption count them."""
        holders = (
            {one.id: one.as_holder() for one in self.clusters.values()} if self.entitlements else {}
        )
        seen = SiteSnapshot({}, holders=holders, entitlements=self.entitlements)
        if self._terms:
            seen = replace(seen, allocations=self._allocations(), reclaims=self._open_reclaims())
        return preemption.GroupHoldings(seen, self.clock.now)

    def creation_size(
        self, cluster: Cluster, granted: Iterable[SimMachine], sharing: Sharing
    ) -> int:
        """Return how many nodes of a vcluster's grant count for its creation size. Nodes that are
        guaranteed to other groups do not; each type that is counted apart, and all other nodes, are
        checked separately."""
        parts = Counter(sharing.pool(machine.kind.type) for machine in granted)
        guarantees: dict[int, dict[int, int]] = defaultdict(dict)
        for group in self.groups.values():
            for pool, count in (
                (OTHERS, group.guarantee),
                *((one, each.guarantee) for one, each in self._terms.get(group.id, {}).items()),
            ):
                if count:
                    guarantees[pool][group.id] = count
        if not any(guarantees[pool].keys() - {cluster.group.id} for pool in parts):
            return cluster.creation_size
        floors: dict[int, Counter[int]] = defaultdict(Counter)
        for one in self.clusters.values():
            if one.state is VclusterState.ACTIVE and one.drain_until is None:
                floor = 0 if one.preemptible else one.creation_size
                held = Counter(sharing.pool(machine.kind.type) for machine in one.held)
                if not sharing.apart:
                    held[OTHERS] = floor
                for pool, count in held.items():
                    floors[pool][one.group.id] += min(floor, count)
        firm = sum(
            entitlements.creation_size(
                count, cluster.group.id, guarantees[pool], floors[pool], sharing.nodes(pool)
            )
            for pool, count in parts.items()
        )
        return min(firm, cluster.creation_size)

    def _fade(self) -> None:
        """Update the groups' faded usage. Groups have held the same nodes since the last call,
        because each change is followed by a pass."""
        if self.policy.fair_half_life <= 0:
            return
        rates: dict[int, float] = defaultdict(float)
        for cluster in self.clusters.values():
            for machine in cluster.held:
                rates[cluster.group.id] += machine.spec.cost
        seconds, self._faded_at = self.clock.now - self._faded_at, self.clock.now
        for group_id, usage in self._usage.items():
            self._usage[group_id] = shares.faded(
                usage, seconds, self.policy.fair_half_life, rates[group_id]
            )
