"""A batch queue whose virtual cluster follows its length (the paper's SGE VCM)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from itertools import islice

from cod.model import Group
from cod.sim.cluster import Cluster, ClusterReclaim, ClusterRequest, SimMachine
from cod.sim.demand.job import SimJob
from cod.sim.demand.owners import FOREVER, PermanentOwner, schedule, still_due
from cod.sim.demand.profile import FreeProfile
from cod.sim.demand.waiting import FixedPlaces, QueuedJob, WaitingJobs
from cod.sim.scenario.records import Queue
from cod.sim.world import World
from cod.states import NodeState

PENDING = 8  # requests of one queue that wait; what is short beyond them is asked for later
DEPTH = 1000  # jobs that the queue looks at, at once
RESERVED = 100  # jobs that have places, with conservative backfill


class QueueOwner(PermanentOwner):
    """An owner that starts jobs when enough nodes are idle, by the rule's `discipline`:

    fifo          in the order of their submission
    first-fit     the first job that fits
    easy          the first job; others if they fit and, by their estimates, do not delay it (EASY
                  backfill)
    conservative  a job that fits and, by the estimates, delays none before it (conservative
                  backfill), of the first RESERVED
    fixed         at the place that the job is given when it joins, on the `least` nodes
                  (conservative backfill with fixed places)

    `_idle`: the time at which each idle node became idle; `_busy`: the job of each other node.
    """

    rule: Queue

    def __init__(self, world: World, rule: Queue, group: Group, jobs: Iterator[SimJob]) -> None:
        super().__init__(world, rule, group)
        self._waiting = WaitingJobs()
        self._places = FixedPlaces(rule.least) if rule.discipline == "fixed" else None
        self._idle: dict[SimMachine, float] = {}
        self._busy: dict[SimMachine, QueuedJob] = {}
        self._requests: dict[int, ClusterRequest] = {}
        self._looking = False
        self._cluster = None
        self._found()
        schedule(world, jobs, self._submit)

    def _found(self) -> None:
        self._cluster = self.create(self.rule.least, self.rule.name, FOREVER)

    # ------------------------------------------------------------ jobs

    def _submit(self, job: SimJob) -> None:
        tracked = self.track(job)
        if job.size > self.rule.most:
            tracked.end("rejected", self.world.clock.now)
        else:
            self._enqueue(QueuedJob(tracked), first=False)
            if self.rule.discipline != "conservative" or len(self._waiting) <= RESERVED:
                self._start()

    def _enqueue(self, entry: QueuedJob, *, first: bool) -> None:
        now = self.world.clock.now
        self._waiting.add(entry, now, first=first)
        if self._places is not None:
            start = self._places.add(entry, now, max(self._estimate(entry), 1.0))
            self.world.clock.at(start, self._start)
        self._look_later()

    def _start(self) -> None:
        while self._idle and (entry := self._startable()) is not None:
            self._waiting.remove(entry)
            self._run(entry)

    def _startable(self) -> QueuedJob | None:
        """Return the job that starts next on the idle nodes; None if none does."""
        idle = len(self._idle)
        if self._places is not None:
            return self._places.next(self.world.clock.now, idle)
        if self.rule.discipline == "first-fit":
            return self._waiting.next(idle)
        head = self._waiting.next()
        if head is None or head.size <= idle:
            return head
        if self.rule.discipline == "conservative":
            return self._conservative(head)
        return self._backfill(head) if self.rule.discipline == "easy" else None

    def _conservative(self, head: QueuedJob) -> QueuedJob | None:
        """Return the first job that fits the idle nodes and delays no job before it. For this, the
        jobs are placed in order, each at the earliest time that earlier jobs leave free."""
        now, idle = self.world.clock.now, len(self._idle)
        if self._waiting.next(idle) is None:
            return None
        free = FreeProfile(now, self._ready(), self._ends())
        for entry in islice(self._waiting.in_order(), RESERVED):
            duration = max(self._estimate(entry), 1.0)
            start = free.earliest(entry.size, duration)
            if start <= now and entry.size <= idle and entry is not head:
                return entry
            if start < math.inf:  # a job that is wider than the cluster delays nobody
                free.take(start, entry.size, duration)
        return None

    def _ends(self) -> list[tuple[float, int]]:
        """Return (time, number of nodes) for the estimated end of each running job."""
        now = self.world.clock.now
        running = dict.fromkeys(self._busy.values())
        return sorted((max(entry.ends_at, now), self._kept(entry.nodes)) for entry in running)

    def _backfill(self, head: QueuedJob) -> QueuedJob | None:
        """Return the first job behind `head` that fits the idle nodes and does not delay `head`."""
        now, idle = self.world.clock.now, len(self._idle)
        if self._waiting.next(idle) is None:
            return None
        until, spare = self._reservation(head)
        for entry in islice(self._waiting.in_order(), 1, DEPTH):
            ends_at = now + self._estimate(entry)
            if entry.size <= idle and (entry.size <= spare or ends_at <= until):
                return entry
        return None

    def _reservation(self, head: QueuedJob) -> tuple[float, int]:
        """Return the estimated time at which `head` can start on the cluster's own nodes, and how
        many nodes are left then.

        Starting nodes count as present. A job that is wider than the cluster waits for nodes until
        an unknown time, and is not delayed by others.
        """
        now, have = self.world.clock.now, self._ready()
        until = now
        for ends_at, count in self._ends():
            if have >= head.size and ends_at > until:
                break
            until, have = ends_at, have + count
        return (until, have - head.size) if have >= head.size else (math.inf, 0)

    def _run(self, entry: QueuedJob) -> None:
        now = self.world.clock.now
        entry.nodes = list(islice(self._idle, entry.size))
        for machine in entry.nodes:
            del self._idle[machine]
            self._busy[machine] = entry
        entry.tracked.start(now)
        entry.started_at = now
        entry.ends_at = now + self._estimate(entry)
        left = entry.tracked.job.runtime - entry.saved
        self.world.clock.at(now + left, self._end, entry, entry.tracked.starts)

    def _estimate(self, entry: QueuedJob) -> float:
        """Return the requested run time, minus the work that the job need not repeat."""
        return entry.tracked.job.estimate(self.rule.estimate) - entry.saved

    def _end(self, entry: QueuedJob, start: int) -> None:
        if entry.tracked.starts == start and entry.nodes:
            entry.tracked.end("done", self.world.clock.now)
            self._free(entry)
            self._start()

    def _free(self, entry: QueuedJob) -> None:
        """Make idle those nodes of an ended or interrupted job that the cluster keeps."""
        if self._places is not None:
            self._places.leave(entry, self.world.clock.now)
        for machine in entry.nodes:
            if (
                self._busy.pop(machine, None)
                and machine.cluster is self._cluster
                and not machine.reclaim
            ):
                self._idle[machine] = self.world.clock.now
        entry.nodes = []
        self._look_later()

    def _interrupt(self, machines: list[SimMachine], notified_at: float | None = None) -> None:
        """Queue the jobs on those nodes again, at the front. `notified_at`: when they began to save
        their state; None: they could not."""
        for entry in dict.fromkeys(self._busy[one] for one in machines if one in self._busy):
            if self.rule.saves and notified_at is not None:
                entry.saved += max(0.0, notified_at - entry.started_at)
            entry.tracked.interrupt(self.world.clock.now)
            self._free(entry)
            self._enqueue(entry, first=True)

    # ------------------------------------------------------------ the size of the vcluster

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            self.world.clock.after(self.rule.interval, self._look)

    def _look(self) -> None:
        """Request missing nodes, and release idle ones."""
        self._looking = False
        cluster = self._cluster
        if cluster is None or not cluster.held:
            self._look_later()
            return
        self._ask(cluster, self._lacks(cluster))
        self._give_back_idle(cluster)
        if self._waiting or len(cluster.held) > self.rule.least:
            self._look_later()

    def _ready(self) -> int:
        """Return how many nodes are idle or starting."""
        cluster = self._cluster
        return len(cluster.held) - cluster.leaving - self._kept(self._busy) if cluster else 0

    def _kept(self, machines: Collection[SimMachine]) -> int:
        """Return how many of those machines are not being reclaimed."""
        if self._cluster is not None and not self._cluster.leaving:
            return len(machines)
        return sum(not one.reclaim for one in machines)

    def _lacks(self, cluster: Cluster) -> list[int]:
        """Return the number of missing nodes of each job that has waited for the rule's patience,
        within the rule's limits.

        Idle and starting nodes serve jobs in order, as the discipline allows. Nodes that remain
        count for the first job that they cannot serve. A job that could not be served since the
        last look lets smaller jobs request nodes first, unless jobs start in strict order: its
        request may wait long.
        """
        room = self.rule.most - len(cluster.held)
        if not self._waiting or room <= 0:
            return []
        left = self._ready()
        short = self._waiting.nodes - left
        wanted = math.ceil(self._waiting.nodes / self.rule.jobs_per_node) - left
        patient = self.world.clock.now - self.rule.patience
        smallest, skips = self._waiting.smallest(), self.rule.discipline == "first-fit"
        unserved: list[QueuedJob] = []
        total = 0
        for entry in islice(self._waiting.in_order(), DEPTH):
            if entry.size <= left and (skips or not unserved):
                left -= entry.size
            elif entry.since <= patient:
                unserved.append(entry)
                total += entry.size if entry.size <= room and not entry.passed else 0
                if total - left >= min(wanted, room) and (left < smallest or not skips):
                    break
        if self.rule.discipline != "fifo":
            unserved.sort(key=lambda entry: entry.passed)
        lacks: list[int] = []
        total = 0
        for entry in unserved:
            lack = entry.size - left
            left = max(0, -lack)
            if lack <= 0:  # it waits for its turn, not for nodes
                continue
            # A part of a job's missing nodes would only idle, so either limit drops the whole job.
            if total + lack <= room and (not lacks or total + lack <= wanted):
                lacks.append(lack)
                total += lack
        if total < short and unserved and unserved[0].size > smallest:
            unserved[0].passed = True
        return lacks

    def _ask(self, cluster: Cluster, lacks: list[int]) -> None:
        """Make the waiting requests match the nodes that jobs lack, never more.

        One request is for all nodes that the first job lacks, as half of them would only idle. The
        smallest request is no larger than the smallest lack, so that no free node remains unused
        that one job could use.
        """
        short, first, least = sum(lacks), lacks[0] if lacks else 0, min(lacks, default=0)
        waiting = sorted(self._requests.values(), key=lambda request: -request.count)
        asked = sum(request.count for request in waiting)
        while waiting and asked > short:
            asked -= self._withdraw(waiting.pop())
        if waiting and asked == short and waiting[-1].count > least and len(lacks) > 1:
            asked -= self._withdraw(waiting.pop())
        if first and (not waiting or waiting[0].count < first):
            while asked + first > short:
                asked -= self._withdraw(waiting.pop())
            self._grow(cluster, first)
            asked += first
        if asked < short and len(self._requests) < PENDING:
            for count in bundles(lacks[1:], short - asked):
                self._grow(cluster, count)

    def _grow(self, cluster: Cluster, count: int) -> None:
        request = self.world.grow(cluster, count)
        self._requests[request.id] = request

    def _withdraw(self, request: ClusterRequest) -> int:
        """Withdraw a request; return its number of nodes."""
        del self._requests[request.id]
        self.world.withdraw(request)
        return request.count

    def _give_back_idle(self, cluster: Cluster) -> None:
        """Release nodes that have been idle for long, unless a waiting job could use them: one that
        fits the cluster's own nodes, or the first job while it has not waited for long.

        The missing nodes of a wider job are requested as a whole. If idle nodes were kept for it
        until then, two queues that hold half of the site each would wait for ever.
        """
        long_ago = self.world.clock.now - self.rule.idle_limit
        head = self._waiting.next()
        if head is not None:
            own = len(cluster.held) - cluster.leaving
            smallest = head.size if self.rule.discipline == "fifo" else self._waiting.smallest()
            if smallest <= own or head.since > long_ago:
                return
        spare = len(cluster.held) - self.world.moving(cluster) - self.rule.least
        leaving = [
            one for one, since in self._idle.items() if since <= long_ago and not one.reclaim
        ][: max(0, spare)]
        self._let_go(cluster, leaving)

    def _let_go(self, cluster: Cluster, machines: list[SimMachine]) -> None:
        for machine in machines:
            self._idle.pop(machine, None)
        if machines:
            self.world.restore(cluster, machines)

    # ------------------------------------------------------------ what it is told

    def granted(self, request: ClusterRequest) -> None:
        """Stop waiting for the request, as its nodes are on their way."""
        self._requests.pop(request.id, None)
        if request.kind == "create":
            self.keep(request.cluster)
        self._look_later()

    def refused(self, request: ClusterRequest) -> None:
        """Forget the request: the owner requests nodes again at its next look."""
        self._requests.pop(request.id, None)
        self._look_later()

    def up(self, machine: SimMachine) -> None:
        """Add a node to the queue, unless it will be released."""
        if machine.reclaim or machine.state is not NodeState.ACTIVE:
            return
        self._idle[machine] = self.world.clock.now
        self._start()
        self._look_later()

    def lost(self, machine: SimMachine, cluster: Cluster, why: str) -> None:
        """Queue the machine's job again."""
        self._idle.pop(machine, None)
        self._interrupt([machine])
        self._start()

    def choose(self, reclaim: ClusterReclaim, candidates: list[SimMachine]) -> list[SimMachine]:
        """Return nodes that do not run yet, then idle ones, then those of the jobs that started
        last."""

        def order(machine: SimMachine) -> tuple[float, int]:
            entry = self._busy.get(machine)
            return (-entry.started_at if entry else -1e18, machine.id)

        return sorted(candidates, key=order)[: reclaim.open]

    def asked_back(self, reclaim: ClusterReclaim, machines: list[SimMachine]) -> None:
        """Give the machines back after the time that rescheduling takes. No job starts on them
        meanwhile."""
        for machine in machines:
            self._idle.pop(machine, None)
        now = self.world.clock.now
        self.world.clock.after(self.rule.answer, self._answer, reclaim, machines, now)

    def _answer(
        self, reclaim: ClusterReclaim, machines: list[SimMachine], notified_at: float
    ) -> None:
        due = still_due(machines, reclaim)
        cluster = self._cluster
        if cluster is None:
            return
        for machine in machines:  # what is not wanted any more serves on
            if machine not in due and machine.cluster is cluster and machine not in self._busy:
                self.up(machine)
        self._interrupt(due, notified_at)
        self._let_go(cluster, due)
        self._start()

    def over(self, cluster: Cluster) -> None:
        """Create another vcluster for the queue after the rule's interval."""
        self._requests.clear()
        self._idle.clear()
        self.world.clock.after(self.rule.interval, self._found)


def bundles(lacks: list[int], most: int) -> list[int]:
    """Return the sizes of requests for the jobs' missing nodes, `most` nodes in all: half of the
    nodes, half of the rest and so on.

    Each request is for whole jobs, and the last for the smallest job alone: [1] * 13 makes 7, 3, 2
    and 1.
    """
    chosen: list[int] = []
    for lack in [*sorted(lacks)[:1], *sorted(lacks, reverse=True)[:-1]]:
        if lack <= most:
            chosen.append(lack)
            most -= lack
    made, bundle, left = [], 0, sum(chosen)
    for lack in sorted(chosen, reverse=True):
        bundle += lack
        if bundle >= (left + 1) // 2:
            made.append(bundle)
            bundle, left = 0, left - bundle
    return made
