"""Default behaviour of owners of virtual clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar, cast

from cod.model import Group
from cod.policy.scheduler import leases
from cod.sim.cluster import Cluster, ClusterReclaim, ClusterRequest, SimMachine
from cod.sim.demand.job import SimJob
from cod.sim.results.jobstats import TrackedJob
from cod.sim.scenario.records import Farm, Jobs, Queue, Reservations
from cod.sim.world import World
from cod.states import VclusterState

FOREVER = 30 * 86400.0  # the lease that standing services ask for
MARGIN = 1800.0  # seconds that a job's lease allows for its nodes' way to it


Rule = Jobs | Queue | Farm | Reservations


class Timed(Protocol):
    """A submission of an owner, with its time."""

    @property
    def at(self) -> float: ...


T = TypeVar("T", bound=Timed)


class BaseOwner:
    """An owner that does not react: the manager chooses the nodes it loses, and takes them at the
    deadline."""

    def __init__(self, world: World, rule: Rule, group: Group) -> None:
        self.world, self.rule, self.group = world, rule, group
        self.template_id = world.template(cache=rule.cache)

    def create(
        self,
        size: int,
        name: str,
        lease: float | None,
        *,
        may_wait: bool = True,
        template_id: int | None = None,
        starts_at: float | None = None,
    ) -> Cluster:
        """Return a new vcluster of this owner. `template_id`: None for the owner's; `starts_at`: a
        reservation in advance."""
        rule = self.rule
        return self.world.create(
            self,
            self.group,
            size,
            self.template_id if template_id is None else template_id,
            name=name,
            needs=rule.needs,
            cache=rule.cache,
            lease=lease,
            may_spread=rule.may_spread,
            may_wait=may_wait,
            preemptible=rule.preemptible,
            starts_at=starts_at,
            label="" if starts_at is None else rule.name,
        )

    def track(self, job: SimJob) -> TrackedJob:
        """Count a job of this demand as submitted."""
        return self.world.stats.jobs.submit(
            job, self.group.name, self.group.priority, self.rule.name
        )

    def granted(self, request: ClusterRequest) -> None:
        """Do nothing: the request's nodes are on their way."""

    def refused(self, request: ClusterRequest) -> None:
        """Do nothing: the request was rejected."""

    def up(self, machine: SimMachine) -> None:
        """Do nothing: a machine runs."""

    def lost(self, machine: SimMachine, cluster: Cluster, why: str) -> None:
        """Do nothing: a machine has left."""

    def warned(self, cluster: Cluster, ahead: float) -> None:
        """Do nothing: the lease ends within `ahead` seconds."""

    def choose(self, reclaim: ClusterReclaim, candidates: list[SimMachine]) -> list[SimMachine]:
        """Return the machines to give up, in the manager's documented order."""
        return cast(list[SimMachine], leases.victims(cast(Any, candidates), reclaim.open))

    def asked_back(self, reclaim: ClusterReclaim, machines: list[SimMachine]) -> None:
        """Do nothing: these nodes are to be given back before the deadline."""

    def over(self, cluster: Cluster) -> None:
        """Do nothing: the vcluster has ended."""


def schedule(world: World, things: Iterator[T], submit: Callable[[T], None]) -> None:
    """Submit each of the things at its time. The run does not finish before the last of them."""

    def submitted(one: T) -> None:
        submit(one)
        following()

    def following() -> None:
        one = next(things, None)
        if one is None:
            world.stats.jobs.sources -= 1
        else:
            world.clock.at(one.at, submitted, one)

    world.stats.jobs.sources += 1
    following()


class PermanentOwner(BaseOwner):
    """An owner that keeps its vcluster for ever: it extends the lease when half of it is over,
    without waiting for a warning."""

    _cluster: Cluster | None

    @property
    def cluster(self) -> Cluster | None:
        """Return the owner's vcluster."""
        return self._cluster

    def keep(self, cluster: Cluster) -> None:
        """Extend the vcluster's lease again and again."""
        if cluster.expires_at is not None and cluster.state is VclusterState.ACTIVE:
            self.world.clock.after(
                max(1.0, (cluster.expires_at - self.world.clock.now) / 2), self._renew, cluster
            )

    def _renew(self, cluster: Cluster) -> None:
        self.world.extend(cluster, FOREVER)
        self.keep(cluster)


def still_due(machines: list[SimMachine], reclaim: ClusterReclaim) -> list[SimMachine]:
    """Return the machines that the reclaim still waits for."""
    return [machine for machine in machines if machine.reclaim == reclaim.id]


def parts(count: int) -> list[int]:
    """Return `count` nodes as the sizes of requests: half of them, half of the rest, and so on: 13
    = 7 + 3 + 2 + 1. A request is granted as a whole or not at all, so one large request might wait
    although most of its nodes are free."""
    made = []
    while count > 0:
        made.append((count + 1) // 2)
        count -= made[-1]
    return made
