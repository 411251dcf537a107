"""Runs the benchmarks, then writes the table: ``python -m tests.bench [NAME...]``; ``--table`` only
writes the table, ``--smoke NAME`` runs the smallest form of one benchmark, without the table, or
the test that runs its parts.

Each `bench_NAME.py` beside this file writes build/bench/NAME.json. The table in docs/benchmarks.md
(between its marks) and docs/plots/ratios.svg are made from whatever results there are; the page's
rows of benchmarks that have no results here stay.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.arena import (
    OUT,
    PLOTS,
    RESULTS,
    ROOT,
    between_marks,
    page,
    put_between_marks,
    put_pages,
    python,
)

HERE = Path(__file__).resolve().parent
NAMES = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
PAGE = page("benchmarks")
VERDICTS = {True: "met", False: "**missed**", None: ""}
PARTLY = {"pass"}  # may be run for some of its sizes; the rows of the others stay


def main(words: list[str]) -> int:
    """Run what is named (all, if nothing is), one after the other; returns the number of benchmarks
    that failed."""
    names = [word for word in words if not word.startswith("--")] or NAMES
    if "--smoke" in words:
        return smoke(names[0])
    failed = 0
    for name in [] if "--table" in words else names:
        print(f"--- {name}", flush=True)
        sys.argv = [name]  # some read options of their own
        try:
            module(name).main()
        except Exception as error:  # one peer that is missing must not cost the other numbers
            failed += 1
            print(f"{name} failed: {type(error).__name__}: {error}", file=sys.stderr)
    rows = results()
    rows += stayed(PAGE.read_text(), rows)
    write_table(rows)
    plot(rows)
    return failed


def module(name: str) -> Any:
    """Return the module of a benchmark."""
    return importlib.import_module(f"tests.bench.bench_{name}")


def smoke(name: str) -> int:
    """Run a benchmark with the sizes and the command line of its smallest form; where it has none,
    the test that runs its parts. Return 0 if that went well."""
    bench = module(name)
    if bench.SMOKE.test:
        print(f"{name} has no small form: {bench.SMOKE.test} runs its parts", flush=True)
        return subprocess.run(python("pytest", "-q", bench.SMOKE.test), cwd=ROOT).returncode
    if OUT == ROOT:  # the project's own pages and results are those of whole runs
        with tempfile.TemporaryDirectory(prefix="cod-smoke-") as folder:
            put_pages(Path(folder))
            there = os.environ | {"COD_BENCH_OUT": folder}
            return subprocess.run(python("tests.bench", "--smoke", name), env=there).returncode
    for path, size in bench.SMOKE.sizes.items():
        *owner, constant = path.split(".")
        place = getattr(bench, owner[0]) if owner else bench
        getattr(place, constant)  # one that is not there would change nothing
        setattr(place, constant, size)
    sys.argv = [name, *bench.SMOKE.words]
    bench.main()
    return 0


def results() -> list[dict[str, Any]]:
    """Every measure that there is."""
    files = {name: RESULTS / f"{name}.json" for name in NAMES}
    return [
        {"bench": name, **row}
        for name, path in files.items()
        if path.exists()
        for row in json.loads(path.read_text())
    ]


def stayed(text: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the page `text` that none of `rows` replaces: of benchmarks that have no
    results here, as `rows` are written; `verdict`: the page's, which was of numbers with more
    digits."""
    names = {row["name"] for row in rows}
    measured = {row["bench"] for row in rows} - PARTLY
    begins = tuple(start for bench in measured for start in promised(bench))
    found = []
    for line in between_marks(text, "table")[2:]:
        name, value, peer, ratio, goal, verdict = (
            cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]
        )
        if name in names or name.startswith(begins):
            continue
        amount, _, unit = value.partition(" ")
        peer, _, peer_value = peer.rpartition(" ")
        numbers = {"value": amount, "peer_value": peer_value, "ratio": ratio}
        found.append(
            {"name": name, "unit": unit, "peer": peer, "goal": goal, "verdict": verdict}
            | {key: float(n.replace(",", "")) if n else None for key, n in numbers.items()}
        )
    return found


def promised(bench: str) -> tuple[str, ...]:
    """Return how the names of a benchmark's measures begin, as far as it declares them."""
    rows: tuple[str, ...] = module(bench).SMOKE.rows
    return rows


def met(row: dict[str, Any]) -> bool | None:
    """Whether a measure meets its goal ('>= 0.8' and the like are about the ratio); None where it
    has none."""
    words = str(row["goal"] or "").split()
    if len(words) < 2 or words[0] not in (">=", "<=", "<", ">"):
        return None
    # a goal with a unit is about the value itself
    value = row["value"] if len(words) > 2 else row["ratio"]
    if value is None:
        return None
    limit = float(words[1])
    return {">=": value >= limit, "<=": value <= limit, "<": value < limit, ">": value > limit}[
        words[0]
    ]


def number(value: float | None) -> str:
    """Three significant digits."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write_table(rows: list[dict[str, Any]]) -> None:
    """Print the table, and put it between the page's marks."""
    lines = ["| Measure | COD | Peer | Ratio | Goal | |", "|---|---|---|---|---|---|"]
    for row in rows:
        if " at once: " in row["name"]:
            continue  # stages of a node's way: in the plots
        peer = (
            f"{row['peer']} {number(row['peer_value'])}".replace("|", r"\|") if row["peer"] else ""
        )
        verdict = row.get("verdict", VERDICTS[met(row)])
        lines.append(
            f"| {row['name']} | {number(row['value'])} {row['unit']} | {peer} |"
            f" {number(row['ratio'])} | {row['goal'] or ''} | {verdict} |"
        )
    print("\n".join(lines))
    put_between_marks(PAGE, "table", lines)


def plot(rows: list[dict[str, Any]]) -> None:
    """Every ratio that has a goal, against the goal, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "cod"  # the same numbers, the same picture
    from matplotlib import pyplot

    shown = [
        row
        for row in rows
        if row["ratio"] and met(row) is not None and len(str(row["goal"]).split()) == 2
    ]
    figure, axes = pyplot.subplots(figsize=(9, 0.4 * len(shown) + 1))
    for place, row in enumerate(reversed(shown)):
        axes.barh(place, row["ratio"], color="#3a7" if met(row) else "#c53", height=0.6)
        axes.plot(
            [float(str(row["goal"]).split()[1])] * 2,
            [place - 0.4, place + 0.4],
            color="black",
            linewidth=2,
        )
    axes.set_yticks(
        range(len(shown)), [f"{row['name']} / {row['peer']}" for row in reversed(shown)], fontsize=8
    )
    axes.set_xscale("log")
    axes.set_xlabel("ratio to the peer in the same run; the black mark is the goal")
    figure.tight_layout()
    PLOTS.mkdir(exist_ok=True)
    figure.savefig(PLOTS / "ratios.svg", metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
