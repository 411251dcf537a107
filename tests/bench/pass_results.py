"""What was measured of the manager's pass: kept in build/bench/passes, shown as lines, a table and
a picture."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from tests.bench.arena import PLOTS, RESULTS, Measure, between_marks, page, put_between_marks
from tests.bench.pass_world import Size
from tests.bench.slurm_site import Cycles

NODES, REQUESTS = (1_000, 10_000, 100_000), (100, 1_000, 10_000)
SIZES = [Size(nodes, requests) for nodes in NODES for requests in REQUESTS]
LARGEST = SIZES[-1]
DATABASES = ("SQLite", "MariaDB")
SHARED = tuple(f"{one}, shares" for one in DATABASES)  # with all groups' entitlements, the largest
PEERS = (Size(1_000, 1_000), Size(10_000, 1_000))
KEPT = RESULTS / "passes"
PAGE, PLOT = page("benchmarks"), PLOTS / "pass_growth.svg"


@dataclass
class Pass:
    """One pass: seconds of its parts; how many acts it had; requests that it granted, nodes that it
    gave them.

    requests  pending requests that it looked at
    """

    load: float
    plan: float
    apply: float
    acts: int = 0
    granted: int = 0
    nodes: int = 0
    requests: int = 0


@dataclass
class Result:
    """One world on one database.

    memory  MB that the process grew by in the first pass
    anew    a pass over the unchanged world that has to plan, as after a restart; `still`: one that
            need not
    look    seconds in which the manager sees that nothing has happened and that it need not even
            pass
    """

    database: str
    size: Size
    first: Pass
    anew: Pass
    still: Pass
    look: float
    memory: float


def whole(one: Pass) -> float:
    """Seconds of a pass that had nothing to do."""
    return one.load + one.plan


# ---------------------------------------------------------------- kept


def keep(result: Result) -> None:
    """Write it down, so that the table can be made without measuring all of it anew."""
    KEPT.mkdir(parents=True, exist_ok=True)
    name = f"{result.database}-{result.size.nodes}x{result.size.requests}.json"
    (KEPT / name).write_text(json.dumps(asdict(result), indent=1))


def kept() -> list[Result]:
    """What was measured last, of every size and database that was."""
    found = []
    every = [*itertools.product(SIZES, DATABASES), *((LARGEST, one) for one in SHARED)]
    for size, database in every:
        file = KEPT / f"{database}-{size.nodes}x{size.requests}.json"
        if file.exists():
            said = json.loads(file.read_text())
            passes = {name: Pass(**said[name]) for name in ("first", "anew", "still")}
            found.append(Result(database, size, **passes, look=said["look"], memory=said["memory"]))
    return found


def keep_peer(size: Size, ours: Sequence[Pass], theirs: Sequence[Cycles]) -> None:
    """Keep what was measured in rounds beside Slurm."""
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"peer-{size.nodes}x{size.requests}.json").write_text(
        json.dumps([list(map(asdict, ours)), list(map(asdict, theirs))], indent=1)
    )


def kept_peers() -> dict[Size, tuple[list[Pass], list[Cycles]]]:
    """What was measured last beside Slurm."""
    found = {}
    for size in PEERS:
        file = KEPT / f"peer-{size.nodes}x{size.requests}.json"
        if file.exists():
            ours, theirs = json.loads(file.read_text())
            found[size] = [Pass(**each) for each in ours], [Cycles(**each) for each in theirs]
    return found


# ---------------------------------------------------------------- shown


def measures(
    results: Sequence[Result],
    passes: Mapping[Size, list[Pass]],
    cycles: Mapping[Size, list[Cycles]],
) -> list[Measure]:
    """The lines of the table of benchmarks."""
    by = {(one.database, one.size): one for one in results if one.database in DATABASES}
    lines = _largest([one for one in results if one.size == LARGEST])
    if len(by) == len(SIZES) * len(DATABASES):
        few, many = (
            by["SQLite", Size(NODES[0], REQUESTS[0])].first.plan,
            by["SQLite", Size(NODES[-1], REQUESTS[0])].first.plan,
        )
        lines += [
            Measure(
                "manager: plan, 100 requests, 100,000 nodes",
                many,
                "s",
                "1,000 nodes",
                few,
                many / few,
            )
        ]
    for size, ours in passes.items():
        theirs = statistics.median(each.seconds for each in cycles[size])
        for what, rounds in (
            ("plan", [each.plan for each in ours]),
            ("load and plan", [each.load + each.plan for each in ours]),
        ):
            value = statistics.median(rounds)
            lines += [
                Measure(
                    f"manager: {what}, {size}",
                    value,
                    "s",
                    "Slurm's cycles",
                    theirs,
                    value / theirs,
                    rounds=rounds,
                )
            ]
    return [rounded(line) for line in lines]


def _largest(results: Sequence[Result]) -> list[Measure]:
    """The lines of passes over the largest world that have a goal."""
    return [
        line
        for one in results
        for line in (
            Measure(f"manager: plan, {LARGEST}, {one.database}", one.first.plan, "s", goal="< 2 s"),
            Measure(
                f"manager: pass over an unchanged world, {LARGEST}, {one.database}",
                whole(one.still),
                "s",
                goal="< 0.2 s",
            ),
        )
    ]


def rounded(line: Measure) -> Measure:
    """With no more digits than mean anything."""
    keep = {
        name: round(value, 4)
        for name in ("value", "peer_value", "ratio")
        if (value := getattr(line, name)) is not None
    }
    return replace(line, rounds=[round(each, 4) for each in line.rounds], **keep)


def write_table(results: Sequence[Result]) -> None:
    """Put what each part took into the page, between its marks; rows of worlds that were not
    measured here stay."""
    heads = (
        "Nodes",
        "Requests",
        "",
        "Load",
        "Plan",
        "Apply",
        "Acts",
        "Nodes given",
        "Memory",
        "Waiting",
        "Anew",
        "Unchanged",
        "Look",
    )
    stay = between_marks(PAGE.read_text(), "passes")[2:]
    rows = {tuple(line.split(" | ")[:3]): line for line in stay}
    for one in results:
        first = one.first
        cells = (
            f"{one.size.nodes:,}",
            f"{one.size.requests:,}",
            one.database,
            f"{first.load:.3f} s",
            f"{first.plan:.3f} s",
            f"{first.apply:.2f} s",
            f"{first.acts:,}",
            f"{first.nodes:,}",
            f"{one.memory:.0f} MB",
            f"{one.anew.requests:,}",
            f"{whole(one.anew):.3f} s",
            f"{whole(one.still):.3f} s",
            f"{1000 * one.look:.1f} ms",
        )
        line = f"| {' | '.join(cells)} |"
        rows[tuple(line.split(" | ")[:3])] = line
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *rows.values()]
    put_between_marks(PAGE, "passes", lines)


def draw(results: Sequence[Result], cycles: Mapping[Size, list[Cycles]]) -> None:
    """How planning, and a pass over an unchanged world, grow with the nodes. What was measured of a
    few sizes only does not show it: the picture stays as it was."""
    if {one.size for one in results} < set(SIZES):
        return
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "cod"  # the same numbers, the same picture
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    for number, requests in enumerate(REQUESTS):
        of_one = [
            one for one in results if one.size.requests == requests and one.database == "SQLite"
        ]
        left.plot(
            [one.size.nodes for one in of_one],
            [one.first.plan for one in of_one],
            f"C{number}o-",
            label=f"{requests:,} requests",
        )
        for database, style in zip(DATABASES, ("-", "--"), strict=True):
            of_one = [
                one for one in results if one.size.requests == requests and one.database == database
            ]
            right.plot(
                [one.size.nodes for one in of_one],
                [whole(one.still) for one in of_one],
                f"C{number}o{style}",
                label=f"{requests:,} requests, {database}",
            )
    peers = [
        (size.nodes, statistics.median(each.seconds for each in rounds))
        for size, rounds in cycles.items()
    ]
    left.plot(
        [nodes for nodes, _ in peers],
        [seconds for _, seconds in peers],
        "ks:",
        label="Slurm's cycles, 1,000 requests",
    )
    left.axhline(2, color="grey", linewidth=0.8)
    right.axhline(0.2, color="grey", linewidth=0.8)
    for axes, title in (
        (left, "planning the first pass"),
        (right, "a pass over an unchanged world"),
    ):
        axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="seconds", title=title)
        axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(PLOT, metadata={"Date": None})
