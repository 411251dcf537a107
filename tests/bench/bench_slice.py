"""Hours of the demand of docs/examples/two-pools.toml on a real Slurm with preemption by QOS,
beside the simulator's for the same jobs: `make bench ONLY=slice`, as root.

Each second on Slurm stands for a minute: arrivals, run times, the half-life of use and the
scheduler's intervals are a sixtieth, as far as Slurm takes such values (`SCALED`). The seeds run
side by side, each on 20 slurmd of this host, which sleep nearly all the time. Puts a table into
docs/science and writes build/bench/slice.json.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from cod.sim.results.plots import metric
from cod.sim.run import Simulation
from cod.sim.scenario import tables
from cod.sim.scenario.records import Queue
from tests.bench import science
from tests.bench.arena import Measure, Smoke, write
from tests.bench.slurm_qos import Fate, Plan, TimedJob, run

FASTER = 60
SEEDS: Sequence[int] = (1, 2, 3)
HOURS = 8.0
NODES = 20
SCENARIO = "docs/examples/two-pools.toml"
# Seconds of the demand. Of both: half-life of use, and how long a job runs before it is preempted.
HALF_LIFE, INERTIA = 86400.0, 600.0
PERIOD = 300.0  # Slurm's own, between looks at use
# Slurm's own, a sixtieth; at least a second where it takes whole ones (bf_interval would be 0.5).
# Two runs of the scheduler are 2 s of the demand apart (33 ms), where Slurm's own are 2 us.
SCALED = (
    "sched_interval=1,bf_interval=1,bf_resolution=1,bf_window=24,sched_min_interval=33333,"
    "batch_sched_delay=0,preempt_youngest_first"
)
REAL = "Slurm, preemption by QOS"
# The simulator: the pools as docs/science has them, or nodes that change hands at once.
POOLS: dict[str, str] = {
    "policy.fair_half_life": f"{HALF_LIFE:.0f}",
    "policy.inertia": f"{INERTIA:.0f}",
    "demand.large.preemptible": "true",
}
AT_ONCE: dict[str, str] = {
    f"demand.{name}.{key}": value
    for name in ("large", "small")
    for key, value in {"patience": "0", "idle_limit": "1", "interval": "1", "answer": "1"}.items()
} | {f"type.node.times.{one}": "0" for one in ("wake", "reset", "wipe", "prime", "boot", "spread")}
SIMULATED = {
    "simulator, nodes change hands at once": POOLS | AT_ONCE,
    "simulator, nodes are installed anew": POOLS,
}
HEADS = (
    *("", "Larger's jobs wait", "Smaller's", "of these at most"),
    *("Larger's jobs done", "Smaller's", "begun anew", "Goodput"),
)
SMOKE = Smoke(
    rows=("slice, ",),
    sizes={"SEEDS": (1, 2), "HOURS": 0.2, "NODES": 3},
    system=True,
    slow=True,
    needs=("slurmctld", "slurmd", "sacctmgr", "mariadbd"),
)


def main() -> None:
    """Run all seeds on Slurm and in the simulator, and write what was found."""
    found = {REAL: real()} | {
        name: [simulated(seed, changes) for seed in SEEDS] for name, changes in SIMULATED.items()
    }
    idle = science.shown(found[REAL], "between", unit=" s")
    remark = (
        f"Means of {len(SEEDS)} seeds, {HOURS:g} h each. From a job's end to the next one's begin"
    )
    science.put("slice", table(found), f"{remark} on its node, Slurm takes {idle} (median).")
    write("slice", measures(found))


def demand(seed: int, changes: dict[str, str]) -> Simulation:
    """Return a simulation of the slice that has not begun."""
    scenario = tables.load(SCENARIO)
    scenario["type"][0]["blocks"] = [NODES]
    for key, value in (changes | {"seed": str(seed), "days": str(HOURS / 24)}).items():
        tables.change(scenario, key, value)
    return Simulation(tables.read(scenario))


def jobs(seed: int) -> list[TimedJob]:
    """Return the slice's jobs, in seconds of the demand."""
    simulation = demand(seed, {})
    rules = [one for one in simulation.scenario.demands if isinstance(one, Queue)]
    drawn = [
        TimedJob(rule.group, job.at, job.runtime)
        for rule in rules
        for job in simulation.synthetic(rule)
    ]
    return sorted(drawn, key=lambda job: job.at)


