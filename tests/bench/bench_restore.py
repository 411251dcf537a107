"""A site that is restored from a backup: how soon a boot is answered again, and how soon all of its
machines have told what they hold.

The site is that of `cod lab storm`, with a real server, and its machines are protocols on real
sockets. It has `NODES` free nodes when it is backed up and restored, by the commands that an
administrator types, and its server started; then `MACHINES` of them are switched on within `OVER`
seconds (`--machines`: how many). Each boots and is told to look at its disks, which are blank. At
last the hold is ended.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from typing import Any

from cod.lab.storm import report
from cod.lab.storm.machine import FIRST_MAC
from cod.lab.storm.site import StormSite, make_room
from cod.states import Disk, NodeState
from cod.store.database import connect
from cod.store.nodes import nodes
from tests.bench.arena import Measure, Smoke, write

NODES = MACHINES = 5000
OVER, PATIENCE = 100.0, 1200.0
SMOKE = Smoke(
    rows=("restore of", "switched on", "boot of a held node"),
    sizes={"NODES": 50, "MACHINES": 10, "OVER": 1.0},
    system=True,
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--machines", type=int, default=MACHINES, help="that are switched on")
    machines = parser.parse_args().machines
    make_room(machines, 1)
    with StormSite(f"restore{os.getpid()}", 1, 0.0, "") as site:
        site.stop()
        register(f"sqlite:///{site.folder}/data/cod.db")
        backup = str(site.folder / "backup")
        site.cod("backup", backup)
        begun, used = time.monotonic(), commands_cpu()
        site.cod("restore", backup, "--replace")
        restored, used = time.monotonic(), commands_cpu() - used
        site.serve()
        serving, server = time.monotonic(), sum(part.cpu for part in site.figures().values())
        [told] = site.storm(machines, OVER, PATIENCE)
        held = report.summary([told], site.samples)
        at_end = stories(site)
        ending = time.monotonic()
        site.cod("db", "hold", "--end")
        ended = time.monotonic()
        after = json.loads(site.cod("db", "reconcile", "--json"))
    wanted = {"agrees": machines, "silent": NODES - machines}
    if at_end != wanted or after["held"] or len(after["nodes"]) != wanted["silent"]:
        raise RuntimeError(f"machines have told {at_end}, and afterwards {after['nodes'][:3]}")
    ends = [machine["ended"] for machine in told["machines"]]
    first = told["began"] + min(end["order"] for end in ends)
    all_told = told["began"] + max(end["work"] for end in ends)
    of = f"restore of {NODES:,} nodes"
    write(
        "restore",
        [
            Measure(f"{of}: `cod restore`", restored - begun, "s"),
            Measure(f"{of}: `cod restore`, CPU", used, "s"),
            Measure(f"{of}: until the server is ready", serving - begun, "s"),
            Measure(f"{of}: the parts' CPU until then", server, "s"),
            Measure(f"{of}: until the first boot has its order", first - begun, "s", goal="< 60 s"),
            Measure("switched on, until the first boot has its order", first - told["began"], "s"),
            Measure(f"{of}: until {machines:,} have told", all_told - begun, "s"),
            Measure(f"{of}: `cod db hold --end`", ended - ending, "s"),
            Measure("boot of a held node: server's CPU", 1000 * held["server"]["cpu"], "ms"),
        ],
    )


def commands_cpu() -> float:
    """Return the CPU seconds of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def register(url: str) -> None:
    """Write the nodes, as free ones."""
    known = {"state": NodeState.INACTIVE, "disk": Disk.CLEAN, "reported_at": 1.0}
    macs = ((FIRST_MAC + number).to_bytes(6, "big").hex(":") for number in range(NODES))
    rows = [({"name": f"n{n}", "boot_mac": mac, **known}, "test") for n, mac in enumerate(macs)]
    engine = connect(url)
    with engine.begin() as tx:
        nodes.add_all(tx, rows, now=1.0, actor="test")
    engine.dispose()


def stories(site: StormSite) -> dict[str, int]:
    """Return how many machines there are of each verdict, as the commands tell it."""
    hold = json.loads(site.cod("db", "hold", "--json"))
    held: list[dict[str, Any]] = json.loads(site.cod("db", "reconcile", "--json"))["nodes"]
    verdicts = [node["verdict"] for node in held]
    if not hold["held"] or len(hold["silent"]) != verdicts.count("silent"):
        raise RuntimeError(f"`cod db hold` tells {hold}, and `cod db reconcile` {verdicts[:9]}")
    return {verdict: verdicts.count(verdict) for verdict in ("agrees", "silent")}


if __name__ == "__main__":
    main()
