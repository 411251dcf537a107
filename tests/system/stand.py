"""A test stand: a site's network in namespaces of its own, stand-in machines on it, a real server,
power switches.

    with Stand(tmp_path, machines=2) as stand:
        stand.serve(); stand["m1"].on(); stand.wait(lambda: stand.state("m1") == "inactive")

Everything made here has a name with this process's id in it and is removed at the end, whatever
happened.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from cod.client import Client
from cod.flows.people import groups
from cod.lab.agents import prepare
from cod.model import Node
from cod.store.database import connect
from cod.store.engine import is_retryable
from cod.store.nodes import nodes, sessions
from tests.conftest import upgrade
from tests.upkeep import open_stands
from tests.waiting import answers

if TYPE_CHECKING:
    from tests.system.annex import Annex

ROOT = Path(__file__).resolve().parents[2]
COD = Path(sys.executable).with_name("cod")
_numbers = itertools.count()
SUBNET = """[[subnet]]
name = "lab"
network = "10.77.0.0/16"
server = "10.77.0.1"
interface = "br0"
router = "10.77.0.1"
boot_pool = ["10.77.1.0", "10.77.4.255"]
block_pool = ["10.77.128.0", "10.77.255.254"]
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Host:
    """One stand-in machine: on, off, freeze, thaw. See cod/lab/standin.py for what runs in it."""

    def __init__(self, stand: Stand | Annex, name: str, number: int, disk_size: int) -> None:
        self.name, self.namespace = name, f"{stand.namespace}-{name}"
        self.mac = f"52:54:00:c0:{os.getpid() % 256:02x}:{number:02x}"
        self.folder = stand.folder / name
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()
        self.by_hand = False  # on, in the hands of an `Intruder`
        prepare(
            self.folder,
            self.mac,
            f"c0d00000-0000-4000-8000-{os.getpid():08x}{number:04x}",
            disk_size,
        )
        ip("netns", "add", self.namespace)
        ip("-n", self.namespace, "link", "set", "lo", "up")
        ip(
            "-n",
            stand.namespace,
            "link",
            "add",
            f"v{number}",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "address",
            self.mac,
            "netns",
            self.namespace,
        )
        ip("-n", stand.namespace, "link", "set", f"v{number}", "master", "br0", "up")
        ip("-n", self.namespace, "link", "set", "eth0", "up")

    @property
    def is_on(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def on(self) -> None:
        """Press the power button."""
        with self.lock:
            if self.is_on:
                return
            self.by_hand = False
            for name in ("off", "os"):
                (self.folder / name).unlink(missing_ok=True)
            with open(self.folder / "console", "ab") as console:
                self.process = subprocess.Popen(
                    [
                        "ip",
                        "netns",
                        "exec",
                        self.namespace,
                        sys.executable,
                        "-m",
                        "cod.lab.standin",
                        "--folder",
                        str(self.folder),
                        "--mac",
                        self.mac,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=console,
                    cwd=ROOT,
                    start_new_session=True,
                )

    def off(self) -> None:
        """Pull the plug."""
        with self.lock:
            self.by_hand = False
            if self.process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
                self.process = None

    def reset(self) -> None:
        """Off and on."""
        self.off()
        self.on()

    def signal(self, number: signal.Signals) -> None:
        """To everything that runs in the machine: SIGSTOP hangs it, SIGCONT lets it go on."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def running(self) -> str:
        """'<image> <address> <hostname> <domain>' of the system that runs, '' if none does."""
        file = self.folder / "os"
        return file.read_text() if self.is_on and file.exists() else ""

    def console(self) -> str:
        return (self.folder / "console").read_text() if (self.folder / "console").exists() else ""


class _Switches(socketserver.ThreadingUnixStreamServer):
    """The machines' power switches, in the lab daemon's protocol, so that the server's `lab` driver
    works them."""

    daemon_threads = True

    def __init__(self, path: Path, hosts: dict[str, Host]) -> None:
        self.hosts = hosts
        super().__init__(str(path), _Switch)


class _Switch(socketserver.StreamRequestHandler):
    server: _Switches

    def handle(self) -> None:
        for line in self.rfile:
            asked = json.loads(line)
            host = self.server.hosts[asked["node"]]
            act: Callable[[], None] = {"on": host.on, "off": host.off, "reset": host.reset}.get(
                asked["op"], lambda: None
            )
            act()
            power = "on" if host.is_on or host.by_hand else "off"
            answer = {"ok": True, "name": host.name, "power": power}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class Stand:
    """See the module."""

    def __init__(
        self,
        folder: Path,
        machines: int = 1,
        disk_size: int = 64 << 20,
        patience: float = 1.0,
        database: str | None = None,
        policy: str = "",
    ) -> None:
        self.folder = folder
        self.namespace = self.server_namespace = f"codt{os.getpid()}x{next(_numbers)}"
        self.database, self.patience, self.policy = database, patience, policy
        self.server: subprocess.Popen[bytes] | None = None
        self.machines, self.disk_size = machines, disk_size
        self.hosts: dict[str, Host] = {}
        self._begins: dict[str, str] | None = None

    def __enter__(self) -> Stand:
        open_stands.append(self)
        try:
            ip("netns", "add", self.namespace)
            ip("-n", self.namespace, "link", "set", "lo", "up")
            ip("-n", self.namespace, "link", "add", "br0", "type", "bridge")
            ip("-n", self.namespace, "addr", "add", "10.77.0.1/16", "dev", "br0")
            ip("-n", self.namespace, "link", "set", "br0", "up")
            for number in range(1, self.machines + 1):
                self.hosts[f"m{number}"] = Host(self, f"m{number}", number, self.disk_size)
            # A UNIX socket's path is limited to 107 bytes; pytest's folders are long.
            self.socket_folder = Path(f"/tmp/{self.namespace}")
            self.socket_folder.mkdir()
            self.switches = _Switches(self.socket_folder / "switches", self.hosts)
            threading.Thread(target=self.switches.serve_forever, daemon=True).start()
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
        open_stands.remove(self)
        self.kill()
        for host in self.hosts.values():
            host.off()
            subprocess.run(["ip", "netns", "del", host.namespace], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, capture_output=True)
        if hasattr(self, "switches"):
            self.switches.shutdown()
            self.switches.server_close()
        shutil.rmtree(f"/tmp/{self.namespace}", ignore_errors=True)
        if error is not None:
            for host in self.hosts.values():
                print(f"--- console of {host.name}\n{host.console()[-3000:]}")
            if (self.folder / "server.log").exists():
                print(f"--- server\n{(self.folder / 'server.log').read_text()[-8000:]}")

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    # ------------------------------------------------------------ shared by tests

    def begin_here(self) -> None:
        """Let each test begin with the nodes in their states of now, and with no vcluster."""
        self._begins = {name: self.state(name) for name in self.hosts}

    def tend(self) -> None:
        """See `tests.upkeep`. Start a server that has ended or does not answer; where each test
        begins with the same, remove what a failed test has left."""
        meant = self.server is not None or self._begins is not None
        if meant and not (self.server and self.server.poll() is None and self._answers()):
            self.kill()
            self.serve()
        if self._begins is None:
            return
        for name in self.hosts:
            self[name].signal(signal.SIGCONT)
        for vcluster in self.vclusters():
            self.cod("vcluster", "delete", vcluster["name"], check=False)
        for name, state in self._begins.items():
            if self.state(name) == "quarantined":
                self.cod("node", "restore", name)
            if self.state(name) != state:
                self[name].on()
                self.reaches(name, state)
        self.wait(lambda: not self.vclusters(), what="no vcluster is left")

    # ------------------------------------------------------------ waiting

    def wait(
        self,
        truth: Callable[[], Any],
        seconds: float = 180.0,
        what: str | Callable[[], object] = "",
    ) -> Any:
        """Wait until `truth()` is true; returns it. The wait is for processes of other programs.
        `what` is as in `tests.waiting.until`."""
        end = time.monotonic() + seconds
        while not (value := truth()):
            if time.monotonic() > end:
                said = what() if callable(what) else what or truth
                raise AssertionError(f"not within {seconds:.0f} s: {said}")
            if self.server is not None and self.server.poll() not in (None, 0, -signal.SIGKILL):
                raise AssertionError(f"the server ended with {self.server.poll()}")
            time.sleep(0.05)
        return value

    # ------------------------------------------------------------ the server

    @property
    def site_file(self) -> Path:
        return self.folder / "site.toml"

    def write_site(self) -> None:
        """The site file, and a database with the schema."""
        data = self.socket_folder / "data"
        database = self.database or f"sqlite:///{data}/cod.db"
        self.site_file.write_text(f"""
name = "stand"
domain = "cod.test"
[server]
data_dir = "{data}"
database = "{database}"
[policy]
auto_approve = true
patience = {self.patience}
{self.policy}
{SUBNET}[[power]]
match = "*"
driver = "lab"
address = "{self.socket_folder}/switches#{{name}}"
""")
        for name in ("boot", "images", "run"):
            (data / name).mkdir(parents=True, exist_ok=True)
        self.engine = connect(database)
        upgrade(self.engine)
        with self.engine.begin() as tx:
            groups.create(
                tx, name="site", priority=0, default_lease=None, max_lease=None, now=time.time()
            )
            # as a site's inventory would: names for known MACs, and their switches
            for host in self.hosts.values():
                nodes.add(
                    tx,
                    name=host.name,
                    boot_mac=host.mac,
                    now=time.time(),
                    cause="inventory",
                    actor="test",
                    power_driver="lab",
                    power_address=f"{self.socket_folder}/switches#{host.name}",
                )

    def serve(self) -> None:
        """Start the server (`cod serve`, all its processes) and wait until its API answers."""
        if not self.site_file.exists():
            self.write_site()
        with open(self.folder / "server.log", "ab") as log:
            self.server = subprocess.Popen(
                [
                    "ip",
                    "netns",
                    "exec",
                    self.server_namespace,
                    str(COD),
                    "--site",
                    str(self.site_file),
                    "serve",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            )
        self.wait(self._answers, 120, "the server's API answers")

    def _answers(self) -> bool:
        return answers(self.api_socket)

    @property
    def api_socket(self) -> Path:
        """Where the server's API listens."""
        return self.socket_folder / "data/run/api.sock"

    def kill(self) -> None:
        """kill -9 of every process of the server at once."""
        if self.server is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.server.pid, signal.SIGKILL)
            self.server.wait()
            self.server = None

    def client(self) -> Client:
        return Client(str(self.api_socket))

    def cod(self, *words: str, check: bool = True) -> Any:
        """A command of `cod` with --json; returns what it prints, read."""
        done = subprocess.run(
            [str(COD), "--site", str(self.site_file), *words, "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if check and done.returncode:
            raise AssertionError(
                f"cod {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return json.loads(done.stdout) if done.stdout.strip() else None

    # ------------------------------------------------------------ what it shows

    def get(self, path: str) -> Any:
        """What the API answers; many times cheaper than a command, for what is looked at again and
        again."""
        with self.client() as api:
            return api.get(path)

    def vclusters(self) -> list[Any]:
        """All that have not ended."""
        with self.client() as api:
            return list(api.every("/vclusters"))

    def read(self, flow: Callable[..., Any], *words: Any) -> Any:
        """What a read finds, waited for while the database is away."""

        def attempt() -> list[Any]:
            try:
                with (
                    self.engine.connect().execution_options(reading=True) as connection,
                    connection.begin(),
                ):
                    return [flow(connection, *words)]
            except DBAPIError as error:
                if not is_retryable(error):
                    raise
                return []

        return self.wait(attempt, 120, "the database answers")[0]

    def node(self, name: str) -> Node:
        """The node's row."""
        found: Node | None = self.read(nodes.by_name, name)
        assert found is not None, name
        return found

    def state(self, name: str) -> str:
        return self.node(name).state

    def reaches(self, name: str, *states: str, seconds: float = 180.0) -> str:
        """Wait until the node is in one of `states`; returns it. Ends early if it is quarantined
        instead."""

        def there() -> str:
            node = self.node(name)
            if node.state == "quarantined" and "quarantined" not in states:
                raise AssertionError(f"{name} is quarantined: {node.reason}")
            return node.state if node.state in states else ""

        def otherwise() -> str:
            way = [(row["to_state"], row["cause"]) for row in self.history(name)[-8:]]
            console = self.hosts[name].console()[-2000:] if name in self.hosts else ""
            return f"{name} reaches {' or '.join(states)}; its way was {way}\n{console}"

        return str(self.wait(there, seconds, otherwise))

    def catches(self, name: str, state: str, since: int) -> bool:
        """Look without a pause until the node is in `state`: some last for milliseconds. False:
        after its first `since` transitions it has been, and was out of it again before that was
        seen; so somebody has to try once more."""
        end = time.monotonic() + 180
        while self.state(name) != state:
            if state in [row["to_state"] for row in self.history(name)[since:]]:
                return self.state(name) == state
            assert time.monotonic() < end, f"{name} is {self.state(name)}, not {state}"
        return True

    def connection(self, name: str) -> int:
        """The epoch of the connection of the node's agent; 0: it has none."""
        session = self.read(sessions.get, self.node(name).id)
        return session.epoch if session else 0

    def history(self, name: str) -> list[dict[str, Any]]:
        """The node's transitions, oldest first."""
        return list(self.read(nodes.history, self.node(name).id))
