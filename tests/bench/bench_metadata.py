"""A thousand nodes boot at once, and cloud-init on each walks EC2's tree: how long that takes, and
what it costs.

``python -m tests.bench.bench_metadata [NODES]``. Every path is a connection of its own, as
cloud-init makes them, from the node's own address, one after the other; all nodes begin within
`WITHIN` seconds. The server is the boot server alone, in a process of its own on SQLite; it shares
two cores with those who ask.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event, insert

from cod.model import Binding, Site, SiteRef, SshKey, Subnet, ipv4
from cod.store import schema
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.nodes import bindings, nodes
from cod.store.people import groups, people, sshkeys
from cod.store.scheduler import vclusters
from tests.bench.arena import Measure, Smoke, write
from tests.store.agentlab import hardware

NODES, KEYS, WITHIN = 1000, 20, 10.0
PORT = 18069
SITE = Site(
    "bench",
    "bench.test",
    (
        Subnet(
            "lab",
            "127.0.0.0/8",
            "127.0.0.1",
            ("127.1.0.1", "127.1.0.9"),
            ("127.64.0.0", "127.127.255.255"),
            4096,
        ),
    ),
)
DOCUMENT = (
    '<template name="t"><image target="disk" name="debian"/><personalise'
    ' seed="nocloud"/></template>'
)
ALSO = ("/latest/user-data", "/2021-03-23/meta-data/instance-id", "/latest/cod.json")
SMOKE = Smoke(rows=("metadata: ", "the same: "), sizes={"NODES": 3, "WITHIN": 0.1})


def address(number: int) -> str:
    return f"127.64.{number // 250}.{1 + number % 250}"


def fill(tx: Tx, count: int) -> None:
    """One vcluster of `count` nodes in their own systems, whose group has `KEYS` members with a key
    each."""
    now = time.time()
    group = groups.ensure(tx, "physics", now)
    for number in range(KEYS):
        user = people.add(tx, f"user{number}", now)
        tx.execute(
            insert(t.group_permissions).values(group_id=group.id, user_id=user.id, role="member")
        )
        key = f"AAAAC3NzaC1lZDI1NTE5AAAA{number:044}"
        sshkeys.add(tx, SshKey(0, user.id, "desk", "ssh-ed25519", key, str(number), now))
    added = tx.execute(
        insert(t.config_templates).values(
            name="t", revision=1, document=DOCUMENT, digest="0" * 64, created_at=now
        )
    )
    [template] = added.inserted_primary_key or ()
    made = vclusters.add(
        tx,
        name="farm",
        group_id=group.id,
        template_id=template,
        size=count,
        attributes="",
        lease_time=9e5,
        subnet=SITE.subnets[0],
        now=now,
    )
    assert made is not None
    for number in range(count):
        mac = f"52:54:00:00:{number >> 8:02x}:{number & 255:02x}"
        node = nodes.add(
            tx,
            name=f"node{number}",
            boot_mac=mac,
            now=now,
            cause="x",
            actor="x",
            state="boot",
            vcluster_id=made.id,
            template_id=template,
            hostname=f"n{number}",
            assigned_at=now,
            attributes=hardware(mac),
        )
        bindings.add(
            tx,
            [
                Binding(
                    ipv4(address(number)),
                    mac,
                    "vcluster",
                    node.id,
                    "lab",
                    f"n{number}",
                    "bound",
                    4e9,
                )
            ],
        )


def serve(url: str) -> None:
    """The server's process; says on standard output how many transactions there were when it is
    told to end."""
    from twisted.internet import reactor

    from cod.net.bootserver.server import HttpServer
    from cod.pool import Pool

    engine: Engine = connect(url)
    begun: list[int] = []
    event.listen(engine, "begin", lambda _: begun.append(1))
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    server = HttpServer(
        reactor,
        Pool(engine, reactor),
        SiteRef(SITE),
        Path("/var/empty"),
        Path("/var/empty"),
        ["127.0.0.1"],
        PORT,
    )
    server.startService()
    print("ready", flush=True)
    reactor.run()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(len(begun), used.ru_utime + used.ru_stime, flush=True)


async def ask(source: str, path: str, times: list[float], lost: list[str]) -> str:
    """Ask until there is an answer, as cloud-init does."""
    began = time.monotonic()
    while True:
        try:
            answer = await asked(source, path)
        except ConnectionError:
            lost.append(path)
            await asyncio.sleep(1.0)
        else:
            times.append(time.monotonic() - began)
            return answer


async def asked(source: str, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT, local_addr=(source, 0))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    if head.split()[1] not in ("200", "404"):
        raise RuntimeError(f"{source} {path}: {head.splitlines()[0]}")
    return body


async def crawl(number: int, times: list[float], lost: list[str], after: float) -> float:
    """One node's cloud-init; returns the seconds that it took."""
    await asyncio.sleep(after)
    began, source, folders = time.monotonic(), address(number), ["/2009-04-04/meta-data/"]
    for path in ALSO:
        await ask(source, path, times, lost)
    while folders:
        folder = folders.pop()
        for name in (await ask(source, folder, times, lost)).splitlines():
            if name.endswith("/"):
                folders.append(folder + name)
            else:
                leaf = (
                    f"{name.partition('=')[0]}/openssh-key"
                    if folder.endswith("public-keys/")
                    else name
                )
                await ask(source, folder + leaf, times, lost)
    return time.monotonic() - began


async def storm(count: int) -> tuple[list[float], list[float], list[str], float]:
    times: list[float] = []
    lost: list[str] = []
    began = time.monotonic()
    took = await asyncio.gather(
        *(crawl(number, times, lost, WITHIN * number / count) for number in range(count))
    )
    return times, list(took), lost, time.monotonic() - began


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else NODES
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="cod-bench-") as folder:
        url = f"sqlite:///{folder}/cod.db"
        engine = connect(url)
        schema.upgrade(engine)
        with engine.begin() as tx:
            fill(tx, count)
        engine.dispose()
        server: Any = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from tests.bench import bench_metadata as b; b.serve({url!r})",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout.readline() == "ready\n"
            times, took, lost, seconds = asyncio.run(storm(count))
        finally:
            server.terminate()
            transactions, cpu = server.communicate(timeout=60)[0].split()
    p99 = statistics.quantiles(times, n=100)[98]
    write(
        "metadata",
        [
            Measure(
                f"metadata: {count:,} nodes ask {len(times) // count} paths each within"
                f" {WITHIN:.0f} s: p99 of an answer",
                p99 * 1000,
                "ms",
            ),
            Measure("the same: the slowest node's cloud-init has all of it", max(took), "s"),
            Measure("the same: connections that were cut off", len(lost), "", goal="0"),
            Measure("the same: server CPU of an answer", float(cpu) / len(times) * 1000, "ms"),
            Measure("the same: transactions of a node", int(transactions) / count, ""),
        ],
    )
    print(
        f"{len(times)} answers in {seconds:.1f} s, {len(lost)} connections lost, p50 "
        f"{statistics.median(times) * 1000:.1f} ms, p99 {p99 * 1000:.0f} ms; a node's crawl "
        f"{statistics.median(took):.2f} s, the slowest {max(took):.1f} s; "
        f"{transactions} transactions, {float(cpu):.1f} s of server CPU"
    )


if __name__ == "__main__":
    main()
