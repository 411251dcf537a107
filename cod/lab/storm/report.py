"""A storm's figures, as a record, as tables and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from cod import svg
from cod.lab.storm.machine import STEPS
from cod.lab.storm.site import PartFigures

WHOLE = "power-on to first order"
LABELS = {WHOLE: "all until order"}
# until which step a machine is in which state
STATES = {
    "asks for an address": "loader",
    "loads": "secret",
    "connects": "welcome",
    "waits for its order": "order",
    "works": "work",
}
IDLE = "idle"
MOMENTS = 100


def summary(
    said: Sequence[Mapping[str, Any]],
    before: Mapping[str, PartFigures],
    after: Mapping[str, PartFigures],
) -> dict[str, Any]:
    """Return what came of one storm. Times are in seconds, CPU, statements and commits those of a
    machine, memory that of a part at the end, in bytes."""
    machines = [machine for process in said for machine in process["machines"]]
    served = [machine for machine in machines if "order" in machine["ended"]]
    steps = {step: [m["took"][step] for m in machines if step in m["took"]] for step in STEPS}
    steps[WHOLE] = [machine["ended"]["order"] - machine["on"] for machine in served]
    parts = {
        name: {
            "cpu": (now.cpu - before[name].cpu) / len(machines),
            "statements": (now.statements - before[name].statements) / len(machines),
            "commits": (now.commits - before[name].commits) / len(machines),
            "memory": now.memory,
        }
        for name, now in sorted(after.items())
    }
    return {
        "machines": len(machines),
        "served": len(served),
        "lost": len(machines) - len(served),
        "seconds": max((machine["ended"]["order"] for machine in served), default=0.0),
        "idle": sum("work" in machine["ended"] for machine in machines),
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
        "generator_cpu": sum(process["cpu"] for process in said) / len(machines),
    }


def centile(values: Sequence[float], share: float) -> float | None:
    """Return the value that so large a share of `values` does not exceed; None where there are
    none."""
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
    row("all served after", lambda storm: f"{storm['seconds']:.1f} s")
    row("booted, connected again", _again)
    for step in (*STEPS, WHOLE):
        row(
            f"{LABELS.get(step, step)}, p50/p99",
            lambda storm, step=step: _pair(storm["steps"][step]),
        )
    row("CPU a machine, server", lambda storm: f"{1000 * storm['server']['cpu']:.1f} ms")
    for part in next(iter(storms.values()))["parts"]:
        row(f"  {part}, memory at end", lambda storm, part=part: _part(storm["parts"].get(part)))
    row("CPU a machine, machines", lambda storm: f"{1000 * storm['generator_cpu']:.1f} ms")
    row("statements a machine", lambda storm: f"{storm['server']['statements']:.1f}")
    row("commits a machine", lambda storm: f"{storm['server']['commits']:.1f}")
    Console().print(table)


def _again(storm: Mapping[str, Any]) -> str:
    return f"{storm['boots_again']:,}, {storm['connections_again']:,}"


def _pair(step: Mapping[str, Any]) -> str:
    return f"{step['p50']:.3f}/{step['p99']:.3f} s" if step["machines"] else "-"


def _part(part: Mapping[str, Any] | None) -> str:
    return f"{1000 * part['cpu']:.1f} ms, {part['memory'] / 1e6:.0f} MB" if part else "-"


def picture(title: str, said: Sequence[Mapping[str, Any]]) -> str:
    """Return a chart of machines by state over time, as SVG. A machine that booted again counts
    by its last boot."""
    machines = [machine for process in said for machine in process["machines"]]
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
    """Return the state of a machine that is on, at a moment."""
    for state, last in STATES.items():
        if last not in ended or ended[last] > moment:
            return state
    return IDLE
