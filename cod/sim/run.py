"""A simulation from beginning to end: scenario in, figures out."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import takewhile
from typing import Any

from cod.policy.hardware.match import satisfies
from cod.sim import apply_plan
from cod.sim.demand.job import SimJob
from cod.sim.demand.jobs import JobOwner
from cod.sim.demand.moves import Mover, Moving
from cod.sim.demand.owners import PermanentOwner
from cod.sim.demand.queue import QueueOwner
from cod.sim.demand.reservations import Booking, ReservationOwner
from cod.sim.demand.workload import FarmOwner
from cod.sim.randomness import DAY, HOUR, arrivals, runtime, stream
from cod.sim.results.report import figures
from cod.sim.scenario import swf
from cod.sim.scenario.records import (
    Farm,
    Jobs,
    Moves,
    Queue,
    Recorded,
    Reservations,
    Scenario,
    Trace,
)
from cod.sim.world import Watch, World
from cod.states import NodeState

POINTS = 400  # of each curve over time


class Simulation:
    """A run of a scenario: call `advance` until `end`, `run_on` to `limit`, then `result`.

    series   samples over time, for plots
    remarks  sentences about parts of traces that were not read
    """

    def __init__(self, scenario: Scenario, watch: Watch | None = None) -> None:
        self.scenario, self.end = scenario, scenario.days * DAY
        self.limit = self.end + scenario.run_on * DAY
        self.remarks: list[str] = []
        self.world = World(scenario, scenario.seed, apply_plan.apply, watch)
        self.series: list[dict[str, float]] = []
        self._serving: list[FarmOwner | ReservationOwner] = []
        # groups have their numbers in the scenario's order
        numbers = {one.name: number for number, one in enumerate(scenario.groups, 1)}
        for one in scenario.groups:
            group = self.world.group(
                one.name,
                one.priority,
                one.default_lease,
                one.max_lease,
                shares=one.shares,
                guarantee=one.guarantee,
                node_limit=one.node_limit,
                hours_limit=one.hours,
                parent_id=numbers.get(one.parent),
            )
            self.world.entitle(
                group, one.guarantee_of or {}, one.shares_of or {}, one.limit_of or {}
            )
        self._add_owners()
        self._sample()

    def advance(self, until: float) -> None:
        """Run all events that are due until `until` (seconds of simulated time), but not after
        `end`."""
        self.world.clock.run(min(until, self.end))

    def run_on(self, until: float) -> None:
        """Continue after `end` until `until`, or until all jobs have ended. Jobs are submitted only
        before `end`."""
        if not self.finished():
            self.world.clock.run(min(until, self.limit), self.finished)

    def finished(self) -> bool:
        """Return whether all jobs have ended."""
        return self.world.stats.jobs.finished()

    def slices(self, count: int) -> Iterator[float]:
        """Run the simulation in slices, and yield the completed share after each, 0 to 1."""
        for part in range(1, count + 1):
            self.advance(self.end * part / count)
            yield part / count if self.limit == self.end else part / (count + 1)
        while self.world.clock.now < self.limit and not self.finished():
            self.run_on(self.world.clock.now + self.end / count)
            yield count / (count + 1)
        yield 1.0

    def result(self) -> dict[str, Any]:
        """Return the figures, up to now."""
        for machine in self.world.pool.machines:
            self.world.pool.count(machine)
        for one in self._serving:
            one.sum_up()
        self.world.stats.jobs.sum_up(self.world.clock.now)
        return figures(self.scenario, self.world, self.limit / DAY)

    # ------------------------------------------------------------ demand

    def _add_owners(self) -> None:
        """Add the owners of all demands to the world."""
        world, groups = self.world, self.world.groups
        permanent: dict[str, PermanentOwner] = {}
        for demand in self.scenario.demands:
            match demand:
                case Jobs(group=group):
                    JobOwner(world, demand, groups[group], self.synthetic(demand))
                case Recorded(group=group, name=name):
                    JobOwner(world, _as(Jobs, demand, name), groups[group], _recorded(demand))
                case Queue(group=group, name=name):
                    rule, jobs = self._fitted(demand), self.synthetic(demand)
                    permanent[name] = QueueOwner(world, rule, groups[group], jobs)
                case Farm(group=group, name=name):
                    random = stream(self.scenario.seed, "farm", name)
                    permanent[name] = farm = FarmOwner(world, demand, groups[group], random)
                    self._serving.append(farm)
                case Reservations(group=group):
                    booked = self._booked(demand)
                    self._serving.append(ReservationOwner(world, demand, groups[group], booked))
                case Trace():
                    self._traced(demand)
        for demand in self.scenario.demands:
            if isinstance(demand, Moves):
                source, target = permanent[demand.source], permanent[demand.target]
                Mover(world, demand, source, target, self._moved(demand))

    def synthetic(self, rule: Jobs | Queue) -> Iterator[SimJob]:
        """Yield the jobs of a rule that generates its jobs, in the order of their times."""
        seed = self.scenario.seed
        sizes = stream(seed, "jobs", rule.name)
        for at, count in arrivals(stream(seed, "arrivals", rule.name), rule.arrivals, self.end):
            for _ in range(count):
                yield SimJob(at, sizes.choice(rule.nodes), runtime(sizes, rule.runtime))

    def _booked(self, rule: Reservations) -> Iterator[Booking]:
        drawn = stream(self.scenario.seed, "reservations", rule.name)
        for at in self._times(rule):
            start = at + runtime(drawn, rule.ahead)
            yield Booking(at, drawn.choice(rule.nodes), start, runtime(drawn, rule.length))

    def _moved(self, rule: Moves) -> Iterator[Moving]:
        sizes = stream(self.scenario.seed, "moves", rule.name)
        for at in self._times(rule):
            yield Moving(at, sizes.choice(rule.nodes))

    def _times(self, rule: Reservations | Moves) -> Iterator[float]:
        """Yield the times of requests: at hours of each day, or by the arrival process."""
        seed = self.scenario.seed
        if rule.hours:
            daily = (
                day * DAY + hour * HOUR
                for day in range(math.ceil(self.scenario.days))
                for hour in sorted(rule.hours)
            )
            yield from takewhile(lambda at: at < self.end, daily)
            return
        random = stream(seed, "arrivals", rule.name)
        for at, count in arrivals(random, rule.arrivals, self.end):
            yield from (at for _ in range(count))

    def _fitted(self, rule: Queue, floors: int = 0) -> Queue:
        """Return the queue's rule with a limit, so that it never requests more nodes than the site
        could give it: other owners keep their smallest sizes and `floors`."""
        pool = self.world.pool
        room = sum(
            count
            for type_id, count in pool.site.items()
            if not satisfies(rule.needs, pool.types[type_id].attributes)
        )
        others = sum(
            one.least if isinstance(one, Queue) else one.low if isinstance(one, Farm) else 0
            for one in self.scenario.demands
            if one.name != rule.name
        )
        return replace(rule, most=max(rule.least, min(rule.most, room - others - floors)))

    def _traced(self, rule: Trace) -> None:
        log = swf.load(self.scenario.folder / rule.file)
        self.remarks += log.remarks(rule.file)
        parts: dict[int, list[SimJob]] = defaultdict(list)
        start = log.jobs[0].submit if log.jobs else 0.0
        for entry in log.jobs:
            key = 0 if rule.by == "job" else getattr(entry, rule.by)
            labels = [f"{rule.name}-{one}" if one >= 0 else "" for one in (entry.queue, entry.user)]
            size = -(-entry.procs // rule.cores)
            parts[key].append(
                SimJob(entry.submit - start, size, entry.runtime, entry.asked, *labels)
            )
        owner = next(one for one in self.scenario.groups if one.name == rule.group)
        for number, jobs in sorted(parts.items()):
            in_time = takewhile(lambda job: job.at <= self.end, jobs)
            name = f"{rule.name}-{number}"
            if rule.by == "job":
                group = self.world.groups[rule.group]
                JobOwner(self.world, _as(Jobs, rule, rule.name), group, in_time)
            else:
                group = self.world.group(
                    f"{rule.group}-{number}", owner.priority, owner.default_lease, owner.max_lease
                )
                queue = self._fitted(_as(Queue, rule, name), rule.least * (len(parts) - 1))
                QueueOwner(self.world, queue, group, in_time)

    # ------------------------------------------------------------ samples

    def _sample(self) -> None:
        world = self.world
        states = Counter(machine.state for machine in world.pool.machines)
        held = Counter(
            machine.cluster.group.name
            for machine in world.pool.machines
            if machine.cluster is not None
        )
        moving = sum(
            states[one]
            for one in (NodeState.TRAMPOLINE, NodeState.WIPE, NodeState.PRIME, NodeState.BOOT)
        )
        self.series.append(
            {
                "time": world.clock.now,
                "active": states[NodeState.ACTIVE],
                "moving": moving,
                "warm": states[NodeState.INACTIVE],
                "cold": states[NodeState.OFF],
                "aside": states[NodeState.QUARANTINED],
                "pending": len(world.pending),
                "watts": world.pool.power(),
                **{f"held {one}": held[one] for one in held},
            }
        )
        world.clock.after(max(self.end / POINTS, 1.0), self._sample)


def _recorded(rule: Recorded) -> Iterator[SimJob]:
    """Yield recorded requests as jobs."""
    for one in rule.requests:
        yield SimJob(one.at, one.nodes, one.runtime, one.lease, one.under)


def _as(cls: Any, rule: Trace | Recorded, name: str) -> Any:
    """Return the rule of a trace, or of recorded requests, as the rule of a queue or of jobs
    (`cls`)."""
    shared = {one.name for one in fields(cls)} & {one.name for one in fields(rule)} - {
        "name",
        "model",
    }
    return cls(name=name, **{key: getattr(rule, key) for key in shared})


def simulate(scenario: Scenario) -> dict[str, Any]:
    """Run the simulation to its end; return the figures."""
    simulation = Simulation(scenario)
    for _ in simulation.slices(1):
        pass
    return simulation.result()
