"""A day of two pools on one stand, of Grid Engine and of Slurm: their load, the stand with both,
and what is seen each second.

Two groups have a pool each, with a head of its own; six machines are nobody's. A day is compressed:
an hour takes HOUR seconds, and jobs, idle limits, inertia with it. The machines boot as fast as
stand-ins do, which is slow for such a day (docs/trading).
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cod.client import ApiError, Unreachable
from cod.flows.people import groups
from cod.model import Energy
from cod.policy.scheduler.reserve_pool import watts
from cod.vcm.batch.commands import NotUnderstood
from tests.system.cell import Cell
from tests.system.installation import Installation
from tests.system.site_images import offer
from tests.system.slurmcell import SlurmCell
from tests.system.stand import Stand

HOUR = 10.0  # seconds that an hour of the day takes
BEGIN = 18.0  # hour at which the day begins
SHARED, HEADS = 6, 2  # machines
POLICY = """\
inertia = 10
reclaim_grace = 30
[nmp]
port = 8071
keepalive = 5
[energy]
manage = true
warm_low = 1
warm_high = 2
idle_time = 5
"""
KNOBS: dict[str, Any] = {"idle_limit": 4.0, "calm": 2.0, "join_time": 60.0, "maximum": SHARED}
OWN_KNOBS: dict[type[Installation], dict[str, Any]] = {
    Cell: {"slots": 1, "jobs_per_node": 1},
    SlurmCell: {},
}
NAMES: dict[type[Installation], str] = {Cell: "Grid Engine", SlurmCell: "Slurm"}
RULES = Energy()  # the site's watts are the defaults
TEMPLATE = "exec"


@dataclass(frozen=True)
class Load:
    """A group's jobs over the day, for its batch system: a bell around hour `peak`, `width` hours
    wide, at whose top work for `busy` nodes comes in. Jobs take `mean` seconds on average, each two
    to thirty."""

    name: str
    batch: type[Cell] | type[SlurmCell]
    priority: int
    peak: float
    width: float
    busy: float
    mean: float


OFFICE, NIGHTLY = (
    Load("office", Cell, 10, 12.5, 2.8, 4.5, 6.0),
    Load("nightly", SlurmCell, 1, 4.0, 2.5, 6.0, 8.0),
)
LOADS = (OFFICE, NIGHTLY)


@dataclass(frozen=True)
class Arrival:
    """A job: when it is submitted, in seconds of the run, and how long it takes."""

    at: float
    seconds: float


def arrivals(load: Load, hours: float, seed: int = 1) -> list[Arrival]:
    """The jobs of the first `hours` of the day; equal seed, equal jobs."""
    draw, at, jobs = random.Random(f"{load.name} {seed}"), 0.0, []
    most = load.busy / load.mean
    while (at := at + draw.expovariate(most)) < hours * HOUR:
        away = abs((BEGIN + at / HOUR - load.peak + 12) % 24 - 12)
        kept = draw.random() < 2.718281828 ** (-((away / load.width) ** 2) / 2)
        seconds = min(max(draw.expovariate(1 / load.mean), 2.0), 30.0)
        if kept:
            jobs.append(Arrival(round(at, 2), round(seconds, 1)))
    return jobs


@dataclass
class Sample:
    """What was seen at one moment, `at` seconds after the day's begin; by pool where it is a dict.

    nodes      of the six: active in a pool
    moving     on their way to a pool or back
    warm, cold in the reserve
    waiting, running   jobs
    watts      of the six, by their states; `always_on`: had those that sleep been idle
    """

    at: float
    nodes: dict[str, int]
    moving: int
    warm: int
    cold: int
    waiting: dict[str, int]
    running: dict[str, int]
    watts: float
    always_on: float


@dataclass
class Job:
    """A job of the day: when it was submitted, started (each time), and ended, in seconds after the
    day's begin."""

    pool: str
    submitted: float
    seconds: float
    starts: list[float]
    ends: list[float]

    @property
    def wait(self) -> float:
        """Seconds until it ran for the first time."""
        return self.starts[0] - self.submitted


