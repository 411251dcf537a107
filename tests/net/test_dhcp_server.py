"""The DHCP socket over loopback: drained batches, replies after the commit, poison, and rubbish."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from cod.flows.boot import dhcp as flow
from cod.model import DhcpQuery, Site, SiteRef, Subnet
from cod.net.dhcp.server import METRICS, DhcpServer
from cod.pool import FEW, REST, Pool
from cod.wire import dhcp as wire
from tests.ports import free_port

HERE = "127.0.0.1"
InReactor = Callable[..., Any]


class Stand:
    """A server on a port of its own, and a client behind a relay whose address is 127.0.0.1."""

    def __init__(self, server: DhcpServer, client: socket.socket, port: int) -> None:
        self.server = server
        self.client = client
        self.port = port

    def send(self, *packets: bytes) -> None:
        for packet in packets:
            self.client.sendto(packet, (HERE, self.port))

    def receive(self) -> wire.Packet:
        return wire.decode(self.client.recv(2048))


def discover(number: int, kind: int = 1, **options: bytes) -> bytes:
    values = {53: bytes([kind]), 60: b"PXEClient:Arch:00000:UNDI:002001", 77: b"iPXE", 93: b"\0\0"}
    values |= {int(code[1:]): value for code, value in options.items()}
    chaddr = (0x525400000000 + number).to_bytes(6, "big") + bytes(10)
    return wire.encode(
        wire.Packet(
            1,
            1,
            6,
            1,
            number,
            0,
            0,
            bytes(4),
            bytes(4),
            bytes(4),
            socket.inet_aton(HERE),
            chaddr,
            bytes(64),
            bytes(128),
            values,
        )
    )


@pytest.fixture
def stand(reactor: Any, in_reactor: InReactor, pool: Pool, site: Site) -> Iterator[Stand]:
    lab = replace(site.subnets[0], interface=None, server=HERE, relay=HERE)
    port = free_port(socket.SOCK_DGRAM)
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**21)
    client.bind((HERE, 0))
    client.settimeout(60)
    server = DhcpServer(
        reactor,
        pool,
        SiteRef(replace(site, subnets=(lab,))),
        lab,
        port=port,
        reply_ports={67: client.getsockname()[1]},
    )
    in_reactor(server.startService)
    yield Stand(server, client, port)
    in_reactor(server.stopService)
    client.close()


def test_a_machine_gets_its_address_and_its_script(stand: Stand) -> None:
    stand.send(discover(1))
    offer = stand.receive()
    assert offer.options[53] == b"\2"
    stand.send(discover(1, 3, o50=offer.yiaddr, o54=offer.options[54], o82=b"\1\4port"))
    ack = stand.receive()
    assert (ack.options[53], ack.yiaddr, ack.options[82]) == (b"\5", offer.yiaddr, b"\1\4port")
    assert ack.file.rstrip(b"\0") == b"http://127.0.0.1:8069/boot/52:54:00:00:00:01/script.ipxe"
    assert stand.server.counts["stage", "ipxe"] == 1


def test_an_interface_that_is_not_there_is_named(
    reactor: Any, in_reactor: InReactor, pool: Pool, site: Site
) -> None:
    lab = replace(site.subnets[0], interface="nosuch9")
    server = DhcpServer(reactor, pool, SiteRef(site), lab, port=free_port(socket.SOCK_DGRAM))
    with pytest.raises(OSError, match=f"dhcp {lab.name} on nosuch9"):
        in_reactor(server.startService)


def test_of_two_servers_the_chosen_one_answers_and_the_other_takes_over(
    reactor: Any, in_reactor: InReactor, pool: Pool, site: Site, stand: Stand
) -> None:
    other = "127.0.0.2"
    one = replace(stand.server.subnet, others=(other,), dns=(HERE, other))
    two = replace(one, server=other, others=(HERE,), dns=(other, HERE))
    ports = {67: stand.client.getsockname()[1]}
    in_reactor(stand.server.stopService)

    def serve(subnet: Subnet) -> DhcpServer:
        ref = SiteRef(replace(site, subnets=(subnet,)))
        server = DhcpServer(reactor, pool, ref, subnet, port=stand.port, reply_ports=ports)
        in_reactor(server.startService)
        return server

    first, second = serve(one), serve(two)

    def ask(server: str, packet: bytes) -> wire.Packet:
        stand.client.sendto(packet, (server, stand.port))
        return stand.receive()

    offers = [ask(server, discover(1)) for server in (HERE, other)]
    assert offers[0].yiaddr == offers[1].yiaddr
    told = [(offer.options[54], offer.siaddr, offer.options[6]) for offer in offers]
    ids = [socket.inet_aton(server) for server in (HERE, other)]
    assert told == [(ids[0], ids[0], ids[0] + ids[1]), (ids[1], ids[1], ids[1] + ids[0])]
    chosen = discover(1, 3, o50=offers[0].yiaddr, o54=ids[0])
    stand.client.sendto(chosen, (other, stand.port))
    assert ask(other, discover(2)).xid == 2  # of the request before it nothing came
    assert ask(HERE, chosen).options[53] == b"\5"
    in_reactor(first.stopService)  # dead
    renewed = ask(other, discover(1, 3, o50=offers[0].yiaddr))
    assert (renewed.options[53], renewed.yiaddr) == (b"\5", offers[0].yiaddr)
    assert renewed.options[54] == ids[1]
    in_reactor(second.stopService)


def test_what_waits_in_the_socket_is_one_transaction(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    first_is_in, go_on = threading.Event(), threading.Event()
    real = flow.answer

    def slow(
        tx: Any, queries: list[DhcpQuery], site: Site, newcomers: flow.Newcomers, now: float
    ) -> Any:
        sizes.append(len(queries))
        first_is_in.set()
        assert go_on.wait(60)
        return real(tx, queries, site, newcomers, now)

    monkeypatch.setattr(flow, "answer", slow)
    stand.send(discover(1))
    assert first_is_in.wait(60)
    stand.send(*(discover(n) for n in range(2, 52)))
    go_on.set()
    addresses = {stand.receive().yiaddr for _ in range(51)}
    assert len(addresses) == 51
    assert sizes == [1, 50]


def test_a_message_that_trips_a_bug_harms_itself_alone(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_is_in, go_on = threading.Event(), threading.Event()
    real = flow.answer

    def poisoned(
        tx: Any, queries: list[DhcpQuery], site: Site, newcomers: flow.Newcomers, now: float
    ) -> Any:
        first_is_in.set()
        assert go_on.wait(60)
        if any(query.mac.endswith(":09") for query in queries):
            raise RuntimeError("poison")
        return real(tx, queries, site, newcomers, now)

    monkeypatch.setattr(flow, "answer", poisoned)
    stand.send(discover(1))
    assert first_is_in.wait(60)
    stand.send(*(discover(n) for n in range(2, 12)))
    go_on.set()
    answered = {stand.receive().chaddr[5] for _ in range(10)}
    assert answered == {*range(1, 12)} - {9}
    assert stand.server.counts["dropped", "failed"] == 1


def test_a_server_that_another_was_quicker_than_answers_all_the_same(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay asks all servers at the same moment; the one that enters the machine may die before
    it answers."""
    real, answered = flow.answer, []

    def raced(tx: Any, *args: Any) -> Any:
        answered.append(args)
        if len(answered) == 1:
            raise IntegrityError("INSERT", {}, Exception(1062, "Duplicate entry"))
        return real(tx, *args)

    monkeypatch.setattr(flow, "answer", raced)
    stand.send(discover(1))
    assert stand.receive().xid == 1
    assert stand.server.counts["dropped", "failed"] == 0


