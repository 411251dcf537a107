"""A rolling upgrade in a storm: the release before and this one serve the same machines from one
database, and each machine is served, known once, and has an address that no other has."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select

from cod.lab import cleaner, control, network, program, record
from cod.lab.servers.hosts import LabServer
from cod.lab.spec import LabSpec, completed
from cod.lab.storm import disks
from cod.lab.storm.site import FILES, SITE
from cod.policy.histories import Histories
from cod.store import schema
from cod.store import tables as t
from cod.store.database import connect
from tests.history_rows import history_after, node_rows
from tests.mariadb import UNSYNCED, MariaDB
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.mariadb,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

ROOT = Path(__file__).resolve().parents[2]
BEFORE = list(schema.releases().values())[-1]
MACHINES, SHARE = 200, 50  # in all; in each of four shares
OVER, PATIENCE = 20.0, 400.0  # seconds in which a share is switched on, and after which it is lost
MACHINES_AT = "10.77.0.2"  # the router of the machines' network
SUBNET = """
[[subnet]]
name = "storm0"
network = "10.80.0.0/16"
server = [{servers}]
router = "10.80.0.1"
relay = "10.80.0.1"
boot_pool = ["10.80.1.0", "10.80.127.255"]
block_pool = ["10.80.128.0", "10.80.255.254"]
"""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the release before: its wheel, built from its commit, unpacked."""
    folder = tmp_path_factory.mktemp("before")
    packed, tree, packages = folder / "tree.tar", folder / "tree", folder / "packages"
    asked = ["git", "-C", str(ROOT), "archive", "-o", str(packed), BEFORE["commit"]]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    missing = f"no commit {BEFORE['commit']} in this clone: run git fetch --unshallow"
    assert done.returncode == 0, f"{missing}\n{done.stderr}"
    with tarfile.open(packed) as files:
        files.extractall(tree, filter="data")
    wheel = [sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "-w", str(folder), str(tree)]
    subprocess.run(wheel, check=True)
    with zipfile.ZipFile(next(folder.glob("cod-*.whl"))) as files:
        files.extractall(packages)
    return packages


def _from(packages: Path) -> dict[str, str]:
    """Return what has Python import `cod` from there: not even from the working directory."""
    return {"PYTHONPATH": str(packages), "PYTHONSAFEPATH": "1"}


