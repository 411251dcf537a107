"""A cluster of one's own, on whole machines: two nodes of a stock Debian with SSSD, and a file server beside them.

One story on one stand, because machines boot slowly: a member's account, sudo, the same home on both nodes; a member
who comes later, and who leaves; who is not found and what is not reached; logins while COD's server is away.

Its name keeps the file out of usual runs, for the time it takes: ``pytest tests/system/members_story.py``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cod.lab import network, record
from cod.lab.spec import LabDisk, LabNode
from cod.model import METADATA_ADDRESS
from tests.system.login import Key, ssh
from tests.system.nfs_stand import ADDRESS, ROOT, NfsStand, ran
from tests.system.owner import API, Owner
from tests.system.qemu import Rack, build_all, offer, rack

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(3600)]

MACHINES = tuple(LabNode(name, "bios", memory=640, disks=(LabDisk(3 << 30, "virtio"),)) for name in ("m1", "m2"))
TABLES = """
[boot]
metadata_link_local = true

[api]
listen = ["{api}"]
plain = true

[[fileserver]]
name = "nas"
driver = "ganesha"
address = "{address}"
root = "{root}"
ssh = "root@{address}:22"
ssh_key = "{folder}/cod.key"
known_hosts = "{folder}/known_hosts"
"""
# What an image has that knows EC2 alone; what COD writes for seedfrom="metadata"; cloud-init's stages up to the logins.
EC2 = "datasource_list: [Ec2]\ndatasource: {Ec2: {strict_id: false}}\n"
BY_EC2 = f"printf '{EC2}' >/etc/cloud/cloud.cfg.d/99_ec2.cfg"
BY_SEED = "mount LABEL=CIDATA /mnt && printf '%s' '{meta}' >/mnt/meta-data && umount /mnt"
AGAIN = "cloud-init clean --logs && cloud-init init --local && cloud-init init && cat /run/cloud-init/cloud-id-*"
URL = "cloud-init query ds.meta_data.cod_metadata"
JOINED, LEFT = 10.0, 60.0  # seconds until somebody can log in, and until somebody no longer can


class FileServer(NfsStand):
    """The file server on the network of a lab."""

    lab = ""

    def _wire(self) -> None:
        for end in "sab":
            ran("ip", "netns", "add", f"{self.name}{end}")
            ran("ip", "-n", f"{self.name}{end}", "link", "set", "lo", "up")
        server, lab = f"{self.name}s", record.namespace(self.lab)
        ran("ip", "-n", lab, "link", "add", "nas0", "type", "veth", "peer", "name", "e0", "netns", server)
        ran("ip", "-n", lab, "link", "set", "nas0", "master", network.BRIDGE, "up")
        ran("ip", "-n", server, "addr", "add", f"{ADDRESS}/16", "dev", "e0")
        ran("ip", "-n", server, "link", "set", "e0", "up")


class Story:
    """The stand, its people, and their ways to the nodes."""

    def __init__(self, stand: Rack, folder: Path) -> None:
        self.stand, self.folder = stand, folder
        self.keys: dict[str, Key] = {}
        self.addresses: list[str] = []

    def owner(self, name: str, group: str, role: str = "owner") -> Owner:
        self.keys[name] = Key(self.folder, name)
        return Owner(self.stand, name, [self.keys[name]], role=role, group=group)

    def tries(self, name: str, command: str, node: int = 0, key: str = "") -> Any:
        """Return what comes of a login of `name`, with `key`'s key."""
        return ssh(self.keys[key or name], f"{name}@{self.addresses[node]}", command, known=self.folder / "known",
                   before=network.inside(record.namespace(self.stand.lab), []))

    def runs(self, name: str, command: str, node: int = 0, key: str = "") -> str:
        done = self.tries(name, command, node, key)
        assert done.returncode == 0, (name, command, done.stdout, done.stderr)
        return str(done.stdout).strip()

    def until(self, truth: Callable[[], Any], what: str, seconds: float) -> float:
        """Wait; returns the seconds that it took."""
        began = time.monotonic()
        self.stand.wait(truth, what, seconds)
        return time.monotonic() - began


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    build_all("debian-members")
    folder = Path(f"/tmp/cod-nas-{os.getpid()}")
    folder.mkdir()
    tables = TABLES.format(api=API, address=ADDRESS, root=ROOT, folder=folder)
    with rack(MACHINES, patience=4.0, policy=tables) as stand:
        stand.inside(["ip", "addr", "add", f"{METADATA_ADDRESS}/32", "dev", network.BRIDGE], 10)  # COD listens already
        FileServer.lab = stand.lab
        with FileServer(folder) as files:
            (folder / "known_hosts").write_text((folder / "known_hosts").read_text().replace("127.0.0.1", ADDRESS))
            assert files.runs("true").returncode == 0
            for machine in MACHINES:
                stand.power(machine.name, "on")
            yield Story(stand, tmp_path_factory.mktemp("story"))


