"""An administrator's first day: a new site, 300 machines of a list, 50 BMCs swept, groups and
templates of files, two images, and four machines of the list active in two clusters.

`make first-day` prints each command with its output and its time. The server is this tree's, or an
empty Debian 12 in which the package was installed; its images are the lab's small ones, or disks
laid out as Ubuntu's and Rocky's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cod.lab import network, record
from cod.lab.spec import LabDisk, LabNic, LabNode
from images import debian
from tests.net.bmcrack import uuid
from tests.system import maker_layouts
from tests.system.bmcs import running
from tests.system.login import Key
from tests.system.owner import API, Owner
from tests.system.qemu import CHECKOUT, TEMPLATES, Rack, rack
from tests.system.test_debian import tries
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.timeout(6 * 3600),
]

MACHINES, RACKS = 300, 10
THERE = range(29, 33)  # those that are in the lab; of the others the list alone tells
BMCS = "10.1.0"
CLUSTERS = ("web", "batch")
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
    """A rack whose site is founded by typed commands.

    images  by the cluster that runs it; of the first each node's page is read
    """

    images = ("hello-b", "opaque")

    def image(self, name: str) -> str:
        """Return the file of an image, as it is typed; its template is NAME.xml beside the
        documents."""
        shutil.copy(TEMPLATES / f"{name}.xml", self.folder / f"site.d/{name}.xml")
        return str(CHECKOUT / f"build/images/{name}.img")

    def runs(self, key: Key, node: dict[str, Any]) -> bool:
        """Return whether the node's system has taken its name. `opaque` tells nobody."""
        return (
            node["vcluster"] == CLUSTERS[1]
            or self.identity(node["name"]).get("hostname") == node["hostname"]
        )

    def types(self, *words: str, code: int = 0) -> str:
        """Type a command of `cod` on the server; print and return what it says."""
        began = time.monotonic()
        done = subprocess.run(
            network.inside(record.namespace(self.lab), self.command(*words)),
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=os.environ | {"COLUMNS": "160"},
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
        self.enter_account(self.site_file, password, str(password))
        self.take_the_labs_trampoline()
        self.switches = switches

    def enter_account(self, site_file: Path, password: Path, named: str) -> None:
        """Write the BMCs' account into the site file, which calls its password's file `named`, and
        what the site is to be like."""
        password.write_text("secret\n")
        password.chmod(0o600)
        text = site_file.read_text()
        for key, value in SITE.items():
            text, found = re.subn(rf"(?m)^# {key} = .*$", f"{key} = {value}", text, count=1)
            assert found, key
            print(f"   site.toml: {key} = {value}")
        site_file.write_text(text + ACCOUNT.format(file=named))

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
        until(there, told, 3 * 3600, every=2.0)
        print(f"\n[{(time.monotonic() - began) / 60:.2f} min] until four machines are {state}")


class DebianDay(FirstDay):
    """A first day on a Debian 12 in a folder, with the package installed. The administrator's
    home has what is in `folder`."""

    root: Path

    def command(self, *words: str) -> list[str]:
        if words == ("serve",):
            words = ("serve", "--users")  # as the unit has it
        enter = (
            f"mount -t proc proc {self.root}/proc && mount --rbind /dev {self.root}/dev"
            f" && mount --bind {self.folder} {self.root}/root && exec chroot {self.root} env -i"
            " PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 COLUMNS=160"
            """ sh -c 'cd /root && exec cod "$@"' cod "$@\""""
        )
        return ["unshare", "--mount", "sh", "-c", enter, "sh", *words]

    def found(self, switches: str, address: str) -> None:
        self.socket = self.root / "var/lib/cod/run/api.sock"
        self.types("init", "--interface", "br0")
        self.enter_account(
            self.root / "etc/cod/site.toml",
            self.root / "etc/cod/rack1.password",
            "/etc/cod/rack1.password",
        )
        self.take_the_labs_trampoline()
        self.types("permissions")
        self.switches = switches

    def take_the_labs_trampoline(self) -> None:
        for name in ("vmlinuz", "ramdisk", "facts.json"):
            shutil.copy(
                CHECKOUT / "build/trampoline/lab" / name,
                self.root / "var/lib/cod/boot/trampoline" / name,
            )

    def image(self, name: str) -> str:
        shutil.copy(super().image(name), self.folder / f"{name}.img")
        return f"{name}.img"


class MakersDay(DebianDay):
    """A first day on that Debian, with disks laid out as Ubuntu's and Rocky's: their owner logs in
    by key."""

    images = ("ubuntu", "rocky")

    def image(self, name: str) -> str:
        tree = maker_layouts.system(CHECKOUT / "build/cache/images")
        scratch = self.folder / f"{name}.scratch"
        scratch.mkdir()
        maker_layouts.make(name, tree, scratch, self.folder / f"{name}.img")
        told = self.types("image", "inspect", f"{name}.img", "--template", name)
        (self.folder / f"site.d/{name}.xml").write_text(told)
        return f"{name}.img"

    def runs(self, key: Key, node: dict[str, Any]) -> bool:
        said = tries(self, key, f"root@{node['address']}", "hostname", self.folder).stdout
        return str(said).strip() == node["hostname"]


@pytest.fixture(scope="session")
def clean_debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty Debian 12 with the package, as `make deb` makes it; prints the minutes."""
    folder = tmp_path_factory.mktemp("d")
    began = time.monotonic()

    def told(what: str) -> None:
        print(f"\n[{(time.monotonic() - began) / 60:.2f} min] {what}", flush=True)

    subprocess.run([CHECKOUT / ".ci/deb/build", folder], check=True, capture_output=True)
    (package,) = folder.glob("cod_*.deb")
    told("make deb")
    install = (
        'cp {} "$1/cod.deb" && date +%s.%N >&2 && chroot "$1" env DEBIAN_FRONTEND=noninteractive'
        " apt-get install -qq -y --no-install-recommends grub-common /cod.deb && date +%s.%N >&2"
    )
    done = subprocess.run(
        [
            *("mmdebstrap", "--quiet", "--variant=important", "--include=ca-certificates"),
            f"--customize-hook={install.format(package)}",
            *(debian.SUITE, str(folder / "r")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    start, end = re.findall(r"(?m)^(\d+\.\d+)$", done.stderr)
    told(f"an empty Debian 12; of it {(float(end) - float(start)) / 60:.2f} min apt-get install")
    yield folder / "r"
    shutil.rmtree(folder)


@pytest.fixture(params=[FirstDay, DebianDay, MakersDay], ids=["tree", "debian", "makers"])
def day(request: pytest.FixtureRequest) -> Iterator[FirstDay]:
    made: type[FirstDay] = request.param
    if issubclass(made, DebianDay):
        made.root = request.getfixturevalue("clean_debian")
        for used in ("etc/cod", "var/lib/cod"):  # by the day before
            for each in (made.root / used).iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
    machines = LAB
    if made is MakersDay:
        maker_layouts.system(CHECKOUT / "build/cache/images")  # takes minutes, once
        machines = tuple(replace(each, memory=1024, cpus=2) for each in LAB)
    with rack(machines, patience=10.0, made=made) as stand:
        assert isinstance(stand, FirstDay)
        yield stand


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return Key(tmp_path_factory.mktemp("keys"), "laptop")


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
def test_from_a_list_to_four_machines_with_names_racks_and_owners(day: FirstDay, key: Key) -> None:
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
    for image in day.images:
        day.types("image", "add", image, day.image(image), "--wait")
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

    ann = Owner(day, "ann", [key])
    for cluster, image in zip(CLUSTERS, day.images, strict=True):
        words = ("--group", "physics", "--size", "2", "--template", image, "--spread")
        print(f"\nann: cod vcluster create {cluster} {' '.join(words)}")
        ann.cod("vcluster", "create", cluster, *words)
    day.all_are("active")
    day.types("node", "list", *names)

    by_cluster: dict[str, list[str]] = {cluster: [] for cluster in CLUSTERS}
    for number, node in zip(THERE, day.listed(), strict=True):
        assert (node["name"], node["block"]) == (name(number), name(number)[:3])
        assert node["power"]["driver"] == "redfish"
        assert node["power"]["account"] == "rack1"
        by_cluster[node["vcluster"]].append(node["name"])
        there: Callable[[], bool] = partial(day.runs, key, node)
        until(there, f"{node['name']} calls itself {node['hostname']}", 3600, every=2.0)
    assert [len(each) for each in by_cluster.values()] == [2, 2]
    with day.client() as api:
        assert {api.get(f"/vclusters/{cluster}")["group"] for cluster in CLUSTERS} == {"physics"}
    print(f"\n[{(time.monotonic() - began) / 60:.2f} min] the whole day")
