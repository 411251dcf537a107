"""Machines, virtual clusters, their requests and reclaims, as the database's rows would describe
them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

from cod.model import Group, Policy, RequestTuple
from cod.policy.scheduler import preemption
from cod.policy.scheduler.snapshot import (
    Allocation,
    Cache,
    NodeKind,
    PendingRequest,
    VclusterHolder,
    effective,
)
from cod.sim.scenario import records as sc
from cod.states import Disk, NodeState, RequestState, VclusterState


class PoolKey(NamedTuple):
    """Attributes that all free nodes of one pool have in common."""

    kind: NodeKind
    readiness: int
    cache: Cache | None
    reserved: int


class IncomingKey(NamedTuple):
    """Attributes by which nodes on their way back are alike."""

    kind: NodeKind
    reserved: int
    waking: bool


class SimMachine:
    """A simulated node, with names as in the table `nodes`.

    counted_as  its key in the pool; `counted`: the time up to which its use is summed up
    failing     see `sim.blame`
    blameless   it was set aside though it is healthy
    out_until   it does not return to service before this time
    """

    __slots__ = (
        "assigned_at",
        "attempts",
        "blameless",
        "cache",
        "cluster",
        "counted",
        "counted_as",
        "disk",
        "failing",
        "generation",
        "id",
        "kind",
        "name",
        "out_until",
        "random",
        "reclaim",
        "released",
        "request_id",
        "reserved",
        "since",
        "spec",
        "state",
        "template_id",
        "waking",
    )

    def __init__(self, number: int, spec: sc.Type, kind: NodeKind, random: Random) -> None:
        self.id = number
        self.name = f"{spec.name}-{number}"
        self.spec = spec
        self.kind = kind
        self.random = random
        self.state, self.since, self.generation, self.attempts = NodeState.INACTIVE, 0.0, 0, 0
        self.disk: Disk = Disk.CLEAN
        self.cache: Cache | None = None
        self.cluster: Cluster | None = None
        self.assigned_at: float | None = None
        self.request_id = self.template_id = self.reserved = self.reclaim = self.released = 0
        self.waking = self.failing = self.blameless = False
        self.counted = self.out_until = 0.0
        self.counted_as: PoolKey | IncomingKey | None = None


class ClusterOwner(Protocol):
    """The owner of a simulated virtual cluster, called when something happens to it. No method may
    raise.

    `lost` is called after the machine has left. `why` is 'taken' (by a reclaim), 'broken' or 'over'
    (the lease has ended).
    """

    def granted(self, request: ClusterRequest) -> None: ...
    def refused(self, request: ClusterRequest) -> None: ...
    def up(self, machine: SimMachine) -> None: ...
    def lost(self, machine: SimMachine, cluster: Cluster, why: str) -> None: ...
    def warned(self, cluster: Cluster, ahead: float) -> None: ...
    def choose(self, reclaim: ClusterReclaim, candidates: list[SimMachine]) -> list[SimMachine]: ...
    def asked_back(self, reclaim: ClusterReclaim, machines: list[SimMachine]) -> None: ...
    def over(self, cluster: Cluster) -> None: ...


@dataclass(eq=False, slots=True)
class Cluster:
    """A virtual cluster. `held`: its machines in the order they came; `creation_size` is its floor.

    stopped           missing nodes whose requests are stopped
    seen, seen_until  the manager's view of its machines, and until when it is valid; None after a
                      change
    """

    id: int
    name: str
    group: Group
    owner: ClusterOwner
    template_id: int
    needs: str
    cache: bool
    size: int
    lease_time: float
    may_spread: bool
    state: VclusterState = VclusterState.PENDING
    creation_size: int = 0
    preemptible: bool = False
    leased_at: float = 0.0
    expires_at: float | None = None
    drain_until: float | None = None
    warned: float | None = None
    leaving: int = 0
    held: dict[SimMachine, None] = field(default_factory=dict)
    pending: dict[int, ClusterRequest] = field(default_factory=dict)
    released: int = 0
    stopped: int = 0
    seen: tuple[Allocation, ...] | None = None
    seen_until: float = float("inf")
    holder: VclusterHolder | None = None

    @property
    def group_id(self) -> int:
        return self.group.id

    @property
    def priority(self) -> int:
        """Return the priority of the cluster and of its requests."""
        return effective(self.group.priority, self.preemptible)

    def changed(self) -> None:
        """Forget cached views, because the cluster's machines, size or lease have changed."""
        self.seen = self.holder = None
        for request in self.pending.values():
            request.pending = None

    def as_holder(self) -> VclusterHolder:
        """Return the cluster as the holder of its nodes, in the manager's form."""
        if self.holder is None:
            self.holder = preemption.holder(self, self.group.priority, len(self.held), self.leaving)
        return self.holder

    def allocations(self, policy: Policy, now: float) -> tuple[Allocation, ...]:
        """Return the cluster's machines as the manager sees them."""
        if self.seen is None or now >= self.seen_until:
            self.seen, self.seen_until = self._allocations(policy, now)
        return self.seen

    def _allocations(self, policy: Policy, now: float) -> tuple[tuple[Allocation, ...], float]:
        inertia = preemption.inertia(self.priority, policy)
        started: dict[NodeKind, Counter[float]] = defaultdict(Counter)
        count: Counter[NodeKind] = Counter()
        mobile: Counter[NodeKind] = Counter()
        until: dict[NodeKind, float] = {}
        for machine in self.held:
            count[machine.kind] += 1
            end = (machine.assigned_at or 0.0) + inertia
            if end > now:
                until[machine.kind] = min(end, until.get(machine.kind, end))
            elif not machine.reclaim:
                mobile[machine.kind] += 1
                if self.preemptible:
                    started[machine.kind][machine.assigned_at or 0.0] += 1
        made = tuple(
            Allocation(
                self.id,
                kind,
                count[kind],
                mobile[kind],
                until.get(kind),
                tuple(sorted(started[kind].items(), reverse=True)),
            )
            for kind in count
        )
        return made, min(until.values(), default=float("inf"))


