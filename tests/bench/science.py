"""Repeats what the literature shows, in the simulator, and writes docs/science's tables and
plots: `make science`.

Ways to share two pools, gaps filled by preemptible work, one queue with each kind of backfill, and
a day of three pools, each with several seeds; and a table of what other systems published, which
takes its figures from the page's other tables. Readiness is measured by `make bench ONLY=pool`, on
machines that boot under QEMU.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from cod.sim.results.plots import metric, of_run
from cod.sim.run import Simulation
from cod.sim.scenario import tables
from cod.svg import Axis, Line, lines
from tests.bench import systems
from tests.bench.arena import PLOTS, page, put_between_marks

PAGE = page("science")
FAIR = {"policy.fair_half_life": "86400"}
WAYS: dict[str, dict[str, str]] = {
    "equal groups, no shares": {},
    "static halves": {"group.large.node_limit": "10", "group.small.node_limit": "10"},
    "the smaller has priority": {"group.small.priority": "1"},
    "the smaller is guaranteed 7": {"group.small.guarantee": "7"},
    "fair shares": FAIR,
    "fair shares, 2 more groups idle": FAIR,
    "fair shares, 8 more groups idle": FAIR,
    "fair shares, 7 guaranteed": FAIR | {"group.small.guarantee": "7"},
    "the larger is preemptible": {"demand.large.preemptible": "true"},
}
IDLE = {"fair shares, 2 more groups idle": 2, "fair shares, 8 more groups idle": 8}
# The gaps: minutes that people ask for, and the site.
ROUND = (
    10,
    20,
    30,
    60,
    90,
    120,
    180,
    240,
    360,
    480,
    720,
    1080,
    1440,
    2160,
    2880,
    4320,
    5760,
    8640,
    14400,
    21600,
)
EXACT = (0.0, 0.25, 0.5, 0.75, 1.0)
QUEUE_EXACT = EXACT[::2]  # of the queue of 512 machines, whose runs take long
NODES, OFFERED = 32, 1.1
MOST = 2 * 86400  # seconds of a job
QUEUE_MOST = 15 * 86400.0  # of the queue of 512 machines
FILLERS = 200  # jobs of two hours a day, more than the gaps have room for
POOLS = ("web", "day", "night")
# Quantiles 0.975 of Student's t, for 1 to 9 degrees of freedom.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

Result = dict[str, Any]
Job = tuple[Any, int, float]  # a case, a seed, and the days to simulate
Each = Callable[[Callable[[Job], Result], Sequence[Job]], Iterable[Result]]


@dataclass(frozen=True)
class Effort:
    """How much is simulated.

    each   runs a function for each job, as `map` does
    seeds  two to ten
    days   of each run; None: as many as the part's figures are made of
    """

    each: Each
    seeds: Sequence[int]
    days: float | None = None

    def runs(
        self, run: Callable[[Job], Result], cases: Iterable[Any], days: float
    ) -> dict[Any, list[Result]]:
        """Return the results of each case, one a seed."""
        jobs = [(case, seed, self.days or days) for case in cases for seed in self.seeds]
        found: dict[Any, list[Result]] = {}
        for (case, _, _), result in zip(jobs, self.each(run, jobs), strict=True):
            found.setdefault(case, []).append(result)
        return found


@dataclass(frozen=True)
class Part:
    """A table of the page, and charts by their file names."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    charts: dict[str, str] = field(default_factory=dict)


def main() -> None:
    """Run the parts that are named; all, if nothing is. The table of systems is made anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seeds", type=int, default=10, choices=range(2, 11), metavar="2-10")
    asked = parser.parse_args()
    with ProcessPoolExecutor() as processors:
        effort = Effort(processors.map, range(1, asked.seeds + 1))
        for name in asked.parts or PARTS:
            put(name, PARTS[name](effort), f"Means of {asked.seeds} seeds.")
    put("systems", Part(systems.HEADS, systems.rows(PAGE.read_text())))


def ran(scenario: dict[str, Any], changes: dict[str, str]) -> Simulation:
    """Return the simulation after its last day."""
    for key, value in changes.items():
        tables.change(scenario, key, value)
    simulation = Simulation(tables.read(scenario))
    simulation.advance(simulation.end)
    return simulation


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of two to ten values, and half the width of its 95 % interval."""
    half = STUDENT[len(values) - 2] * stdev(values) / sqrt(len(values))
    return fmean(values), half


def shown(results: Sequence[Result], path: str, form: str = ",.0f", unit: str = "") -> str:
    """Return a figure of all seeds as mean and interval. With the unit '%' it is a share of 1."""
    factor = 100 if unit == "%" else 1
    mean, half = interval([factor * metric(one, path) for one in results])
    return f"{mean:{form}} ± {half:{form}}{unit}"


