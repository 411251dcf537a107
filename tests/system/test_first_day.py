"""An administrator's first day: a new site, 300 machines of a list, 50 BMCs swept, groups and
templates of files, two images, and four machines of the list active in two clusters.

`make first-day` prints each command with its output and its time.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cod.lab import network, record
from cod.lab.spec import LabDisk, LabNic, LabNode
from tests.net.bmcrack import uuid
from tests.system.bmcs import running
from tests.system.owner import API, Owner
from tests.system.qemu import CHECKOUT, TEMPLATES, Rack, rack
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
]

MACHINES, RACKS = 300, 10
THERE = range(29, 33)  # those that are in the lab; of the others the list alone tells
BMCS = "10.1.0"
IMAGES = {"web": "hello-b", "batch": "opaque"}  # by the cluster that runs it
SITE = {
    "unknown": '"known-only"',
    "patience": "3.0",
    "listen": f'["{API}"]',
    "plain": "true",
}
ACCOUNT = """
[[account]]
name = "rack1"
user = "admin"
password_file = "{file}"
"""
GROUPS = """\
kind: group
name: physics
priority: 10
max_lease: 30 d
---
kind: group
name: chemistry
max_lease: 14 d
---
kind: member
name: chemistry/bob
role: owner
---
kind: share
name: physics
shares: 3
---
kind: share
name: chemistry
shares: 1
"""
TEMPLATE = """\
kind: template
name: {name}
document: {{file: {name}.xml}}
---
"""


def mac(number: int) -> str:
    return f"52:54:00:77:{number >> 8:02x}:{number & 255:02x}"


def name(number: int) -> str:
    return f"r{(number - 1) * RACKS // MACHINES + 1:02}-{number:03}"


LAB = tuple(
    LabNode(
        name(number),
        nics=(LabNic(mac=mac(number)),),
        disks=(LabDisk(4 << 30),),
        uuid=uuid(number),
        serial=f"SER{number:03}",
    )
    for number in THERE
)


class FirstDay(Rack):
    """A rack whose site is founded by typed commands."""

    def types(self, *words: str, code: int = 0) -> str:
        """Type a command of `cod` on the server; print and return what it says."""
        began = time.monotonic()
        done = subprocess.run(
            network.inside(record.namespace(self.lab), [sys.executable, "-m", "cod", *words]),
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=os.environ | {"COD_SITE": str(self.site_file), "COLUMNS": "160"},
        )
        lines = done.stdout.splitlines()
        shown = [*lines[:8], f"... {len(lines) - 16} lines", *lines[-8:]]
        print(f"\n[{(time.monotonic() - began) / 60:.2f} min] # cod {' '.join(words)}")
        print("\n".join(lines if len(lines) < 20 else shown), done.stderr, flush=True)
        assert done.returncode == code, done.stderr
        return done.stdout

    def found(self, switches: str, address: str) -> None:
        """Make the site as docs/start/install.md does."""
        self.site_file = self.folder / "data/site.toml"
        self.types("init", "--dir", "data", "--interface", "br0")
        password = self.folder / "rack1.password"
        password.write_text("secret\n")
        password.chmod(0o600)
        text = self.site_file.read_text()
        for key, value in SITE.items():
            text, found = re.subn(rf"(?m)^# {key} = .*$", f"{key} = {value}", text, count=1)
            assert found, key
            print(f"   site.toml: {key} = {value}")
        self.site_file.write_text(text + ACCOUNT.format(file=password))
        self.take_the_labs_trampoline()
        self.switches = switches

    def listed(self) -> list[dict[str, Any]]:
        """The nodes of the lab's machines as the API tells of them."""
        with self.client() as api:
            return [api.get(f"/nodes/{machine.name}") for machine in LAB]

    def all_are(self, state: str) -> None:
        """Wait until all machines of the lab are in that state, and print how long it took."""
        began = time.monotonic()

        def there() -> bool:
            now = self.listed()
            for node in now:
                assert node["state"] != "quarantined", node["reason"]
            return all(node["state"] == state for node in now)

        told = lambda: [(node["name"], node["state"]) for node in self.listed()]  # noqa: E731
        until(there, told, 1800, every=2.0)
        print(f"\n[{(time.monotonic() - began) / 60:.2f} min] until four machines are {state}")


