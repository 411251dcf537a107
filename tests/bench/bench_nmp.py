"""NMP over TLS on loopback: what 5,000 idle VCMs cost on one core, and messages a second with 1 and
with 1,000 of them.

The server is the product's, on SQLite, pinned to one core, its VCMs to another. The idle ones are
silent but for the pings of either side; the server looks twice a second for what it owes them, as
always. Questions: `ping` goes no further than the connection, `status` reads the database; `owed`
is a message of the outbox, sent, heard and acknowledged, so that its row is gone.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from sqlalchemy import insert, select

from cod.security.ca import Ca
from cod.store import tables as t
from cod.store import vcms
from cod.store.database import connect
from tests.bench.arena import ROOT, ROUNDS, Measure, Smoke, python, write

VCMS, PORT, ADDRESS = 5000, 18071, "127.0.0.1"
SETTLED, IDLE = 5.0, 60.0  # seconds
ASKING = (1, 1000)  # connections at once
TOTALS = {"ping": 20_000, "status": 4_000, "owed": 4_000}
SMOKE = Smoke(
    rows=("NMP: ",),
    sizes={
        "VCMS": 5,
        "SETTLED": 0.1,
        "IDLE": 0.5,
        "ASKING": (1, 5),
        "TOTALS": {"ping": 20, "status": 10, "owed": 10},
    },
)


def populate(url: str, serial: str) -> None:
    """Make as many vclusters, each with its VCM; all have the same certificate."""
    engine = connect(url)
    t.metadata.create_all(engine)
    with engine.begin() as tx:
        tx.execute(insert(t.groups).values(id=1, name="site", priority=10, created_at=0.0))
        tx.execute(
            insert(t.config_templates).values(
                id=1, name="t", revision=1, document="<template/>", digest="0" * 64, created_at=0.0
            )
        )
        tx.execute(
            insert(t.vclusters),
            [
                {
                    "id": n + 1,
                    "name": f"v{n}",
                    "live_name": f"v{n}",
                    "group_id": 1,
                    "state": "active",
                    "template_id": 1,
                    "size": 1,
                    "creation_size": 1,
                    "attributes": "",
                    "lease_time": 60.0,
                    "created_at": 0.0,
                }
                for n in range(VCMS)
            ],
        )
        tx.execute(
            insert(t.vcms),
            [{"vcluster_id": n + 1, "serial": serial, "enrolled_at": 0.0} for n in range(VCMS)],
        )
    engine.dispose()


def owe(url: str, count: int, total: int) -> None:
    """Put messages into the outboxes of the first `count` VCMs."""
    engine = connect(url)
    with engine.begin() as tx:
        for n in range(count):
            for _ in range(total // count):
                vcms.enqueue(tx, n + 1, "lease", {"event": "warning", "expires": 1.0}, 0.0)
    engine.dispose()


def unheard(url: str) -> int:
    """Rows left in all outboxes."""
    engine = connect(url)
    with engine.begin() as tx:
        left = len(tx.execute(select(t.outbox.c.sequence)).all())
    engine.dispose()
    return left


class Process:
    """One of the two, pinned to a core; asked by a line, answers by a line."""

    def __init__(self, core: int, *command: str) -> None:
        self._process: subprocess.Popen[str] = subprocess.Popen(
            ["taskset", "-c", str(core), *command],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()

    def hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"ended: {self._process.args!r}")
        return line

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self.hear()

    def figures(self) -> dict[str, float]:
        said: dict[str, float] = json.loads(self.ask("how are you"))
        return said


def idle(server: Process, before: dict[str, float], opened: float) -> list[Measure]:
    """Memory of each, and the share of a core that all of them take."""
    time.sleep(SETTLED)
    first = server.figures()
    time.sleep(IDLE)
    last = server.figures()
    if last["open"] != VCMS:
        raise RuntimeError(f"{last['open']} are left")
    return [
        Measure(
            "NMP: memory of an idle connection",
            round((last["resident"] - before["resident"]) / VCMS / 1000, 1),
            "kB",
        ),
        Measure(
            "NMP: 5,000 idle connections, share of one core",
            round(100 * (last["cpu"] - first["cpu"]) / (last["now"] - first["now"]), 2),
            "%",
            goal="< 10 %",
        ),
        Measure("NMP: connections opened, TLS and hello", round(VCMS / opened), "/s"),
    ]


def rates(crowd: Process, url: str, rounds: int) -> list[Measure]:
    """Questions and owed messages a second."""
    measures = []
    for verb, total in TOTALS.items():
        for count in ASKING:
            found = []
            for _ in range(rounds):
                if verb == "owed":
                    owe(url, count, total)
                found.append(total / float(crowd.ask(f"{verb} {count} {total}")))
                while verb == "owed" and unheard(url):
                    time.sleep(0.1)
            measures.append(
                Measure(
                    f"NMP: {verb}, {count:,} connection{'s' * (count > 1)}",
                    round(statistics.median(found)),
                    "/s",
                    rounds=[round(one) for one in found],
                )
            )
            print(measures[-1], flush=True)
    return measures


def main(rounds: int = ROUNDS) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="cod-bench-nmp-") as name:
        folder, url = Path(name), f"sqlite:///{name}/cod.db"
        ca = Ca(folder / "ca", "bench")
        issued = ca.vcm("bench", datetime.now(UTC))
        for file, content in (
            ("c.crt", issued.certificate),
            ("c.key", issued.key),
            ("ca.crt", ca.certificate),
        ):
            (folder / file).write_bytes(content)
        populate(url, issued.serial)
        place = ["--address", ADDRESS, "--port", PORT]
        with Process(
            0, *python("tests.nmp_service", "--url", url, "--ca", folder / "ca", *place)
        ) as server:
            server.hear()
            before = server.figures()
            with Process(
                1, *python("tests.bench.nmp_crowd", "--count", VCMS, "--folder", folder, *place)
            ) as crowd:
                opened = float(crowd.hear().split()[1])
                measures = idle(server, before, opened)
                measures += rates(crowd, url, rounds)
        write("nmp", measures)


if __name__ == "__main__":
    main()
