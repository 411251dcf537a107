"""Machines that are all switched on within seconds: `cod lab storm`, on SQLite and on MariaDB.

Each machine is a protocol on real sockets, from an address of its own: DHCP through a relay as
firmware, iPXE and trampoline, boot script, a range of 64 KiB of kernel and of ramdisk, secret,
proof, report, orders. The first time the site does not know the machines, then it does; then they
fetch whole files; then their disks are to be erased, which they say at once to be done; at last
they hold clusters, whose systems ask DHCP and metadata.
MariaDB's own processor time is not in the server's. At last ten times as many are switched on,
unknown to the site, on SQLite: within a time that is promised, and within a shorter one that shows
how many a minute can be taken in. The tables of docs/benchmarks and docs/scale are written.

``python -m tests.bench.bench_storm --shortest 10000`` finds the shortest time within which so many
unknown machines can be switched on with none lost and the 99th percentile under `LIMIT` seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cod.lab.storm import report
from cod.lab.storm.site import PARTS
from tests.bench import scale
from tests.bench.arena import PLOTS, ROOT, Measure, Smoke, page, put_between_marks, write
from tests.mariadb import MariaDB

MACHINES, OVER = 1000, 10.0
FEWER, SOONER = 300, 3.0  # for what each machine adds to a part's memory (tests.bench.scale)
LINGER = 15.0  # seconds for which machines of the first storms then wait, connected
LARGE, LARGE_OVER = 10_000, (60.0, 50.0)
LIMIT = 30.0  # seconds from power-on to first order, of all but one machine in a hundred
SHORTEST, LONGEST = 1.0, 3600.0  # seconds that are tried
CLOSE = 1.1  # the search ends where a shorter time would be at most so much shorter
SMOKE = Smoke(
    rows=("storm, SQLite, ", "storm, MariaDB, ", "storm of 10"),
    sizes={
        "MACHINES": 10,
        "OVER": 1.0,
        "FEWER": 5,
        "SOONER": 0.5,
        "LINGER": 2.5,
        "LARGE": 10,
        "LARGE_OVER": (2.0, 1.0),
    },
    system=True,
    slow=True,  # by day tests/system/test_lab_storm.py runs its parts
    needs=("mariadbd",),
)
FIRST_ORDER = ("unknown", "known", "to be erased")  # fetch no whole files, and get an order


def storm(*more: str, machines: int | None = None, over: float | None = None) -> dict[str, Any]:
    """Run the command, for `MACHINES` within `OVER` seconds if nothing else is said; return what it
    prints."""
    seconds = OVER if over is None else over
    words = [str(machines or MACHINES), f"storm{os.getpid()}", "--over", str(seconds), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "cod", "lab", "storm", *words, *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def measures(name: str, storms: dict[str, Any]) -> list[Measure]:
    """Return the measures of the storms: what is promised, and what it costs."""
    rows = []
    for which, found in storms.items():
        served = which in FIRST_ORDER
        p99 = f"{report.way(found)}, p99"
        goals = {
            "machines lost": "<= 0 machines",
            p99: f"< {OVER:g} s" if served else "",
            "server's CPU a machine": "<= 8 ms" if served else "",
            "largest part's memory": "< 300 MB",
            "statements a machine": "<= 30 statements" if served else "",
        }
        rows += _measures(f"storm, {name}, {which}", found, goals)
    return rows


def large_measures(over: float, found: dict[str, Any], fewer: dict[str, Any]) -> list[Measure]:
    """Return the measures of a storm of `LARGE` machines within `over` seconds, `found`, beside one
    of `MACHINES`, `fewer`."""
    name = f"storm of {LARGE:,} within {over:g} s"
    goals = {
        "machines lost": "<= 0 machines",
        f"{report.way(found)}, p99": f"< {LIMIT:g} s",
        "largest part's memory": "< 300 MB",
    }
    rows = _measures(name, found, goals)
    each, then = 1000 * found["server"]["cpu"], 1000 * fewer["server"]["cpu"]
    peer = f"{MACHINES:,} within {OVER:g} s"
    ratio = round(each / then, 3)
    rows.append(
        Measure(f"{name}: CPU beside", round(each, 3), "ms", peer, round(then, 3), ratio, "<= 1.2")
    )
    pace = 60 * found["served"] / found["seconds"] if found["seconds"] else 0.0
    goal = ">= 10000 machines" if over == min(LARGE_OVER) else ""
    rows.append(Measure(f"{name}: taken in", round(pace), "machines/min", goal=goal))
    return rows


def _measures(name: str, found: dict[str, Any], goals: dict[str, str]) -> list[Measure]:
    way, server, parts = report.whole(found), found["server"], found["parts"]
    values = [
        ("machines lost", found["lost"], "machines"),
        ("all served after", found["seconds"], "s"),
        (f"{report.way(found)}, p50", way["p50"], "s"),
        (f"{report.way(found)}, p99", way["p99"], "s"),
        ("server's CPU a machine", 1000 * server["cpu"], "ms"),
        *((f"CPU a machine, {part}", 1000 * parts[part]["cpu"], "ms") for part in parts),
        ("largest part's memory", max(part["memory"] for part in parts.values()) / 1e6, "MB"),
        ("generator's CPU a machine", 1000 * found["generator_cpu"], "ms"),
        ("statements a machine", server["statements"], ""),
        ("commits a machine", server["commits"], ""),
    ]
    return [
        Measure(f"{name}: {what}", round(value, 3), unit, goal=goals.get(what, ""))
        for what, value, unit in values
    ]


def table(storms: dict[str, dict[str, Any]]) -> list[str]:
    """Return the lines of the page's table: a row for each storm, by its name."""
    heads = (
        ["Storm", "Lost", "All served after", "Power-on to first order, p50/p99", "Server's CPU"]
        + [f"of it `{part}`" for part in PARTS]
        + ["Machines' CPU", "Statements", "Commits", "Largest part"]
    )
    lines = [f"| {' | '.join(heads)} |", f"|---|{'--:|' * (len(heads) - 1)}"]
    for name, found in storms.items():
        way, server, parts = report.whole(found), found["server"], found["parts"]
        times = [f"{way[share]:.2g}" if way[share] is not None else "" for share in ("p50", "p99")]
        cpu = [server["cpu"], *(parts[part]["cpu"] for part in PARTS), found["generator_cpu"]]
        cells = [
            name,
            str(found["lost"]),
            f"{found['seconds']:.1f} s",
            f"{'/'.join(times)} s",
            *(f"{1000 * each:.1f} ms" for each in cpu),
            f"{server['statements']:.1f}",
            f"{server['commits']:.1f}",
            f"{max(part['memory'] for part in parts.values()) / 1e6:.0f} MB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def shortest(trial: Callable[[float], dict[str, Any]], start: float) -> float:
    """Return the shortest time that keeps the promise: no machine lost, p99 under `LIMIT`.

    trial  carries a storm out within a time, and returns its record
    start  where the search begins, in seconds
    No shorter time than `SHORTEST` is looked for. Raises RuntimeError when even `LONGEST` seconds
    are too short.
    """

    def kept(over: float) -> bool:
        found = trial(over)
        p99 = report.whole(found)["p99"]
        good = not found["lost"] and p99 < LIMIT
        verdict = "kept" if good else f"not kept, lost at {found['lost_at']}"
        print(f"within {over:.1f} s: {verdict}; p99 {p99}", file=sys.stderr)
        return good

    low = high = start
    if kept(start):
        while high > SHORTEST and kept(low := high / 2):
            high = low
        if high <= SHORTEST:
            return high
    else:
        while not kept(high := high * 2):
            low = high
            if high > LONGEST:
                raise RuntimeError(f"not within {high:.0f} s")
    while high / low > CLOSE:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if kept(middle) else (middle, high)
    return high


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shortest", type=int, metavar="MACHINES")
    parser.add_argument("--start", type=float, help="seconds of the search's first storm")
    options = parser.parse_args()
    if options.shortest:
        found_over = shortest(
            lambda over: storm("--only", "unknown", machines=options.shortest, over=over)[
                "unknown"
            ],
            options.start or options.shortest / 200,
        )
        print(f"{options.shortest:,} machines: {found_over:.1f} s")
        return
    PLOTS.mkdir(parents=True, exist_ok=True)
    plots = ["--svg", PLOTS / "storm.svg", "--svg-steps", PLOTS / "storm-steps.svg"]
    linger = ("--linger", str(LINGER), "--patience", "120")
    lite = storm("--whole-files", *linger, *map(str, plots))
    smaller = storm("--only", "unknown", machines=FEWER, over=SOONER)
    with tempfile.TemporaryDirectory(prefix="cod-bench-storm-") as folder:
        maria = on_mariadb(Path(folder))
    found = measures("SQLite", lite) + measures("MariaDB", maria)
    storms = {
        f"{MACHINES:,} within {OVER:g} s, {database}, {which}": one
        for database, found_on in (("SQLite", lite), ("MariaDB", maria))
        for which, one in found_on.items()
    }
    for over in LARGE_OVER:
        one = storm("--only", "unknown", machines=LARGE, over=over)["unknown"]
        found += large_measures(over, one, lite["unknown"])
        storms[f"{LARGE:,} within {over:g} s, SQLite, unknown"] = one
    write("storm", found)
    put_between_marks(page("benchmarks"), "storms", table(storms))
    put_between_marks(page("scale"), "storm", [scale.text(lite, smaller)], "tests.bench.scale")


def on_mariadb(folder: Path) -> dict[str, Any]:
    """Run the storms on a private MariaDB that commits to disk, over its socket."""
    server = MariaDB(folder / "mariadb")
    server.install()
    server.start("--innodb-flush-log-at-trx-commit=1")
    try:
        url = server.url("cod").replace(f"127.0.0.1:{server.port}", "localhost")
        return storm("--database", f"{url}?unix_socket={server.folder}/s.sock")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
