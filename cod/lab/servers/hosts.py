"""The hosts of a lab's site: COD servers `s1`, `s2` …, and nodes of its database `d1` …, each in a
network namespace of its own that is plugged into the lab's first network.

The hosts of a lab have power switches like its machines: off kills all their processes by SIGKILL.
"""

from __future__ import annotations

import ipaddress
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql

from cod import data
from cod.client import ApiError, Client, Unreachable
from cod.lab import network, processes, program, record
from cod.lab.servers.galera import PROVIDER, GaleraCluster, GaleraNode
from cod.lab.servers.mariadb import UNSYNCED, DatabaseServer
from cod.lab.spec import LabSpec
from cod.model import Refused

FOLDER = "hosts"
DATABASE, USER = "cod", "cod"
ANSWERS = 240.0  # seconds in which a server's API answers
TRAMPOLINE = ("vmlinuz", "ramdisk", "facts.json")
NEEDED = {
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    PROVIDER: "galera-4",
    "wsrep_sst_rsync": "mariadb-server",
    "rsync": "rsync",
}
"""Debian's packages of the programs that databases need: the first two of any, all of Galera."""
# Checks in a row without a quorum: a cluster also has none while its nodes find out who is left.
SILENT = 10
NOTICED = 20.0  # seconds after which Galera has given up a lost node: evs.inactive_timeout is 15
SITE = """\
# The site of a lab's servers. A real one is written by `cod init`, every key explained.
name = "{lab}"
domain = "cod.test"

[server]
name = "{name}"
data_dir = "{data}"
database = "{database}"

[policy]
auto_approve = true    # a lab has no administrator to ask
{policy}

[[subnet]]
name = "lab"
network = "{network}"
server = [{addresses}]
router = "{router}"
interface = "eth0"
boot_pool = ["{boot_pool[0]}", "{boot_pool[1]}"]
block_pool = ["{block_pool[0]}", "{block_pool[1]}"]

[[power]]
driver = "lab"
address = "{switches}#{{mac}}"
"""


