"""The DNS server, asked by dig, by rubbish, and about names of others."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest
from dnslib import RCODE, RR, DNSRecord
from sqlalchemy import Engine, insert

from cod.model import Node, Site, Vcluster
from cod.net.dns.server import ANSWERS, DnsServer
from cod.pool import Pool, in_transaction
from cod.store import tables as t
from cod.store.engine import Tx, new_id
from cod.store.nodes import holding, nodes
from cod.store.people import groups
from tests.net.dns_stands import Start, dns_servers
from tests.rows import add_vcluster

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for


def member(tx: Tx, site: Site, name: str = "pool", hostname: str = "n4") -> tuple[Node, Vcluster]:
    """A node that the vcluster holds."""
    group = groups.ensure(tx, "site", 0.0)
    template = new_id(
        tx.execute(
            insert(t.config_templates).values(
                name=name, revision=1, document="<template/>", digest="", created_at=0.0
            )
        )
    )
    vcluster = add_vcluster(tx, name, group.id, template, site.subnets[0], now=0.0)
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
    node = nodes.add(tx, name="node7", boot_mac="52:54:00:00:00:07", now=0.0, cause="", actor="")
    held = holding.take(
        tx,
        node,
        vcluster=vcluster,
        request_id=request,
        template_id=template,
        hostname=hostname,
        now=0.0,
    )
    return held, vcluster


@pytest.fixture
def start(reactor: Any, in_reactor: Any, pool: Pool, site: Site) -> Iterator[Start]:
    with dns_servers(reactor, in_reactor, pool, site, clock=lambda: 1000.0) as start:
        yield start


def dig(server: DnsServer, *arguments: str, address: str = "127.0.0.1") -> tuple[str, str]:
    """dig's status and its whole output."""
    command = ["dig", f"-p{server.port}", f"@{address}", "+tries=1", "+time=15", *arguments]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return output.partition("status: ")[2].partition(",")[0], output


@pytest.mark.parametrize("transport", ["+notcp", "+tcp"])
def test_names_and_addresses_of_members(
    start: Start, engine: Engine, site: Site, transport: str
) -> None:
    in_transaction(engine, member, site)
    server = start()
    short = dig(server, transport, "+short", "n4.pool.cod.test")[1].strip()
    assert short.startswith("10.77.")
    assert dig(server, transport, "+short", "-x", short)[1] == "n4.pool.cod.test.\n"
    status, output = dig(server, transport, "N4.Pool.COD.test")
    assert status == "NOERROR"
    assert " aa " in output.partition("flags:")[2].partition(";")[0] + " "
    # as it was asked: some clients compare (draft-vixie-dnsext-dns0x20)
    assert "N4.Pool.COD.test." in output


def test_an_answer_is_true_from_the_commit_on(start: Start, engine: Engine, site: Site) -> None:
    server = start()
    assert dig(server, "n4.pool.cod.test")[0] == "NXDOMAIN"
    node, _ = in_transaction(engine, member, site)
    assert dig(server, "n4.pool.cod.test")[0] == "NOERROR"
    assert dig(server, "n5.pool.cod.test")[0] == "NXDOMAIN"
    in_transaction(engine, holding.give_back, node, up_until=None)
    status, output = dig(server, "n4.pool.cod.test")
    assert status == "NXDOMAIN"
    assert "SOA" in output


