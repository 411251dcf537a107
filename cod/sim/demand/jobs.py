"""Jobs that each have a virtual cluster of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cod.model import Group
from cod.sim.cluster import Cluster, SimMachine
from cod.sim.demand.job import SimJob
from cod.sim.demand.owners import MARGIN, BaseOwner, schedule
from cod.sim.results.jobstats import TrackedJob
from cod.sim.scenario.records import Jobs
from cod.sim.world import World
from cod.states import NodeState


class JobOwner(BaseOwner):
    """An owner that creates a vcluster for each job at the job's time."""

    rule: Jobs

    def __init__(self, world: World, rule: Jobs, group: Group, jobs: Iterator[SimJob]) -> None:
        super().__init__(world, rule, group)
        self._running: dict[int, _Run] = {}
        self._submitted = 0
        schedule(world, jobs, self._submit)

    def _submit(self, job: SimJob) -> None:
        self._submitted += 1
        lease = job.estimate(self.rule.estimate) + MARGIN
        cluster = self.create(
            job.size,
            f"{self.rule.name}-{self._submitted}",
            lease,
            may_wait=self.rule.may_wait,
            template_id=self._template(),
        )
        self._running[cluster.id] = _Run(job, self.track(job))

    def _template(self) -> int:
        """Return the template of the next job: the owner's, or a new wrong one."""
        if self.world.failures.next_is_wrong(self.rule.name):
            return self.world.template(cache=self.rule.cache, wrong=True)
        return self.template_id

    def up(self, machine: SimMachine) -> None:
        """Start the job when the last of its nodes is up."""
        cluster = machine.cluster
        assert cluster is not None
        run = self._running[cluster.id]
        run.up += 1
        if run.up == run.job.size:
            self._start(cluster, run)

    def _start(self, cluster: Cluster, run: _Run) -> None:
        now = self.world.clock.now
        run.tracked.start(now)
        run.ends_at = now + run.job.runtime
        self.world.clock.at(run.ends_at, self._end, cluster, run, run.tracked.starts)

    def _end(self, cluster: Cluster, run: _Run, start: int) -> None:
        if run.tracked.starts == start and run.up == run.job.size and cluster.id in self._running:
            run.tracked.end("done", self.world.clock.now)
            del self._running[cluster.id]
            self.world.delete(cluster)

    def lost(self, machine: SimMachine, cluster: Cluster, why: str) -> None:
        """Stop the job that has lost a node. It begins again when it has another node: COD replaces
        a broken node, and the owner requests one for a node taken from a preemptible vcluster."""
        run = self._running.get(cluster.id)
        if run is not None:
            run.up = sum(one.state is NodeState.ACTIVE for one in cluster.held)
            run.ends_at = None
            run.tracked.interrupt(self.world.clock.now)
            if why == "taken":
                self.world.grow(cluster, 1)

    def warned(self, cluster: Cluster, ahead: float) -> None:
        """Extend a lease that would end before the job, unless the job cannot begin because of its
        template."""
        run = self._running.get(cluster.id)
        wrong = cluster.template_id in self.world.failures.wrong
        if run is None or not self.rule.extends or wrong:
            return
        left = (
            (run.ends_at or self.world.clock.now + run.job.runtime) - self.world.clock.now + MARGIN
        )
        if self.world.clock.now + left > (cluster.expires_at or 0.0):
            self.world.extend(cluster, left)

    def over(self, cluster: Cluster) -> None:
        """Count an unfinished job as cut, or as rejected if its vcluster never had a lease."""
        run = self._running.pop(cluster.id, None)
        if run is not None:
            run.tracked.end(
                "rejected" if cluster.expires_at is None else "cut", self.world.clock.now
            )


@dataclass(slots=True)
class _Run:
    """Progress of a job: the number of nodes that are up, and the time at which it will end."""

    job: SimJob
    tracked: TrackedJob
    up: int = 0
    ends_at: float | None = None