class LabServer:
    """A COD server. `wrapper`: words before its command; `environment`: variables on top of this
    process's own."""

    wrapper: Sequence[str] = ()
    environment: Mapping[str, str] = {}

    def __init__(self, lab: str, number: int) -> None:
        self.lab, self.name = lab, f"s{number}"
        self.address, self.namespace = _place(lab, self.name)
        self.folder = record.folder(lab) / FOLDER / self.name
        self.data, self.site_file = self.folder / "data", self.folder / "site.toml"
        self.log, self.socket = self.folder / "server.log", self.data / "run/api.sock"
        self.running: subprocess.Popen[bytes] | None = None

    def plug(self) -> None:
        """Make the host: its network namespace and its folder."""
        _plug(self.lab, self.name)
        self.data.mkdir(parents=True)

    def write(self, addresses: Sequence[str], database: str, policy: str) -> None:
        """Write the site file of a site with servers at those addresses."""
        own = ipaddress.IPv4Interface(record.load(self.lab).spec.address)
        first, room = own.network.network_address, own.network.num_addresses
        self.site_file.write_text(
            SITE.format(
                lab=self.lab,
                name=self.name,
                data=self.data,
                database=database,
                policy=policy,
                network=own.network,
                addresses=", ".join(f'"{address}"' for address in addresses),
                router=own.ip,
                boot_pool=(first + room // 8, first + room // 4 - 1),
                block_pool=(first + room // 2, first + room - 2),
                switches=record.socket_path(self.lab),
            )
        )

    def start(self) -> None:
        """Start the server, without waiting until its API answers."""
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                network.inside(
                    self.namespace, [*self.wrapper, *program.command(self.site_file, "serve")]
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=program.environment() | dict(self.environment),
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until the API answers. Raises `Refused`."""
        end = time.monotonic() + ANSWERS
        while not self.answers():
            ended = self.running is not None and self.running.poll() is not None
            if ended or time.monotonic() > end:
                raise Refused("conflict", f"server {self.name} does not answer; see {self.log}")
            time.sleep(0.2)

    def answers(self) -> bool:
        """Return whether the API answers. The existence of its socket does not tell."""
        with suppress(ApiError, Unreachable), Client(str(self.socket)) as client:
            return bool(client.get("/health")["ok"])
        return False

    def cod(self, *words: str) -> str:
        """Run a `cod` command on the host and return its output. Raises `Refused`."""
        argv = network.inside(self.namespace, program.command(self.site_file, *words))
        return program.output(argv, f"cod {' '.join(words)}")


def found(servers: Sequence[LabServer], database: str, policy: str = "patience = 3.0") -> None:
    """Make a site of plugged-in servers, in an empty database, and copy the shared files to all of
    them. `policy`: further lines of the site file's table."""
    for server in servers:
        server.write([each.address for each in servers], database, policy)
    first, *others = servers
    first.cod("init", "--dir", str(first.data), "--no-check")
    with suppress(FileNotFoundError):  # not built: then the generic one, if init has found it
        built = data.path("build/trampoline/lab")
        for name in TRAMPOLINE:
            shutil.copy(built / name, first.data / "boot/trampoline" / name)
    for server in others:
        for name in ("ca", "boot"):
            shutil.copytree(first.data / name, server.data / name)
        shutil.copy(first.data / "webhook.key", server.data)
        for name in ("images", "run"):
            (server.data / name).mkdir()


class LabHosts:
    """The servers that a lab's spec asks for, and the nodes of their database."""

    def __init__(self, lab: str) -> None:
        spec = record.load(lab).spec
        self._lab = lab
        self.servers = [LabServer(lab, number + 1) for number in range(spec.servers)]
        names = [name for name in spec.hosts if name.startswith("d")]
        kind = GaleraNode if spec.galera else DatabaseServer
        self.databases: dict[str, DatabaseServer] = {}
        for name in names:
            address, namespace = _place(lab, name)
            folder = record.folder(lab) / FOLDER / name
            self.databases[name] = kind(folder, address, namespace=namespace)
        nodes = [each for each in self.databases.values() if isinstance(each, GaleraNode)]
        self._cluster = GaleraCluster(nodes) if nodes else None

    def up(self) -> None:
        """Make all hosts and the site, and start them. Raises `Refused`."""
        for name in self.databases:
            _plug(self._lab, name)
        with _refusing_bad_start():
            if self._cluster is not None:
                self._cluster.found()
            for database in self.databases.values() if self._cluster is None else ():
                database.install()
                database.start(*UNSYNCED)
        url = f"sqlite:///{record.folder(self._lab)}/{FOLDER}/cod.db"
        if self.databases:
            first = next(iter(self.databases.values()))
            password = secrets.token_hex(16)  # the lab's machines reach its databases, too
            first.execute(
                f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4",
                f"CREATE USER {USER}@'%' IDENTIFIED BY '{password}'",
                f"GRANT ALL ON {DATABASE}.* TO {USER}@'%'",
            )
            hosts = ",".join(each.address for each in self.databases.values())
            url = f"mysql+pymysql://{USER}:{password}@{hosts}/{DATABASE}"
        for server in self.servers:
            server.plug()
        found(self.servers, url)
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait()

    def describe(self) -> list[dict[str, Any]]:
        """Return a description of the hosts, ready for JSON."""
        found = []
        for name in (*(server.name for server in self.servers), *self.databases):
            address, namespace = _place(self._lab, name)
            folder = record.folder(self._lab) / FOLDER / name
            log, is_on = folder / "error.log", bool(processes.inside(namespace))
            about = {"name": name, "address": address, "power": "on" if is_on else "off"}
            if name not in self.databases:
                about["site_file"], log = str(folder / "site.toml"), folder / "server.log"
            found.append(about | {"namespace": namespace, "log": str(log)})
        return found

    def power(self, name: str, op: str) -> dict[str, Any]:
        """Turn a host's power switch, as `control.power` does for a machine."""
        if op in ("off", "reset"):
            self._kill(_place(self._lab, name)[1])
        if op in ("on", "reset") and not processes.inside(_place(self._lab, name)[1]):
            self._start(name)
        return next(each for each in self.describe() if each["name"] == name)

    def _start(self, name: str) -> None:
        for server in self.servers:
            if server.name == name:
                server.start()
                server.wait()
        database = self.databases.get(name)
        with _refusing_bad_start():
            if isinstance(database, GaleraNode) and self._cluster is not None:
                if self._quorum(self._cluster):
                    self._cluster.start(database)
                else:  # without a quorum no node is ready: all begin at the last commit
                    for each in self.databases:
                        self._kill(_place(self._lab, each)[1])
                    self._cluster.recover()
            elif database is not None:
                database.start(*UNSYNCED)

    def _quorum(self, cluster: GaleraCluster) -> bool:
        """Return whether the running nodes have a quorum. After a kill the others take about 5 s to
        notice it (evs.suspect_timeout); until then they accept no node, and a node that is started
        gives up."""
        running = sum(bool(processes.inside(_place(self._lab, each)[1])) for each in self.databases)
        end, silent = time.monotonic() + NOTICED, 0
        while time.monotonic() < end and silent < SILENT:
            size = cluster.size()
            if 0 < size <= running:
                return True
            silent = 0 if size else silent + 1
            time.sleep(0.2)
        return silent < SILENT

    def _kill(self, namespace: str) -> None:
        """Kill all processes of the namespace by SIGKILL, again and again until none is left."""
        while left := processes.inside(namespace):
            processes.end(left, signal.SIGKILL)


def check(spec: LabSpec) -> None:
    """Raise `Refused`, with the names of the missing packages, for a spec whose hosts cannot run
    here."""
    if not any(name.startswith("d") for name in spec.hosts):
        return
    programs = list(NEEDED) if spec.galera else list(NEEDED)[:2]
    missing = [NEEDED[each] for each in programs if not (shutil.which(each) or Path(each).exists())]
    if missing:
        packages = " ".join(dict.fromkeys(missing))
        raise Refused(
            "conflict",
            f"the database of the lab's servers needs packages (Debian: apt install {packages})",
            "galera" if spec.galera else "servers",
        )


@contextmanager
def _refusing_bad_start() -> Iterator[None]:
    """Raise `Refused` with the reason where a database does not start."""
    try:
        yield
    except (OSError, RuntimeError, subprocess.CalledProcessError, pymysql.Error) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise Refused(
            "conflict", f"the database of the lab's servers does not start: {reason}"
        ) from None


def _place(lab: str, name: str) -> tuple[str, str]:
    """Return address and namespace of a host. The addresses of servers follow the tenth address of
    the network, those of databases the twentieth."""
    own = ipaddress.IPv4Interface(record.load(lab).spec.address)
    after = {"s": 10, "d": 20}[name[0]] + int(name[1:])
    return str(own.network.network_address + after), f"{record.namespace(lab)}.{name}"


def _plug(lab: str, name: str) -> None:
    """Make the namespace of a host and give it its address."""
    address, namespace = _place(lab, name)
    mac = f"52:54:03:00:{ord(name[0]):02x}:{int(name[1:]):02x}"
    network.plug(record.namespace(lab), namespace, f"v{name}", mac)
    prefix = record.load(lab).spec.address.partition("/")[2]
    network.add_address(namespace, f"{address}/{prefix}")