@pytest.mark.parametrize(
    ("question", "status", "answers"),
    [
        (("pool.cod.test",), "NOERROR", 0),
        (("n4.pool.cod.test", "AAAA"), "NOERROR", 0),
        (("n4.pool.cod.test", "ANY"), "NOERROR", 1),
        (("cod.test", "SOA"), "NOERROR", 1),
        (("cod.test", "NS"), "NOERROR", 1),
        (("cod.test", "A"), "NOERROR", 0),
        (("ns.cod.test",), "NOERROR", 1),
        (("nobody.cod.test",), "NXDOMAIN", 0),
        (("a.n4.pool.cod.test",), "NXDOMAIN", 0),
        (("-x", "10.77.255.254"), "NXDOMAIN", 0),
        (("-x", "192.0.2.1"), "REFUSED", 0),
        (("77.10.in-addr.arpa", "PTR"), "NOERROR", 0),
        (("77.10.in-addr.arpa", "SOA"), "NOERROR", 1),
        (("77.10.in-addr.arpa", "NS"), "NOERROR", 1),
        (("5.77.10.in-addr.arpa", "NS"), "NOERROR", 0),
        (("1.2.3.77.10.in-addr.arpa", "PTR"), "NXDOMAIN", 0),
        (("10.in-addr.arpa", "SOA"), "REFUSED", 0),
        (("pool.cod.test", "SOA"), "NOERROR", 1),
        (("pool.cod.test", "NS"), "NOERROR", 1),
        (("pool.cod.test", "DS"), "NOERROR", 0),
        (("nobody.cod.test", "SOA"), "NXDOMAIN", 0),
        (("_catalog.cod.test", "SOA"), "NOERROR", 1),
        (("0300.77.10.10.in-addr.arpa", "PTR"), "REFUSED", 0),
        (("example.com",), "REFUSED", 0),
        (("notcod.test",), "REFUSED", 0),
        (("n4.pool.cod.test", "TYPE65"), "NOERROR", 0),
        (("-c", "CH", "version.bind", "TXT"), "REFUSED", 0),
        ((".", "NS"), "REFUSED", 0),
    ],
)
def test_what_is_ours_and_what_is_not(
    start: Start, engine: Engine, site: Site, question: tuple[str, ...], status: str, answers: int
) -> None:
    in_transaction(engine, member, site)
    found, output = dig(start(), *question)
    assert found == status
    assert f"ANSWER: {answers}," in output


def test_the_zone_is_not_given_away(start: Start) -> None:
    assert "Transfer failed" in dig(start(), "cod.test", "AXFR")[1]


def test_rubbish_disturbs_nobody(start: Start, engine: Engine, site: Site) -> None:
    in_transaction(engine, member, site)
    server = start()
    good = bytes(DNSRecord.question("n4.pool.cod.test").pack())
    loop = good[:12] + b"\xc0\x0c\x00\x01\x00\x01"  # a name that points at itself
    many = good[:4] + struct.pack("!H", 65535) + good[6:]
    answer = good[:2] + b"\x81\x80" + good[4:]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(60)
        for data in (
            b"",
            b"x",
            good[:11],
            good[:-1],
            loop,
            many,
            answer,
            bytes(512),
            b"\xff" * 4096,
            *(good[:n] + b"\xff" + good[n + 1 :] for n in range(4, len(good))),
        ):
            client.sendto(data, ("127.0.0.1", server.port))
    # rubbish may fill its socket
    assert dig(server, "+short", "+tries=3", "n4.pool.cod.test")[1].startswith("10.77.")


def test_streams_that_are_too_long_or_silent_end(start: Start) -> None:
    server = start()
    with socket.create_connection(("127.0.0.1", server.port), 60) as client:
        client.sendall(b"\xff\xff" + b"x" * 100)
        client.settimeout(60)
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_two_questions_on_one_stream(start: Start, engine: Engine, site: Site) -> None:
    in_transaction(engine, member, site)
    server = start()
    questions = [
        bytes(DNSRecord.question(name).pack()) for name in ("n4.pool.cod.test", "x.pool.cod.test")
    ]
    with socket.create_connection(("127.0.0.1", server.port), 60) as client:
        for data in questions:
            client.sendall(struct.pack("!H", len(data)) + data)
        stream = client.makefile("rb")
        replies = [
            DNSRecord.parse(stream.read(struct.unpack("!H", stream.read(2))[0])) for _ in questions
        ]
    assert {reply.header.rcode for reply in replies} == {RCODE.NOERROR, RCODE.NXDOMAIN}


# ---------------------------------------------------------------- names of others


class Upstream:
    """A DNS server of somebody else's."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(60)
        self.port = self.socket.getsockname()[1]

    def answer(self) -> None:
        """Answer one question, after forged answers to it."""
        data, peer = self.socket.recvfrom(4096)
        record = DNSRecord.parse(data)
        reply = record.reply()
        reply.add_answer(*_rr(str(record.q.qname), "192.0.2.7"))
        forged = record.reply()
        forged.add_answer(*_rr(str(record.q.qname), "203.0.113.66"))
        forged.header.id ^= 1
        self.socket.sendto(bytes(forged.pack()), peer)  # the wrong number
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            forged.header.id ^= 1
            # the right number, from somebody who was not asked
            stranger.sendto(bytes(forged.pack()), peer)
        for question in ("example.org", "www.example.com"):
            other = DNSRecord.question(question).reply()
            other.header.id = record.header.id
            other.add_answer(*_rr(question, "203.0.113.66"))
            self.socket.sendto(bytes(other.pack()), peer)  # from who was asked, to what was not
        self.socket.sendto(data, peer)  # the question itself
        self.socket.sendto(bytes(reply.pack())[:13], peer)  # cut off
        self.socket.sendto(bytes(reply.pack()), peer)


def _rr(name: str, address: str) -> list[Any]:
    return list(RR.fromZone(f"{name} 60 A {address}"))


@pytest.fixture
def loopback(site: Site) -> Site:
    """The site, which has this host's loopback for a network."""
    return replace(site, subnets=(replace(site.subnets[0], network="127.0.0.0/8"),))


