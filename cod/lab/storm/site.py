"""Where a storm takes place: a lab without machines, a fresh site in it, and that site's server.

The machines are in namespaces of their own, one for each process and network, behind a relay. The
site registers machines as fast as its settings allow, and approves them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import create_engine, text

from cod.lab import cleaner, control, network, record
from cod.lab.spec import LabSpec, completed
from cod.lab.storm import counted
from cod.model import Refused

SERVER = "10.77.0.1"
FIRST_NETWORK = 80  # machines are in 10.80.0.0/16, 10.81.0.0/16 ...
PARTS = ("edge", "images", "manager", "web")
START_SECONDS = 120.0
STOP_SECONDS = 30.0
FILE = 1 << 20  # bytes of what stands for kernel and ramdisk
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
name = "storm{number}"
network = "10.{second}.0.0/16"
server = "10.77.0.1"
router = "10.{second}.0.1"
relay = "10.{second}.0.1"
boot_pool = ["10.{second}.1.0", "10.{second}.127.255"]
block_pool = ["10.{second}.128.0", "10.{second}.255.254"]
"""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class PartFigures:
    """What a part of the server has used so far: CPU seconds, bytes of memory, statements,
    commits."""

    cpu: float = 0.0
    memory: int = 0
    statements: int = 0
    commits: int = 0


class StormSite:
    """The lab, the site and its server while they are there. `loss`: per cent of the packets that
    are lost in either direction; `database`: the URL of an empty one."""

    def __init__(self, lab: str, processes: int, loss: float, database: str) -> None:
        self.lab, self.processes = lab, processes
        self._loss, self._database = loss, database
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
            self._serve()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._server is not None and self._server.poll() is None:
            self._server.terminate()
            try:
                self._server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._server.pid, signal.SIGKILL)
                self._server.wait()
        control.down(self.lab)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._cleaner.communicate(timeout=STOP_SECONDS)

    def storm(self, machines: int, over: float, patience: float) -> list[dict[str, Any]]:
        """Have so many machines switched on within `over` seconds; return what each process says of
        its own once all are idle, or `patience` seconds later."""
        running = []
        for number in range(self.processes):
            first = machines * number // self.processes
            words = {
                "server": SERVER,
                "relay": f"10.{FIRST_NETWORK + number}.0.1",
                "first": first,
                "machines": machines * (number + 1) // self.processes - first,
                "over": over,
                "patience": patience,
            }
            options = [part for key, value in words.items() for part in (f"--{key}", str(value))]
            command = [sys.executable, "-m", "cod.lab.storm.process", *options]
            running.append(
                subprocess.Popen(
                    network.inside(self._namespace(number), command),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=_environment(),
                )
            )
        said = []
        for process in running:
            out, errors = process.communicate()
            if process.returncode:
                raise Refused("conflict", f"the machines ended: {errors.decode()[-2500:]}")
            said.append(json.loads(out))
        return said

    def make_dirty(self) -> None:
        """Have the site take all disks for ones that may hold somebody's data, as after an outage
        amid work: the machines are to be erased at their next boot."""
        engine = create_engine(self._database or f"sqlite:///{self.folder}/data/cod.db")
        with engine.begin() as tx:
            tx.execute(text("UPDATE nodes SET disk = 'dirty'"))
        engine.dispose()

    def figures(self) -> dict[str, PartFigures]:
        """Return what each part of the server has used until now."""
        assert self._server is not None
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                stat = (path / "stat").read_text()
                name, values = stat.partition("(")[2].rpartition(")")[0], stat.rpartition(")")[2]
                words = values.split()
                if int(words[1]) != self._server.pid or not name.startswith("cod-"):
                    continue
                pages = int((path / "statm").read_text().split()[1])
            except (OSError, IndexError):  # it has ended
                continue
            cpu = (int(words[11]) + int(words[12])) / _TICKS
            counts = counted.read(self.folder / "counts", int(path.name))
            found[name.removeprefix("cod-")] = PartFigures(
                cpu, pages * os.sysconf("SC_PAGE_SIZE"), *counts
            )
        return found

    def _namespace(self, number: int) -> str:
        return f"{record.namespace(self.lab)}.storm{number}"

    def _make_site(self) -> None:
        data, boot = self.folder / "data", self.folder / "data/boot/trampoline"
        database = f'database = "{self._database}"\n' if self._database else ""
        subnets = (
            SUBNET.format(number=number, second=FIRST_NETWORK + number)
            for number in range(self.processes)
        )
        (self.folder / "site.toml").write_text(
            SITE.format(data=data, database=database) + "".join(subnets)
        )
        boot.mkdir(parents=True)
        for name in ("vmlinuz", "ramdisk"):
            (boot / name).write_bytes(bytes(FILE))
        (self.folder / "counts").mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "cod", *self._site(), "init", "--dir", str(data), "--no-check"],
            capture_output=True,
            text=True,
            check=False,
            env=_environment(),
        )
        if done.returncode:
            raise Refused("conflict", f"cod init: {done.stderr.strip() or done.stdout.strip()}")

    def _site(self) -> list[str]:
        return ["--site", str(self.folder / "site.toml")]

    def _serve(self) -> None:
        """Start the server, its statements counted, and wait until each part is ready."""
        path = self.folder / "server.log"
        words = [sys.executable, "-m", "cod.lab.storm.counted", str(self.folder / "counts")]
        with open(path, "wb") as log:
            self._server = control.run_inside(
                self.lab,
                [*words, *self._site(), "serve"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_environment(),
            )
        until = time.monotonic() + START_SECONDS
        while path.read_text().count(": ready\n") < len(PARTS):
            if self._server.poll() is not None or time.monotonic() > until:
                raise Refused("conflict", f"the server does not start: {path.read_text()[-500:]}")
            time.sleep(0.1)


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
