"""Whole zones: who gets them, what is in them, how serials rise, and a real secondary (Knot DNS)
that follows."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dnslib import QTYPE, RR, SOA, DNSRecord
from sqlalchemy import Engine, select

from cod.flows.boot import zones
from cod.flows.scheduler import vcluster_names, vclusters
from cod.model import Dns, HostKey, Site, SiteRef
from cod.net.dns import streams
from cod.net.dns.notifier import ZoneNotifier
from cod.net.dns.server import DnsServer
from cod.pool import Pool, in_transaction
from cod.store import dns_zones
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import holding, host_keys, nodes
from cod.store.scheduler import vclusters as rows
from tests.contexts import flow_context
from tests.net.dns_stands import Start, dns_servers, secondary_running
from tests.net.test_dns_server import dig, member
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

NOW = 1_000_000.0


@pytest.fixture
def secondary(site: Site) -> Site:
    """The site, which names 127.0.0.1 as a secondary."""
    return replace(site, dns=Dns(secondaries=(("127.0.0.1", free_port(socket.SOCK_DGRAM)),)))


@pytest.fixture
def start(reactor: Any, in_reactor: Any, pool: Pool) -> Iterator[Start]:
    with dns_servers(reactor, in_reactor, pool) as start:
        yield start


def zone(server: DnsServer, name: str) -> list[str]:
    """The lines of the zone as dig gets it, without TTLs; nothing where it is refused."""
    lines = [
        line.split()
        for line in dig(server, name, "AXFR", "+noidnout")[1].splitlines()
        if line and not line.startswith(";")
    ]
    return [" ".join([line[0], *line[3:]]) for line in lines]


def furnished(tx: Tx, site: Site) -> None:
    """n4.pool with a host key, and www for it."""
    node, vcluster = member(tx, site)
    host_keys.put(tx, node.id, HostKey("ssh-ed25519", "AAAA"), order_id="1.1", salt="", now=NOW)
    vcluster_names.put(
        tx, flow_context(site, NOW, "user:ann"), vcluster=vcluster.name, name="www", target="n4"
    )


def serial(engine: Engine, site: Site, name: str) -> int:
    return next(
        serial for zone, serial in in_transaction(engine, zones.every, site) if zone.name == name
    )


# ---------------------------------------------------------------- what is in a zone, and for whom


def test_a_secondary_gets_every_zone(start: Any, engine: Engine, secondary: Site) -> None:
    in_transaction(engine, furnished, secondary)
    server = start(secondary)
    address = dig(server, "+short", "n4.pool.cod.test")[1].strip()
    pool = zone(server, "pool.cod.test")
    assert pool[0] == pool[-1]
    assert pool[0].startswith("pool.cod.test. SOA ns.cod.test. hostmaster.cod.test. ")
    assert pool[1:-1] == [
        "pool.cod.test. NS ns.cod.test.",
        f"n4.pool.cod.test. A {address}",
        pool[3],
        "www.pool.cod.test. CNAME n4.pool.cod.test.",
    ]
    assert pool[3].startswith("n4.pool.cod.test. SSHFP 4 2 ")
    assert zone(server, "cod.test")[1:-1] == [
        "cod.test. NS ns.cod.test.",
        "ns.cod.test. A 10.77.0.1",
        "pool.cod.test. NS ns.cod.test.",
    ]
    arpa = ".".join(address.split(".")[::-1]) + ".in-addr.arpa."
    assert zone(server, "77.10.in-addr.arpa")[2:-1] == [f"{arpa} PTR n4.pool.cod.test."]
    listed = [
        line.split(" PTR ")[1] for line in zone(server, "_catalog.cod.test") if " PTR " in line
    ]
    assert listed == ["cod.test.", "pool.cod.test.", "77.10.in-addr.arpa."]
    assert 'version._catalog.cod.test. TXT "2"' in zone(server, "_catalog.cod.test")


@pytest.mark.parametrize(
    "name", ["n4.pool.cod.test", "none.cod.test", "example.com", "10.in-addr.arpa"]
)
def test_what_is_no_zone_is_not_sent(start: Any, secondary: Site, name: str) -> None:
    assert zone(start(secondary), name) == []


def test_nobody_else_gets_a_zone(start: Any, engine: Engine, site: Site) -> None:
    in_transaction(engine, furnished, site)
    other = replace(site, dns=Dns(secondaries=(("127.0.0.9", 53),)))
    server = start(other)
    assert zone(server, "pool.cod.test") == []
    assert dig(server, "pool.cod.test", "IXFR=1", "+tcp")[0] in ("", "REFUSED")
    assert dig(server, "pool.cod.test", "AXFR", "+notcp")[0] in ("", "REFUSED")


def test_a_large_zone_comes_in_several_messages(
    start: Any, engine: Engine, secondary: Site
) -> None:
    def many(tx: Tx) -> None:
        _, vcluster = member(tx, secondary)
        for number in range(700):
            tx.execute(
                t.vcluster_names.insert().values(
                    vcluster_id=vcluster.id,
                    name=f"alias-{number:04d}",
                    target="n4",
                    external=False,
                    created_at=NOW,
                    actor="",
                )
            )

    in_transaction(engine, many)
    assert len(zone(start(secondary), "pool.cod.test")) == 4 + 700


def ask(server: DnsServer, question: DNSRecord) -> list[RR]:
    data = bytes(question.pack())
    with socket.create_connection(("127.0.0.1", server.port), 30) as client:
        client.sendall(struct.pack("!H", len(data)) + data)
        stream = client.makefile("rb")
        return list(DNSRecord.parse(stream.read(struct.unpack("!H", stream.read(2))[0])).rr)


def test_an_incremental_transfer_is_a_whole_one_or_nothing_new(
    start: Any, engine: Engine, secondary: Site
) -> None:
    in_transaction(engine, furnished, secondary)
    server = start(secondary)
    now = serial(engine, secondary, "pool.cod.test")
    for known, records in ((now, 1), (now - 1, 6)):
        question = DNSRecord.question("pool.cod.test", "IXFR")
        question.add_auth(RR("pool.cod.test", QTYPE.SOA, rdata=SOA("ns", "h", (known, 1, 1, 1, 1))))
        assert len(ask(server, question)) == records
    over_udp = dig(server, "pool.cod.test", f"IXFR={now - 1}", "+notcp")[1]
    assert f" {now} " in over_udp  # the SOA, from which it sees that it should come by TCP
    assert "CNAME" not in over_udp


# ---------------------------------------------------------------- serials


def test_each_change_raises_its_zone_s_serial_and_no_other(engine: Engine, site: Site) -> None:
    node, _ = in_transaction(engine, member, site)
    in_transaction(engine, member_of_another, site)
    seen: dict[str, int] = {}

    def changed() -> set[str]:
        found = {one.name: number for one, number in in_transaction(engine, zones.every, site)}
        assert all(number >= seen.get(name, 0) for name, number in found.items())
        names = {name for name in found if found[name] != seen.get(name)}
        seen.update(found)
        return names

    changed()
    assert changed() == set()
    in_transaction(
        engine,
        lambda tx: vcluster_names.put(
            tx, flow_context(site, NOW, ""), vcluster="pool", name="www", target="n4"
        ),
    )
    assert changed() == {"pool.cod.test"}
    in_transaction(
        engine,
        lambda tx: vcluster_names.remove(tx, vcluster="pool", name="www", site=site, now=NOW),
    )
    assert changed() == {"pool.cod.test"}
    in_transaction(engine, holding.give_back, node, up_until=0.0)
    assert changed() == {"pool.cod.test", "77.10.in-addr.arpa"}
    in_transaction(
        engine, lambda tx: vclusters.delete(tx, flow_context(site, NOW, ""), name="pool")
    )
    assert changed() == {"cod.test", "_catalog.cod.test"}


def member_of_another(tx: Tx, site: Site) -> None:
    """A vcluster of another name, whose serials stay."""
    group = tx.scalar(select(t.groups.c.id))
    template = tx.scalar(select(t.config_templates.c.id))
    assert group is not None
    assert template is not None
    rows.add(
        tx,
        name="other",
        group_id=group,
        template_id=template,
        size=1,
        attributes="",
        lease_time=60.0,
        subnet=site.subnets[0],
        now=0.0,
    )


def test_serials_never_fall(engine: Engine) -> None:
    def touched(tx: Tx, now: float) -> int:
        dns_zones.touch(tx, [("vcluster", "pool")], now)
        return dns_zones.serials(tx)["vcluster", "pool"]

    assert in_transaction(engine, touched, NOW) == NOW
    assert in_transaction(engine, touched, NOW) == NOW + 1
    assert in_transaction(engine, touched, NOW - 500) == NOW + 2  # the clock was set back
    assert in_transaction(engine, touched, NOW + 500) == NOW + 500


def test_another_site_file_is_a_change_and_the_same_one_is_none(engine: Engine, site: Site) -> None:
    in_transaction(engine, zones.configured, site, NOW)  # of a new database
    assert in_transaction(engine, dns_zones.serials)["site", ""] >= NOW
    in_transaction(engine, member, site)
    in_transaction(engine, zones.configured, site, NOW)
    before = in_transaction(engine, zones.every, site)
    in_transaction(engine, zones.configured, site, NOW + 5)
    assert in_transaction(engine, zones.every, site) == before
    more = replace(site, dns=Dns(name_servers=("10.77.0.1", "10.77.0.2", "ns.example.org")))
    in_transaction(engine, zones.configured, more, NOW + 10)
    assert all(
        new > old
        for (_, new), (_, old) in zip(
            in_transaction(engine, zones.every, site), before, strict=True
        )
        if old > 1
    )


# ---------------------------------------------------------------- several servers


def test_all_servers_of_the_site_say_the_same(start: Any, engine: Engine, secondary: Site) -> None:
    names = ("10.77.0.1", "ns.example.org", "10.77.0.2")
    several = replace(secondary, dns=replace(secondary.dns, name_servers=names))
    in_transaction(engine, furnished, several)
    one, two = start(several), start(several)
    for name in ("cod.test", "pool.cod.test", "77.10.in-addr.arpa"):
        assert zone(one, name) == zone(two, name) != []
        assert dig(one, "+short", name, "SOA")[1] == dig(two, "+short", name, "SOA")[1] != ""
    assert sorted(dig(one, "+short", "pool.cod.test", "NS")[1].split()) == [
        "ns.example.org.",
        "ns1.cod.test.",
        "ns2.cod.test.",
    ]
    assert dig(one, "+short", "ns2.cod.test")[1] == "10.77.0.2\n"
    assert dig(one, "ns3.cod.test")[0] == "NXDOMAIN"


# ---------------------------------------------------------------- a hostile client


def test_one_address_has_so_many_connections_and_no_more(
    start: Any, engine: Engine, site: Site
) -> None:
    in_transaction(engine, member, site)
    server = start(site)
    held = [
        socket.create_connection(("127.0.0.1", server.port), 30) for _ in range(streams.OF_ONE_PEER)
    ]
    try:
        with (  # the reset may be there before the connection is
            pytest.raises(ConnectionError),
            socket.create_connection(("127.0.0.1", server.port), 30) as further,
        ):
            further.recv(1)
        assert dig(server, "+short", "n4.pool.cod.test")[1].startswith("10.77."), (
            "others' datagrams are answered"
        )
    finally:
        for each in held:
            each.close()
    until(
        lambda: dig(server, "+tcp", "+short", "n4.pool.cod.test")[1].startswith("10.77."),
        "there is room again",
    )


def test_a_client_that_takes_no_answers_is_not_read_of(
    start: Any, engine: Engine, secondary: Site
) -> None:
    """Cut a client off that asks for zones without end and reads nothing: what waits for it is
    bounded."""
    in_transaction(engine, furnished, secondary)
    server = start(secondary)
    question = bytes(DNSRecord.question("pool.cod.test", "SOA").pack())
    question = struct.pack("!H", len(question)) + question
    with socket.create_connection(("127.0.0.1", server.port), 5) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(3.0)
        sent = 0
        with suppress(OSError):  # nobody takes more, or the connection is reset
            while sent < 2 * MUCH:
                sent += client.send(question * 1000)
        assert sent < MUCH
    assert dig(server, "+short", "n4.pool.cod.test")[1].startswith("10.77.")


MUCH = 20_000_000  # bytes, more than the kernel holds for both


# ---------------------------------------------------------------- a real secondary


KNOTD = ("/usr/sbin/knotd", "-c")
CONFIGURATION = """\
server:
    listen: 127.0.0.1@{port}
    rundir: {folder}
