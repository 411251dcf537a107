"""The site of a chaos run: one or two hosts, each in a network namespace with a data folder on a
small tmpfs and a clock of its own, a database that they reach by links that can be cut, and the
machines of `cod lab agents`."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from cod.client import ApiError, Client, Unreachable
from cod.core.database.writer import connect
from cod.lab import agents, control, network, record
from cod.lab.agents import Agent
from cod.lab.servers.hosts import LabServer, found
from cod.lab.spec import LabSpec
from cod.pool import in_transaction
from cod.store.engine import Tx
from cod.store.nodes import nodes
from tests.chaos.databases import ChaosDatabase
from tests.system.site_images import make_image
from tests.waiting import until

TEMPLATES = ("red", "blue")
_numbers = itertools.count()
IMAGE, DISK, ROOM = 4 << 20, 8 << 20, 2 << 30  # bytes; a server leaves 1 GiB to others
RELAY = "10.77.0.1"  # the address of the lab's bridge, by which the prober asks
PROBER = "52:54:02:00:00:01"  # a machine of the site's inventory that is never switched on
POLICY = "patience = 0.3\nheartbeat = 1.0"


class ChaosServer(LabServer):
    """One host. `links`: the processes through which it reaches the database's nodes."""

    def __init__(self, site: ChaosSite, number: int) -> None:
        super().__init__(site.lab, number)
        self.site = site
        self.links: list[subprocess.Popen[bytes]] = []
        self._clock = site.folder / f"{self.name}.clock"
        self.step_clock(0.0)
        clock = (f"LD_PRELOAD={site.clocks}", f"CHAOS_CLOCK={self._clock}")
        self.wrapper = ("env", *(clock if site.clocks else ()))
        self.environment = site.environment

    def plug(self) -> None:
        """Make the host, mount its data folder, and connect it to the database."""
        super().plug()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "chaos", str(self.data)]
        subprocess.run(mount, check=True)
        for node in self.site.database.nodes:
            ways = f"TCP-LISTEN:{node.port},bind=127.0.0.1,fork,reuseaddr"
            ways_to = ["socat", ways, f"UNIX-CONNECT:{node.folder}/s.sock"]
            self.links.append(
                subprocess.Popen(
                    network.inside(self.namespace, ways_to),
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def kill(self) -> None:
        """kill -9 of every process of the server at once."""
        if self.running is not None:
            self.signal(signal.SIGKILL)
            self.running.wait()
            self.running = None

    def signal(self, number: signal.Signals) -> None:
        """Signal every process of the server."""
        if self.running is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.running.pid, number)

    def parts(self) -> dict[str, int]:
        """Return the processes of the parts by name; those that have just ended are missing."""
        found: dict[str, int] = {}
        if self.running is None:
            return found
        for pid in children(self.running.pid):
            with suppress(OSError):
                program, _, part = Path(f"/proc/{pid}/comm").read_text().strip().partition("-")
                if part and program == "cod":
                    found[part] = pid
        return found

    def step_clock(self, seconds: float) -> None:
        """Set the host's clock ahead of the true time, or behind it."""
        self._clock.touch()
        with self._clock.open("r+b") as file:  # all processes of the server have it in memory
            file.write(struct.pack("d", seconds))

    def plug_in(self, connected: bool) -> None:
        """Put the host on the machines' network, or take it off; its interface stays up."""
        words = ["master", network.BRIDGE] if connected else ["nomaster"]
        port = ["ip", "-n", self.site.namespace, "link", "set", f"v{self.name}"]
        subprocess.run([*port, *words], check=True)

    def fill(self) -> None:
        """Leave no room in the data folder's file system."""
        there = os.statvfs(self.data)
        self._resize((there.f_blocks - there.f_bfree) * there.f_frsize)

    def free(self) -> None:
        """Undo `fill`."""
        self._resize(ROOM)

    def _resize(self, size: int) -> None:
        command = ["mount", "-o", f"remount,size={size}", str(self.data)]
        subprocess.run(command, check=True)

    def client(self) -> Client:
        """Return a client of the host's API that waits 10 s for an answer."""
        return Client(str(self.socket), timeout=10)

    def close(self) -> None:
        """End all that runs here."""
        self.kill()
        for link in self.links:
            with suppress(ProcessLookupError):
                os.killpg(link.pid, signal.SIGKILL)
            link.wait()
        subprocess.run(["umount", "-l", str(self.data)], check=False, capture_output=True)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, and that run."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class ChaosSite:
    """See the module. `environment`: of the servers, beside the run's own. `clocks`: the library
    that gives each host a clock; None where there is no compiler. `manager`: the server that has
    the manager's claim, as was seen last."""

    def __init__(self, folder: Path, database: str, environment: Mapping[str, str]) -> None:
        self.folder, self.lab = folder, f"chaos{os.getpid()}x{next(_numbers)}"
        self.environment = dict(environment)
        self.namespace = record.namespace(self.lab)
        self.database = ChaosDatabase(folder, database)
        self.clocks = _library(folder)
        self.manager = ""
        self.servers: list[ChaosServer] = []
        self.machines: Mapping[str, Agent] = {}

    def begin(self, hosts: int, machines: Mapping[str, Agent]) -> None:
        """Make the servers and the database, start all, and add the templates."""
        self.machines = machines
        self.servers += (ChaosServer(self, number) for number in range(1, hosts + 1))
        for server in self.servers:
            server.plug()
        found(self.servers, self.database.url, POLICY)
        engine = connect(self.database.url)
        in_transaction(engine, self._enter)
        engine.dispose()
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait()
        for machine in machines.values():
            machine.on()
        for name in TEMPLATES:
            image = make_image(self.folder, name, IMAGE)
            self.servers[0].cod("image", "add", name, str(image), "--wait")
            template = self.folder / f"{name}.xml"
            template.write_text(
                f'<template name="{name}"><image target="disk" name="{name}"/></template>'
            )
            self.servers[0].cod("template", "add", str(template))
        until(self.is_idle, self.servers[0].log.read_text, 300, every=0.5)

    def _enter(self, tx: Tx) -> None:
        switches = record.folder(self.lab) / agents.SOCKET
        known: dict[str, Any] = {"now": time.time(), "cause": "inventory", "actor": "chaos"}
        for name, machine in self.machines.items():
            power = {"power_driver": "lab", "power_address": f"{switches}#{name}"}
            nodes.add(tx, name=name, boot_mac=machine.mac, **power, **known)
        nodes.add(tx, name="prober", boot_mac=PROBER, **known)

    def is_idle(self) -> bool:
        """Return whether all machines are free, as any server says that answers."""
        for server in self.servers:
            with suppress(Unreachable, ApiError), server.client() as client:
                states = {node["name"]: node["state"] for node in client.items("/nodes")}
                return all(states.get(name) == "inactive" for name in self.machines)
        return False

    def close(self) -> None:
        """End all that runs here."""
        for server in self.servers:
            server.close()
        self.database.close()


def _library(folder: Path) -> Path | None:
    source, built = Path(__file__).with_name("clock.c"), folder / "clock.so"
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", built, source], check=True)
    return built


@contextmanager
def running(
    *,
    hosts: int,
    machines: int,
    database: str,
    environment: Mapping[str, str] = MappingProxyType({}),
    disk: int = DISK,
) -> Iterator[ChaosSite]:
    """Run a site until the block is left. `environment`: of the servers, beside the run's own;
    `disk`: bytes of each machine's."""
    with ExitStack() as ending:
        prefix = f"codc{os.getpid()}x"
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
        labs = {"COD_LAB_ROOT": f"{folder}/labs"}
        ending.enter_context(patch.dict(os.environ, labs))
        site = ChaosSite(folder, database, environment)
        control.up(LabSpec(site.lab, ()))
        ending.callback(control.down, site.lab)
        ending.callback(site.close)
        made = ending.enter_context(agents.running(site.lab, machines, disk, on=False))
        site.begin(hosts, {machine.name: machine for machine in made})
        yield site
