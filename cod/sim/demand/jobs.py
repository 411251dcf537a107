"""Jobs that are virtual clusters of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cod.model import Group
from cod.sim.cluster import Cluster, ClusterRequest, Machine
from cod.sim.demand.owners import MARGIN, BaseOwner
from cod.sim.scenario.records import Jobs
from cod.sim.world import World
from cod.states import NodeState


@dataclass(frozen=True, slots=True)
class Job:
    """`size` nodes for `runtime` seconds from `at` on. `lease`: what it asks for beyond that, None for an estimate."""

    at: float
    size: int
    runtime: float
    lease: float | None = None


class JobOwner(BaseOwner):
    """Submits jobs as they come, each as a vcluster."""

    rule: Jobs

    def __init__(self, world: World, rule: Jobs, group: Group, jobs: Iterator[Job]) -> None:
        super().__init__(world, rule, group)
        self._jobs = jobs
        self._running: dict[int, _Run] = {}
        self._submitted = 0
        self._next()

    def _next(self) -> None:
        job = next(self._jobs, None)
        if job is not None:
            self.world.clock.at(job.at, self._submit, job)

    def _submit(self, job: Job) -> None:
        self._submitted += 1
        lease = (job.lease or job.runtime * self.rule.estimate) + MARGIN
        self.world.stats.jobs[self.group.priority, "submitted"] += 1
        cluster = self.create(job.size, f"{self.rule.name}-{self._submitted}", lease, may_wait=self.rule.may_wait)
        self._running[cluster.id] = _Run(job)
        self._next()

    def refused(self, request: ClusterRequest) -> None:
        """Drop the job."""
        if request.kind == "create":
            self.world.stats.jobs[self.group.priority, "rejected"] += 1

    def up(self, machine: Machine) -> None:
        """Run the job when the last of its nodes is up."""
        cluster = machine.cluster
        assert cluster is not None
        run = self._running[cluster.id]
        run.up += 1
        if run.up == run.job.size:
            self._start(cluster, run)

    def _start(self, cluster: Cluster, run: _Run) -> None:
        stats, now = self.world.stats, self.world.clock.now
        if run.starts == 0:
            stats.job_waits[self.group.priority].append(now - run.job.at)
        else:
            stats.jobs_again += 1
        run.starts += 1
        run.ends_at = now + run.job.runtime
        self.world.clock.at(run.ends_at, self._end, cluster, run, run.starts)

    def _end(self, cluster: Cluster, run: _Run, start: int) -> None:
        if run.starts == start and run.up == run.job.size and cluster.id in self._running:
            self.world.stats.jobs[self.group.priority, "done"] += 1
            del self._running[cluster.id]
            self.world.delete(cluster)

    def lost(self, machine: Machine, cluster: Cluster, why: str) -> None:
        """Stop the job that lost a node; it begins anew when there is another in its place."""
        run = self._running.get(cluster.id)
        if run is not None:
            run.up = sum(one.state is NodeState.ACTIVE for one in cluster.held)
            run.ends_at = None

    def warned(self, cluster: Cluster, ahead: float) -> None:
        """A lease that would end before the job is extended."""
        run = self._running.get(cluster.id)
        if run is None or not self.rule.extends:
            return
        left = (run.ends_at or self.world.clock.now + run.job.runtime) - self.world.clock.now + MARGIN
        if self.world.clock.now + left > (cluster.expires_at or 0.0):
            self.world.extend(cluster, left)

    def over(self, cluster: Cluster) -> None:
        """Count the job as cut, if it was not done."""
        if self._running.pop(cluster.id, None) is not None and cluster.expires_at is not None:
            self.world.stats.jobs[self.group.priority, "cut"] += 1


@dataclass(slots=True)
class _Run:
    """How far a job is: nodes up, how often it started, when it ends if nothing happens."""

    job: Job
    up: int = 0
    starts: int = 0
    ends_at: float | None = None