def test_a_bug_in_the_codec_does_not_close_the_socket(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = wire.decode

    def poisoned(data: bytes) -> wire.Packet:
        packet = real(data)
        assert packet.chaddr[5] != 9
        return packet

    with monkeypatch.context() as patch:
        patch.setattr(wire, "decode", poisoned)
        stand.send(discover(9), discover(3))
        answer = stand.client.recv(2048)
    assert wire.decode(answer).chaddr[5] == 3
    assert stand.server.counts["dropped", "failed"] == 1


def test_rubbish_is_dropped_and_the_next_good_client_answered(stand: Stand) -> None:
    rng = random.Random(1)
    good = discover(1)
    for turn in range(2000):
        if turn % 2:
            stand.send(rng.randbytes(rng.randrange(600)))
        else:
            broken = bytearray(good[: rng.randrange(len(good))])
            stand.send(bytes(broken))
        if turn % 100 == 99:
            stand.send(discover(10_000 + turn))
            while stand.receive().xid != 10_000 + turn:
                pass
    assert stand.server.counts["dropped", "malformed"] > 1000
    assert stand.server.counts["dropped", "failed"] == 0


def test_an_error_after_the_replies_does_not_end_the_service(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(METRICS["in"], "labels", full)
        stand.send(discover(1))
        assert stand.receive().xid == 1
        stand.send(discover(2))
        assert stand.receive().xid == 2


class Instant:
    """A pool that answers nobody, at once."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def run_at(self, _: int, __: object, queries: list[DhcpQuery], *___: object) -> Deferred[Any]:
        self.batches.append(len(queries))
        return succeed([None] * len(queries))


class Handmade(Clock):
    """A reactor whose sockets are read when the test says so."""

    def addReader(self, _: object) -> None:
        pass

    removeReader = addReader


def test_after_a_batch_of_few_messages_gather_and_after_one_of_many_they_do_not(site: Site) -> None:
    lab = replace(site.subnets[0], interface=None, server=HERE, relay=HERE)
    clock, pool, port = Handmade(), Instant(), free_port(socket.SOCK_DGRAM)
    server = DhcpServer(clock, pool, SiteRef(replace(site, subnets=(lab,))), lab, port=port)
    server.startService()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(discover(1), (HERE, port))
        server.doRead()
        for number in range(2, 2 + FEW):
            client.sendto(discover(number), (HERE, port))
        assert pool.batches == [1]
        clock.advance(REST)
        assert pool.batches == [1, FEW]
        client.sendto(discover(99), (HERE, port))
        server.doRead()
        assert pool.batches == [1, FEW, 1]
    server.stopService()
