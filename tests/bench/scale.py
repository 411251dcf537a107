"""What a storm's figures mean for larger sites: the tables of docs/scale.

`make bench ONLY=storm` writes them into the page, and ``python -m tests.bench.scale FILE SMALLER``
those of storms of one's own: FILE is what `cod lab storm COUNT --linger S --json` printed, and
SMALLER the same for fewer machines.

A part is one process, which fills one core at most, so the busiest part sets the pace of a server
that has enough cores; what one machine costs is taken to stay the same. What a part costs while no
machine is connected is taken from the storm of nodes in clusters, whose systems keep no connection.
Memory is a part's own peak, and what each machine adds to it is the difference between the two
storms: what a part allocates once is in both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from math import ceil
from pathlib import Path
from typing import Any

from tests.bench.arena import page, put_between_marks

SIZES = (10_000, 100_000)  # machines
MINUTES = 10  # within which all are to have their orders

Storm = Mapping[str, Any]


def busiest(storm: Storm) -> tuple[str, float]:
    """Return the part that takes most CPU for a machine, and the seconds."""
    name = max(storm["parts"], key=lambda name: storm["parts"][name]["cpu"])
    return name, storm["parts"][name]["cpu"]


def pace(storms: Mapping[str, Storm]) -> str:
    """Return the table of how soon a server has served machines that were switched on at once."""
    heads = [
        f"{size:,} on one server, {MINUTES} min" if short else f"{size:,} take"
        for short in (False, True)
        for size in SIZES
    ]
    rows = []
    for name, storm in storms.items():
        part, cpu = busiest(storm)
        rows.append(
            [
                name,
                f"{1000 * storm['server']['cpu']:.1f} ms",
                f"{part}, {1000 * cpu:.1f} ms",
                f"{60 / cpu:,.0f}",
                *(f"{size * cpu / 60:.1f} min" for size in SIZES),
                *("yes" if size * cpu <= 60 * MINUTES else _servers(size, cpu) for size in SIZES),
            ]
        )
    return _table(
        ["Machines", "CPU each, all parts", "Busiest part", "Machines a minute", *heads], rows
    )


def _servers(size: int, cpu: float) -> str:
    return f"no: {ceil(size * cpu / (60 * MINUTES))} servers"


def waiting(storms: Mapping[str, Storm], smaller: Mapping[str, Storm]) -> str:
    """Return the table of what machines cost that wait in the trampoline, by part; an empty text
    where that was not measured."""
    few = smaller["unknown"]
    storm, count = storms["unknown"], storms["unknown"]["machines"]
    idle = storms.get("in a cluster", {}).get("waiting")
    if not storm["waiting"] or not idle:
        return ""
    rows = []
    for name, part in storm["parts"].items():
        each = max(storm["waiting"][name] - idle[name], 0.0) / count
        more = part["memory"] - few["parts"][name]["memory"]
        adds = max(more, 0.0) / (count - few["machines"])
        row = [name, f"{part['memory'] / 1e6:.0f} MB", f"{adds / 1e3:.1f} kB"]
        for size in SIZES:
            memory = part["memory"] + (size - count) * adds
            row.append(f"{idle[name] + size * each:.2f} cores, {memory / 1e6:,.0f} MB")
        rows.append(row)
    heads = [f"{size:,} wait" for size in SIZES]
    return _table(["Part", f"Memory with {count:,}", "Each adds", *heads], rows)


def text(storms: Mapping[str, Storm], smaller: Mapping[str, Storm]) -> str:
    """Return both tables, with how many machines they were made of."""
    count, fewer = storms["unknown"]["machines"], smaller["unknown"]["machines"]
    told = f"From {count:,} machines; memory from {fewer:,} and {count:,}:"
    return "\n\n".join(filter(None, [told, pace(storms), waiting(storms, smaller)]))


def _table(heads: list[str], rows: Iterable[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    path = page("scale")
    made = text(*(json.loads(Path(name).read_text()) for name in sys.argv[1:3]))
    put_between_marks(path, "storm", [made], "tests.bench.scale")
    print(made)


if __name__ == "__main__":
    main()