database:
    storage: {folder}
log:
  - target: stderr
    any: info
remote:
  - id: cod
    address: 127.0.0.1@{cod}
acl:
  - id: changes
    address: 127.0.0.1
    action: notify
template:
  - id: default
    storage: {folder}
    master: cod
    acl: changes
zone:
  - domain: _catalog.cod.test
    catalog-role: interpret
    catalog-template: default
"""


def knot(port: int, *words: str) -> str:
    return subprocess.run(
        ["dig", f"-p{port}", "@127.0.0.1", "+short", "+tries=3", "+time=15", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stdout


@pytest.mark.slow
def test_knot_follows_zones_that_come_and_change(
    start: Any,
    engine: Engine,
    pool: Pool,
    secondary: Site,
    reactor: Any,
    in_reactor: Any,
    tmp_path: Path,
) -> None:
    in_transaction(engine, furnished, secondary)
    server = start(secondary)
    port = secondary.dns.secondaries[0][1]
    notifier = ZoneNotifier(reactor, pool, SiteRef(secondary), period=0.2)
    text = CONFIGURATION.format(port=port, cod=server.port, folder=tmp_path)
    with secondary_running(KNOTD, text, tmp_path, notifier, in_reactor):
        address = dig(server, "+short", "n4.pool.cod.test")[1]
        until(lambda: knot(port, "n4.pool.cod.test") == address, "the vcluster's zone is copied")
        until(
            lambda: knot(port, "-x", address.strip()) == "n4.pool.cod.test.\n",
            "the reverse zone is copied",
        )
        assert knot(port, "www.pool.cod.test") == f"n4.pool.cod.test.\n{address}"
        assert (
            knot(port, "n4.pool.cod.test", "SSHFP")
            == dig(server, "+short", "n4.pool.cod.test", "SSHFP")[1]
        )

        in_transaction(
            engine,
            lambda tx: vcluster_names.put(
                tx, flow_context(secondary, NOW, ""), vcluster="pool", name="api", target="n4"
            ),
        )
        until(
            lambda: knot(port, "api.pool.cod.test") == f"n4.pool.cod.test.\n{address}",
            "it hears of a new name",
        )

        in_transaction(engine, member_of_another, secondary)
        until(
            lambda: "ns.cod.test." in knot(port, "other.cod.test", "NS"),
            "it hears of a new zone",
        )

        in_transaction(engine, lambda tx: holding.give_back(tx, nodes.every(tx)[0], up_until=0.0))
        until(lambda: knot(port, "n4.pool.cod.test") == "", "and of a node that has left")
        until(lambda: knot(port, "-x", address.strip()) == "", "there, too")
        assert (
            knot(port, "pool.cod.test", "SOA") == dig(server, "+short", "pool.cod.test", "SOA")[1]
        )
