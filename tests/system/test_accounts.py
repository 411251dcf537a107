"""People log in to nodes: a real SSSD, sshd and sudo against COD's edge; who joins, who leaves, a
server that dies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, insert

from cod.flows.people import people
from cod.model import PosixRules
from cod.policy.nodes import sssd
from cod.pool import in_transaction
from cod.security.ca import Ca
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.people import groups
from tests import ldap_site
from tests.conftest import upgrade
from tests.system.membernode import MemberNode, network
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("accounts"),
]

LOOK = 1.0  # seconds between looks that start a program in a node, which costs as much as a login
COD = Path(sys.executable).with_name("cod")
SERVER, ADDRESSES = "10.77.0.1", {"n1": "10.77.128.5", "n2": "10.77.128.6"}
SITE = """\
name = "test"
domain = "cod.test"
[server]
data_dir = "{folder}"
[[subnet]]
name = "lab"
network = "10.77.0.0/16"
server = "10.77.0.1"
interface = "br0"
boot_pool = ["10.77.1.0", "10.77.1.255"]
block_pool = ["10.77.128.0", "10.77.191.255"]
"""


def joins(tx: Tx, name: str, group: str, key: Path, role: str = "member") -> None:
    """Make a user with that key's public half, in the group."""
    ldap_site.user(tx, name, {group: role}, keys=0)
    user = people.one(tx, name)[0]
    algorithm, text, _comment = key.with_suffix(".pub").read_text().split()
    tx.execute(
        insert(t.ssh_keys).values(
            user_id=user.id,
            name=name,
            algorithm=algorithm,
            key=text,
            fingerprint=name,
            created_at=0.0,
        )
    )


