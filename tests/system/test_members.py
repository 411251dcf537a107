"""A cluster of one's own, on whole machines: two nodes of a stock Debian with SSSD, and a file
server beside them.

All tests share one stand, because machines boot slowly. Its people: ann and bob, owners of physics,
whose vcluster has the nodes; eve of chemistry, whose vcluster waits for a node, with a volume;
carla, who joins physics later.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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

pytestmark = [
    pytest.mark.system,
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.xdist_group("members"),
]

MACHINES = tuple(
    LabNode(name, "bios", memory=640, disks=(LabDisk(3 << 30, "virtio"),)) for name in ("m1", "m2")
)
SERVER, LAPTOP = "10.77.0.1", "10.77.0.9"
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
SEEN = "id -u; id -gn; id -Gn; sudo -n id -u; findmnt -nro FSTYPE -T ~; pwd"
KNOWN = "until id -u {0} && sss_ssh_authorizedkeys {0} | grep -q ssh-; do sleep 0.3; done"
UNKNOWN = "while id -u {0}; do sleep 0.3; done"
MOUNT = """
timeout 60 mount -t nfs4 -o vers=4.2,retry=0 {address}:{path} /mnt && find /mnt && umount /mnt || echo refused
"""
FETCH = """
import json, subprocess, urllib.request
url = subprocess.check_output(["cloud-init", "query", "ds.meta_data.cod_metadata"], text=True).strip()
print(urllib.request.urlopen(url + "cod.json").read().decode())
"""
# An image that knows EC2 alone; what COD writes for seedfrom="metadata"; cloud-init's stages up to
# the keys, once more.
BY_EC2 = (
    "printf 'datasource_list: [Ec2]\ndatasource: {Ec2: {strict_id: false}}\n'"
    " >/etc/cloud/cloud.cfg.d/99_ec2.cfg"
)
BY_SEED = "mount LABEL=CIDATA /mnt; echo '{}' >/mnt/meta-data; umount /mnt".format(
    json.dumps(
        {
            "instance-id": "new",
            "local-hostname": "n9.farm.cod.demo",
            "seedfrom": "http://10.77.0.1:8069/nocloud/",
        }
    )
)
AGAIN = """
cloud-init clean --logs
/usr/lib/cloud-init/ds-identify --force
cloud-init init --local >/dev/null
cloud-init init >/dev/null
cat /var/lib/cloud/instance/datasource
hostname -f
grep ' carla$' /root/.ssh/authorized_keys
"""
FROM = f"-oBindAddress={LAPTOP}"  # people's computers are not COD's server


class FileServer(NfsStand):
    """The file server on the network of a lab."""

    lab = ""

    def _wire(self) -> None:
        for end in "sab":
            ran("ip", "netns", "add", f"{self.name}{end}")
            ran("ip", "-n", f"{self.name}{end}", "link", "set", "lo", "up")
        server, lab = f"{self.name}s", record.namespace(self.lab)
        ran(
            "ip",
            "-n",
            lab,
            "link",
            "add",
            "nas0",
            "type",
            "veth",
            "peer",
            "name",
            "e0",
            "netns",
            server,
        )
        ran("ip", "-n", lab, "link", "set", "nas0", "master", network.BRIDGE, "up")
        ran("ip", "-n", server, "addr", "add", f"{ADDRESS}/16", "dev", "e0")
        ran("ip", "-n", server, "link", "set", "e0", "up")


class Farm:
    """The stand, its people, and their ways to the nodes."""

    def __init__(self, stand: Rack, files: NfsStand, folder: Path) -> None:
        self.stand, self.files, self.folder = stand, files, folder
        self.keys: dict[str, Key] = {}
        self.addresses: list[str] = []
        self.lines: list[subprocess.Popen[bytes]] = []

    def person(self, name: str, group: str, role: str = "owner") -> Owner:
        """Have somebody come by an invitation, with a key."""
        self.keys[name] = Key(self.folder, name)
        return Owner(self.stand, name, [self.keys[name]], role=role, group=group)

    def tries(self, name: str, command: str, node: int = 0, key: str = "", *options: str) -> Any:
        """Return what comes of a login of `name`, with `key`'s key."""
        return ssh(
            self.keys[key or name],
            FROM,
            *options,
            f"{name}@{self.addresses[node]}",
            command,
            known=self.folder / "known",
            before=network.inside(record.namespace(self.stand.lab), []),
        )

    def logs_in(self, name: str, command: str = "true", node: int = 0) -> str:
        """Return what the command prints, in a new session."""
        return self._printed(self.tries(name, command, node), name, command)

    def root(self, script: str, node: int = 0) -> str:
        """Return what a script prints that ann runs by sudo, in a connection that stays."""
        words = f"-oControlPath={self.folder}/line{node}"
        command = f"sudo -n sh -c {shlex.quote(script)}"
        return self._printed(self.tries("ann", command, node, "", words), "ann", command)

    @staticmethod
    def _printed(done: Any, name: str, command: str) -> str:
        assert done.returncode == 0, (name, command, done.stdout, done.stderr)
        return str(done.stdout).strip()

    def connect(self, node: int) -> None:
        """Open the connection of `root`."""
        before = network.inside(record.namespace(self.stand.lab), [])
        self.lines.append(
            subprocess.Popen(
                [
                    *before,
                    "ssh",
                    "-F",
                    "none",
                    "-MN",
                    FROM,
                    f"-oControlPath={self.folder}/line{node}",
                    "-oBatchMode=yes",
                    "-i",
                    str(self.keys["ann"].path),
                    f"-oUserKnownHostsFile={self.folder / 'known'}",
                    "-oIdentitiesOnly=yes",
                    f"ann@{self.addresses[node]}",
                ],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        self.stand.wait(
            lambda: (self.folder / f"line{node}").exists(), "a connection that stays", 60.0
        )

    @contextmanager
    def server_off(self) -> Iterator[None]:
        """Cut the power of COD's server: no process and no address. People's computers keep
        theirs."""
        address = (f"{SERVER}/16", "dev", network.BRIDGE)
        route = ("10.77.0.0/16", "dev", network.BRIDGE, "src", LAPTOP)
        self.stand.kill()
        self.stand.inside(["ip", "addr", "del", *address], 10)
        self.stand.inside(["ip", "route", "add", *route], 10)
        try:
            yield
        finally:
            self.stand.inside(["ip", "route", "del", *route], 10)
            self.stand.inside(["ip", "addr", "add", *address], 10)
            self.stand.serve()


@contextmanager
def standing(folder: Path) -> Iterator[Farm]:
    """Yield the stand, with both nodes of farm set up and ann's connections to them open. `folder`
    is a short one."""
    (folder / "nas").mkdir(parents=True)
    tables = TABLES.format(api=API, address=ADDRESS, root=ROOT, folder=folder / "nas")
    with rack(MACHINES, patience=4.0, policy=tables, restored=True) as stand:
        for machine in MACHINES:
            stand.power(machine.name, "on")
        for own in (METADATA_ADDRESS, LAPTOP):  # on the first, COD listens already
            stand.inside(["ip", "addr", "add", f"{own}/32", "dev", network.BRIDGE], 10)
        FileServer.lab = stand.lab
        with FileServer(folder / "nas") as files:
            known = folder / "nas/known_hosts"
            known.write_text(known.read_text().replace("127.0.0.1", ADDRESS))
            farm = Farm(stand, files, folder)
            try:
                _set_up(farm)
                yield farm
            finally:
                for line in farm.lines:
                    line.kill()
                    line.wait()


def _set_up(farm: Farm) -> None:
    stand = farm.stand
    for group in ("physics", "chemistry"):
        stand.cod("group", "create", group, "--priority", "10")
    ann, eve = farm.person("ann", "physics"), farm.person("eve", "chemistry")
    farm.person("bob", "physics")
    farm.person("carla", "chemistry", "member")
    offer(stand, "debian-members")
    for machine in MACHINES:
        stand.reaches(machine.name, "inactive")
    ann.cod(
        "vcluster",
        "create",
        "farm",
        "--group",
        "physics",
        "--size",
        "2",
        "--template",
        "debian-members",
        "--spread",
    )
    eve.cod(
        "vcluster",
        "create",
        "web",
        "--group",
        "chemistry",
        "--size",
        "1",
        "--template",
        "debian-members",
    )
    eve.cod("volume", "create", "secret", "--group", "chemistry", "--size", "20M")
    eve.cod("volume", "attach", "chemistry/secret", "web")
    for machine in MACHINES:
        stand.reaches(machine.name, "active", seconds=1200)
    farm.addresses = [str(stand.node(machine.name)["address"]) for machine in MACHINES]
    for node, _ in enumerate(MACHINES):
        stand.wait(
            lambda node=node: farm.tries("ann", "true", node).returncode == 0,
            f"ann logs in to node {node}",
            900,
        )
        farm.connect(node)
        farm.root("cloud-init status --wait", node)


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    build_all("debian-members")
    folder = Path(f"/tmp/codf{os.getpid()}")
    try:
        with standing(folder) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_both_nodes_know_the_same_people_and_mount_their_homes(farm: Farm) -> None:
    seen = [farm.logs_in("ann", SEEN, node).splitlines() for node in (0, 1)]
    assert seen[0] == seen[1], "the same uid and groups on both"
    uid, own, groups, root, mounted, home = seen[0]
    assert int(uid) >= 1000
    assert (own, set(groups.split())) == ("ann", {"ann", "physics"})
    assert (root, mounted, home) == ("0", "nfs4", "/home/ann")
    farm.logs_in("ann", "echo hello > ~/note")
    assert farm.logs_in("ann", "cat ~/note; stat -c %U ~/note", 1) == "hello\nann"
    assert "(ALL : ALL) NOPASSWD: ALL" in farm.logs_in("ann", "sudo -n -l")


def test_a_new_member_logs_in(farm: Farm) -> None:
    """Log in at the first try once the node knows the member."""
    assert farm.tries("carla", "true").returncode == 255, (
        "that nobody is called so is remembered for a while"
    )
    began = time.monotonic()
    farm.stand.cod("member", "set", "physics", "carla", "member")
    farm.root(KNOWN.format("carla"))
    known = time.monotonic() - began
    farm.logs_in("carla")
    first = time.monotonic() - began
    farm.logs_in("carla")
    login = time.monotonic() - began - first
    print(
        f"a new member's login could begin after {known:.1f} s and had ended after {first:.1f} s;"
        f" it takes {login:.1f} s later on"
    )
    uid, root, mounted, _ = farm.logs_in(
        "carla", "id -u; sudo -n id -u; findmnt -nro FSTYPE -T ~; pwd"
    ).split()
    assert (root, mounted) == ("0", "nfs4")
    assert farm.logs_in("carla", "id -u", 1) == uid


def test_a_removed_member_is_out_also_as_root(farm: Farm) -> None:
    """Remove bob, whose key was in the seed of both nodes."""
    farm.logs_in("bob", "sudo -n true")
    assert bob_in_seeds(farm), "bob held a key of the nodes"
    refused = farm.tries("root", "id -u", key="bob")
    assert (refused.returncode, "Please login as the user" in refused.stdout) == (
        142,
        True,
    ), "not even as a member"
    began = time.monotonic()
    reply = farm.stand.cod("member", "remove", "physics", "bob")
    assert len(reply["nodes"]) == len(MACHINES)
    farm.root(UNKNOWN.format("bob"))
    tried = farm.tries("bob", "true")
    took = time.monotonic() - began
    print(f"a removed member was out after {took:.1f} s")
    assert "Permission denied" in tried.stderr
    for node, _ in enumerate(MACHINES):
        for user, status in (("root", 142), ("debian", 255)):
            tried = farm.tries(user, "id -u", node, key="bob")
            assert (tried.returncode, "0" in tried.stdout.split()) == (status, False), (
                user,
                node,
                tried,
            )


def bob_in_seeds(farm: Farm) -> bool:
    """Return whether bob's key is in both nodes' seeds, and only shut in root's authorized_keys."""
    key = farm.keys["bob"].line.split()[1]
    for node, _ in enumerate(MACHINES):
        lines = [
            line
            for line in farm.root("cat /root/.ssh/authorized_keys", node).splitlines()
            if key in line
        ]
        assert all(
            line.startswith("no-port-forwarding,") and "exit 142" in line for line in lines
        ), lines
        if not lines:
            return False
    return True


def test_others_are_not_found_and_their_exports_are_refused_to_root(farm: Farm) -> None:
    paths = {
        name: farm.stand.cod("volume", "show", name)["path"]
        for name in ("chemistry/secret", "chemistry/home", "physics/home")
    }
    farm.files.runs("touch", f"{paths['chemistry/secret']}/treasure", check=True)
    exports = farm.files.runs("sh", "-c", "cat /etc/ganesha/cod.d/*.conf", check=True).stdout
    assert all(f'Path = "{path}"' in exports for path in paths.values()), (
        "there is something to be refused"
    )
    unknown = (
        "for what in passwd:eve group:chemistry; do getent ${what%:*} ${what#*:} && echo found;"
        " done; true"
    )
    assert farm.root(unknown) == ""
    assert farm.tries("eve", "true").returncode == 255

    mounts = [*paths.values(), ROOT, "/"]
    said = farm.root(
        "; echo ---; ".join(MOUNT.format(address=ADDRESS, path=path).strip() for path in mounts)
    )
    secret, homes, own, root, top = (each.split() for each in said.split("---"))
    assert (secret, homes) == (["refused"], ["refused"])
    assert "/mnt/ann" in own, "the same command reaches the group's own"
    assert not any("chemistry" in path or "treasure" in path for path in (*root, *top)), (root, top)


def test_the_metadata_service_tells_a_node_of_itself(farm: Farm) -> None:
    told = json.loads(farm.root(f"python3 -c {shlex.quote(FETCH)}"))
    assert told["node"]["address"] == farm.addresses[0]
    assert [peer["address"] for peer in told["peers"]] == sorted(farm.addresses)
    users = {key["user"] for key in told["keys"]}
    assert "ann" in users
    assert "eve" not in users


def test_logins_go_on_while_the_server_has_no_power(farm: Farm) -> None:
    for node in (0, 1):
        farm.logs_in("ann", "echo hello > ~/note; sudo -n true", node)
    with farm.server_off():
        for node in (0, 1):
            assert farm.logs_in("ann", "cat ~/note; sudo -n id -u; id -un", node) == "hello\n0\nann"
            farm.root("date -s '60 seconds'", node)  # what SSSD keeps has run out, by its clock
            assert farm.logs_in("ann", "cat ~/note; sudo -n id -u; id -un", node) == "hello\n0\nann"


def test_stock_cloud_init_asks_the_metadata_service(farm: Farm) -> None:
    """Ask by EC2's tree at its usual address, and by `seedfrom`: both know the key of somebody who
    came after priming. Host keys are made anew, which the connections that stay do not ask for."""
    farm.stand.cod("member", "set", "physics", "carla", "member")
    with ThreadPoolExecutor(2) as both:
        said = both.map(
            lambda way: farm.root(f"set -e\n{way[1]}\n{AGAIN}", way[0]),
            enumerate((BY_EC2, BY_SEED)),
        )
    for text, source in zip(said, ("DataSourceEc2", "DataSourceNoCloudNet"), strict=True):
        found, name, key = text.splitlines()[-3:]
        assert source in found
        assert name.endswith(".farm.cod.demo")
        assert farm.keys["carla"].line.split()[1] in key