@dataclass
class Pools:
    """The stand with both pools."""

    stand: Stand
    cells: dict[str, Installation]
    samples: list[Sample] = field(default_factory=list)
    # pool, number, when, how long
    submitted: list[tuple[str, int, float, float]] = field(default_factory=list)
    heads: set[str] = field(default_factory=set)
    began: float = 0.0
    _ending: threading.Event = field(default_factory=threading.Event)

    # ------------------------------------------------------------ before the day

    def up(self) -> None:
        """Machines, groups, heads, VCMs; the rest of the machines idle or asleep."""
        self.stand.serve()
        for host in self.stand.hosts.values():
            host.on()
        with self.stand.engine.begin() as tx:
            for load in LOADS:
                groups.create(tx, name=load.name, priority=load.priority, now=time.time())
        for name in self.stand.hosts:
            self.stand.reaches(name, "inactive", "off")
        offer(self.stand, TEMPLATE, cache="yes")
        for name, cell in self.cells.items():
            cell.up(TEMPLATE, 1, "--group", name)
            if isinstance(cell, Cell):
                cell.know_hosts(len(self.stand.hosts))
            cell.enrol(**KNOBS, **OWN_KNOBS[type(cell)])
            file = cell.folder / "vcm/vcm.toml"
            file.write_text('log_level = "debug"\n' + file.read_text())
            cell.start_vcm()
        self.heads = {node["name"] for node in self.nodes() if node["vcluster"]}

    def nodes(self) -> list[dict[str, Any]]:
        """All machines, as the API shows them."""
        with self.stand.client() as client:
            return list(client.every("/nodes"))

    def settled(self, cached: bool = False) -> bool:
        """Return whether the shared machines are all in the reserve (one warm, with the template on
        its disk)."""
        free = [node for node in self.nodes() if node["name"] not in self.heads]
        return all(node["state"] in ("inactive", "off") for node in free) and (
            not cached
            or any(
                node["state"] == "inactive" and self.stand.node(node["name"]).disk == "cached"
                for node in free
            )
        )

    def held(self) -> tuple[int, ...]:
        """How many of the shared machines are active in each pool."""
        nodes = [
            node
            for node in self.nodes()
            if node["state"] == "active" and node["name"] not in self.heads
        ]
        return tuple(sum(node["vcluster"] == load.name for node in nodes) for load in LOADS)

    # ------------------------------------------------------------ jobs

    def submit(self, pool: str, seconds: float) -> int:
        """A job; its number."""
        at = time.time()
        number = self.cells[pool].submit(seconds)
        self.submitted.append((pool, number, at, seconds))
        return number

    def wait_of(self, pool: str, number: int) -> float:
        """Seconds from the beginning of `qsub` or `sbatch` until the job ran; waits for that."""
        at = next(at for name, job, at, _ in self.submitted if (name, job) == (pool, number))
        self.stand.wait(lambda: self.cells[pool].ran(number), 120, f"job {number} runs")
        return float(self.cells[pool].ran(number)[0].split()[2]) - at

    def jobs(self) -> list[Job]:
        """The day's jobs, and what became of them."""
        found = []
        for pool, number, at, seconds in self.submitted:
            said = [line.split() for line in self.cells[pool].ran(number)]
            times = {
                what: [float(words[2]) - self.began for words in said if words[0] == what]
                for what in ("start", "end")
            }
            if at >= self.began:
                found.append(Job(pool, at - self.began, seconds, times["start"], times["end"]))
        return found

    # ------------------------------------------------------------ the day

    def day(self, hours: float) -> None:
        """The first `hours` of the day, until the last of their jobs has ended."""
        self.began = time.time()
        threads = [
            threading.Thread(target=self._watch),
            *(threading.Thread(target=self._feed, args=(load, hours)) for load in LOADS),
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads[1:]:
                thread.join()
            self.stand.wait(
                lambda: all(job.ends for job in self.jobs()), 300, "all jobs have ended"
            )
        finally:
            self._ending.set()
            threads[0].join()

    def _feed(self, load: Load, hours: float) -> None:
        for job in arrivals(load, hours):
            time.sleep(max(0.0, self.began + job.at - time.time()))
            self.submit(load.name, job.seconds)

    def _watch(self) -> None:
        number = 0
        while not self._ending.wait(max(0.0, self.began + number - time.time())):
            number = int(time.time() - self.began) + 1
            try:
                counts = {name: cell.counts() for name, cell in self.cells.items()}
                self.samples.append(self._sample(time.time() - self.began, counts))
            except (
                NotUnderstood,
                OSError,
                subprocess.SubprocessError,
                ApiError,
                Unreachable,
            ) as error:
                print(f"  not seen: {error}", flush=True)

    def _sample(self, at: float, counts: dict[str, tuple[int, int]]) -> Sample:
        six = [node for node in self.nodes() if node["name"] not in self.heads]
        states = [node["state"] for node in six]
        held = {
            load.name: sum(
                node["state"] == "active" and node["vcluster"] == load.name for node in six
            )
            for load in LOADS
        }
        warm, cold = states.count("inactive"), states.count("off")
        draw = [watts(state, None, RULES) for state in states]
        awake = [watts("inactive" if state == "off" else state, None, RULES) for state in states]
        return Sample(
            at,
            held,
            len(six) - sum(held.values()) - warm - cold,
            warm,
            cold,
            {name: waiting for name, (waiting, _) in counts.items()},
            {name: running for name, (_, running) in counts.items()},
            sum(draw),
            sum(awake),
        )

    def log(self, pool: str) -> str:
        """What the pool's VCM said."""
        return self.cells[pool].log()


@contextmanager
def pools(folder: Path, shared: int = SHARED) -> Iterator[Pools]:
    """Both pools, empty; the machines that they share idle or asleep."""
    with Stand(folder, machines=shared + HEADS, policy=POLICY) as stand:
        made = Pools(stand, {load.name: load.batch(stand, load.name) for load in LOADS})
        try:
            made.up()
            yield made
        finally:
            for name, cell in made.cells.items():
                cell.kill_vcm()
                if sys.exc_info()[0] is not None and (cell.folder / "vcm.log").exists():
                    print(f"--- {name}\n{cell.log()[-6000:]}")
