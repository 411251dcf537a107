"""The pages for authors of VCMs: their tables are those of the settings, their example manages a
web farm against a real server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select

from cod.flows.scheduler import vclusters
from cod.flows.vcms import vcms
from cod.model import AskedVcluster, Site, SiteRef
from cod.net.nmp import tls
from cod.net.nmp.server import NmpServer
from cod.pool import Pool, in_transaction
from cod.security.ca import Ca
from cod.store import tables as t
from cod.store.engine import Tx
from cod.vcm.batch.settings import BatchTable
from cod.vcm.gridengine.settings import GridEngineSettings, GridEngineTable
from cod.vcm.libvirt.settings import CapacityTable, LibvirtTable
from cod.vcm.settings import Settings, load, reference
from cod.vcm.slurm.settings import NodesetTable, SlurmSettings, SlurmTable
from tests.contexts import flow_context
from tests.manual import page
from tests.net.nmplab import NOW, enrolled, founded, port
from tests.ports import free_port
from tests.store import manager_world as world
from tests.waiting import until

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like

ROOT = Path(__file__).parents[2]
EXAMPLE = page("write-a-vcm").read_text()


def example(language: str, text: str = EXAMPLE) -> str:
    """Return the first block of code in that language."""
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return found[0]


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("vcm", Settings),
        ("batch-pools", BatchTable),
        ("gridengine", GridEngineTable),
        ("slurm", SlurmTable),
        ("slurm", NodesetTable),
        ("virtual-hosts", LibvirtTable),
        ("virtual-hosts", CapacityTable),
    ],
)
def test_the_page_has_the_settings_as_they_are(name: str, table: Any) -> None:
    """After a change: `python -c 'from cod.vcm.settings import *; print(reference(Settings))'`, and
    paste it; the same with the tables of cod.vcm.batch.settings, cod.vcm.gridengine.settings and
    cod.vcm.slurm.settings."""
    assert reference(table) in page(name).read_text()


def test_the_page_s_slurm_file_can_be_read(tmp_path: Path) -> None:
    _, kinds = re.findall(r"```toml\n(.*?)```", page("slurm").read_text(), re.DOTALL)
    (tmp_path / "vcm.toml").write_text(f'vcluster = "batch"\nservers = ["10.77.0.1:8071"]\n{kinds}')
    assert [one.name for one in load(tmp_path / "vcm.toml", SlurmSettings).slurm.nodesets] == [
        "small",
        "gpu",
    ]


def test_the_page_s_grid_engine_file_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "vcm.toml").write_text(example("toml", page("gridengine").read_text()))
    assert load(tmp_path / "vcm.toml", GridEngineSettings).gridengine.slots == 8


def test_the_unit_runs_what_there_is() -> None:
    unit = (ROOT / "docs/systemd/cod-vcm@.service").read_text()
    assert "ExecStart=/usr/bin/cod vcm sge /etc/cod/vcm/%i/vcm.toml\n" in unit
    assert "ReadWritePaths=/etc/cod/vcm/%i\n" in unit  # the state file


# ---------------------------------------------------------------- the example


class Farm:
    """The example as a process, on a vcluster 'farm' of one node."""

    def __init__(self, folder: Path, engine: Engine, site: Site) -> None:
        self.folder, self.engine, self.site = folder, engine, site
        self.process: subprocess.Popen[bytes] | None = None
        self.plain_port = 0
        (folder / "webfarm.py").write_text(example("python"))
        self.load(0)

    def load(self, requests: float) -> None:
        (self.folder / "load.new").write_text(str(requests))
        (self.folder / "load.new").replace(self.folder / "load")

    def servers(self) -> list[str]:
        file = self.folder / "servers"
        return file.read_text().split() if file.exists() else []

    def configure(self, line: str) -> None:
        """One more line at the file's top."""
        file = self.folder / "vcm.toml"
        file.write_text(f"{line}\n{file.read_text()}")

    def start(self, *options: str) -> None:
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "webfarm.py", "vcm.toml", *options],
            cwd=self.folder,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def turn(self) -> None:
        """The manager's pass, and machines that arrive."""
        in_transaction(self.engine, world.run_pass, self.site, NOW)
        in_transaction(self.engine, world.arrive, NOW)

    def rests_at(self, count: int) -> None:
        def there() -> bool:
            self.turn()
            return len(self.servers()) == count and in_transaction(
                self.engine, addresses
            ) == sorted(self.servers())

        until(there, self.log)


def addresses(tx: Tx) -> list[str]:
    """Return the addresses of the vcluster's nodes."""
    members = vcms.picture(tx, int(tx.scalars(select(t.vclusters.c.id)).one())).members
    return sorted(member["address"] for member in members)


@pytest.fixture
def farm(
    reactor: Any, in_reactor: Any, pool: Pool, engine: Engine, site: Site, tmp_path: Path
) -> Iterator[Farm]:
    ca = Ca(tmp_path / "ca", "test")
    in_transaction(engine, founded, site, "farm", nodes=5)
    served = NmpServer(
        reactor,
        pool,
        SiteRef(site),
        "cod1",
        tls.listening(reactor, ca, ["127.0.0.1"], 0, free_port()),
        tls.identity,
        lambda: NOW,
        lambda effects: None,
    )
    in_reactor(served.startService)
    issued = enrolled(engine, ca, "farm", datetime.now(UTC))
    for name, content in (
        ("vcm.key", issued.key),
        ("vcm.crt", issued.certificate),
        ("ca.crt", ca.certificate),
    ):
        (tmp_path / name).write_bytes(content)
    config = (
        example("toml")
        .replace("/run/farm/load", str(tmp_path / "load"))
        .replace("/etc/haproxy/farm.list", str(tmp_path / "servers"))
        .replace("interval = 5", "interval = 0.1")
    )
    (tmp_path / "vcm.toml").write_text(
        f'vcluster = "farm"\nservers = ["127.0.0.1:{port(served)}"]\n{config}'
    )
    farm = Farm(tmp_path, engine, site)
    farm.plain_port = served.ports[-1].getHost().port
    yield farm
    if farm.process is not None and farm.process.poll() is None:
        farm.process.kill()
        farm.process.wait()
    in_reactor(served.stopService)


