"""A site that is restored from a backup: how soon a boot is answered again, and how soon all of its
machines have told what they hold.

The site is that of `cod lab storm`, with a real server, and its machines are protocols on real
sockets. They register; the site is backed up and restored, by the commands that an administrator
types, and its server started; then all are switched on within `OVER` seconds. Each boots and is
told to look at its disks, which are blank. At last the hold is ended.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from cod.lab.storm import report
from cod.lab.storm.site import StormSite, make_room
from tests.bench.arena import Measure, Smoke, write

MACHINES, OVER, PATIENCE = 5000, 100.0, 1200.0
SMOKE = Smoke(
    rows=("restore of", "boot of"),
    sizes={"MACHINES": 10, "OVER": 1.0},
    system=True,
)


def main() -> None:
    make_room(MACHINES, 1)
    with StormSite(f"restore{os.getpid()}", 1, 0.0, "") as site:
        [known] = site.storm(MACHINES, OVER, PATIENCE)
        unknown = report.summary([known], site.samples)
        backup = str(site.folder / "backup")
        site.cod("backup", backup)
        site.stop()
        begun = time.monotonic()
        site.cod("restore", backup, "--replace")
        restored = time.monotonic()
        site.serve()
        serving = time.monotonic()
        [told] = site.storm(MACHINES, OVER, PATIENCE)
        held = report.summary([told], site.samples)
        at_end = stories(site)
        ending = time.monotonic()
        site.cod("db", "hold", "--end")
        ended = time.monotonic()
        after = json.loads(site.cod("db", "reconcile", "--json"))
    if at_end != {"agrees": MACHINES} or after["held"] or after["nodes"]:
        raise RuntimeError(f"machines have told {at_end}, and afterwards {after['nodes'][:3]}")
    ends = [machine["ended"] for machine in told["machines"]]
    first = told["began"] + min(end["order"] for end in ends)
    all_told = told["began"] + max(end["work"] for end in ends)
    of = f"restore of {MACHINES:,} nodes"
    write(
        "restore",
        [
            Measure(f"{of}: `cod restore`", restored - begun, "s"),
            Measure(f"{of}: until the server is ready", serving - begun, "s"),
            Measure(f"{of}: until the first boot has its order", first - begun, "s", goal="< 60 s"),
            Measure(f"{of}: until all have told", all_told - begun, "s"),
            Measure(f"{of}: `cod db hold --end`", ended - ending, "s"),
            Measure("boot of a held node: server's CPU", 1000 * held["server"]["cpu"], "ms"),
            Measure("boot of an unknown node: server's CPU", 1000 * unknown["server"]["cpu"], "ms"),
        ],
    )


def stories(site: StormSite) -> dict[str, int]:
    """Return how many machines there are of each verdict, as the commands tell it."""
    hold = json.loads(site.cod("db", "hold", "--json"))
    nodes: list[dict[str, Any]] = json.loads(site.cod("db", "reconcile", "--json"))["nodes"]
    verdicts = [node["verdict"] for node in nodes]
    if not hold["held"] or len(hold["silent"]) != verdicts.count("silent"):
        raise RuntimeError(f"`cod db hold` tells {hold}, and `cod db reconcile` {verdicts[:9]}")
    return {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}