# ---------------------------------------------------------------- two pools


def ways(effort: Effort) -> Part:
    """Share 20 nodes between two pools that want 25 and 6.25, in each way."""
    return Part(
        (
            "",
            "Goodput",
            "Larger pool holds",
            "Smaller",
            "Larger's jobs wait",
            "Smaller's",
            "Nodes moved",
            "Jobs begun anew",
        ),
        [
            (
                name,
                shown(found, "utilisation.goodput", ".1f", "%"),
                shown(found, "by.group.large.nodes_held", ".2f"),
                shown(found, "by.group.small.nodes_held", ".2f"),
                shown(found, "by.group.large.wait.mean", unit=" s"),
                shown(found, "by.group.small.wait.mean", unit=" s"),
                shown(found, "reallocation.assigned"),
                shown(found, "jobs.restarts"),
            )
            for name, found in effort.runs(_way, WAYS, days=14).items()
        ],
    )


def _way(job: Job) -> Result:
    """Return the figures of one of `WAYS`."""
    name, seed, days = job
    scenario = tables.load("docs/examples/two-pools.toml")
    scenario["group"] += [{"name": f"idle-{number}"} for number in range(IDLE.get(name, 0))]
    return ran(scenario, WAYS[name] | {"seed": str(seed), "days": str(days)}).result()


# ---------------------------------------------------------------- gaps


def gaps(effort: Effort) -> Part:
    """Fill the gaps of a small site with a preemptible filler; a time limit is exact with
    probability `p`."""
    found = effort.runs(_gap, itertools.product(EXACT, (False, True)), days=7)
    good, wait = "utilisation.goodput", "by.group.batch.wait.mean"
    chart = lines(
        "Goodput against the accuracy of time limits",
        [
            Line(
                label,
                [(p, 100 * fmean(metric(one, good) for one in found[p, filled])) for p in EXACT],
                dots=[""] * len(EXACT),
            )
            for label, filled in (("batch jobs alone", False), ("with a preemptible filler", True))
        ],
        Axis("probability that a time limit is exact"),
        Axis("nodes' time in jobs that were done, %"),
    )
    return Part(
        (
            "p",
            "Goodput without filler",
            "with filler",
            "of it batch jobs",
            "Load with filler",
            "Batch jobs wait without",
            "with",
            "Filler's jobs done",
            "begun anew",
        ),
        [
            (
                f"{p:g}",
                shown(found[p, False], good, ".1f", "%"),
                shown(found[p, True], good, ".1f", "%"),
                shown(found[p, True], "by.group.batch.goodput", ".1f", "%"),
                shown(found[p, True], "utilisation.active", ".1f", "%"),
                shown(found[p, False], wait, unit=" s"),
                shown(found[p, True], wait, unit=" s"),
                shown(found[p, True], "by.group.filler.jobs.done"),
                shown(found[p, True], "jobs.restarts"),
            )
            for p in EXACT
        ],
        {"science_gaps.svg": chart},
    )


def _gap(job: Job) -> Result:
    """Return the figures of one run. The case: how exact time limits are, whether there is a
    filler."""
    (p, filled), seed, days = job
    scenario = tables.load("docs/examples/filler.toml")
    mixed, filler = scenario["demand"]
    with TemporaryDirectory() as folder:
        trace = Path(folder, "jobs.swf")
        trace.write_text(_jobs(mixed, p, seed, NODES, days, MOST))
        scenario["type"][0]["blocks"] = [NODES]
        scenario["demand"] = [
            {"name": "mixed", "group": "batch", "model": "trace", "by": "job", "file": str(trace)}
        ]
        if filled:
            scenario["demand"].append(
                filler | {"preemptible": True, "arrivals": {"per_day": FILLERS}}
            )
        return ran(
            scenario,
            {"seed": str(seed), "days": str(days), "run_on": "0", "policy.hold_after": "1"},
        ).result()


def _jobs(rule: dict[str, Any], p: float, seed: int, nodes: int, days: float, most: float) -> str:
    """Return jobs of such a rule as a trace, OFFERED times what `nodes` can do in `days`: the same
    ones for each `p`. None runs longer than `most`.

    A time limit is exact with probability `p`, the next round value with p (1 - p), the one after
    that otherwise.
    """
    random, left = Random(f"gaps {seed}"), OFFERED * nodes * days * 86400
    sizes = [size for size in rule["nodes"] if size <= nodes]
    jobs: list[tuple[float, float, int, float]] = []
    while left > 0:
        size, at, drawn = random.choice(sizes), random.uniform(0, days * 86400), random.random()
        seconds = min(
            max(
                10.0,
                rule["runtime"]["median"] * random.lognormvariate(0, rule["runtime"]["spread"]),
            ),
            most,
        )
        longer = [60.0 * one for one in ROUND if 60 * one >= seconds]
        place = min(drawn >= p + p * (1 - p), len(longer) - 1)
        limit = seconds if drawn < p else longer[place]
        jobs.append((at, seconds, size, limit))
        left -= size * seconds
    return "".join(
        f"{number} {at:.0f} -1 {seconds:.0f} {size} -1 -1 {size} {limit:.0f} -1 1 1 1 1 1 1 -1 -1\n"
        for number, (at, seconds, size, limit) in enumerate(sorted(jobs), 1)
    )


