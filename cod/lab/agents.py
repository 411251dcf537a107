"""Simulated nodes: stand-ins for machines on a lab's bridge, with power switches (`cod lab
agents`).

A server cannot tell them from machines: DHCP, HTTP and confd are the real protocols, spoken by real
clients (cod/lab/standin.py). A stand-in costs a namespace and some processes, so twenty of them fit
where two virtual machines do. They end with the command that made them. After a kill, their
namespaces and folders are removed with the lab (`cod lab down`), to which these belong.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cod.lab import network, processes, program, record
from cod.model import Refused

MOST = 200
LOOK = 0.5  # seconds between looks at the consoles
FOLDER = "agents"
SOCKET = "agents.sock"
_UUIDS = uuid.UUID("c0d00000-0000-4000-8000-0000000a6e75")


def prepare(folder: Path, mac: str, system: str, disk_size: int) -> None:
    """Make a stand-in's folder, with its disk and with the files that its agent reads as /proc and
    /sys. `system`: the DMI UUID."""
    files = {
        "root/proc/cmdline": "",
        "root/proc/meminfo": "MemTotal: 524288 kB\n",
        "root/proc/cpuinfo": "processor\t: 0\nmodel name\t: Stand-in\ncpu MHz\t\t: 1000.0\n",
        "root/sys/class/net/eth0/address": f"{mac}\n",
        "root/sys/class/net/eth0/carrier": "1\n",
        "root/sys/class/net/eth0/speed": "1000\n",
        "root/sys/class/net/eth0/operstate": "up\n",
        "root/sys/class/net/eth0/type": "1\n",
        "root/sys/class/dmi/id/product_uuid": f"{system}\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "root/sys/firmware").mkdir()
    (folder / "root/sys/class/net/eth0/device").mkdir()
    with open(folder / "disk", "wb") as disk:
        disk.truncate(disk_size)


class Agent:
    """A simulated node, which can be switched on and off. Nodes are named `a1`, `a2` and so on.

    program  the module that runs as the node's machine
    """

    program = "cod.lab.standin"

    def __init__(self, lab: str, number: int, disk_size: int) -> None:
        self.name = f"a{number}"
        digest = hashlib.sha256(f"{lab}/{self.name}".encode()).digest()
        self.mac = "52:54:01:" + ":".join(f"{byte:02x}" for byte in digest[:3])
        self.namespace = f"{record.namespace(lab)}.agent{number}"
        self.folder = record.folder(lab) / FOLDER / self.name
        self.console = self.folder / "console"
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        prepare(self.folder, self.mac, str(uuid.uuid5(_UUIDS, f"{lab}/{self.name}")), disk_size)
        network.plug(record.namespace(lab), self.namespace, f"v{self.name}", self.mac)

    @property
    def is_on(self) -> bool:
        """Return whether the stand-in's process runs."""
        return self._process is not None and self._process.poll() is None

    def on(self) -> None:
        """Press the power button; has no effect where the stand-in is on."""
        with self._lock:
            if self.is_on:
                return
            for name in ("off", "os"):
                (self.folder / name).unlink(missing_ok=True)
            words = [sys.executable, "-m", self.program]
            words += ["--folder", str(self.folder), "--mac", self.mac]
            environment = program.environment()
            with open(self.console, "ab") as console:
                self._process = subprocess.Popen(
                    network.inside(self.namespace, words),
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=console,
                    start_new_session=True,
                    env=environment,
                )

    def off(self) -> None:
        """Pull the plug: all processes of the stand-in end at once."""
        with self._lock:
            if self._process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
                self._process = None

    def reset(self) -> None:
        self.off()
        self.on()

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "mac": self.mac,
            "power": "on" if self.is_on else "off",
            "console": str(self.console),
        }


_SWITCHING = {"on": Agent.on, "off": Agent.off, "reset": Agent.reset}


def console_lines(agents: Sequence[Agent]) -> Iterator[tuple[Agent, str]]:
    """Yield the lines of the agents' consoles, each with its agent, as soon as they are written;
    endless."""
    read = dict.fromkeys((agent.name for agent in agents), 0)
    while True:
        for agent in agents:
            if not agent.console.exists():
                continue
            with open(agent.console, "rb") as console:
                console.seek(read[agent.name])
                for line in console:
                    if line.endswith(b"\n"):
                        read[agent.name] += len(line)
                        yield agent, line.decode(errors="replace").rstrip()
        time.sleep(LOOK)


class _Switches(socketserver.ThreadingUnixStreamServer):
    """The agents' power switches, in the lab daemon's protocol, so that the server's driver `lab`
    can operate them."""

    daemon_threads = True

    def __init__(self, path: Path, agents: Mapping[str, Agent]) -> None:
        self.agents = agents
        super().__init__(str(path), _Switch)


class _Switch(socketserver.StreamRequestHandler):
    server: _Switches

    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(json.dumps(self._answer(line)).encode() + b"\n")

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(line)
            op, agent = asked["op"], self.server.agents.get(str(asked.get("node")).lower())
        except (ValueError, KeyError, TypeError, AttributeError):
            return {"ok": False, "error": "a request is a JSON object with op and node"}
        if op == "list":
            every = {id(each): each.describe() for each in self.server.agents.values()}
            return {"ok": True, "nodes": list(every.values())}
        if op not in (*_SWITCHING, "status", "console-path"):
            return {"ok": False, "error": f"no op {op!r}"}
        if agent is None:
            return {"ok": False, "error": f"there is no agent {asked.get('node')!r}"}
        if op in _SWITCHING:
            _SWITCHING[op](agent)
        return {"ok": True, **agent.describe()}


@contextmanager
def running(lab: str, count: int, disk_size: int, *, on: bool = True) -> Iterator[list[Agent]]:
    """Run `count` agents on the lab's bridge, with their power switches, until the block is left.
    Raises `Refused`."""
    record.load(lab)
    if not 1 <= count <= MOST:
        raise Refused("invalid", f"there can be 1 to {MOST} agents, not {count}", "count")
    if shutil.which("busybox") is None:
        raise Refused(
            "conflict",
            "agents need busybox, for its DHCP client (Debian: apt install busybox-static)",
        )
    folder, path = record.folder(lab) / FOLDER, record.folder(lab) / SOCKET
    try:
        folder.mkdir()
    except FileExistsError:
        raise Refused(
            "conflict",
            f"lab {lab} has agents already, or a kill left some behind (remove the lab: "
            f"cod lab down {lab})",
        ) from None
    made: list[Agent] = []
    switches: _Switches | None = None
    try:
        made += (Agent(lab, number, disk_size) for number in range(1, count + 1))
        switches = _Switches(
            path, {name: agent for agent in made for name in (agent.name, agent.mac)}
        )
        threading.Thread(target=switches.serve_forever, daemon=True).start()
        for agent in made if on else ():
            agent.on()
        yield made
    finally:
        if switches is not None:
            switches.shutdown()
            switches.server_close()
        for agent in made:
            agent.off()
        namespace = record.namespace(lab)
        for name in network.all_of(namespace):
            if name.startswith(f"{namespace}.agent") and name.rpartition(".agent")[2].isdigit():
                processes.end(processes.inside(name))
                network.unplug(name)
        path.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
