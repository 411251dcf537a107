"""A batch queue in one virtual cluster that follows it (the paper's SGE VCM)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from cod.model import Group
from cod.sim.cluster import Cluster, ClusterRequest, Machine, Reclaim
from cod.sim.demand.jobs import Job
from cod.sim.demand.owners import FOREVER, PermanentOwner, parts, still_due
from cod.sim.scenario.records import Queue
from cod.sim.world import World
from cod.states import NodeState

PENDING = 8  # requests of one queue that wait; what is short beyond them is asked for later


class QueueOwner(PermanentOwner):
    """Jobs start in their order, each when as many nodes idle as it wants.

    `idle`: when each idle node became so; `busy`: the job of each other. A job is (Job, number of its start).
    """

    rule: Queue

    def __init__(self, world: World, rule: Queue, group: Group, jobs: Iterator[Job]) -> None:
        super().__init__(world, rule, group)
        self._jobs = jobs
        self._queue: deque[_Entry] = deque()
        self._idle: dict[Machine, float] = {}
        self._busy: dict[Machine, _Entry] = {}
        self._requests: dict[int, ClusterRequest] = {}
        self._queued = 0
        self._looking = False
        self._cluster: Cluster | None = None
        self._found()
        self._next()

    def _found(self) -> None:
        self._cluster = self.create(self.rule.least, self.rule.name, FOREVER)

    # ------------------------------------------------------------ jobs

    def _next(self) -> None:
        job = next(self._jobs, None)
        if job is not None:
            self.world.clock.at(job.at, self._submit, job)

    def _submit(self, job: Job) -> None:
        self.world.stats.jobs[self.group.priority, "submitted"] += 1
        if job.size > self.rule.most:
            self.world.stats.jobs[self.group.priority, "rejected"] += 1
        else:
            self._enqueue(_Entry(job), first=False)
            self._start()
        self._next()

    def _enqueue(self, entry: _Entry, *, first: bool) -> None:
        if first:
            self._queue.appendleft(entry)
        else:
            self._queue.append(entry)
        self._queued += entry.job.size
        self._look_later()

    def _start(self) -> None:
        while self._queue and self._queue[0].job.size <= len(self._idle):
            entry = self._queue.popleft()
            self._queued -= entry.job.size
            self._run(entry)

    def _run(self, entry: _Entry) -> None:
        now, stats = self.world.clock.now, self.world.stats
        entry.nodes = list(self._idle)[:entry.job.size]
        for machine in entry.nodes:
            del self._idle[machine]
            self._busy[machine] = entry
        if entry.starts == 0:
            stats.job_waits[self.group.priority].append(now - entry.job.at)
        else:
            stats.jobs_again += 1
        entry.starts += 1
        entry.started_at = now
        self.world.clock.at(now + entry.job.runtime, self._end, entry, entry.starts)

    def _end(self, entry: _Entry, start: int) -> None:
        if entry.starts == start and entry.nodes:
            self.world.stats.jobs[self.group.priority, "done"] += 1
            self._free(entry)
            self._start()

    def _free(self, entry: _Entry) -> None:
        """The nodes of a job that ends or is interrupted idle, as far as it still has them."""
        for machine in entry.nodes:
            if self._busy.pop(machine, None) and machine.cluster is self._cluster and not machine.reclaim:
                self._idle[machine] = self.world.clock.now
        entry.nodes = []
        self._look_later()

    def _interrupt(self, machines: list[Machine]) -> None:
        """The jobs on those nodes are queued again, as the first."""
        for entry in dict.fromkeys(self._busy[one] for one in machines if one in self._busy):
            self._free(entry)
            self._enqueue(entry, first=True)

    # ------------------------------------------------------------ the size of the vcluster

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            self.world.clock.after(self.rule.interval, self._look)

    def _look(self) -> None:
        """Ask for what is short, give back what idles."""
        self._looking = False
        cluster = self._cluster
        if cluster is None or not cluster.held:
            self._look_later()
            return
        short, head = self._short(cluster)
        asked = sum(request.count for request in self._requests.values())
        if short > asked and len(self._requests) < PENDING:
            # What the head lacks is asked for whole: half of it would only idle.
            first = min(max(head - asked, 0), short - asked)
            for count in [*filter(None, [first]), *parts(short - asked - first)]:
                request = self.world.grow(cluster, count)
                self._requests[request.id] = request
        elif short == 0:
            for request in list(self._requests.values()):
                self.world.withdraw(request)
            self._requests.clear()
        self._give_back_idle(cluster)
        if self._queue or len(cluster.held) > self.rule.least:
            self._look_later()

    def _short(self, cluster: Cluster) -> tuple[int, int]:
        """Return nodes that it would ask for, had it asked for none; how many of them the head of the queue needs."""
        if not self._queue:
            return 0, 0
        ready = len(cluster.held) - len(self._busy)  # idle ones and those that start
        room = max(0, self.rule.most - len(cluster.held))
        head = min(max(0, self._queue[0].job.size - ready), room)
        by_rule = math.ceil(self._queued / self.rule.jobs_per_node) - ready
        return max(head, min(by_rule, room)), head

    def _give_back_idle(self, cluster: Cluster) -> None:
        long_ago = self.world.clock.now - self.rule.idle_limit
        spare = len(cluster.held) - self.rule.least
        leaving = [one for one, since in self._idle.items() if since <= long_ago and not one.reclaim][:max(0, spare)]
        self._let_go(cluster, leaving)

    def _let_go(self, cluster: Cluster, machines: list[Machine]) -> None:
        for machine in machines:
            self._idle.pop(machine, None)
        if machines:
            self.world.give_back(cluster, machines)

    # ------------------------------------------------------------ what it is told

    def granted(self, request: ClusterRequest) -> None:
        """Count on nodes that are on their way."""
        self._requests.pop(request.id, None)
        if request.kind == "create":
            self.keep(request.cluster)
        self._look_later()

    def refused(self, request: ClusterRequest) -> None:
        """Drop the request: the owner asks again at its next look."""
        self._requests.pop(request.id, None)
        self._look_later()

    def up(self, machine: Machine) -> None:
        """Give the queue one more node, unless it is to be given up."""
        if machine.reclaim or machine.state is not NodeState.ACTIVE:
            return
        self._idle[machine] = self.world.clock.now
        self._start()
        self._look_later()

    def lost(self, machine: Machine, cluster: Cluster, why: str) -> None:
        """Queue the machine's job again."""
        self._idle.pop(machine, None)
        self._interrupt([machine])
        self._start()

    def choose(self, reclaim: Reclaim, candidates: list[Machine]) -> list[Machine]:
        """Return nodes that do not run yet, idle ones, then those of the jobs that started last."""
        def order(machine: Machine) -> tuple[float, int]:
            entry = self._busy.get(machine)
            return (-entry.started_at if entry else -1e18, machine.id)

        return sorted(candidates, key=order)[:reclaim.open]

    def asked_back(self, reclaim: Reclaim, machines: list[Machine]) -> None:
        """Give the machines back after the time that it takes to reschedule; no job starts on them."""
        for machine in machines:
            self._idle.pop(machine, None)
        self.world.clock.after(self.rule.answer, self._answer, reclaim, machines)

    def _answer(self, reclaim: Reclaim, machines: list[Machine]) -> None:
        due = still_due(machines, reclaim)
        cluster = self._cluster
        if cluster is None:
            return
        for machine in machines:  # what is not wanted any more serves on
            if machine not in due and machine.cluster is cluster and machine not in self._busy:
                self.up(machine)
        self._interrupt(due)
        self._let_go(cluster, due)
        self._start()

    def over(self, cluster: Cluster) -> None:
        """A queue without its vcluster founds another."""
        self._requests.clear()
        self._idle.clear()
        self.world.clock.after(self.rule.interval, self._found)


class _Entry:
    """A job in the queue or running."""

    __slots__ = ("job", "nodes", "started_at", "starts")

    def __init__(self, job: Job) -> None:
        self.job, self.nodes, self.started_at, self.starts = job, list[Machine](), 0.0, 0
