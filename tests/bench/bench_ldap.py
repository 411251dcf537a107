"""The LDAP server with 1,000 vclusters of 50 users each: time and CPU of a search as SSSD asks it,
beside slapd with the same entries, and memory beside a site with one vcluster.

Each search comes from a node of another vcluster, over a connection that stays, one after the
other: the time is that of the whole round trip on loopback. The server is the product's, on SQLite,
in a process of its own. slapd has a subtree for each vcluster in one indexed database, and checks
no rights.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import insert

from cod.model import ipv4
from cod.store import tables as t
from cod.store.database import connect
from tests.attack.mutants import memory
from tests.bench.arena import ROOT, Measure, Smoke, python, write
from tests.net.ldapclient import LdapClient
from tests.ports import free_port
from tests.waiting import until

VCLUSTERS, USERS, ASKED, SEARCHED = 1000, 50, 100, 600
SEARCHES = {
    "a user by name": (
        "(&(uid=u{user})(objectclass=posixAccount)(uid=*)(&(uidNumber=*)(!(uidNumber=0))))"
    ),
    "a user by number": (
        "(&(uidNumber={uid})(objectclass=posixAccount)(uid=*)(&(uidNumber=*)(!(uidNumber=0))))"
    ),
    "a user's groups": (
        "(&(memberUid=u{user})(objectClass=posixGroup)(cn=*)(&(gidNumber=*)(!(gidNumber=0))))"
    ),
    "a name that nobody has": (
        "(&(uid=nobody)(objectclass=posixAccount)(uid=*)(&(uidNumber=*)(!(uidNumber=0))))"
    ),
    "all 50 users": "(objectClass=posixAccount)",
}
ATTRIBUTES = (
    "objectClass",
    "uid",
    "uidNumber",
    "gidNumber",
    "homeDirectory",
    "loginShell",
    "cn",
    "gecos",
    "sshPublicKey",
    "memberUid",
    "modifyTimestamp",
)
SLAPD, SLAPADD = (
    shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("slapd", "slapadd")
)
SLAPD_CONF = """\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
attributetype ( 1.3.6.1.4.1.24552.500.1.1.1.13 NAME 'sshPublicKey'
  EQUALITY octetStringMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.40 )
objectclass ( 1.3.6.1.4.1.24552.500.1.1.2.0 NAME 'ldapPublicKey' SUP top AUXILIARY
  MAY ( sshPublicKey $ uid ) )
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/pid
sizelimit unlimited
database mdb
maxsize 1073741824
suffix dc=cod,dc=bench
directory {folder}
index objectClass,uid,uidNumber,gidNumber,memberUid eq
"""
SMOKE = Smoke(rows=("LDAP: ",), sizes={"VCLUSTERS": 3, "ASKED": 2, "SEARCHED": 8})


def address(vcluster: int) -> str:
    """Return the address of a vcluster's node."""
    return f"127.1.{vcluster >> 8}.{vcluster & 255}"


