"""The site of a storm: a lab without machines, a fresh site in it, and that site's server.

The machines are in namespaces of their own, one for each process and network, behind a relay. The
site registers machines as fast as its settings allow, and approves them.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from cod.lab import cleaner, control, network, program, record
from cod.lab.spec import LabSpec, completed
from cod.lab.storm import counted, disks
from cod.model import Refused, Subnet

SERVER = "10.77.0.1"
FIRST_NETWORK = 80  # machines are in 10.80.0.0/16, 10.81.0.0/16 ...
PARTS = ("edge", "images", "manager", "web")
START_SECONDS = 120.0
STOP_SECONDS = 30.0
FILES = {"vmlinuz": 8 << 20, "ramdisk": 7 << 20}  # bytes of what stands for the trampoline
SAMPLE = 1.0  # seconds between two looks at what the server has used
MOST = 25_000  # machines of a process: its network's block pool, in clusters' blocks
OTHERS = 500  # descriptors of a process besides one for each machine
SITE = """\
name = "storm"
domain = "cod.storm"

[server]
data_dir = "{data}"
{database}
[policy]
auto_approve = true
new_rate = 1000.0
new_burst = 100000
new_machines = 1000000
approved_share = 0.0
"""
SUBNET = """
[[subnet]]
name = "{subnet.name}"
network = "{subnet.network}"
server = "{subnet.server}"
router = "{router}"
relay = "{router}"
boot_pool = ["{subnet.boot_pool[0]}", "{subnet.boot_pool[1]}"]
block_pool = ["{subnet.block_pool[0]}", "{subnet.block_pool[1]}"]
"""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class PartFigures:
    """Resources that a part of the server has used so far: CPU seconds, peak memory in bytes, open
    descriptors, statements, commits."""

    cpu: float = 0.0
    memory: int = 0
    descriptors: int = 0
    statements: int = 0
    commits: int = 0


# (time by the monotonic clock, figures of each part up to then)
Sample = tuple[float, Mapping[str, PartFigures]]


class StormSite:
    """The lab, the site and its server, as long as the block lasts.

    loss      per cent of the packets that are lost in either direction
    database  the URL of an empty one; empty: SQLite
    samples   of the last storm, from its beginning to its end
    """

    def __init__(self, lab: str, processes: int, loss: float, database: str) -> None:
        self.lab, self.processes = lab, processes
        self._loss, self._database = loss, database
        self.samples: list[Sample] = []
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> StormSite:
        control.up(completed(LabSpec(self.lab, (), f"{SERVER}/16")))
        self._cleaner = cleaner.start(self.lab)
        self.folder = Path(tempfile.mkdtemp(prefix=f"cod-{os.getpid()}-"))
        try:
            namespace = record.namespace(self.lab)
            for number in range(self.processes):
                made, mac = self._namespace(number), f"52:54:03:00:00:{number:02x}"
                network.plug(namespace, made, f"vs{number}", mac)
                far = f"10.{FIRST_NETWORK + number}.0.0/16"
                network.stand_for(made, self.lab, f"10.77.0.{2 + number}/16", far)
                if self._loss:
                    network.lose(made, "eth0", self._loss)
            if self._loss:
                network.lose(namespace, network.BRIDGE, self._loss)
            self._make_site()
            self.serve()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        control.down(self.lab)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._cleaner.communicate(timeout=STOP_SECONDS)

    def storm(
        self,
        machines: int,
        over: float,
        patience: float,
        *,
        linger: float = 0.0,
        whole: bool = False,
    ) -> list[dict[str, Any]]:
        """Switch on `machines` machines within `over` seconds; return each process's output once
        all machines are idle, or after `patience` more seconds.

        linger  seconds for which the machines then wait, connected
        whole   the machines fetch whole files
        """
        self.samples = [(time.monotonic(), self.figures())]
        running = []
        for number in range(self.processes):
            first = machines * number // self.processes
            words = {
                "server": SERVER,
                "relay": _relay(number),
                "first": first,
                "machines": machines * (number + 1) // self.processes - first,
                "over": over,
                "patience": patience,
                "linger": linger,
            }
            options = [part for key, value in words.items() for part in (f"--{key}", str(value))]
            options += ["--whole"] * whole
            command = [sys.executable, "-m", "cod.lab.storm.process", *options]
            running.append(
                subprocess.Popen(
                    network.inside(self._namespace(number), command),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=program.environment(),
                )
            )
        ended = threading.Event()
        watching = threading.Thread(target=self._watch, args=(ended,))
        watching.start()
        try:
            results = []
            for process in running:
                out, errors = process.communicate()
                if process.returncode:
                    raise Refused("conflict", f"the machines ended: {errors.decode()[-2500:]}")
                results.append(json.loads(out))
            return results
        finally:
            ended.set()
            watching.join()
            self.samples.append((time.monotonic(), self.figures()))

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(SAMPLE):
            self.samples.append((time.monotonic(), self.figures()))

    def make_dirty(self) -> None:
        """Have the machines erased at their next boot (`disks.make_dirty`)."""
        disks.make_dirty(self._url())

    def assign(self) -> None:
        """Assign all registered machines to clusters (`disks.assign`)."""
        disks.assign(self._url(), [_subnet(number) for number in range(self.processes)])

    def figures(self) -> dict[str, PartFigures]:
        """Return the resources that each part of the server has used so far."""
        assert self._server is not None
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                stat = (path / "stat").read_text()
                name, values = stat.partition("(")[2].rpartition(")")[0], stat.rpartition(")")[2]
                words = values.split()
                if int(words[1]) != self._server.pid or not name.startswith("cod-"):
                    continue
                status = (path / "status").read_text()
                memory = int(status.partition("VmHWM:")[2].split()[0]) << 10
                descriptors = len(os.listdir(path / "fd"))
            except (OSError, IndexError):  # it has ended
                continue
            cpu = (int(words[11]) + int(words[12])) / _TICKS
            counts = counted.read(self.folder / "counts", int(path.name))
            found[name.removeprefix("cod-")] = PartFigures(cpu, memory, descriptors, *counts)
        return found

    def _namespace(self, number: int) -> str:
        return f"{record.namespace(self.lab)}.storm{number}"

    def _url(self) -> str:
        return self._database or f"sqlite:///{self.folder}/data/cod.db"

    def _make_site(self) -> None:
        data, boot = self.folder / "data", self.folder / "data/boot/trampoline"
        database = f'database = "{self._database}"\n' if self._database else ""
        subnets = (
            SUBNET.format(subnet=_subnet(number), router=_relay(number))
            for number in range(self.processes)
        )
        (self.folder / "site.toml").write_text(
            SITE.format(data=data, database=database) + "".join(subnets)
        )
        boot.mkdir(parents=True)
        for name, size in FILES.items():
            with open(boot / name, "wb") as file:
                file.truncate(size)
        (self.folder / "counts").mkdir()
        self.cod("init", "--dir", str(data), "--no-check")

    def cod(self, *words: str) -> str:
        """Run a `cod` command of the site; return its output. Raises `Refused` where the command
        fails."""
        argv = program.command(self.folder / "site.toml", *words)
        return program.output(argv, f"cod {words[0]}")

    def stop(self) -> None:
        """Stop the server, if it is running."""
        if self._server is not None and self._server.poll() is None:
            self._server.terminate()
            try:
                self._server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._server.pid, signal.SIGKILL)
                self._server.wait()

    def serve(self) -> None:
        """Start the server, with its statements counted, and wait until each part is ready."""
        path = self.folder / "server.log"
        words = [sys.executable, "-m", "cod.lab.storm.counted", str(self.folder / "counts")]
        with open(path, "wb") as log:
            self._server = control.run_inside(
                self.lab,
                [*words, "--site", str(self.folder / "site.toml"), "serve"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=program.environment(),
            )
        until = time.monotonic() + START_SECONDS
        while path.read_text().count(": ready\n") < len(PARTS):
            if self._server.poll() is not None or time.monotonic() > until:
                raise Refused("conflict", f"the server does not start: {path.read_text()[-500:]}")
            time.sleep(0.1)


def make_room(machines: int, processes: int) -> None:
    """Raise this process's limit of open descriptors, which its children inherit, so that each
    machine can have one.

    Raises `Refused` where the system does not permit that, and where the networks of `processes`
    processes have too few addresses.
    """
    if machines > processes * MOST:
        raise Refused(
            "conflict",
            f"a process has addresses for {MOST:,} machines: take --processes"
            f" {ceil(machines / MOST)} or more",
        )
    needed = machines + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, needed))
        except (OSError, ValueError):
            raise Refused(
                "conflict",
                f"{machines:,} machines need {needed:,} descriptors a process, and the limit is"
                f" {hard:,}: raise it (ulimit -Hn {needed})",
            ) from None


def _relay(number: int) -> str:
    return f"10.{FIRST_NETWORK + number}.0.1"


def _subnet(number: int) -> Subnet:
    start = f"10.{FIRST_NETWORK + number}"
    return Subnet(
        f"storm{number}",
        f"{start}.0.0/16",
        SERVER,
        (f"{start}.1.0", f"{start}.127.255"),
        (f"{start}.128.0", f"{start}.255.254"),
    )
