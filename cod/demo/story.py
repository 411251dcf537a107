"""The demo's story: three machines are powered on, two become a vcluster, one of those moves on to
another.

    python -m cod.demo.story [--out build/demo]

Writes OUT/report.json: nodes (name, firmware, states: [{state, at}], bytes_written, mb_per_second),
vclusters (name, members), total_seconds. Exit status 0 only if every step was seen to be true, on
the machines themselves.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from cod import data
from cod.client import ApiError, Client, Unreachable
from cod.demo.stage import LAB, MACHINES, Stage, StageError
from cod.demo.timeline import Timeline
from cod.lab import control, network, record

IMAGES = ("hello-a", "hello-b")
VLANS = (2001, 2002)
TRIES = 3
BOOT_LIMIT, PRIME_LIMIT = 600.0, 900.0  # seconds; emulated machines on a busy host are slow


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cod.demo.story", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    out = parser.parse_args(arguments).out.resolve()
    console = Console(highlight=False)
    begin = time.time()
    try:
        with Stage(out, switch="ovs", vlans=VLANS) as stage:
            timeline = Timeline(
                stage.client, {mac: node["name"] for mac, node in stage.machines.items()}, console
            )
            timeline.start()
            try:
                members = Story(stage, timeline).play()
            finally:
                timeline.stop()
            report = written_report(stage, timeline, members, time.time() - begin)
    except (StageError, Unreachable, ApiError) as error:
        console.print(f"The demo failed: {error}", style="bold red")
        console.print(f"Look into {out}: server.log, and console/ for what the machines said.")
        return 1
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    console.print(
        f"\nAll of it happened, in {report['total_seconds']:.0f} s. Report: {out / 'report.json'}",
        style="bold green",
    )
    return 0


class Story:
    """The steps of the story. Each waits until its effect is seen."""

    def __init__(self, stage: Stage, timeline: Timeline) -> None:
        self._stage, self._timeline = stage, timeline
        self._api: Client = stage.client()

    def play(self) -> list[dict[str, Any]]:
        """Take all steps; return the vclusters with their members."""
        say = self._timeline.say
        say("The server runs. Its API, from another terminal:")
        say(f"  cod --site {self._stage.site_file} node list --watch", "")
        say(f"  curl --unix-socket {self._stage.socket} http://localhost/api/v1/nodes", "")
        say("Images are taken in and cut into chunks")
        for name in IMAGES:
            image = data.path(f"build/images/{name}.img")
            self._stage.cod("image", "add", name, str(image), "--wait")
            self._stage.cod("template", "add", str(data.path(f"images/{name}.xml")))
        say(
            f"Somebody presses {len(MACHINES)} power buttons: "
            + ", ".join(f"{m.name} ({m.firmware.upper()}, {m.nics[0].model})" for m in MACHINES)
        )
        for machine in MACHINES:
            control.power(LAB, machine.name, "on")
        self._wait(
            "all machines idle in the warm reserve",
            BOOT_LIMIT,
            lambda: (
                [node["state"] for node in self._api.every("/nodes")].count("inactive")
                == len(MACHINES)
            ),
        )
        first = self._vcluster("web", 2, "hello-a")
        moved = self._release_one("web", first)
        second = self._vcluster("lab", 2, "hello-b")
        if moved not in [node["name"] for node in second]:
            raise StageError(f"lab did not get {moved}")
        self._check_apart("web", "lab", second[0])
        return [
            self._members("web", [member for member in first if member["name"] != moved]),
            self._members("lab", second),
        ]

    def _vcluster(self, name: str, size: int, template: str) -> list[Any]:
        self._timeline.say(
            f"An isolated vcluster {name!r} of {size} nodes with template {template}"
        )
        words = ["--size", str(size), "--template", template, "--spread", "--isolated"]
        self._stage.cod("vcluster", "create", name, *words)
        self._wait(
            f"{name} has {size} active nodes",
            PRIME_LIMIT,
            lambda: [node["state"] for node in self._nodes(name)] == ["active"] * size,
        )
        own = self._api.get(f"/vclusters/{name}")["network"]
        self._timeline.say(f"{name} is in VLAN {own['vlan']}, subnet {own['subnet']}")
        found = self._nodes(name)
        for node in found:
            self._check_page(node, template)
        return found

    def _check_page(self, node: Any, template: str) -> None:
        """Check that the node's own page, fetched over HTTP at the node's address, names the
        node."""
        page = ""

        def answers() -> bool:
            nonlocal page
            page = self._stage.inside(
                ["busybox", "wget", "-q", "-O", "-", f"http://{node['address']}/identity.json"], 10
            )
            return bool(page)

        self._wait(f"{node['hostname']} serves its page", 120, answers)
        content = json.loads(page)
        wanted = {"hostname": node["hostname"], "address": node["address"], "image": template}
        if {key: content.get(key) for key in wanted} != wanted:
            raise StageError(
                f"the page of {node['hostname']} should say {wanted}, it says {content}"
            )
        self._timeline.say(
            f"http://{node['address']}/ says: I am {content['hostname']}.{content['domain']} at"
            f" {content['address']}, image {content['image']} ({content['digest'][:12]}…),"
            f" booted by {content['firmware']}",
            "green",
        )

    def _check_apart(self, one: str, other: str, node: Any) -> None:
        """Check that a probe in the VLAN of `one` does not reach `node`, which belongs to `other`,
        and that a probe in the VLAN of `other` does."""
        namespace = record.namespace(LAB)
        probe = f"{namespace}.probe"
        network.plug(namespace, probe, "probe", "52:54:00:99:00:01")
        try:
            for name, answered in ((one, False), (other, True)):
                vlan = self._api.get(f"/vclusters/{name}")["network"]["vlan"]
                network.switch_of(namespace).vsctl("set", "port", "probe", f"tag={vlan}")
                done = subprocess.run(
                    network.inside(
                        probe,
                        ["busybox", "arping", "-c", str(TRIES), "-I", "eth0", node["address"]],
                    ),
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                received = re.search(r"Received (\d+) re", done.stdout)
                if received is None or (int(received[1]) > 0) != answered:
                    raise StageError(
                        f"{node['hostname']}.{other} should {'' if answered else 'not '}be reached"
                        f" from VLAN {vlan}: {done.stdout or done.stderr}"
                    )
            self._timeline.say(
                f"From {one}'s VLAN nobody answers at {node['address']}, from {other}'s "
                f"{node['hostname']} does",
                "green",
            )
        finally:
            network.unplug(probe)

    def _release_one(self, name: str, members: list[Any]) -> str:
        leaving = members[-1]
        machine = self._stage.machines[leaving["boot_mac"]]["name"]
        self._timeline.say(f"{name} releases {leaving['hostname']} ({machine})")
        disks = self._stage.disks(machine)
        if not any(map(allocated, disks)):
            raise StageError(
                f"{machine} had nothing on its disks before the release: the wipe would prove"
                " nothing"
            )
        self._stage.cod("vcluster", "release", name, leaving["hostname"])
        self._wait(
            "the released node is wiped and back in the reserve",
            BOOT_LIMIT,
            lambda: self._api.get(f"/nodes/{leaving['name']}")["state"] == "inactive",
        )
        left = [disk for disk in disks if not is_zero(disk)]
        if left:
            raise StageError(f"{left[0]} is not empty after the wipe")
        self._timeline.say(f"Every byte of {machine}'s disks reads back as zero", "green")
        return str(leaving["name"])

    def _members(self, name: str, found: list[Any]) -> dict[str, Any]:
        return {
            "name": name,
            "members": [
                {
                    "node": self._stage.machines[node["boot_mac"]]["name"],
                    "hostname": node["hostname"],
                    "address": node["address"],
                    "template": node["template"],
                }
                for node in found
            ],
        }

    def _nodes(self, vcluster: str) -> list[Any]:
        return list(self._api.get(f"/vclusters/{vcluster}")["nodes"])

    def _wait(self, what: str, seconds: float, true: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while not true():
            if time.monotonic() > until:
                raise StageError(f"not within {seconds:.0f} s: {what}")
            bad = [node for node in self._api.every("/nodes") if node["state"] == "quarantined"]
            if bad:
                raise StageError(f"{bad[0]['name']} is quarantined: {bad[0]['reason']}")
            if self._timeline.failure:
                raise StageError(self._timeline.failure)
            time.sleep(0.5)


def allocated(path: Path) -> bool:
    """Return whether the (sparse) file holds any data."""
    return path.stat().st_blocks > 0


def is_zero(path: Path) -> bool:
    """Return whether every byte of the file reads back as zero."""
    zero = bytes(1 << 20)
    with open(path, "rb") as file:
        return all(block == zero[: len(block)] for block in iter(lambda: file.read(1 << 20), b""))


def written_report(
    stage: Stage, timeline: Timeline, vclusters: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    nodes = []
    for machine in stage.machines.values():
        name = machine["name"]
        primes = [row for row in timeline.written[name] if row["state"] == "prime"]
        nodes.append(
            {
                "name": name,
                "firmware": machine["firmware"],
                "states": timeline.states[name],
                "bytes_written": sum(int(row["bytes"]) for row in primes),
                "mb_per_second": round(
                    max((row["mb_per_second"] for row in primes), default=0.0), 1
                ),
            }
        )
    return {"nodes": nodes, "vclusters": vclusters, "total_seconds": round(seconds, 1)}


if __name__ == "__main__":
    sys.exit(main())
