"""A Grid Engine pool and a Slurm pool whose loads peak at opposite hours share six nodes for a
compressed day; and what COD itself takes of a join and of a reclaim, and how long a job waits for a
warm, cached node.

See tests/bench/trading_day.py for the day, trading_stages.py for the stages. Writes
build/bench/trading.json (and trading/day.json, from which ``--draw`` makes figure and page again),
docs/plots/trading.svg and the tables in docs/trading. ``--hours 8`` runs that much of the day,
and leaves figure and page alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from heapq import heapify, heapreplace
from pathlib import Path
from typing import Any

from sqlalchemy import select

from cod.store import tables as t
from tests.bench import trading_stages as stages
from tests.bench.arena import PLOTS, RESULTS, Measure, Smoke, page, put_between_marks, write
from tests.bench.trading_day import (
    BEGIN,
    HOUR,
    LOADS,
    NAMES,
    NIGHTLY,
    OFFICE,
    SHARED,
    Job,
    Pools,
    Sample,
    pools,
)
from tests.bench.trading_stages import Way

HOURS = 24.0
# single jobs of each pool before the day; the very first finds no node with the template on its
# disk
ROUNDS = 4
PAGE, PLOT, KEPT = (
    page("trading"),
    PLOTS / "trading.svg",
    RESULTS / "trading/day.json",
)
COLOURS = {"office": "#0072b2", "nightly": "#d55e00"}
SUBMIT = {"office": "qsub", "nightly": "sbatch"}
TITLES = {load.name: f"{load.name} ({NAMES[load.batch]})" for load in LOADS}
SMOKE = Smoke(test="tests/system/test_trading.py")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=HOURS)
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    if not options.draw:
        folder = Path(tempfile.mkdtemp(prefix="cod-trading-"))
        try:
            seen = run(folder, options.hours)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        KEPT.write_text(json.dumps(seen, indent=1))
    day = Day(json.loads(KEPT.read_text()))
    write("trading", day.measures())
    print("\n".join(day.lines()))
    if options.hours == HOURS:
        day.draw()
        put_between_marks(PAGE, "trading", day.lines())


# ---------------------------------------------------------------- running


def run(folder: Path, hours: float) -> dict[str, Any]:
    """Rounds and day; everything that was seen."""
    started = time.time()
    with pools(folder) as made:
        print(f"  the stand is up: {time.time() - started:.0f} s", flush=True)
        waits = {load.name: rounds(made, load.name) for load in LOADS}
        print(f"  submitted to running: {waits}; {time.time() - started:.0f} s", flush=True)
        made.day(hours)
        made.stand.wait(made.settled, 60, "all nodes are back")
        print(f"  the day is over: {time.time() - started:.0f} s", flush=True)
        return {
            "samples": [asdict(one) for one in made.samples],
            "jobs": [asdict(job) for job in made.jobs()],
            "waits": waits,
            "hours": hours,
            "load": os.getloadavg()[1],
            **ways(made),
        }


def rounds(made: Pools, pool: str) -> list[float]:
    """One job at a time, into an empty pool: seconds from `qsub` or `sbatch` to running."""
    waits = []
    for number in range(ROUNDS):
        made.stand.wait(partial(made.settled, number > 0), 60, "a free node is warm, and cached")
        waits.append(round(made.wait_of(pool, made.submit(pool, 0.5)), 2))
    made.stand.wait(made.settled, 60, "all nodes are back")
    return waits


def ways(made: Pools) -> dict[str, Any]:
    """Return the joins and reclaims that there were."""

    def rows(table: Any) -> list[dict[str, Any]]:
        return list(
            made.stand.read(lambda tx: [dict(row._mapping) for row in tx.execute(select(table))])
        )

    histories = {name: made.stand.history(name) for name in made.stand.hosts}
    logs = {load.name: stages.said(made.log(load.name)) for load in LOADS}
    requests = {row["id"]: row for row in rows(t.node_requests)}
    submitted = {number: row["submitted_at"] for number, row in requests.items()}
    joins = [
        replace(way, pool=pool)
        for pool, log in logs.items()
        for way in stages.joins(log, histories, submitted)
    ]
    reclaims = rows(t.reclaims)
    given = stages.reclaimed(reclaims, requests, logs[NIGHTLY.name], logs[OFFICE.name], histories)
    return {
        "joins": [asdict(way) for way in joins],
        "reclaims": [asdict(way) for way in given],
        "began": made.began,
        "in_two_pools": stages.in_two_pools(logs[OFFICE.name], logs[NIGHTLY.name]),
        "all_reclaims": [
            (row["created_at"] - made.began, row["state"], row["given"]) for row in reclaims
        ],
    }


# ---------------------------------------------------------------- what was seen


def alone(jobs: Sequence[Job], nodes: int) -> list[float]:
    """Waits of these jobs on so many nodes that are always there: first come, first served."""
    free, waits = [0.0] * nodes, []
    heapify(free)
    for job in sorted(jobs, key=lambda job: job.submitted):
        start = max(free[0], job.submitted)
        heapreplace(free, start + job.seconds)
        waits.append(start - job.submitted)
    return waits


class Day:
    """What was seen of a day, as figures, a page and a picture. Hours are the day's."""

    def __init__(self, seen: dict[str, Any]) -> None:
        self.seen = seen
        self.samples = [Sample(**one) for one in seen["samples"]]
        self.jobs = {
            load.name: [Job(**job) for job in seen["jobs"] if job["pool"] == load.name]
            for load in LOADS
        }
        self.joins = [Way(**way) for way in seen["joins"]]
        self.reclaims = [Way(**way) for way in seen["reclaims"]]

    def measures(self) -> list[Measure]:
        """For the table of all benchmarks."""
        joins = [way.own(stages.JOIN) for way in self.joins]
        reclaims = [way.own(stages.RECLAIM) for way in self.reclaims]
        used, always = self.energy()
        found = [
            Measure(
                f"{SUBMIT[pool]} to running on the stand, warm and cached node",
                statistics.median(waits[1:]),
                "s",
                rounds=waits[1:],
            )
            for pool, waits in self.seen["waits"].items()
        ]
        for what, each in (("join", joins), ("reclaim", reclaims)):
            if each:
                value = round(statistics.median(each), 3)
                found.append(Measure(f"COD's own time in a {what}", value, "s", rounds=each))
        return [
            *found,
            Measure(
                "two pools trading six nodes, energy of never sleeping",
                round(100 * used / always, 1),
                "%",
            ),
        ]

    def energy(self) -> tuple[float, float]:
        """kWh of the six nodes over the day; the same had none slept."""
        used = always = 0.0
        for one, after in zip(self.samples, self.samples[1:], strict=False):
            used += one.watts * (after.at - one.at) / HOUR / 1000
            always += one.always_on * (after.at - one.at) / HOUR / 1000
        return used, always

    def held(self, pool: str) -> float:
        """Node-hours."""
        return sum(
            one.nodes[pool] * (after.at - one.at) / HOUR
            for one, after in zip(self.samples, self.samples[1:], strict=False)
        )

    def lines(self) -> list[str]:
        """The tables."""
        used, always = self.energy()
        given = [each for each in self.seen["all_reclaims"] if each[2]]
        rows = [
            f"| | {' | '.join(TITLES.values())} |",
            "|---|---:|---:|",
            *self._pool_rows(),
            "",
            (
                f"{len(self.seen['all_reclaims'])} reclaims, {sum(each[2] for each in given)} nodes"
                f" given for them; {len(self.seen['in_two_pools'])} times a node was in both pools"
                f" at once. The six nodes used {used:.1f} kWh, {100 * used / always:.0f} % of the"
                f" {always:.1f} kWh had none ever slept."
            ),
        ]
        joins = {
            title: [way for way in self.joins if way.pool == pool] for pool, title in TITLES.items()
        }
        rows += [
            "",
            f"### A join: {len(self.joins)} of the run",
            "",
            *stages.table(joins, stages.JOIN),
            "",
        ]
        for how in sorted({way.how for way in self.joins}):
            each = [way.stages["order, boot"] for way in self.joins if way.how == how]
            rows.append(
                f"- *order, boot* of {len(each)} nodes {how}: {statistics.median(each):.1f} s"
                " (median)"
            )
        rows += [
            "",
            f"### A reclaim: {len(self.reclaims)} of the run",
            "",
            *stages.table({TITLES[NIGHTLY.name]: self.reclaims}, stages.RECLAIM),
        ]
        rows += [
            "",
            "### From `qsub` or `sbatch` to running",
            "",
            "One job, an empty pool, a warm node:",
            "",
            *map(self._waits, self.seen["waits"]),
            "",
            (
                f"The host's load was {self.seen['load']:.1f} (five minutes' average, 2 processors)"
                " at the end."
            ),
        ]
        return rows

    def _waits(self, pool: str) -> str:
        first, *warm = self.seen["waits"][pool]
        written = (
            f"{first:.1f} s where the image had to be written, " if pool == LOADS[0].name else ""
        )
        return (
            f"- {TITLES[pool]}, `{SUBMIT[pool]}`: {written}{statistics.median(warm):.1f} s (median"
            f" of {', '.join(f'{one:.1f}' for one in warm)}) where the image was on the disk still."
        )

    def _pool_rows(self) -> list[str]:
        def row(what: str, each: Any) -> str:
            return f"| {what} | {' | '.join(each(self.jobs[load.name], load) for load in LOADS)} |"

        def hours(seconds: Sequence[float]) -> str:
            worst = sorted(seconds)[int(0.95 * len(seconds))]
            return f"{statistics.mean(seconds) / HOUR:.2f} / {worst / HOUR:.2f} h"

        return [
            row("jobs", lambda jobs, load: str(len(jobs))),
            row("ended once", lambda jobs, load: str(sum(len(job.ends) == 1 for job in jobs))),
            row("requeued", lambda jobs, load: str(sum(len(job.starts) - 1 for job in jobs))),
            row(
                "work, node-hours",
                lambda jobs, load: f"{sum(job.seconds for job in jobs) / HOUR:.0f}",
            ),
            row("nodes held, node-hours", lambda jobs, load: f"{self.held(load.name):.0f}"),
            row(
                "most nodes held",
                lambda jobs, load: str(max(one.nodes[load.name] for one in self.samples)),
            ),
            row("wait, mean / 95 %", lambda jobs, load: hours([job.wait for job in jobs])),
            row(
                "the same, three nodes of its own",
                lambda jobs, load: hours(alone(jobs, SHARED // 2)),
            ),
            row("the same, all six to itself", lambda jobs, load: hours(alone(jobs, SHARED))),
        ]

    def draw(self) -> None:
        """Pool sizes, queues and power over the day."""
        import matplotlib

        matplotlib.use("svg")
        matplotlib.rcParams["svg.hashsalt"] = "cod"  # the same numbers, the same picture
        from matplotlib import pyplot

        hours = [BEGIN + one.at / HOUR for one in self.samples]
        figure, (sizes, queues, power) = pyplot.subplots(
            3, 1, sharex=True, figsize=(10, 9), height_ratios=(3, 2, 2)
        )
        parts = [
            *(
                (
                    [one.nodes[load.name] for one in self.samples],
                    f"{TITLES[load.name]} pool",
                    COLOURS[load.name],
                )
                for load in LOADS
            ),
            ([one.moving for one in self.samples], "on their way", "#bbbbbb"),
            ([one.warm for one in self.samples], "reserve, warm", "#f0e442"),
            ([one.cold for one in self.samples], "reserve, asleep", "#333344"),
        ]
        sizes.stackplot(
            hours,
            [values for values, _, _ in parts],
            labels=[label for _, label, _ in parts],
            colors=[colour for _, _, colour in parts],
            step="post",
        )
        for number, (at, _, given) in enumerate(self.seen["all_reclaims"]):
            sizes.plot(
                [BEGIN + at / HOUR],
                [SHARED + 0.15],
                marker="v",
                color="black" if given else "#999999",
                markersize=5,
                linestyle="",
                label="" if number else "reclaim",
            )
        for load in LOADS:
            queues.plot(
                hours,
                [one.waiting[load.name] for one in self.samples],
                color=COLOURS[load.name],
                label=f"{TITLES[load.name]}: jobs waiting",
                drawstyle="steps-post",
            )
            queues.plot(
                hours,
                [one.running[load.name] for one in self.samples],
                color=COLOURS[load.name],
                label=f"{load.name}: running",
                drawstyle="steps-post",
                alpha=0.4,
                linestyle=":",
            )
        power.fill_between(
            hours,
            [one.watts for one in self.samples],
            step="post",
            color="#009e73",
            alpha=0.7,
            label="the six nodes",
        )
        power.plot(
            hours,
            [one.always_on for one in self.samples],
            color="black",
            linewidth=0.8,
            drawstyle="steps-post",
            label="had none slept",
        )
        for axes, title in ((sizes, "nodes"), (queues, "jobs"), (power, "watts")):
            axes.set_ylabel(title)
            axes.set_ylim(bottom=0)
            axes.legend(
                fontsize=7, ncols=6, loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False
            )
        ticks = range(int(BEGIN), int(hours[-1]) + 1, 2)
        power.set_xticks(list(ticks), [f"{tick % 24:02d}:00" for tick in ticks])
        power.set_xlabel("the day's time")
        figure.tight_layout()
        PLOT.parent.mkdir(exist_ok=True)
        figure.savefig(PLOT, metadata={"Date": None})
        pyplot.close(figure)


if __name__ == "__main__":
    main()