def test_names_of_others_are_passed_on_for_the_site_s_own_networks_only(
    start: Start, loopback: Site
) -> None:
    upstream = Upstream()
    forward = {"forward": ["127.0.0.1"], "forward_port": upstream.port}
    assert dig(start(**forward), "example.com")[0] == "REFUSED"  # on no network of this site
    server = start(site=loopback, **forward)
    answering = Thread(target=upstream.answer, daemon=True)
    answering.start()
    assert dig(server, "+short", "example.com")[1] == "192.0.2.7\n"
    answering.join(60)
    assert dig(server, "+norecurse", "example.com")[0] == "REFUSED"
    assert server.forwarding == 0


def test_a_server_that_no_route_leads_to_is_passed_over(start: Start, loopback: Site) -> None:
    """The kernel refuses to send there, as it does without a route."""
    upstream = Upstream()
    answering = Thread(target=upstream.answer, daemon=True)
    answering.start()
    for forward, code in (
        (["255.255.255.255"], "SERVFAIL"),
        (["255.255.255.255", "127.0.0.1"], "NOERROR"),
    ):
        server = start(site=loopback, forward=forward, forward_port=upstream.port)
        assert dig(server, "example.com")[0] == code
        assert server.forwarding == 0
    answering.join(60)
    upstream.socket.close()


def test_a_reply_that_is_too_long_is_asked_for_again(start: Start, loopback: Site) -> None:
    """The client is told that it was cut off, whatever stood in it."""
    upstream = Upstream()
    server = start(site=loopback, forward=["127.0.0.1"], forward_port=upstream.port)

    def rubbish() -> None:
        data, peer = upstream.socket.recvfrom(4096)
        record = DNSRecord.parse(data)
        upstream.socket.sendto(bytes(record.reply().pack()) + b"\xff" * 2000, peer)

    answering = Thread(target=rubbish)
    answering.start()
    output = dig(server, "+ignore", "example.com")[1]
    answering.join(60)
    assert "flags: qr tc" in output


def test_a_question_that_cannot_be_answered_is_its_own_trouble(
    start: Start, engine: Engine, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_transaction(engine, member, site)
    server = start()
    whole = server._answer_one

    def broken(query: Any, *rest: Any) -> None:
        if query.question.name.startswith("bad"):
            raise OSError("no socket is left")
        whole(query, *rest)

    monkeypatch.setattr(server, "_answer_one", broken)
    names = ["bad.cod.test", "n4.pool.cod.test"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(60)
        for name in names:
            client.sendto(bytes(DNSRecord.question(name).pack()), ("127.0.0.1", server.port))
        codes = {
            str(reply.q.qname): reply.header.rcode
            for reply in (DNSRecord.parse(client.recv(4096)) for _ in names)
        }
    assert codes == {"bad.cod.test.": RCODE.SERVFAIL, "n4.pool.cod.test.": RCODE.NOERROR}


@pytest.mark.parametrize(
    ("labels", "kind", "opcode"),
    [([100], 1, 0), ([64], 6, 0), ([63] * 5, 1, 0), ([100], 1, 2), ([150, 2], 252, 0)],
)
def test_names_that_are_too_long_are_dropped(
    start: Start,
    engine: Engine,
    site: Site,
    labels: list[int],
    kind: int,
    opcode: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    in_transaction(engine, member, site)
    server, dropped = start(), ANSWERS.labels("malformed")._value.get()
    name = b"".join(bytes([length]) + b"a" * length for length in labels) + b"\3cod\4test\0"
    question = struct.pack("!6H", 7, opcode << 11, 1, 0, 0, 0) + name + struct.pack("!2H", kind, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(60)
        client.sendto(question, ("127.0.0.1", server.port))
        client.sendto(
            bytes(DNSRecord.question("n4.pool.cod.test").pack()), ("127.0.0.1", server.port)
        )
        assert str(DNSRecord.parse(client.recv(4096)).q.qname) == "n4.pool.cod.test."
    assert ANSWERS.labels("malformed")._value.get() == dropped + 1
    assert "Traceback" not in caplog.text
    assert not caplog.records