# ---------------------------------------------------------------- one queue of 512 machines


def conservative(effort: Effort) -> Part:
    """Load one batch queue of all 512 machines, with each kind of backfill."""
    kinds = {"easy": "EASY", "conservative": "conservative", "fixed": "fixed places"}
    found = effort.runs(_queue, itertools.product(QUEUE_EXACT, kinds), days=180)
    return Part(
        (
            "p",
            *(
                f"{what}, {kind}"
                for what in ("Load", "Goodput", "Jobs wait")
                for kind in kinds.values()
            ),
        ),
        [
            (
                f"{p:g}",
                *(shown(found[p, each], "share", ".1f", "%") for each in kinds),
                *(shown(found[p, each], "goodput", ".1f", "%") for each in kinds),
                *(shown(found[p, each], "wait.mean", unit=" s") for each in kinds),
            )
            for p in QUEUE_EXACT
        ],
    )


def _queue(job: Job) -> Result:
    """Return the figures of the jobs. The case: how exact time limits are, the kind of backfill."""
    (p, discipline), seed, days = job
    scenario = tables.load("docs/examples/filler.toml")
    with TemporaryDirectory() as folder:
        trace = Path(folder, "jobs.swf")
        trace.write_text(_jobs(scenario["demand"][0], p, seed, 512, days, QUEUE_MOST))
        scenario["demand"] = [
            {
                "name": "mixed",
                "group": "batch",
                "model": "trace",
                "by": "queue",
                "file": str(trace),
                "least": 512,
                "discipline": discipline,
            }
        ]
        (figures,) = (
            ran(scenario, {"days": str(days), "run_on": "0"}).result()["by"]["queue"].values()
        )
    return dict(figures)


# ---------------------------------------------------------------- three pools


def three_pools(effort: Effort) -> Part:
    """A day of a web farm, a pool of the day and one of the night on 40 machines."""
    found = effort.runs(_pools, POOLS[:1], days=1)[POOLS[0]]
    drawn = _day(effort.seeds[0], effort.days or 1)
    return Part(
        ("Pool", "Holds at least", "on average", "at most", "Goodput", "Jobs wait, mean"),
        [
            (
                name,
                *(shown(found, f"{name}.{one}", ".1f") for one in ("least", "held", "most")),
                shown(found, f"{name}.goodput", ".1f", "%"),
                shown(found, f"{name}.wait", unit=" s") if name != "web" else "",
            )
            for name in POOLS
        ],
        {"science_pools.svg": of_run(drawn)["groups.svg"]},
    )


def _day(seed: int, days: float) -> Simulation:
    scenario = tables.load("docs/examples/three-pools.toml")
    return ran(scenario, {"seed": str(seed), "days": str(days)})


def _pools(job: Job) -> Result:
    """Return by pool the nodes that it holds at least, on average and at most, and its jobs' mean
    wait. What it held in the first hours does not count as its least."""
    simulation = _day(*job[1:])
    by = simulation.result()["by"]["group"]
    held = {name: [one.get(f"held {name}", 0.0) for one in simulation.series] for name in POOLS}
    return {
        name: {
            "least": min(held[name][10:]),
            "held": by[name]["nodes_held"],
            "most": max(held[name]),
            "goodput": by[name]["goodput"],
            "wait": by[name]["wait"]["mean"],
        }
        for name in POOLS
    }


# ---------------------------------------------------------------- the page


PARTS: dict[str, Callable[[Effort], Part]] = {
    "ways": ways,
    "gaps": gaps,
    "sinp": conservative,
    "pools": three_pools,
}


def put(name: str, part: Part, remark: str = "") -> None:
    """Put a table into the page, between its marks, with a remark below it, and write its charts."""
    made = "\n\n".join(filter(None, (markdown(part), remark)))
    print(made, flush=True)
    put_between_marks(PAGE, name, [made], "make science")
    for file, chart in part.charts.items():
        PLOTS.joinpath(file).write_text(chart)


def markdown(part: Part) -> str:
    """Return the table as text."""
    rows = (part.heads, ["---"] * len(part.heads), *part.rows)
    return "\n".join(f"| {' | '.join(one)} |" for one in rows)


if __name__ == "__main__":
    main()
