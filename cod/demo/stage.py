"""The demo's stage: a lab of virtual machines and a COD server in the lab's network namespace.

Tests and benchmarks on whole machines use the same stage, with machines of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cod import data
from cod.client import ApiError, Client, Unreachable
from cod.lab import cleaner, control, network, record
from cod.lab.spec import LabDisk, LabNetwork, LabNic, LabNode, LabSpec, completed

LAB = "demo"
MACHINES = (
    LabNode("bios1", "bios", disks=(LabDisk(2 << 30, "virtio"),)),
    LabNode(
        "bios2",
        "bios",
        nics=(LabNic("e1000"),),
        disks=(LabDisk(2 << 30, "virtio"), LabDisk(2 << 30, "ahci")),
    ),
    LabNode("uefi1", "uefi", memory=768, disks=(LabDisk(2 << 30, "virtio"),)),
)
SITE = """\
# The demo's site. A real one is written by `cod init`, every key explained.
name = "demo"
domain = "cod.demo"

[server]
data_dir = "{data}"

[console]
record = true    # costs nothing where consoles are files

[policy]
auto_approve = true    # a demo has no administrator to ask
patience = {patience}    # emulated processors are slow
{policy}
[[subnet]]
name = "lab"
network = "10.77.0.0/16"
server = "10.77.0.1"
router = "10.77.0.1"
interface = "br0"
boot_pool = ["10.77.1.0", "10.77.4.255"]
block_pool = ["10.77.128.0", "10.77.255.254"]

[[power]]
driver = "lab"
address = "{switches}#{{mac}}"
"""


SWITCH = """
[[switch]]
name = "{name}"
driver = "ovs"
address = "{address}"
"""


ISOLATION = """
[isolation]
vlans = [{first}, {last}]
networks = "10.80.0.0/16"
default_size = 28
interface = "trunk"
"""


class StageError(Exception):
    """An error that keeps the stage from being set up; the sentence says why and where to look."""


class Stage:
    """A lab and a server while the demo runs. Both are taken down at the end, whatever happened.

    folder    the folder for the site's file, data and log; an existing one is removed first
    machines  the machines of the lab; `lab`: its name
    networks  further networks of the lab; `switch`: what they are made of, see `LabSpec`
    vlans     first and last VLAN for isolated vclusters, with interfaces of the server in them;
              None: none
    snapshots  the folder of snapshots that new machines begin with (`cod.lab.snapshots`); the
               machines then have the same MACs, UUIDs and serial numbers, whatever the lab's name
               is. None: every machine boots
    patience  the factor by which the site's deadlines are multiplied; `policy`: further lines of
              its [policy], and tables
    """

    def __init__(
        self,
        folder: Path,
        machines: Sequence[LabNode] = MACHINES,
        lab: str = LAB,
        patience: float = 3.0,
        policy: str = "",
        networks: Sequence[LabNetwork] = (),
        switch: str = "bridge",
        vlans: tuple[int, int] | None = None,
        snapshots: Path | None = None,
    ) -> None:
        self.folder, self.lab, self.patience, self.policy = folder, lab, patience, policy
        self._specs, self._networks, self._switch = tuple(machines), tuple(networks), switch
        self._vlans, self._snapshots = vlans, snapshots
        if snapshots is not None:
            self._specs = completed(LabSpec(LAB, self._specs, networks=self._networks)).nodes
        self.site_file = folder / "site.toml"
        self.socket = folder / "data" / "run" / "api.sock"
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Stage:
        control.down(self.lab)  # the rest of an earlier lab whose cleaner was killed, too
        self._cleaner = cleaner.start(self.lab)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        try:
            lab = LabSpec(self.lab, self._specs, networks=self._networks, switch=self._switch)
            status = control.up(replace(lab, snapshots=str(self._snapshots or "")))
            self.machines = {mac: node for node in status["nodes"] for mac in node["macs"]}
            self.found(str(status["socket"]), status["switch_address"])
            self.serve()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def found(self, switches: str, address: str) -> None:
        """Make the site. `switches`: the socket of the machines' power switches; `address`: the
        address of the lab's managed switch, or ''."""
        site = SITE.format(
            data=self.folder / "data",
            switches=switches,
            patience=self.patience,
            policy=self.policy,
        )
        if address:
            site += SWITCH.format(name=f"{self.lab}-switch", address=address)
        if self._vlans is not None:
            first, last = self._vlans
            site += ISOLATION.format(first=first, last=last)
            # the server would make them itself if this kernel supported VLAN interfaces
            for vlan in range(first, last + 1):
                network.add_interface(
                    record.namespace(self.lab), f"trunk.{vlan}", vlan, "192.0.2.1/32"
                )
        self.site_file.write_text(site)
        self._cod("init", "--dir", str(self.folder / "data"))
        self.take_the_labs_trampoline()

    def take_the_labs_trampoline(self) -> None:
        """Make machines load the small trampoline, which has only the lab's drivers."""
        built = data.path("build/trampoline/lab")
        for name in ("vmlinuz", "ramdisk", "facts.json"):
            shutil.copy(built / name, self.folder / "data/boot/trampoline" / name)

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            consoles = self.folder / "console"
            shutil.copytree(
                control.console(self.lab, self._specs[0].name).parent, consoles, dirs_exist_ok=True
            )
        if self._server is not None and self._server.poll() is None:
            self._server.terminate()
            try:
                self._server.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()
        control.down(self.lab)
        self._cleaner.communicate(timeout=60)

    def command(self, *words: str) -> list[str]:
        """Return the argument vector that runs a command of `cod` on the server."""
        return [sys.executable, "-m", "cod", "--site", str(self.site_file), *words]

    def client(self) -> Client:
        return Client(str(self.socket))

    def cod(self, *words: str) -> Any:
        """Run a command of `cod` as a person would; return its JSON. Raises StageError."""
        return json.loads(self._cod(*words, "--json"))

    def _cod(self, *words: str) -> str:
        done = subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise StageError(f"cod {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def inside(self, argv: Sequence[str], timeout: float) -> str:
        """Run `argv` in the lab's network, and return its output; '' if it fails or takes too
        long."""
        process = control.run_inside(
            self.lab, list(argv), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return ""
        return bytes(out).decode(errors="replace") if process.returncode == 0 else ""

    def disk(self, name: str, position: int = 0) -> Path:
        """Return the file that is the disk of machine `name` at `position` in its spec."""
        return self.disks(name)[position]

    def disks(self, name: str) -> list[Path]:
        """Return the files that are the disks of machine `name`, in its spec's order."""
        machine = next(node for node in self.machines.values() if node["name"] == name)
        return [Path(disk["file"]) for disk in machine["disks"]]

    def kill(self) -> None:
        """Kill the server, all its processes at once; return when they are gone."""
        if self._server is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()
            # its parts are not our children: they end when their group does
            until = time.monotonic() + 60
            while time.monotonic() < until:
                os.killpg(self._server.pid, 0)
                time.sleep(0.02)

    def serve(self) -> None:
        """Start the server; return when its API answers. Raises StageError."""
        with open(self.folder / "server.log", "ab") as log:
            self._server = control.run_inside(
                self.lab,
                self.command("serve"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + 120
        while True:
            try:
                with self.client() as client:
                    client.get("/health")
                    return
            except (Unreachable, ApiError):
                if self._server.poll() is not None or time.monotonic() > until:
                    raise StageError(
                        f"the server does not answer; see {self.folder / 'server.log'}"
                    ) from None
            time.sleep(0.1)