class RollingServer(LabServer):
    """A host of the site, which runs the program of a folder."""

    def install(self, packages: Path, servers: list[str], database: str) -> None:
        """Install the program, and the site file that goes with it."""
        self.environment = _from(packages)
        head = SITE.format(
            data=self.data, database=f'name = "{self.name}"\ndatabase = "{database}"\n'
        )
        listed = ", ".join(f'"{each}"' for each in servers)
        only = SUBNET.replace("[{servers}]", "{servers}") if len(servers) == 1 else SUBNET
        self.site_file.write_text(head + only.format(servers=listed))

    def cod(self, *words: str) -> str:
        """Return what a command of the host's program prints."""
        argv = network.inside(self.namespace, program.command(self.site_file, *words))
        done = subprocess.run(
            argv, capture_output=True, text=True, env=os.environ | self.environment, check=False
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def stop(self) -> None:
        """Stop the server as its service manager does."""
        assert self.running is not None
        self.running.terminate()
        self.running.wait(60)

    def kill(self) -> None:
        """Kill whatever runs."""
        if self.running is not None and self.running.poll() is None:
            os.killpg(self.running.pid, signal.SIGKILL)
            self.running.wait()


class Rolling:
    """The site: two hosts, their database, and machines behind a relay."""

    def __init__(self, lab: str, folder: Path) -> None:
        self.lab, self.machines = lab, f"{record.namespace(lab)}.storm"
        self.servers = [RollingServer(lab, number) for number in (1, 2)]
        self.database = MariaDB(folder / "db")
        self.database.install()
        self.database.start(*UNSYNCED)
        self.database.url("cod")
        self.url = f"mysql+pymysql://root@localhost/cod?unix_socket={self.database.folder}/s.sock"
        self.engine: Engine = connect(self.url)
        network.plug(record.namespace(lab), self.machines, "vstorm", "52:54:03:00:00:00")
        network.stand_for(self.machines, lab, f"{MACHINES_AT}/16", "10.80.0.0/16")
        for server in self.servers:
            server.plug()
            route = ["ip", "route", "add", "10.80.0.0/16", "via", MACHINES_AT]
            subprocess.run(network.inside(server.namespace, route), check=True)
            for name in ("images", "run", "boot/trampoline"):
                (server.data / name).mkdir(parents=True)
            for name, size in FILES.items():
                with open(server.data / "boot/trampoline" / name, "wb") as file:
                    file.truncate(size)

    def switch_on(
        self, packages: Path, first: int, count: int, relay: str, *servers: RollingServer
    ) -> subprocess.Popen[bytes]:
        """Switch machines on whose agents are those of a program, behind a relay to `servers`;
        their process ends when all are served."""
        words: dict[str, Any] = {"relay": relay, "first": first, "machines": count, "over": OVER}
        words |= {"patience": PATIENCE, "linger": 0.0}
        options = [part for key, value in words.items() for part in (f"--{key}", str(value))]
        options += ["--server", *(server.address for server in servers)]
        command = [sys.executable, "-m", "cod.lab.storm.process", *options]
        return subprocess.Popen(
            network.inside(self.machines, command),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | _from(packages),
        )

    def known(self) -> int:
        """Return how many machines the site knows."""
        with self.engine.begin() as tx:
            return tx.scalar(select(func.count()).select_from(t.nodes)) or 0

    def logs(self) -> str:
        return "\n".join(server.log.read_text()[-3000:] for server in self.servers)

    def close(self) -> None:
        for server in self.servers:
            server.kill()
        self.engine.dispose()
        self.database.kill()


@pytest.fixture
def rolling(monkeypatch: pytest.MonkeyPatch, short_folder: Path) -> Iterator[Rolling]:
    monkeypatch.setenv("COD_LAB_ROOT", str(short_folder / "labs"))
    lab = f"roll{os.getpid()}"
    with ExitStack() as ending:
        control.up(completed(LabSpec(lab, (), "10.77.0.1/16")))
        ending.callback(control.down, lab)
        cleaner.start(lab)
        made = Rolling(lab, short_folder)
        ending.callback(made.close)
        yield made


def served(storm: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    """Wait for machines that were switched on; return what each did."""
    out, errors = storm.communicate(timeout=OVER + PATIENCE + 60)
    assert storm.returncode == 0, errors.decode()[-2500:]
    found: list[dict[str, Any]] = json.loads(out)["machines"]
    return found


def test_an_upgrade_in_a_storm_loses_no_machine(rolling: Rolling, before: Path) -> None:
    old, new = rolling.servers
    both = [server.address for server in rolling.servers]
    old.install(before, both[:1], rolling.url)
    old.cod("init", "--dir", str(old.data), "--no-check")
    new.install(ROOT, both, rolling.url)
    shutil.copytree(old.data / "ca", new.data / "ca")
    shutil.copy(old.data / "webhook.key", new.data)
    old.start()
    until(old.answers, rolling.logs, 240)

    with rolling.engine.begin() as tx:
        assert tx.scalar(select(schema.VERSION)) == BEFORE["schema"]
    storms = [rolling.switch_on(before, 0, SHARE, "10.80.0.1", old)]
    until(lambda: rolling.known() > SHARE // 4, rolling.logs, 240)
    new.cod("db", "upgrade")
    new.start()
    until(new.answers, rolling.logs, 240)
    # while both releases serve
    storms.append(rolling.switch_on(ROOT, SHARE, SHARE, "10.80.0.2", old, new))
    until(lambda: rolling.known() > SHARE + SHARE // 4, rolling.logs, 240)
    old.stop()
    storms.append(rolling.switch_on(ROOT, 2 * SHARE, SHARE, "10.80.0.3", old, new))
    old.install(ROOT, both[:1], rolling.url)
    old.start()
    until(old.answers, rolling.logs, 240)
    # the old agents know one server, as did the site file
    storms.append(rolling.switch_on(before, 3 * SHARE, SHARE, "10.80.0.4", old))
    machines = [machine for storm in storms for machine in served(storm)]
    assert [machine["at"] for machine in machines if "order" not in machine["ended"]] == []

    disks.make_dirty(rolling.url)  # all boot again, to be erased, while the other server is stopped
    storms = [rolling.switch_on(ROOT, 0, MACHINES, "10.80.0.1", old, new)]
    until(lambda: _erasing(rolling) > MACHINES // 8, rolling.logs, 240)
    new.stop()
    new.start()
    machines = served(storms[0])
    assert [machine["at"] for machine in machines if "work" not in machine["ended"]] == []

    with rolling.engine.begin() as tx:
        macs = tx.scalars(select(t.nodes.c.boot_mac)).all()
        lent = tx.execute(
            select(t.bindings.c.mac, t.bindings.c.address).where(t.bindings.c.kind == "boot")
        ).all()
        checker = Histories()
        wrong = [one for row in history_after(tx, 0) for one in checker.add(row)]
        wrong += checker.compare(node_rows(tx))
    assert wrong == []
    assert len(macs) == len(set(macs)) == MACHINES
    assert len(lent) == len({mac for mac, _ in lent}) == len({each for _, each in lent}) == MACHINES
    until(new.answers, rolling.logs, 240)
    items = json.loads(new.cod("server", "list", "--json"))["items"]
    assert {each["name"]: each["database_schema"] for each in items} == dict.fromkeys(
        ("s1", "s2"), schema.head()
    )
    assert "Traceback" not in rolling.logs()


def _erasing(rolling: Rolling) -> int:
    """Return how many machines have been erased since all were to be."""
    with rolling.engine.begin() as tx:
        clean = select(func.count()).where(t.nodes.c.disk == "clean")
        return tx.scalar(clean) or 0
