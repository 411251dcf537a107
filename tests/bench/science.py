"""Repeats what the literature shows, in the simulator, and writes docs/science.md's tables and
plots: `make science`.

Ways to share two pools, gaps filled by preemptible work, one queue with each kind of backfill, and
a day of three pools. Readiness is measured by `make bench ONLY=pool`, on machines that boot under
QEMU.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from cod.sim.results.plots import metric, of_run
from cod.sim.run import Simulation
from cod.sim.scenario import tables
from cod.svg import Axis, Line, lines
from tests.bench.arena import ROOT

PAGE, PLOTS = ROOT / "docs/science.md", ROOT / "docs/plots"
WAYS: dict[str, dict[str, str]] = {
    "equal groups, no shares": {},
    "static halves": {"group.large.node_limit": "10", "group.small.node_limit": "10"},
    "the smaller has priority": {"group.small.priority": "1"},
    "the smaller is guaranteed 7": {"group.small.guarantee": "7"},
    "fair shares": {"policy.fair_half_life": "86400"},
    "fair shares, 7 guaranteed": {"policy.fair_half_life": "86400", "group.small.guarantee": "7"},
    "the larger is preemptible": {"demand.large.preemptible": "true"},
}
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
EXACT, SEEDS = (0.0, 0.25, 0.5, 0.75, 1.0), (1, 2, 3)
NODES, DAYS, OFFERED = 32, 7, 1.1
MOST = 2 * 86400  # seconds of a job
QUEUE_DAYS, QUEUE_MOST = 30, 10 * 86400.0  # of the queue of 512 machines
FILLERS = 200  # jobs of two hours a day, more than the gaps have room for


def main() -> None:
    """Run what is named: ways, gaps, sinp, pools; all, if nothing is."""
    parts = (("ways", ways), ("gaps", gaps), ("sinp", conservative), ("pools", three_pools))
    for name, run in parts:
        if name in (sys.argv[1:] or (name,)):
            run()


def ran(scenario: dict[str, Any], changes: dict[str, str] | None = None) -> Simulation:
    """Return the simulation after its last day."""
    for key, value in (changes or {}).items():
        tables.change(scenario, key, value)
    simulation = Simulation(tables.read(scenario))
    simulation.advance(simulation.end)
    return simulation


def ways() -> None:
    """Two pools that want 25 and 6.25 of 20 nodes, shared in each way."""
    rows = []
    with ProcessPoolExecutor() as processors:
        results = list(processors.map(_way, WAYS.values()))
    for name, found in zip(WAYS, results, strict=True):
        large, small = (found["by"]["group"][one] for one in ("large", "small"))
        rows.append(
            (
                name,
                f"{large['share'] + small['share']:.1%}",
                f"{large['nodes_held']:.2f}",
                f"{small['nodes_held']:.2f}",
                f"{large['wait']['mean']:,.0f} s",
                f"{small['wait']['mean']:,.0f} s",
                f"{found['reallocation']['assigned']:,}",
                f"{found['jobs']['restarts']:,}",
            )
        )
    put(
        "ways",
        (
            "",
            "Nodes' time in jobs",
            "Larger pool holds",
            "Smaller",
            "Larger's jobs wait",
            "Smaller's",
            "Nodes moved",
            "Jobs begun anew",
        ),
        rows,
    )


def _way(changes: dict[str, str]) -> dict[str, Any]:
    return ran(tables.load("docs/examples/two-pools.toml"), changes).result()


# ---------------------------------------------------------------- gaps


def gaps() -> None:
    """Fill the gaps of a small site with a preemptible filler; a time limit is exact with
    probability `p`."""
    found: dict[tuple[float, bool], list[dict[str, Any]]] = {}
    cases = list(itertools.product(EXACT, (False, True), SEEDS))
    with ProcessPoolExecutor() as processors:
        for (p, filled, _), result in zip(cases, processors.map(_gap, cases), strict=True):
            found.setdefault((p, filled), []).append(result)

    def mean(p: float, filled: bool, path: str) -> float:
        return fmean(metric(one, path) for one in found[p, filled])

    used, share, wait = "utilisation.active", "by.group.batch.share", "by.group.batch.wait.mean"
    put(
        "gaps",
        (
            "p",
            "Load without filler",
            "with",
            "of it batch jobs",
            "Batch jobs wait, without",
            "with",
            "Filler's jobs done",
            "begun anew",
        ),
        [
            (
                f"{p:g}",
                f"{mean(p, False, used):.1%}",
                f"{mean(p, True, used):.1%}",
                f"{mean(p, True, share):.1%}",
                f"{mean(p, False, wait):,.0f} s",
                f"{mean(p, True, wait):,.0f} s",
                f"{mean(p, True, 'by.group.filler.jobs.done'):,.0f}",
                f"{mean(p, True, 'jobs.restarts'):,.0f}",
            )
            for p in EXACT
        ],
    )
    PLOTS.joinpath("science_gaps.svg").write_text(
        lines(
            "Load against the accuracy of time limits",
            [
                Line(
                    label, [(p, 100 * mean(p, filled, used)) for p in EXACT], dots=[""] * len(EXACT)
                )
                for label, filled in (
                    ("batch jobs alone", False),
                    ("with a preemptible filler", True),
                )
            ],
            Axis("probability that a time limit is exact"),
            Axis("nodes' time used, %"),
        )
    )


def _gap(case: tuple[float, bool, int]) -> dict[str, Any]:
    """Return the figures of one run: how exact time limits are, whether there is a filler, the
    seed."""
    p, filled, seed = case
    scenario = tables.load("docs/examples/filler.toml")
    mixed, filler = scenario["demand"]
    with TemporaryDirectory() as folder:
        trace = Path(folder, "jobs.swf")
        trace.write_text(_jobs(mixed, p, seed))
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
            {"seed": str(seed), "days": str(DAYS), "run_on": "0", "policy.hold_after": "1"},
        ).result()


def _jobs(
    rule: dict[str, Any],
    p: float,
    seed: int,
    nodes: int = NODES,
    days: int = DAYS,
    most: float = MOST,
) -> str:
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
        limit = seconds if drawn < p else longer[drawn >= p + p * (1 - p)]
        jobs.append((at, seconds, size, limit))
        left -= size * seconds
    return "".join(
        f"{number} {at:.0f} -1 {seconds:.0f} {size} -1 -1 {size} {limit:.0f} -1 1 1 1 1 1 1 -1 -1\n"
        for number, (at, seconds, size, limit) in enumerate(sorted(jobs), 1)
    )


# ---------------------------------------------------------------- one queue of 512 machines


def conservative() -> None:
    """Load one batch queue of all 512 machines, with each kind of backfill."""
    cases = list(itertools.product(EXACT, ("easy", "conservative")))
    with ProcessPoolExecutor() as processors:
        found = dict(zip(cases, processors.map(_queue, cases), strict=True))
    put(
        "sinp",
        ("p", "Load, EASY", "conservative", "Jobs wait, EASY", "conservative"),
        [
            (
                f"{p:g}",
                *(f"{found[p, each]['share']:.1%}" for each in ("easy", "conservative")),
                *(f"{found[p, each]['wait']['mean']:,.0f} s" for each in ("easy", "conservative")),
            )
            for p in EXACT
        ],
    )


def _queue(case: tuple[float, str]) -> dict[str, Any]:
    """Return the figures of the jobs: how exact time limits are, the kind of backfill."""
    p, discipline = case
    scenario = tables.load("docs/examples/filler.toml")
    with TemporaryDirectory() as folder:
        trace = Path(folder, "jobs.swf")
        trace.write_text(_jobs(scenario["demand"][0], p, SEEDS[0], 512, QUEUE_DAYS, QUEUE_MOST))
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
        changes = {"days": str(QUEUE_DAYS), "run_on": "0"}
        (figures,) = ran(scenario, changes).result()["by"]["queue"].values()
    return dict(figures)


# ---------------------------------------------------------------- three pools


def three_pools() -> None:
    """A day of a web farm, a pool of the day and one of the night on 40 machines."""
    simulation = ran(tables.load("docs/examples/three-pools.toml"))
    PLOTS.joinpath("science_pools.svg").write_text(of_run(simulation)["groups.svg"])
    held = [
        {name: one.get(f"held {name}", 0.0) for name in ("web", "day", "night")}
        for one in simulation.series
    ]
    by = simulation.result()["by"]["group"]
    put(
        "pools",
        ("Pool", "Holds at least", "on average", "at most", "Jobs wait, mean"),
        [
            (
                name,
                f"{min(one[name] for one in held[10:]):.0f}",
                f"{by[name]['nodes_held']:.1f}",
                f"{max(one[name] for one in held):.0f}",
                f"{by[name]['wait']['mean']:,.0f} s" if by[name]["jobs"]["submitted"] else "",
            )
            for name in ("web", "day", "night")
        ],
    )


def put(name: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Put a table into the page, between its marks."""
    made = [f"| {' | '.join(one)} |" for one in (heads, ["---"] * len(heads), *rows)]
    print("\n".join(made), flush=True)
    text = PAGE.read_text()
    begin, end = f"<!-- {name}: made by make science -->", f"<!-- end of {name} -->"
    before, rest = text.split(begin)
    PAGE.write_text("\n".join([before + begin, "", *made, "", end + rest.split(end)[1]]))


if __name__ == "__main__":
    main()
