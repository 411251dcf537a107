"""Charts of simulations: each function returns SVG text by file name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cod.sim.run import Simulation
from cod.svg import Axis, Line, areas, lines

STATES = (
    ("active", "active"),
    ("moving", "in motion"),
    ("warm", "warm reserve"),
    ("cold", "cold reserve"),
    ("aside", "set aside"),
)
DRAWN = 6  # groups, queues or users in a chart
# The two figures that a sweep shows by default, (left, right), by the table of the swept key.
CURVES = {"energy": ("power.kwh", "waiting.ready.all.mean")}
CURVE = ("reallocation.reallocations_per_node_hour", "waiting.ready.top.mean")
TITLES = {
    "reallocation.reallocations_per_node_hour": "reallocations per node-hour",
    "reallocation.assignments_per_node_hour": "assignments per node-hour",
    "waiting.ready.top.mean": "mean wait of the highest priority, s",
    "waiting.ready.top.p95": "95th percentile of the highest priority's wait, s",
    "waiting.ready.all.mean": "mean wait, s",
    "waiting.ready.all.p95": "95th percentile of waits, s",
    "power.kwh": "energy, kWh",
    "power.kwh_saved": "energy saved, kWh",
    "utilisation.active": "share of nodes active",
}


def of_run(simulation: Simulation) -> dict[str, str]:
    """Return the charts of one run.

    Over time: nodes by state, nodes by the group that holds them, power and waiting requests. Also
    the waits of requests by priority, and of jobs by group, by queue and by user.
    """
    series, name = simulation.series, simulation.scenario.name
    days = Axis("days", from_zero=False)

    def curve(key: str, factor: float = 1.0) -> list[tuple[float, float]]:
        return [(one["time"] / 86400, one[key] * factor) for one in series]

    return {
        "nodes.svg": areas(
            f"{name}: nodes by state",
            [(label, curve(key)) for key, label in STATES],
            days,
            Axis("nodes"),
        ),
        "power.svg": lines(
            f"{name}: power, and requests that wait",
            [Line("power", curve("watts", 0.001)), Line("requests", curve("pending"), right=True)],
            days,
            Axis("kW"),
            Axis("requests"),
        ),
        "waiting.svg": _waits(
            f"{name}: how long until all nodes of a request run",
            "requests",
            {
                f"priority {one}": samples
                for one, samples in sorted(simulation.world.stats.ready.items(), reverse=True)
            },
        ),
        "groups.svg": areas(
            f"{name}: nodes by the group that holds them", _held(series), days, Axis("nodes")
        ),
    } | {
        f"jobs_by_{kind}.svg": _jobs(simulation, kind)
        for kind in ("group", "queue", "user")
        if simulation.world.stats.jobs.names(kind)
    }


def _held(series: Sequence[Mapping[str, float]]) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return the nodes that groups hold over time; the groups with the fewest nodes are summed
    up."""
    summed: Counter[str] = Counter()
    for one in series:
        summed.update({key: round(one[key]) for key in one if key.startswith("held ")})
    largest = [key for key, _ in sorted(summed.items(), key=lambda pair: (-pair[1], pair[0]))][
        :DRAWN
    ]
    made = [
        (key.removeprefix("held "), [(one["time"] / 86400, one.get(key, 0.0)) for one in series])
        for key in sorted(largest)
    ]
    if len(summed) > len(largest):
        made.append(
            (
                "all others",
                [
                    (
                        one["time"] / 86400,
                        sum(one.get(key, 0.0) for key in summed if key not in largest),
                    )
                    for one in series
                ],
            )
        )
    return made


def _jobs(simulation: Simulation, kind: str) -> str:
    """Return a chart of the jobs' waits by group, queue or user, for those with the most jobs."""
    jobs = simulation.world.stats.jobs
    so_far = simulation.world.stats.jobs.waiting(simulation.world.clock.now)
    samples = {
        name: [*jobs.of(kind, name).waits, *so_far.get((kind, name), ())]
        for name in jobs.names(kind)
    }
    most = sorted(samples, key=lambda name: -len(samples[name]))[:DRAWN]
    return _waits(
        f"{simulation.scenario.name}: how long jobs waited, or wait so far, by {kind}",
        "jobs",
        {name: samples[name] for name in samples if name in most},
    )


def _waits(title: str, what: str, samples: Mapping[str, Sequence[float]]) -> str:
    drawn = []
    for label, waits in samples.items():
        order = sorted(max(one, 1.0) for one in waits)
        step = max(1, len(order) // 300)
        points = [(one, (number + 1) / len(order)) for number, one in enumerate(order)]
        drawn.append(Line(label, [*points[::step], *points[-1:]]))
    return lines(title, drawn, Axis("seconds", log=True), Axis(f"share of {what}"))


def metric(result: Mapping[str, Any], path: str) -> float:
    """Return the figure at a path such as 'power.kwh'; a figure that is null counts as 0. The word
    'top' in the path stands for the highest priority. Raises KeyError."""
    value: Any = result
    for part in path.split("."):
        if part == "top":
            part = max((one for one in value if one != "all"), key=int)
        value = value[part]
    if value is not None and not isinstance(value, int | float):
        raise KeyError(path)
    return float(value or 0.0)


def curve_of(key: str) -> tuple[str, str]:
    """Return the paths of the two figures that a sweep of `key` shows."""
    return CURVES.get(key.partition(".")[0], CURVE)


def of_sweep(
    name: str, key: str, runs: Sequence[tuple[str, Mapping[str, Any]]], curve: tuple[str, str]
) -> dict[str, str]:
    """Return the charts of a sweep: both figures over the swept value (evenly spaced), and one
    against the other."""
    titles = [TITLES.get(path, path) for path in curve]
    values = [[metric(result, path) for _, result in runs] for path in curve]
    texts = [text for text, _ in runs]
    across = Axis(
        f"{key} (evenly spaced)", ticks=[(float(place), text) for place, text in enumerate(texts)]
    )
    drawn = [
        Line(titles[side], list(enumerate(values[side])), right=bool(side), dots=[""] * len(runs))
        for side in (0, 1)
    ]
    against = Line(key, list(zip(*values, strict=True)), dots=texts)
    return {
        "sweep.svg": lines(f"{name}: {key}", drawn, across, Axis(titles[0]), Axis(titles[1])),
        "tradeoff.svg": lines(
            f"{name}: {key}",
            [against],
            Axis(titles[0], from_zero=False),
            Axis(titles[1], from_zero=False),
        ),
    }