@pytest.fixture
def day() -> Iterator[FirstDay]:
    with rack(LAB, patience=3.0, made=FirstDay) as stand:
        assert isinstance(stand, FirstDay)
        yield stand


@pytest.fixture
def bmcs(day: FirstDay, tmp_path: Path) -> Iterator[None]:
    """Fifty BMCs on a network of theirs, four of them of the lab's machines."""
    space = record.namespace(day.lab)
    route = ["ip", "route", "add", "local", f"{BMCS}.0/24", "dev", "lo"]
    subprocess.run(network.inside(space, route), check=True)
    pairs = [f"{number}={name(number)}" for number in THERE]
    words = [sys.executable, "-m", "tests.system.bmc_rack", BMCS, str(tmp_path), day.switches]
    with running(network.inside(space, [*words, *pairs]), tmp_path / "bmcs", cwd=CHECKOUT):
        until(lambda: "ready" in (tmp_path / "bmcs").read_text(), "the BMCs listen", 600, 0.5)
        yield


def write_list(path: Path) -> None:
    """Write the machines as a site's spreadsheet has them."""
    lines = ["name,mac,uuid,serial,rack,position,tags"]
    for number in range(1, MACHINES + 1):
        where = f"{name(number)[:3]},{(number - 1) % (MACHINES // RACKS) + 1}"
        lines.append(
            f"{name(number)},{mac(number)},{uuid(number)},SER{number:03},{where},bought-2024"
        )
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.usefixtures("bmcs")
def test_from_a_list_to_four_machines_with_names_racks_and_owners(
    day: FirstDay, tmp_path: Path
) -> None:
    began = time.monotonic()
    write_list(day.folder / "machines.csv")
    day.types("node", "import", "csv", "machines.csv", "--dry-run")
    day.types("node", "import", "csv", "machines.csv")
    listed = day.types("node", "list", "--state", "expected", "-o", "name")
    assert len(listed.split()) == MACHINES

    # three refuse the password, two lie, and so four are in doubt: exit code 1
    swept = ("bmc", "sweep", f"{BMCS}.0/26", "--account", "rack1", "--pin")
    day.types(*swept, code=1)
    assert "43 taken" in day.types(*swept, "--take", code=1)

    day.types("user", "add", "bob")
    documents = day.folder / "site.d"
    documents.mkdir()
    (documents / "groups.yaml").write_text(GROUPS)
    software = ""
    for image in IMAGES.values():
        (documents / f"{image}.xml").write_text((TEMPLATES / f"{image}.xml").read_text())
        day.types("image", "add", image, str(CHECKOUT / f"build/images/{image}.img"), "--wait")
        software += TEMPLATE.format(name=image)
    (documents / "software.yaml").write_text(software.removesuffix("---\n"))
    day.types("diff", "-f", "site.d", code=1)
    day.types("apply", "-f", "site.d", "--yes")
    assert "Nothing differs" in day.types("diff", "-f", "site.d")

    names = [machine.name for machine in LAB]
    day.types("node", "power", "on", *names)
    day.all_are("registering")
    day.types("node", "approve", *names, "--yes")
    day.all_are("inactive")

    ann = Owner(day, "ann", [])
    for cluster, image in IMAGES.items():
        words = ("--group", "physics", "--size", "2", "--template", image, "--spread")
        print(f"\nann: cod vcluster create {cluster} {' '.join(words)}")
        ann.cod("vcluster", "create", cluster, *words)
    day.all_are("active")
    day.types("node", "list", *names)

    by_cluster: dict[str, list[str]] = {cluster: [] for cluster in IMAGES}
    for number, node in zip(THERE, day.listed(), strict=True):
        assert (node["name"], node["block"]) == (name(number), name(number)[:3])
        assert node["power"]["driver"] == "redfish"
        assert node["power"]["account"] == "rack1"
        by_cluster[node["vcluster"]].append(node["name"])
        if node["vcluster"] == "web":
            page = day.identity(node["name"])
            print(f"http://{node['address']}: {page}")
            assert page["hostname"] == node["hostname"]
    assert [len(each) for each in by_cluster.values()] == [2, 2]
    with day.client() as api:
        assert {api.get(f"/vclusters/{cluster}")["group"] for cluster in IMAGES} == {"physics"}
    print(f"\n[{(time.monotonic() - began) / 60:.2f} min] the whole day")