def real() -> list[science.Result]:
    """Return each seed's figures on Slurm, in seconds of the demand."""
    demands = [jobs(seed) for seed in SEEDS]
    with TemporaryDirectory(prefix="cod-slice-") as folder:
        plan = Plan(
            folder=str(Path(folder).resolve()),
            nodes=NODES,
            seconds=HOURS * 3600 / FASTER,
            half_life=HALF_LIFE / FASTER,
            period=PERIOD / FASTER,
            exempt=INERTIA / FASTER,
            preempts="small",
            preempted="large",
            scheduler=SCALED,
            demands=[
                [TimedJob(job.group, job.at / FASTER, job.runtime / FASTER) for job in one]
                for one in demands
            ],
        )
        fates = run(plan)
    return [figures(one, became) for one, became in zip(demands, fates, strict=True)]


def figures(demanded: Sequence[TimedJob], fates: Sequence[Fate]) -> science.Result:
    """Return waits, jobs done and jobs begun anew, as the simulator counts: what has not started
    counts with its wait so far."""
    seconds = HOURS * 3600
    made: science.Result = {
        "anew": float(sum(max(0, len(one.starts) - 1) for one in fates)),
        "between": FASTER * between(fates),
        "goodput": sum(
            job.runtime for job, fate in zip(demanded, fates, strict=True) if fate.end is not None
        )
        / (NODES * seconds),
    }
    for group in ("large", "small"):
        own = [pair for pair in zip(demanded, fates, strict=True) if pair[0].group == group]
        waits = [
            (FASTER * fate.starts[0] if fate.starts else seconds) - job.at for job, fate in own
        ]
        made[group] = {
            "wait": fmean(waits),
            "longest": max(waits),
            "done": float(sum(fate.end is not None for _, fate in own)),
        }
    return made


def between(fates: Sequence[Fate]) -> float:
    """Return the median of the seconds from a job's end to the next job's begin on its node."""
    began = defaultdict(list)
    for fate in fates:
        if fate.starts:
            began[fate.node].append(fate.starts[-1])
    gaps = [
        min(after) - fate.end
        for fate in fates
        if fate.end is not None and (after := [at for at in began[fate.node] if at > fate.end])
    ]
    return median(gaps) if gaps else 0.0


def simulated(seed: int, changes: dict[str, str]) -> science.Result:
    """Return a seed's figures in the simulator."""
    simulation = demand(seed, changes)
    simulation.advance(simulation.end)
    result = simulation.result()
    groups = result["by"]["group"]
    return {
        "anew": float(result["jobs"]["restarts"]),
        "goodput": result["utilisation"]["goodput"],
    } | {
        name: {
            "wait": one["wait"]["mean"],
            "longest": one["wait"]["max"],
            "done": float(one["jobs"]["done"]),
        }
        for name, one in groups.items()
    }


def table(found: dict[str, list[science.Result]]) -> science.Part:
    """Return a row for each way."""
    return science.Part(
        HEADS,
        [
            (
                name,
                science.shown(of, "large.wait", unit=" s"),
                science.shown(of, "small.wait", unit=" s"),
                science.shown(of, "small.longest", unit=" s"),
                science.shown(of, "large.done"),
                science.shown(of, "small.done"),
                science.shown(of, "anew"),
                science.shown(of, "goodput", ".1f", "%"),
            )
            for name, of in found.items()
        ],
    )


def measures(found: dict[str, list[science.Result]]) -> list[Measure]:
    """Return both pools' waits in the simulator beside those on Slurm."""
    rows = []
    for name in SIMULATED:
        for group in ("large", "small"):
            ours, theirs = (
                fmean(metric(one, f"{group}.wait") for one in found[way]) for way in (name, REAL)
            )
            rows.append(
                Measure(
                    f"slice, {name}: jobs of `{group}` wait",
                    round(ours, 1),
                    "s",
                    REAL,
                    round(theirs, 1),
                    round(ours / theirs, 2) if theirs else None,
                )
            )
    return rows


if __name__ == "__main__":
    main()
