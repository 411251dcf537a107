"""Machines that are all switched on within seconds: `cod lab storm`, on SQLite and on MariaDB.

Each machine is a protocol on real sockets, from an address of its own: DHCP through a relay as
firmware, iPXE and trampoline, boot script, a range of 64 KiB of kernel and of ramdisk, secret,
proof, report, orders. The first time the site does not know the machines, then it does; then they
fetch whole files; then their disks are to be erased, which they say at once to be done; at last
they hold clusters, whose systems ask DHCP and metadata.
MariaDB's own processor time is not in the server's.

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
from tests.bench.arena import PLOTS, ROOT, Measure, Smoke, write
from tests.mariadb import MariaDB

MACHINES, OVER = 1000, 10.0
LIMIT = 30.0  # seconds from power-on to first order, of all but one machine in a hundred
SHORTEST, LONGEST = 1.0, 3600.0  # seconds that are tried
CLOSE = 1.1  # the search ends where a shorter time would be at most so much shorter
SMOKE = Smoke(test="tests/system/test_lab_storm.py")


def storm(*more: str, machines: int = MACHINES, over: float = OVER) -> dict[str, Any]:
    """Run the command; return what it prints."""
    words = [str(machines), f"storm{os.getpid()}", "--over", str(over), "--json", *more]
    done = subprocess.run(
        [sys.executable, "-m", "cod", "lab", "storm", *words],
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
        name_of_way, way = report.way(found), report.whole(found)
        server, parts = found["server"], found["parts"]
        values = [
            ("machines lost", found["lost"], "machines"),
            ("all served after", found["seconds"], "s"),
            (f"{name_of_way}, p50", way["p50"], "s"),
            (f"{name_of_way}, p99", way["p99"], "s"),
            ("server's CPU a machine", 1000 * server["cpu"], "ms"),
            *((f"CPU a machine, {name}", 1000 * parts[name]["cpu"], "ms") for name in parts),
            ("largest part's memory", max(p["memory"] for p in parts.values()) / 1e6, "MB"),
            ("generator's CPU a machine", 1000 * found["generator_cpu"], "ms"),
            ("statements a machine", server["statements"], ""),
            ("commits a machine", server["commits"], ""),
        ]
        rows += [
            Measure(f"storm, {name}, {which}: {what}", round(value, 3), unit)
            for what, value, unit in values
        ]
    return rows


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
    with tempfile.TemporaryDirectory(prefix="cod-bench-storm-") as folder:
        PLOTS.mkdir(parents=True, exist_ok=True)
        plots = ["--svg", PLOTS / "storm.svg", "--svg-steps", PLOTS / "storm-steps.svg"]
        found = measures("SQLite", storm("--whole-files", *map(str, plots)))
        found += on_mariadb(Path(folder))
    write("storm", found)


def on_mariadb(folder: Path) -> list[Measure]:
    """Run the storms on a private MariaDB that commits to disk, over its socket."""
    server = MariaDB(folder / "mariadb")
    server.install()
    server.start("--innodb-flush-log-at-trx-commit=1")
    try:
        url = server.url("cod").replace(f"127.0.0.1:{server.port}", "localhost")
        return measures("MariaDB", storm("--database", f"{url}?unix_socket={server.folder}/s.sock"))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