def test_the_example_grows_and_shrinks_with_its_load(farm: Farm) -> None:
    farm.start()
    farm.rests_at(1)
    farm.load(290)
    farm.rests_at(4)
    farm.load(20)
    farm.rests_at(2)
    assert farm.stop() == 0
    assert "290 requests a second want 4 servers" in farm.log()
    assert "Traceback" not in farm.log()


@pytest.mark.slow
def test_the_example_gives_a_node_to_who_needs_it_more(
    farm: Farm, engine: Engine, site: Site
) -> None:
    farm.load(290)
    farm.start()
    farm.rests_at(4)
    farm.load(300)  # it would keep them all
    with engine.begin() as tx:
        tx.execute(t.groups.insert().values(name="urgent", priority=50, created_at=NOW))
        vclusters.create(
            tx,
            flow_context(site, NOW + 1000),
            AskedVcluster(name="now", size=2, template="debian", group="urgent"),
        )

    def taken() -> bool:
        # behind the inertia of what the farm has got
        in_transaction(engine, world.run_pass, site, NOW + 1000)
        in_transaction(engine, world.arrive, NOW + 1000)
        return len(farm.servers()) == 3

    until(taken, farm.log)
    until(lambda: in_transaction(engine, addresses_of, "farm") == sorted(farm.servers()), farm.log)


def addresses_of(tx: Tx, name: str) -> list[str]:
    query = select(t.vclusters.c.id).where(t.vclusters.c.name == name)
    return sorted(
        member["address"] for member in vcms.picture(tx, int(tx.scalars(query).one())).members
    )


@pytest.mark.slow
def test_it_is_known_by_its_address_where_it_is_enrolled_so(farm: Farm, engine: Engine) -> None:
    in_transaction(engine, vcms.enrol, vcluster="farm", serial="", address="127.0.0.1", now=NOW)
    file = farm.folder / "vcm.toml"
    plain = re.sub(
        r"servers = \[.*\]\n",
        f'servers = ["127.0.0.1:{farm.plain_port}"]\ntls = false\n',
        file.read_text(),
    )
    file.write_text(plain)
    for name in ("vcm.key", "vcm.crt", "ca.crt"):
        (farm.folder / name).unlink()
    farm.load(150)
    farm.start()
    farm.rests_at(3)


def test_its_metrics_are_those_of_the_page(farm: Farm) -> None:
    metrics = free_port()
    farm.configure(f'metrics = "127.0.0.1:{metrics}"')
    farm.start()
    farm.rests_at(1)
    text = until(lambda: shown(metrics, 'cod_vcm_members{vcluster="farm"} 1\n'), farm.log)
    assert re.findall(r"^(\w+)\{vcluster=\"farm\"\} [\d.]+$", text, re.MULTILINE) == re.findall(
        r"^\| `(cod_vcm_\w+)`", page("vcm").read_text(), re.MULTILINE
    )
    days = re.search(r"certificate_days.* ([\d.]+)\n", text)
    assert days
    assert 396 < float(days[1]) <= 397


def shown(port: int, line: str) -> str:
    """The metrics; '' as long as that line is not among them: a node is in the farm's file before
    it is counted."""
    text: str = (
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    )
    return text if line in text else ""


@pytest.mark.slow
def test_enrolled_anew_it_needs_no_new_start(farm: Farm, engine: Engine) -> None:
    farm.start()
    farm.rests_at(1)
    issued = Ca(farm.folder / "ca", "test").vcm("farm", datetime.now(UTC) - timedelta(days=370))
    for name, content in (("vcm.key", issued.key), ("vcm.crt", issued.certificate)):
        (farm.folder / name).write_bytes(content)
    in_transaction(engine, vcms.enrol, vcluster="farm", serial=issued.serial, address="", now=NOW)
    until(lambda: farm.log().count("connected with cod1") >= 2, farm.log)
    assert farm.stop() == 0
    farm.start()
    until(lambda: "the certificate ends in 26 days" in farm.log(), farm.log)


def test_its_dry_run_does_neither(farm: Farm) -> None:
    farm.load(290)
    farm.start("--dry-run")
    until(lambda: "would" in farm.log(), farm.log)
    assert farm.stop() == 0
    assert farm.servers() == []


def test_what_cannot_be_started_says_why(farm: Farm) -> None:
    farm.start()
    until(lambda: "is connected" in farm.log() or "connected with" in farm.log(), farm.log)
    first = farm.process
    farm.start()  # a second one
    second, farm.process = farm.process, first
    assert second is not None
    assert second.wait(60) == 1
    assert "runs already" in farm.log()
    assert farm.stop() == 0
    (farm.folder / "vcm.toml").write_text("vcluster = 'farm'\n")
    farm.start()
    assert farm.process is not None
    assert farm.process.wait(60) == 1
    assert "vcm.toml: servers: is missing" in farm.log()