def test_people_and_their_homes_on_a_vclusters_nodes(story: Story) -> None:
    stand = story.stand
    for group in ("physics", "chemistry"):
        stand.cod("group", "create", group, "--priority", "10")
    ann, eve = story.owner("ann", "physics"), story.owner("eve", "chemistry")
    offer(stand, "debian-members")
    for machine in MACHINES:
        stand.reaches(machine.name, "inactive", seconds=1200)
    ann.cod("vcluster", "create", "farm", "--group", "physics", "--size", "2", "--template", "debian-members",
            "--spread")
    eve.cod("vcluster", "create", "web", "--group", "chemistry", "--size", "1", "--template", "debian-members")
    eve.cod("volume", "create", "secret", "--group", "chemistry", "--size", "20M")
    eve.cod("volume", "attach", "chemistry/secret", "web")
    for machine in MACHINES:
        stand.reaches(machine.name, "active", seconds=2400)
    story.addresses = [str(stand.node(machine.name)["address"]) for machine in MACHINES]
    story.until(lambda: story.tries("root", "cloud-init status --wait", key="ann").returncode == 0, "cloud-init", 900)
    for node in (0, 1):
        story.until(lambda node=node: story.tries("ann", "true", node).returncode == 0,  # type: ignore[misc]
                    f"ann logs in to node {node}", 600)

    seen = [story.runs("ann", "id -u; id -gn; id -Gn; sudo -n id -u; findmnt -nro FSTYPE -T ~", node).splitlines()
            for node in (0, 1)]
    assert seen[0] == seen[1], "the same uid and groups on both"
    uid, _, groups, root, mounted = seen[0]
    assert int(uid) >= 1000
    assert "physics" in groups.split()
    assert (root, mounted) == ("0", "nfs4")
    story.runs("ann", "echo hello > ~/note")
    assert story.runs("ann", "cat ~/note; stat -c %U ~/note", 1) == "hello\nann"
    assert "(ALL" in story.runs("ann", "sudo -n -l")


def test_who_comes_and_who_leaves(story: Story) -> None:
    began = time.monotonic()
    story.runs("ann", "true")
    login = time.monotonic() - began
    assert story.tries("root", "id bob", key="ann").returncode != 0
    bob = story.owner("bob", "physics", "member")
    came = story.until(lambda: story.tries("bob", "true").returncode == 0, "bob logs in", 120.0)
    assert story.runs("bob", "id -u") == story.runs("bob", "id -u", 1)
    story.stand.cod("member", "remove", "physics", "bob")
    gone = story.until(lambda: story.tries("bob", "true").returncode != 0, "bob is out", 180.0)
    print(f"a login takes {login:.1f} s; a new member logged in after {came:.1f} s, was out {gone:.1f} s after leaving")
    assert came < JOINED + login
    assert gone < LEFT + login
    assert bob is not None


def test_other_vclusters_people_and_volumes_are_not_reached(story: Story) -> None:
    for command in ("id eve", "getent passwd eve", "getent group chemistry"):
        assert story.tries("root", command, key="ann").returncode != 0, command
    assert story.tries("eve", "true").returncode == 255
    path = story.stand.cod("volume", "show", "chemistry/secret")["path"]
    for what in (path, ROOT, "/"):
        mount = f"timeout 60 mount -t nfs4 -o vers=4.2,retry=0 {ADDRESS}:{what} /mnt && ls /mnt"
        done = story.tries("root", mount, key="ann")
        assert "secret" not in done.stdout, done.stdout
        assert what != path or done.returncode != 0
        story.tries("root", "umount /mnt", key="ann")


def test_the_metadata_service_tells_a_node_of_itself(story: Story) -> None:
    url = story.runs("root", URL, key="ann")
    fetch = f"python3 -c 'import urllib.request as u; print(u.urlopen(\"{url}cod.json\").read().decode())'"
    told = json.loads(story.runs("root", fetch, key="ann"))
    assert told["node"]["address"] == story.addresses[0]
    assert [peer["address"] for peer in told["peers"]] == sorted(story.addresses)
    assert {key["user"] for key in told["keys"]} == {"ann"}


def test_logins_go_on_while_cods_server_is_away(story: Story) -> None:
    story.runs("ann", "true", 1)
    story.stand.kill()
    try:
        assert story.runs("ann", "cat ~/note; sudo -n id -u", 1) == "hello\n0"
        assert story.runs("ann", "id -un") == "ann"
        time.sleep(20)  # what the cache takes for fresh is old by then
        assert story.runs("ann", "id -un", 1) == "ann"
    finally:
        story.stand.serve()


@pytest.mark.parametrize(("node", "way", "user", "source"), [
    (0, BY_EC2, "debian", "DataSourceEc2"), (1, BY_SEED, "root", "DataSourceNoCloudNet")])
def test_stock_cloud_init_asks_the_metadata_service(
    story: Story, node: int, way: str, user: str, source: str
) -> None:
    """By EC2's tree at its usual address, and by `seedfrom`: both know the key of somebody who came after priming."""
    name = f"late{node}"
    story.owner(name, "physics", "member")
    told = {"instance-id": "new", "local-hostname": "n9.farm.cod.demo", "seedfrom": "http://10.77.0.1:8069/nocloud/"}
    done = story.tries("root", f"set -e; {way.replace('{meta}', json.dumps(told))}; {AGAIN}", node, key="ann")
    assert done.returncode == 0, (done.stdout, done.stderr)
    seen = story.tries(user, "hostname -f; sudo cat /var/lib/cloud/instance/datasource", node, key=name)
    assert seen.returncode == 0, seen.stderr
    assert source in seen.stdout
    assert ".farm.cod.demo" in seen.stdout