class Nodes:
    """An edge, two nodes of the vcluster `pool` of physics, and people with keys; ann is an owner
    of physics, bob a member; carl owns `web` of chemistry, which has no node here."""

    def __init__(self, folder: Path, namespace: str, others: list[str]) -> None:
        self.folder, self.namespace = folder, namespace
        self.site = folder / "site.toml"
        self.site.write_text(SITE.format(folder=folder))
        self.engine: Engine = connect(f"sqlite:///{folder}/cod.db")
        upgrade(self.engine)
        for name in ("ann", "bob", "carl", "dora", "eve"):
            subprocess.run(
                ["ssh-keygen", "-qt", "ed25519", "-N", "", "-C", name, "-f", self.key(name)],
                check=True,
            )
        with self.engine.begin() as tx:
            groups.ensure(tx, "site", 0.0)
            joins(tx, "ann", "physics", self.key("ann"), "owner")
            joins(tx, "bob", "physics", self.key("bob"))
            joins(tx, "carl", "chemistry", self.key("carl"), "owner")
            joins(tx, "vera", "physics", self.key("eve"), "viewer")
            ldap_site.vcluster(tx, "pool", "physics", ADDRESSES)
            ldap_site.vcluster(tx, "web", "chemistry", {"n1": "10.77.128.70"})
        self.edge: Any = None
        self.serve()
        setup = sssd.seed_part(
            "pool",
            "cod.test",
            [SERVER],
            Ca(folder / "ca", "test").certificate.decode(),
            PosixRules(),
        ).scripts[0]
        self.nodes = [
            MemberNode(name, other, folder / name, setup)
            for name, other in zip(ADDRESSES, others, strict=True)
        ]
        self.node = self.nodes[0]
        for node in self.nodes:
            until(  # SSSD is up
                lambda node=node: node.says("id", "-u", "ann"), node.log.read_text, every=0.2
            )

    def key(self, name: str) -> Path:
        return self.folder / f"key-{name}"

    def serve(self) -> None:
        """Start the edge: DHCP, DNS, LDAP …"""
        with open(self.folder / "edge.log", "ab") as log:
            self.edge = subprocess.Popen(
                [
                    "ip",
                    "netns",
                    "exec",
                    self.namespace,
                    str(COD),
                    "--site",
                    str(self.site),
                    "serve",
                    "--only",
                    "edge",
                ],
                stdout=log,
                stderr=log,
            )
        until(
            lambda: (
                subprocess.run(
                    [
                        "ip",
                        "netns",
                        "exec",
                        self.namespace,
                        "ldapsearch",
                        "-x",
                        "-H",
                        f"ldap://{SERVER}",
                        "-s",
                        "base",
                    ],
                    capture_output=True,
                    check=False,
                ).returncode
                in (0, 32)
            ),
            (self.folder / "edge.log").read_text,
            every=0.2,
        )

    def kill(self) -> None:
        """End the edge without a word."""
        self.edge.kill()
        self.edge.wait()

    def ssh(
        self, name: str, *command: str, key: str = "", host: str = "n1"
    ) -> subprocess.CompletedProcess[str]:
        """Log in from the server's namespace."""
        return subprocess.run(
            [
                "ip",
                "netns",
                "exec",
                self.namespace,
                "ssh",
                "-i",
                str(self.key(key or name)),
                "-o",
                "BatchMode=yes",
                "-o",
                "IdentitiesOnly=yes",
                "-o",
                "StrictHostKeyChecking=no",
                "-o",
                "UserKnownHostsFile=/dev/null",
                "-o",
                "LogLevel=ERROR",
                "-o",
                "ConnectTimeout=20",
                "-F",
                "none",
                f"{name}@{ADDRESSES[host]}",
                *command,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )

    def tx(self, flow: Any, *args: Any, **told: Any) -> Any:
        return in_transaction(self.engine, flow, *args, **told)

    def end(self) -> None:
        for node in getattr(self, "nodes", []):
            node.end()
        self.kill()
        self.engine.dispose()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    if os.getuid():
        pytest.skip("namespaces need root")
    with network(SERVER, ADDRESSES.values(), f"acc{os.getpid()}") as (own, others):
        made = Nodes(tmp_path_factory.mktemp("accounts"), own, others)
        yield made
        made.end()


def test_people_groups_and_netgroups_are_known(nodes: Nodes) -> None:
    says = nodes.node.says
    assert says("getent", "passwd", "ann") == "ann:*:20000:20000:Ann Example:/home/ann:/bin/bash"
    assert says("getent", "passwd", "20001").startswith("bob:")
    assert says("getent", "group", "physics") == "physics:*:50001:ann,bob"
    assert says("id", "ann") == "uid=20000(ann) gid=20000(ann) groups=20000(ann),50001(physics)"
    assert says("id", "-G", "bob") == "20001 50001"
    assert "n2.pool.cod.test" in says("getent", "netgroup", "nodes")
    assert nodes.nodes[1].says("id", "-u", "ann") == "20000"  # the same on every node


def test_people_of_other_vclusters_and_viewers_are_not_known(nodes: Nodes) -> None:
    for name in ("carl", "20002", "vera"):
        assert nodes.node.run("getent", "passwd", name).returncode == 2
    assert nodes.node.run("getent", "group", "chemistry").returncode == 2
    assert nodes.ssh("carl", "true").returncode == 255


def test_logins_by_key_with_a_home_and_sudo(nodes: Nodes) -> None:
    done = nodes.ssh("ann", "pwd; touch here; stat -c %U:%G here")
    assert done.stdout.split() == ["/home/ann", "ann:ann"], (
        done.stderr,
        nodes.node.log.read_text()[-3000:],
    )
    assert nodes.ssh("bob", "sudo", "-n", "id", "-u").stdout == "0\n"
    assert "(ALL : ALL) NOPASSWD: ALL" in nodes.ssh("ann", "sudo", "-n", "-l").stdout
    assert nodes.ssh("ann", "true", key="bob").returncode == 255  # another one's key
    assert nodes.ssh("root", "true", key="ann").returncode == 255


def test_a_new_member_logs_in(nodes: Nodes) -> None:
    # and that nobody is called so is remembered for a while
    assert nodes.ssh("dora", "true").returncode == 255
    nodes.tx(joins, "dora", "physics", nodes.key("dora"))
    since = time.monotonic()
    until(
        lambda: nodes.ssh("dora", "sudo", "-n", "true").returncode == 0,
        nodes.node.log.read_text,
        every=LOOK,
    )
    took = time.monotonic() - since
    print(f"a new member has logged in, with sudo, after {took:.1f} s")


def test_a_removed_member_is_out(nodes: Nodes) -> None:
    nodes.tx(joins, "eve", "physics", nodes.key("eve"))
    until(lambda: nodes.ssh("eve", "true").returncode == 0, seconds=90, every=LOOK)
    nodes.tx(people.remove, group="physics", user="eve")
    since = time.monotonic()
    until(lambda: nodes.ssh("eve", "true").returncode == 255, seconds=90, every=LOOK)
    until(lambda: nodes.node.run("getent", "passwd", "eve").returncode == 2, seconds=90, every=LOOK)
    took = time.monotonic() - since
    print(f"a removed member is out after {took:.1f} s")
    assert "eve" not in nodes.node.says("getent", "group", "physics")


def test_logins_go_on_while_the_server_is_away(nodes: Nodes) -> None:
    assert nodes.ssh("ann", "true").returncode == 0
    nodes.kill()
    try:
        time.sleep(20)  # until what is cached has run out: SSSD's clock is its own
        assert nodes.ssh("ann", "sudo", "-n", "true").returncode == 0
        assert nodes.node.says("id", "-u", "bob") == "20001"
    finally:
        nodes.serve()
    nodes.tx(ldap_site.user, "fay", {"physics": "member"})
    until(
        lambda: nodes.node.run("getent", "passwd", "fay").returncode == 0,
        "the server to be found again",
        seconds=90,
        every=LOOK,
    )


def test_nslcd_finds_the_same_people(nodes: Nodes) -> None:
    """The other client of RFC 2307, with TLS and the site's authority."""
    second = nodes.nodes[1]
    second.run(
        "tee",
        "/etc/nslcd.conf",
        input=f"""uri ldap://{SERVER}
base dc=pool,dc=cod,dc=test
ssl start_tls
tls_reqcert demand
tls_cacertfile /etc/sssd/cod-ca.pem
""",
    )
    second.run("nslcd")
    until(lambda: second.says("getent", "-s", "ldap", "passwd", "ann"), "nslcd", every=LOOK)
    assert (
        second.says("getent", "-s", "ldap", "passwd", "ann")
        == "ann:*:20000:20000:Ann Example:/home/ann:/bin/bash"
    )
    *group, members = second.says("getent", "-s", "ldap", "group", "physics").split(":")
    assert group == ["physics", "*", "50001"]
    assert {"ann", "bob"} <= set(members.split(","))
    assert {
        line.partition(":")[0]
        for line in second.says("getent", "-s", "ldap", "passwd").splitlines()
    } >= {"ann", "bob"}
    assert second.run("getent", "-s", "ldap", "passwd", "carl").returncode == 2
