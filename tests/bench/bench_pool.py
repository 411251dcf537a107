"""A batch pool's whole way on two whole machines: from `qsub` to running, by where the nodes wait,
and back to sleep.

    cold, empty    switched off, disks blank
    warm, empty    idle in the trampoline, disks blank
    warm, cached   idle in the trampoline, with the pool's image still on their disks
    in the pool    idle hosts of the pool

Two jobs are submitted at once, each of which needs a node of its own. The master runs on a stand-in
beside the machines (tests/system/pool_story.py). Writes build/bench/pool.json,
docs/plots/pool_way.svg and the tables in docs/gridengine-image.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from tests.bench.arena import PLOTS, Measure, Smoke, page, put_between_marks, write
from tests.system.pool_story import MACHINES, Story, story
from tests.system.qemu import build_all

JOB = 5.0  # seconds that each job takes
PAGE, PLOT = page("gridengine-image"), PLOTS / "pool_way.svg"
# Each stage ends when its words are seen first, after the stage before it; those that are not seen
# are left out.
STAGES = (
    ("ask and grant", ("trampoline", "prime", "boot")),
    ("firmware, loader, kernel", ("trampoline runs",)),
    ("report", ("prime",)),
    ("write", ("boot",)),
    ("firmware, loader", ("disk boots",)),
    ("system", ("active",)),
    ("join", ("takes jobs",)),
    ("start", ("runs a job",)),
    ("job", ("no longer runs a job",)),
    ("idle, leave", ("trampoline",)),
    ("firmware, loader, kernel ", ("trampoline runs",)),
    ("report, wipe", ("inactive",)),
    ("sleep", ("off",)),
)
RUNNING = 8  # stages until the job runs

Line = Sequence[tuple[str, float]]
SMOKE = Smoke(test="tests/system/test_pool_whole.py")


def main() -> None:
    build_all("execd")
    lines: dict[str, list[Line]] = {}
    with story() as pool:
        lines["cold, empty"] = lap(pool, "off")
    with story(warm=len(MACHINES), cache=True) as pool:
        lines["warm, empty"] = lap(pool, "inactive")
        lines["warm, cached"] = lap(pool, "inactive")
        pool.ended(*(pool.submit(JOB) for _ in MACHINES))
        idle = [wait_of_a_job(pool) for _ in range(3)]
    stages = {where: [durations(line) for line in each] for where, each in lines.items()}
    write(
        "pool",
        [
            *measures(stages),
            Measure(
                "qsub to running, idle host of the pool", statistics.median(idle), "s", rounds=idle
            ),
        ],
    )
    tell(stages, idle)
    draw(stages)


def lap(pool: Story, state: str) -> list[Line]:
    """Two jobs at once, until the machines are in `state` again; their timelines."""
    since = time.time()
    pool.ended(*(pool.submit(JOB) for _ in MACHINES))
    pool.reaches(state)
    time.sleep(1)  # until it is seen
    return [pool.timeline(name, since) for name in MACHINES]


def wait_of_a_job(pool: Story) -> float:
    """Submit one; seconds until it runs."""
    begin = time.time()
    job = pool.submit(0.5)
    pool.rack.wait(
        lambda: f" {job} " in pool.cell.run("qstat", "-s", "r", "-u", "*").stdout,
        "the job runs",
        60,
    )
    seconds = time.time() - begin
    pool.ended(job)
    return round(seconds, 2)


def durations(line: Line) -> dict[str, float]:
    """Seconds of each stage of a machine's timeline."""
    found: dict[str, float] = {}
    at, rest = 0.0, list(line)
    for name, words in STAGES:
        place = next((number for number, (what, _) in enumerate(rest) if what in words), None)
        # A state that ends a later stage must not be taken for this one's end.
        if place is None or any(what in _enders(name) for what, _ in rest[:place]):
            continue
        when = rest[place][1]
        found[name], at, rest = round(when - at, 2), when, rest[place + 1 :]
    return found


def _enders(name: str) -> set[str]:
    """What ends the stages after this one, up to the job's start: seen before, this stage was
    passed over."""
    names = [each for each, _ in STAGES]
    after = STAGES[names.index(name) + 1 : RUNNING]
    return {word for _, words in after for word in words}


def measures(stages: dict[str, list[dict[str, float]]]) -> list[Measure]:
    """From qsub to running, by where the nodes wait."""
    rounds = {
        where: [sum(list_of(each, 0, RUNNING)) for each in nodes] for where, nodes in stages.items()
    }
    return [
        Measure(
            f"qsub to running, two nodes {where}",
            round(statistics.median(each), 1),
            "s",
            rounds=each,
        )
        for where, each in rounds.items()
    ]


def list_of(stages: dict[str, float], first: int, last: int) -> list[float]:
    """The seconds of the stages in that range of STAGES, as far as there were any."""
    return [stages[name] for name, _ in STAGES[first:last] if name in stages]


def tell(stages: dict[str, list[dict[str, float]]], idle: Sequence[float]) -> None:
    """The table, between the page's marks."""
    rows = [f"| Stage | {' | '.join(stages)} |", f"|---|{'---:|' * len(stages)}"]
    for name, _ in STAGES:
        each = [[node[name] for node in nodes if name in node] for nodes in stages.values()]
        cells = [f"{statistics.median(seconds):.1f}" if seconds else "" for seconds in each]
        rows.append(f"| {name.strip()} | {' | '.join(cells)} |")
        if name == STAGES[RUNNING - 1][0]:
            sums = [
                statistics.median(sum(list_of(node, 0, RUNNING)) for node in nodes)
                for nodes in stages.values()
            ]
            rows.append(
                f"| **`qsub` to running** | {' | '.join(f'**{total:.1f}**' for total in sums)} |"
            )
    rows += ["", f"On a host that idles in the pool a job waits {statistics.median(idle):.1f} s."]
    put_between_marks(PAGE, "way", rows)


def draw(stages: dict[str, list[dict[str, float]]]) -> None:
    """A bar for each machine and each place to wait."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "cod"  # the same numbers, the same picture
    from matplotlib import pyplot

    bars: list[tuple[str, dict[str, float]]] = [
        (f"{where}: {name}", found)
        for where, nodes in stages.items()
        for name, found in zip(MACHINES, nodes, strict=True)
    ]
    names = list(dict.fromkeys(name.strip() for name, _ in STAGES))
    palette: Any = pyplot.colormaps["tab20"]
    colours = dict(zip(names, palette.colors, strict=False))
    pyplot.figure(figsize=(10, 0.5 * len(bars) + 1.8))
    for name in names:  # the legend, in the stages' order
        pyplot.barh(0, 0.0, color=colours[name], label=name)
    for place, (_, found) in enumerate(reversed(bars)):
        left = 0.0
        for name, seconds in found.items():
            pyplot.barh(place, seconds, left=left, color=colours[name.strip()])
            left += seconds
    pyplot.yticks(range(len(bars)), [name for name, _ in reversed(bars)])
    pyplot.xlabel("seconds since qsub")
    pyplot.legend(ncols=6, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1))
    pyplot.tight_layout()
    pyplot.savefig(PLOT, metadata={"Date": None})
    pyplot.close()


if __name__ == "__main__":
    main()
