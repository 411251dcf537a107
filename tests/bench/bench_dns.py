"""How many DNS questions one server process answers in a second, from its codec through the
database and back.

``python -m tests.bench.bench_dns [NODES]``. Questions come in batches, as the server takes them
from its socket; the socket itself and the client are left out. SQLite, one process; seconds are of
its CPU. Then the whole server beside NSD, which has the same names in a file, both asked by dnsperf
over the wire (as root, where both are installed).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dnslib import DNSRecord
from sqlalchemy import insert

from cod.flows.boot import dns as flow
from cod.flows.boot import zones
from cod.model import Site, Subnet, dotted
from cod.store import schema
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import Tx, new_id
from cod.store.nodes import holding, nodes
from cod.store.people import groups
from cod.store.scheduler import vclusters
from cod.wire import dns as wire
from tests.bench.arena import SERVER, Arena, Measure, Run, Smoke, alternate, compare, python, write

NODES, BATCH, SECONDS = 2000, 256, 3.0
QUERIES = 40_000
PATH = f"{os.environ['PATH']}:/usr/sbin"
NSD, DNSPERF = (shutil.which(name, path=PATH) for name in ("nsd", "dnsperf"))
COD_PORT, NSD_PORT = 5353, 5354
ZONE = "farm.bench.test"
NSD_CONF = """\
server:
  server-count: 1
  rrl-ratelimit: 0
  ip-address: {server}
  port: {port}
  username: ""
  database: ""
  pidfile: {folder}/pid
  xfrdfile: {folder}/xfrd
  zonelistfile: {folder}/zones
  zonesdir: {folder}
remote-control:
  control-enable: no
zone:
  name: {zone}
  zonefile: zone
"""
SITE = Site(
    "bench",
    "bench.test",
    (
        Subnet(
            "lab",
            "10.64.0.0/10",
            "10.64.0.1",
            ("10.64.0.2", "10.64.0.9"),
            ("10.65.0.0", "10.127.255.255"),
            4096,
        ),
    ),
)
SMOKE = Smoke(rows=("DNS: ",), sizes={"NODES": 20, "SECONDS": 0.1, "QUERIES": 200})


def fill(tx: Tx, count: int) -> None:
    """One vcluster, farm, of `count` nodes n1, n2 …"""
    group = groups.ensure(tx, "physics", 0.0)
    template = new_id(
        tx.execute(
            insert(t.config_templates).values(
                name="t", revision=1, document="<template/>", digest="0" * 64, created_at=0.0
            )
        )
    )
    vcluster = vclusters.add(
        tx,
        name="farm",
        group_id=group.id,
        template_id=template,
        size=count,
        attributes="",
        lease_time=9e5,
        subnet=SITE.subnets[0],
        now=0.0,
    )
    assert vcluster is not None
    request = new_id(
        tx.execute(
            insert(t.node_requests).values(
                vcluster_id=vcluster.id,
                kind="create",
                state="granted",
                priority=0,
                submitted_at=0.0,
            )
        )
    )
    for number in range(1, count + 1):
        mac = f"52:54:00:00:{number >> 8:02x}:{number & 255:02x}"
        node = nodes.add(tx, name=f"node{number}", boot_mac=mac, now=0.0, cause="", actor="")
        holding.take(
            tx,
            node,
            vcluster=vcluster,
            request_id=request,
            template_id=template,
            hostname=f"n{number}",
            now=0.0,
        )


def answered(tx: Tx, packets: list[bytes]) -> float:
    """Return answers in a second of CPU to those packets, over and over, in batches."""
    done, began = 0, time.process_time()
    while time.process_time() - began < SECONDS:
        batch = [packets[(done + place) % len(packets)] for place in range(BATCH)]
        queries = [wire.decode(each) for each in batch]
        for query, answer in zip(
            queries, flow.answer(tx, [one.question for one in queries], SITE), strict=True
        ):
            assert answer is not None
            wire.encode(
                query, answer, primary=flow.primary(SITE), domain=SITE.domain, server="10.64.0.1"
            )
        done += BATCH
    return done / (time.process_time() - began)


def beside_nsd(folder: Path, url: str, addresses: dict[str, str]) -> list[Measure]:
    """Measure the server beside NSD; nothing without NSD, dnsperf or root. `addresses` by name."""
    if NSD is None or DNSPERF is None or os.geteuid() != 0:
        print("not measured beside NSD: that needs nsd, dnsperf and root")
        return []
    lines = [f"$ORIGIN {ZONE}.", "$TTL 60", "@ SOA ns hostmaster 1 3600 600 86400 60", "@ NS ns"]
    lines += [f"ns A {SERVER}", *(f"{name} A {address}" for name, address in addresses.items())]
    (folder / "zone").write_text("\n".join(lines) + "\n")
    (folder / "nsd.conf").write_text(
        NSD_CONF.format(server=SERVER, port=NSD_PORT, folder=folder, zone=ZONE)
    )
    names = list(addresses)
    measures = []
    with (
        Arena("dns") as arena,
        arena.serving(
            python("tests.bench.dns_serve", url, SERVER, COD_PORT), _answers(arena, COD_PORT)
        ),
        arena.serving([NSD, "-d", "-c", folder / "nsd.conf"], _answers(arena, NSD_PORT)),
    ):
        for what, prefix in (("addresses of nodes", ""), ("names that are not there", "x")):
            asked = folder / "asked"
            asked.write_text(
                "".join(f"{prefix}{names[n % len(names)]}.{ZONE} A\n" for n in range(QUERIES))
            )
            results = alternate(
                {
                    "cod": _round(arena, COD_PORT, asked),
                    "nsd": _round(arena, NSD_PORT, asked),
                }
            )
            measures += compare(f"DNS: {what}, over the wire", "answer", results, "cod", "nsd", "")
    return measures


def _answers(arena: Arena, port: int) -> Callable[[], bool]:
    command = ["ip", "netns", "exec", arena.client_side, "dig", "+short", "+time=1", "+tries=1"]
    command += ["-p", str(port), f"@{SERVER}", f"n1.{ZONE}"]
    return lambda: bool(subprocess.run(command, check=False, capture_output=True).stdout.strip())


def _round(arena: Arena, port: int, asked: Path) -> Callable[[], Run]:
    """Ask all of a file's questions once, with up to 100 that wait for their answers."""
    command = [
        str(DNSPERF),
        "-s",
        SERVER,
        "-p",
        str(port),
        "-d",
        str(asked),
        "-n",
        "1",
        "-q",
        "100",
    ]
    return lambda: arena.measured([command], QUERIES)