@dataclass(eq=False, slots=True)
class ClusterRequest:
    """A request for nodes, with one tuple.

    kind       'create', 'grow', 'replace' or 'move'
    up         how many of its machines run
    starts_at  of a reservation in advance
    source     of a move: the vcluster whose nodes it gets; `moved`: how many it has got
    label      of reservations and moves: the demand that they are counted under
    """

    id: int
    cluster: Cluster
    kind: str
    count: int
    submitted_at: float
    may_wait: bool = True
    state: RequestState = RequestState.PENDING
    reason: str = ""
    up: int = 0
    pending: PendingRequest | None = None
    starts_at: float | None = None
    source: Cluster | None = None
    moved: int = 0
    label: str = ""

    def as_pending(self) -> PendingRequest:
        """Return the request as the manager's policy sees it."""
        if self.pending is None:
            cluster = self.cluster
            self.pending = PendingRequest(
                id=self.id,
                vcluster_id=cluster.id,
                priority=cluster.priority,
                submitted_at=self.submitted_at,
                group_id=cluster.group_id,
                subnet="",
                tuples=(RequestTuple(self.count, cluster.needs, cluster.template_id),),
                may_wait=self.may_wait,
                may_spread=cluster.may_spread,
                own=dict(Counter(machine.kind.type for machine in cluster.held)),
                reason=self.reason,
                lease=cluster.lease_time,
                source_id=None if self.source is None else self.source.id,
                starts_at=self.starts_at,
            )
        return self.pending


@dataclass(eq=False, slots=True)
class ClusterReclaim:
    """Machines that a vcluster has to give up for a request. Machines that it has not given up yet
    carry the reclaim's id."""

    id: int
    cluster: Cluster
    request: ClusterRequest
    kind: NodeKind
    deadline: float
    open: int
