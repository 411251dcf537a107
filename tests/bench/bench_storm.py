"""Machines that are all switched on within seconds: `cod lab storm`, on SQLite and on MariaDB.

Each machine is a protocol on real sockets, from an address of its own: DHCP through a relay as
firmware, iPXE and trampoline, boot script, a range of 64 KiB of kernel and of ramdisk, secret,
proof, report, orders. The first time the site does not know the machines, the second time it does,
the third time their disks are to be erased, which they say at once to be done.
MariaDB's own processor time is not in the server's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.arena import PLOTS, ROOT, Measure, Smoke, write
from tests.mariadb import MariaDB

MACHINES, OVER = 1000, 10.0
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
        whole, server = found["steps"]["power-on to first order"], found["server"]
        values = [
            ("machines lost", found["lost"], "machines"),
            ("all served after", found["seconds"], "s"),
            ("power-on to first order, p50", whole["p50"], "s"),
            ("power-on to first order, p99", whole["p99"], "s"),
            ("server's CPU a machine", 1000 * server["cpu"], "ms"),
            ("generator's CPU a machine", 1000 * found["generator_cpu"], "ms"),
            ("statements a machine", server["statements"], ""),
            ("commits a machine", server["commits"], ""),
        ]
        rows += [
            Measure(f"storm, {name}, {which}: {what}", round(value, 3), unit)
            for what, value, unit in values
        ]
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="cod-bench-storm-") as folder:
        PLOTS.mkdir(parents=True, exist_ok=True)
        found = measures("SQLite", storm("--svg", str(PLOTS / "storm.svg")))
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