def main() -> int:
    """Measure, and write the results."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else NODES
    with tempfile.TemporaryDirectory() as folder:
        engine = connect(f"sqlite:///{folder}/bench.db")
        schema.upgrade(engine)
        with engine.begin() as tx:
            fill(tx, count)
        with engine.connect() as tx:
            there = [
                bytes(DNSRecord.question(f"n{number}.farm.bench.test").pack())
                for number in range(1, count + 1)
            ]
            nobody = [
                bytes(DNSRecord.question(f"x{number}.farm.bench.test").pack())
                for number in range(1, count + 1)
            ]
            addresses, missing = answered(tx, there), answered(tx, nobody)
            began = time.process_time()
            zone = zones.transfer(tx, "farm.bench.test", SITE)
            query = wire.decode(
                bytes(DNSRecord.question("farm.bench.test", "AXFR").pack()), stream=True
            )
            assert zone is not None
            sent = sum(
                map(
                    len,
                    wire.transfer(query, zone.records, primary=zone.primary, domain=SITE.domain),
                )
            )
            whole = time.process_time() - began
        engine.dispose()
        known = {
            each.name.partition(".")[0]: dotted(each.data)
            for each in zone.records
            if each.type == "A" and isinstance(each.data, int)
        }
        beside = beside_nsd(Path(folder), f"sqlite:///{folder}/bench.db", known)
    print(
        f"{count} nodes: {addresses:.0f} addresses/s, {missing:.0f} names that are not there/s; the"
        f" whole zone, {sent} bytes, in {whole:.3f} s"
    )
    write(
        "dns",
        [
            Measure("DNS: addresses of nodes, answers in a second of CPU", addresses, "/s"),
            Measure("DNS: names that are not there", missing, "/s"),
            Measure(f"DNS: read and encode a zone of {count:,} nodes", whole, "s"),
            *beside,
        ],
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
