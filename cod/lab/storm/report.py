"""A storm's figures, as a record, as tables and as a picture."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from cod import svg
from cod.lab.storm.machine import STEPS, SYSTEM_STEPS, TRAMPOLINE_STEPS
from cod.lab.storm.site import Sample

# name of all steps together, by the last of them
WHOLE = {"order": "power-on to first order", "metadata": "power-on to metadata"}
# the step that ends each state of a machine
STATES = {
    "asks for an address": "loader",
    "loads": "secret",
    "connects": "welcome",
    "waits for its order": "order",
    "works": "work",
}
IDLE = "idle"
MOMENTS = 100
FILE_COLUMNS = 130  # of the table, where it is not printed on a terminal


def summary(
    results: Sequence[Mapping[str, Any]],
    samples: Sequence[Sample],
    last: str = "order",
    linger: float = 0.0,
) -> dict[str, Any]:
    """Return the figures of one storm. A machine counts as served when it has ended the step
    `last`.

    Times are in seconds. CPU, statements and commits are per machine; memory is a part's peak until
    the storm's end, in bytes; descriptors are the most that the part had open during the storm.
    `waiting` is the CPU that the parts used, in cores, while all machines waited for `linger`
    seconds; None where this time was too short to measure.
    """
    machines = [machine for process in results for machine in process["machines"]]
    served = [machine for machine in machines if last in machine["ended"]]
    lost = [machine for machine in machines if last not in machine["ended"]]
    order = SYSTEM_STEPS if last in SYSTEM_STEPS else TRAMPOLINE_STEPS
    steps = {step: [m["took"][step] for m in machines if step in m["took"]] for step in order}
    steps[WHOLE[last]] = [machine["ended"][last] - machine["on"] for machine in served]
    failed = sum((Counter(machine["failed"]) for machine in machines), Counter[str]())
    settled = max(process["settled"] for process in results)
    parts = _parts(samples, settled, len(machines))
    return {
        "machines": len(machines),
        "served": len(served),
        "lost": len(lost),
        "lost_at": Counter(machine["at"] for machine in lost),
        "failed_at": failed,
        "seconds": max((machine["ended"][last] for machine in served), default=0.0),
        "idle": sum(order[-1] in machine["ended"] for machine in machines),
        "boots_again": sum(max(machine["boots"] - 1, 0) for machine in machines),
        "connections_again": sum(machine["reconnects"] for machine in machines),
        "steps": {
            step: {"machines": len(took), "p50": centile(took, 0.5), "p99": centile(took, 0.99)}
            for step, took in steps.items()
        },
        "parts": parts,
        "server": {
            key: sum(part[key] for part in parts.values())
            for key in ("cpu", "statements", "commits")
        },
        "waiting": _waiting(results, samples, linger),
        "generator_cpu": sum(process["cpu"] for process in results) / len(machines),
        "generator_memory": max(process["memory"] for process in results),
    }


def _parts(samples: Sequence[Sample], settled: float, machines: int) -> dict[str, dict[str, float]]:
    """Return the figures of each part of the server. Its work after `settled`, while the machines
    wait, does not belong to their boots."""
    before, last = samples[0][1], samples[-1][1]
    after = next((figures for at, figures in samples if at >= settled), last)
    return {
        name: {
            "cpu": (now.cpu - before[name].cpu) / machines,
            "statements": (now.statements - before[name].statements) / machines,
            "commits": (now.commits - before[name].commits) / machines,
            "memory": last.get(name, now).memory,
            "descriptors": max(each[name].descriptors for _, each in samples if name in each),
        }
        for name, now in sorted(after.items())
        if name in before
    }


def _waiting(
    results: Sequence[Mapping[str, Any]], samples: Sequence[Sample], linger: float
) -> dict[str, float] | None:
    settled = [process["settled"] for process in results]
    seen = [each for each in samples if max(settled) <= each[0] <= min(settled) + linger]
    if len(seen) < 2:
        return None
    (start, first), (end, last) = seen[0], seen[-1]
    return {
        name: (last[name].cpu - first[name].cpu) / (end - start) for name in last if name in first
    }


def centile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest of `values` that a share of `share` of them does not exceed; None where
    there are no values."""
    ordered = sorted(values)
    return ordered[max(-int(-len(ordered) * share // 1) - 1, 0)] if ordered else None


def show(storms: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one table of storms by name."""
    table = Table(title="A storm of machines", title_justify="left")
    table.add_column("")
    for name in storms:
        table.add_column(name, justify="right")

    def row(label: str, value: Any) -> None:
        table.add_row(label, *(value(storm) for storm in storms.values()))

    row("machines", lambda storm: f"{storm['machines']:,}")
    row("served", lambda storm: f"{storm['served']:,}")
    row("lost", lambda storm: f"{storm['lost']:,}")
    row("  at", lambda storm: _counts(storm["lost_at"]))
    row("all served after", lambda storm: f"{storm['seconds']:.1f} s")
    row("booted, connected again", _again)
    row("  boots failed at", lambda storm: _counts(storm["failed_at"]))
    for step in STEPS:
        if any(step in storm["steps"] for storm in storms.values()):
            row(f"{step}, p50/p99, s", lambda storm, step=step: _pair(storm["steps"].get(step)))
    row("all of it, p50/p99, s", lambda storm: _pair(whole(storm)))
    row("server's CPU a machine", lambda storm: f"{1000 * storm['server']['cpu']:.1f} ms")
    for part in next(iter(storms.values()))["parts"]:
        row(f"  {part}", lambda storm, part=part: _cpu(storm["parts"].get(part)))
    row("  while all wait, cores", lambda storm: _cores(storm["waiting"]))
    row("machines' CPU a machine", lambda storm: f"{1000 * storm['generator_cpu']:.1f} ms")
    for part in next(iter(storms.values()))["parts"]:
        row(
            f"{part}: peak memory, descriptors",
            lambda storm, part=part: _most(storm["parts"].get(part)),
        )
    row("machines' process: peak memory", lambda storm: f"{storm['generator_memory'] / 1e6:.0f} MB")
    row("statements a machine", lambda storm: f"{storm['server']['statements']:.1f}")
    row("commits a machine", lambda storm: f"{storm['server']['commits']:.1f}")
    Console(width=None if sys.stdout.isatty() else FILE_COLUMNS).print(table)


def _again(storm: Mapping[str, Any]) -> str:
    return f"{storm['boots_again']:,}, {storm['connections_again']:,}"


def way(storm: Mapping[str, Any]) -> str:
    """Return the name, in a storm's record, of all steps together."""
    return next(name for name in WHOLE.values() if name in storm["steps"])


def whole(storm: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the centiles of all steps together, from a storm's record."""
    found: Mapping[str, Any] = storm["steps"][way(storm)]
    return found


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{step} {count:,}" for step, count in sorted(found.items())) or "-"


def _pair(step: Mapping[str, Any] | None) -> str:
    return f"{step['p50']:.2f}/{step['p99']:.2f}" if step and step["machines"] else "-"


def _cpu(part: Mapping[str, Any] | None) -> str:
    return f"{1000 * part['cpu']:.1f} ms" if part else "-"


def _cores(waiting: Mapping[str, float] | None) -> str:
    return f"{sum(waiting.values()):.2f}" if waiting else "-"


def _most(part: Mapping[str, Any] | None) -> str:
    return f"{part['memory'] / 1e6:.0f} MB, {part['descriptors']:,}" if part else "-"


def latencies(title: str, storm: Mapping[str, Any]) -> str:
    """Return an SVG chart of p50 and p99 of each step until machines are served. A step that took
    less than 1 ms is drawn as 1 ms."""
    steps = [step for step in STEPS if storm["steps"].get(step, {}).get("machines")]
    steps = [step for step in steps if step != "work"]  # comes after they are served
    drawn = [
        svg.Line(
            share,
            [
                (float(place), max(1000 * storm["steps"][step][share], 1.0))
                for place, step in enumerate(steps)
            ],
        )
        for share in ("p50", "p99")
    ]
    ticks = [(float(place), step) for place, step in enumerate(steps)]
    return svg.lines(title, drawn, svg.Axis("step", ticks), svg.Axis("ms", log=True))


def picture(title: str, results: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG chart of the numbers of machines in each state over time. A machine that booted
    again counts by its last boot."""
    machines = [machine for process in results for machine in process["machines"]]
    end = max(max([machine["on"], *machine["ended"].values()]) for machine in machines) or 1.0
    moments = [end * number / MOMENTS for number in range(MOMENTS + 1)]
    counts = {state: [0] * len(moments) for state in (IDLE, *reversed(STATES))}
    for machine in machines:
        for place, moment in enumerate(moments):
            if machine["on"] <= moment and machine["on"] > 0:
                counts[state_at(machine["ended"], moment)][place] += 1
    return svg.areas(
        title,
        [(state, list(zip(moments, row, strict=True))) for state, row in counts.items()],
        svg.Axis("seconds since the storm began"),
        svg.Axis("machines"),
    )


def state_at(ended: Mapping[str, float], moment: float) -> str:
    """Return the state, at a moment, of a machine that is on."""
    for state, last in STATES.items():
        if last not in ended or ended[last] > moment:
            return state
    return IDLE