def populate(url: str, vclusters: int) -> None:
    """So many vclusters, each with a group of its own, a node that runs, and users with a key
    each."""
    engine = connect(url)
    t.metadata.create_all(engine)
    with engine.begin() as tx:
        numbers = range(1, vclusters + 1)
        users = range(1, vclusters * USERS + 1)
        tx.execute(
            insert(t.groups),
            [{"id": n, "name": f"g{n}", "gid": 1_000_000 + n, "created_at": 0.0} for n in numbers],
        )
        tx.execute(
            insert(t.users),
            [
                {
                    "id": n,
                    "name": f"u{n}",
                    "full_name": f"User {n}",
                    "uid": 20_000 + n,
                    "gid": 20_000 + n,
                    "created_at": 0.0,
                }
                for n in users
            ],
        )
        tx.execute(
            insert(t.group_permissions),
            [{"group_id": 1 + (n - 1) // USERS, "user_id": n, "role": "member"} for n in users],
        )
        tx.execute(
            insert(t.ssh_keys),
            [
                {
                    "user_id": n,
                    "name": "key",
                    "algorithm": "ssh-ed25519",
                    "key": "A" * 68,
                    "fingerprint": "x",
                    "created_at": 0.0,
                }
                for n in users
            ],
        )
        tx.execute(
            insert(t.config_templates).values(
                id=1, name="t", revision=1, document="<template/>", digest="0" * 64, created_at=0.0
            )
        )
        tx.execute(
            insert(t.vclusters),
            [
                {
                    "id": n,
                    "name": f"v{n}",
                    "live_name": f"v{n}",
                    "group_id": n,
                    "state": "active",
                    "template_id": 1,
                    "size": 1,
                    "creation_size": 1,
                    "attributes": "",
                    "lease_time": 60.0,
                    "created_at": 0.0,
                }
                for n in numbers
            ],
        )
        for n in numbers:
            mac = "52:54:00:00:" + f"{n >> 8:02x}:{n & 255:02x}"
            tx.execute(
                insert(t.nodes).values(
                    id=n,
                    name=f"n{n}",
                    boot_mac=mac,
                    state="active",
                    since=0.0,
                    generation=1,
                    vcluster_id=n,
                    hostname="n1",
                    disk="system",
                )
            )
            tx.execute(
                insert(t.bindings).values(
                    address=ipv4(address(n)),
                    mac=mac,
                    kind="vcluster",
                    node_id=n,
                    subnet="lab",
                    hostname="n1",
                    state="bound",
                    expires_at=4e9,
                )
            )
    engine.dispose()


@contextmanager
def serving(url: str) -> Iterator[tuple[int, int]]:
    """A server's process id and port."""
    with subprocess.Popen(
        python("tests.bench.ldap_serve", url), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield server.pid, int(server.stdout.readline())
        finally:
            server.kill()


def entries(vclusters: int) -> Iterator[str]:
    """Yield the entries of the vclusters as LDIF."""
    yield "dn: dc=cod,dc=bench\nobjectClass: dcObject\nobjectClass: organization\ndc: cod\no: cod\n"
    for n in range(1, vclusters + 1):
        base = f"dc=v{n},dc=cod,dc=bench"
        yield f"dn: {base}\nobjectClass: dcObject\nobjectClass: organization\ndc: v{n}\no: v{n}\n"
        for unit in ("people", "groups"):
            yield f"dn: ou={unit},{base}\nobjectClass: organizationalUnit\nou: {unit}\n"
        users = range((n - 1) * USERS + 1, n * USERS + 1)
        members = "".join(f"memberUid: u{user}\n" for user in users)
        yield (
            f"dn: cn=g{n},ou=groups,{base}\nobjectClass: posixGroup\ncn: g{n}\n"
            f"gidNumber: {1_000_000 + n}\n{members}"
        )
        for user in users:
            yield (
                f"dn: uid=u{user},ou=people,{base}\nobjectClass: account\n"
                "objectClass: posixAccount\nobjectClass: ldapPublicKey\n"
                f"uid: u{user}\ncn: User {user}\ngecos: User {user}\nloginShell: /bin/bash\n"
                f"uidNumber: {20_000 + user}\ngidNumber: {20_000 + user}\n"
                f"homeDirectory: /home/u{user}\nsshPublicKey: ssh-ed25519 {'A' * 68}\n"
            )


@contextmanager
def slapd(folder: Path, vclusters: int) -> Iterator[tuple[int, int]]:
    """A slapd's process id and port."""
    assert SLAPD
    assert SLAPADD
    folder.mkdir()
    conf = folder / "slapd.conf"
    conf.write_text(SLAPD_CONF.format(folder=folder))
    (folder / "ldif").write_text("\n".join(entries(vclusters)))
    subprocess.run(
        [SLAPADD, "-q", "-f", conf, "-l", folder / "ldif"], check=True, capture_output=True
    )
    port = free_port()
    with subprocess.Popen(
        [SLAPD, "-d", "0", "-f", conf, "-h", f"ldap://127.0.0.1:{port}"],
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            until(lambda: _listens(port), "slapd listens")
            yield server.pid, port
        finally:
            server.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(pid: int, port: int, vclusters: int) -> tuple[dict[str, tuple[list[float], float]], int]:
    """Times of each kind of search, and its CPU a search; the server's KiB afterwards."""
    step = max(vclusters // ASKED, 1)
    clients = [(n, LdapClient(port, address(n))) for n in range(1, vclusters + 1, step)]
    found = {}
    for what, text in SEARCHES.items():
        times, before = list[float](), cpu(pid)
        for _ in range(max(SEARCHED // len(clients) // (4 if what == "all 50 users" else 1), 1)):
            for n, client in clients:
                user = (n - 1) * USERS + 7
                wanted = text.format(user=user, uid=20_000 + user)
                began = time.perf_counter()
                code, entries = client.search(
                    wanted, f"dc=v{n},dc=cod,dc=bench", attributes=ATTRIBUTES
                )
                times.append(time.perf_counter() - began)
                assert code == 0
                assert len(entries) == {"all 50 users": 50, "a name that nobody has": 0}.get(
                    what, 1
                )
        found[what] = (times, (cpu(pid) - before) / len(times))
    for _, client in clients:
        client.close()
    return found, memory(pid)


def beside(folder: Path, vclusters: int) -> dict[str, tuple[list[float], float]]:
    """Return what the same searches take of slapd; nothing where it is not installed."""
    if SLAPD is None or SLAPADD is None:
        print("not measured beside slapd, which is not installed")
        return {}
    with slapd(folder, vclusters) as (pid, port):
        return ask(pid, port, vclusters)[0]


def _ratio(name: str, own: float, peer: float) -> Measure:
    ratio = round(own / peer, 2) if peer else None
    return Measure(name, round(1000 * own, 2), "ms", "slapd", round(1000 * peer, 3), ratio)


def main() -> None:
    """Measure, and write build/bench/ldap.json."""
    grown = {}
    measures = []
    with tempfile.TemporaryDirectory() as folder:
        for vclusters in (1, VCLUSTERS):
            url = f"sqlite:///{folder}/{vclusters}.db"
            populate(url, vclusters)
            with serving(url) as (pid, port):
                found, grown[vclusters] = ask(pid, port, vclusters)
                peer = beside(Path(folder) / "slapd", vclusters) if vclusters > 1 else {}
            if vclusters > 1:
                for what, (times, each) in found.items():
                    one = sorted(times)
                    goal = "" if what == "all 50 users" else "< 5 ms"
                    measures += [
                        Measure(
                            f"LDAP: {what}, of 50,000 users, median",
                            round(1000 * statistics.median(one), 2),
                            "ms",
                            goal=goal,
                        ),
                        Measure(
                            f"LDAP: {what}, of 50,000 users, p99",
                            round(1000 * one[len(one) * 99 // 100], 2),
                            "ms",
                        ),
                        Measure(
                            f"LDAP: {what}, server CPU", round(1000 * each, 2), "ms", goal=goal
                        ),
                    ]
                    if what in peer:
                        measures += [
                            _ratio(
                                f"LDAP: {what}, median beside slapd",
                                statistics.median(times),
                                statistics.median(peer[what][0]),
                            ),
                            _ratio(f"LDAP: {what}, CPU beside slapd", each, peer[what][1]),
                        ]
    measures.append(
        Measure(
            "LDAP: memory with 50,000 users beside 50",
            round((grown[VCLUSTERS] - grown[1]) / 1024, 1),
            "MiB",
        )
    )
    write("ldap", measures)


if __name__ == "__main__":
    main()
