"""The NMP server and peers that wish it ill, or are merely slow: nobody else notices. And VCMs
known by address."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from cod.flows.vcms import vcms
from cod.flows.vcms.vcms import Greeted
from cod.model import OutboxMessage, Refused, Site, SiteRef
from cod.net.nmp import server as nmp
from cod.net.nmp import tls
from cod.net.nmp.connection import GREETING, LINGER
from cod.net.nmp.server import NmpServer
from cod.pool import Pool, in_transaction
from cod.security.ca import Ca, Issued
from cod.store import vcms as store
from cod.wire.nmp import bodies as b
from tests.net.nmplab import NOW, Client, add_web, enrolled, founded, port, serving
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like

MEMBER = {
    "node": "node1",
    "hostname": "n1",
    "address": "10.77.128.1",
    "state": "prime",
    "template": "debian@1",
    "type": "type1",
}


@pytest.fixture
def ca(tmp_path: Path) -> Ca:
    return Ca(tmp_path / "ca", "test")


@pytest.fixture
def server(
    reactor: Any, in_reactor: Any, pool: Pool, engine: Engine, site: Site, ca: Ca
) -> Iterator[NmpServer]:
    """A server with a TLS port and a plain one, and vclusters 'pool' and 'web'; its clock stands
    still."""
    in_transaction(engine, founded, site)
    in_transaction(engine, add_web, site)
    listen = tls.listening(reactor, ca, ["127.0.0.1"], 0, free_port())
    yield from serving(reactor, in_reactor, pool, site, listen, lambda: NOW)


Make = Callable[..., Client]


@pytest.fixture
def client(server: NmpServer, engine: Engine, ca: Ca, tmp_path: Path) -> Iterator[Make]:
    """Makes clients; those for whom no certificate is given speak plainly."""
    made: list[Client] = []

    def make(
        issued: Issued | None, name: str = "pool", *, hello: bool = True, buffer: int = 0
    ) -> Client:
        made.append(Client(server, ca, issued, tmp_path, buffer=buffer))
        if hello:
            assert isinstance(made[-1].answer(b.Hello(name, "test 1.0", 0)), b.Welcome)
        return made[-1]

    yield make
    for one in made:
        one.close()


# ---------------------------------------------------------------- slow and silent ones


def test_a_vcm_that_does_not_read_costs_little_and_holds_nobody_up(
    client: Make, server: NmpServer, engine: Engine, ca: Ca
) -> None:
    # or the kernel takes megabytes
    server.ports[0].socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    slow = client(enrolled(engine, ca), buffer=65536)
    other = client(enrolled(engine, ca, "web"), "web")
    members = [MEMBER] * 600  # about 100 kB
    for number in range(30):
        in_transaction(
            engine,
            store.enqueue,
            1,
            "grant",
            {"request": number, "key": "k", "members": members, "expires": 1.0},
            NOW,
        )
    session = server.sessions[1]
    until(lambda: session.sent and not session.has_room())
    assert isinstance(other.answer(b.Status()), b.Vcluster)
    assert session.sent < 30  # the rest waits in the database
    heard = [slow.hear() for _ in range(30)]
    assert [one[0].sequence for one in heard if one] == list(range(1, 31))


def test_a_handshake_that_never_comes_ends(
    client: Make, server: NmpServer, in_reactor: Any
) -> None:
    with socket.create_connection(("127.0.0.1", port(server))) as silent:
        silent.settimeout(60)
        until(lambda: server.connected)
        now = server.reactor.seconds()
        (session,) = server.connected
        in_reactor(session.look_after, now + GREETING + 1)
        in_reactor(session.look_after, now + GREETING + LINGER + 2)
        with suppress(ConnectionError):
            while silent.recv(1000):
                pass
        until(lambda: not server.connected)


def test_strangers_leave_room_for_others(
    client: Make, server: NmpServer, engine: Engine, ca: Ca, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = client(enrolled(engine, ca))
    monkeypatch.setattr(nmp, "MOST_STRANGERS", 2)
    crowd = [socket.create_connection(("127.0.0.1", port(server))) for _ in range(4)]
    try:
        crowd[-1].settimeout(60)
        with suppress(ConnectionError):
            assert crowd[-1].recv(10) == b""
        until(lambda: server.strangers == {"127.0.0.1": 2})
        with socket.create_connection(("127.0.0.1", port(server)), source_address=("127.0.0.2", 0)):
            until(lambda: server.strangers.get("127.0.0.2"))
        assert isinstance(known.answer(b.Status()), b.Vcluster)
    finally:
        for one in crowd:
            one.close()
    until(lambda: not server.strangers)


# ---------------------------------------------------------------- who may not speak any more


def test_revoking_ends_the_connection(client: Make, engine: Engine, ca: Ca) -> None:
    issued = enrolled(engine, ca)
    vcm, other = client(issued), client(enrolled(engine, ca, "web"), "web")
    in_transaction(engine, vcms.revoke, vcluster="pool")
    heard = vcm.hear()
    assert heard is not None
    assert isinstance(heard[1], b.Bye)
    again = client(issued, hello=False)
    again.send(b.Hello("pool", "test", 0))
    assert again.error().code == "identity"
    assert isinstance(other.answer(b.Status()), b.Vcluster)


def test_nothing_is_done_for_who_was_revoked_a_moment_ago(
    client: Make, server: NmpServer, engine: Engine, ca: Ca, in_reactor: Any
) -> None:
    vcm = client(enrolled(engine, ca))

    def held() -> bool:
        """Between two looks: from now on it believes that it is at one, and so will not see it."""
        was, server._looking = server._looking, True
        return not was

    until(lambda: in_reactor(held))
    enrolled(engine, ca)
    in_transaction(engine, store.enqueue, 1, "lease", {"event": "warning", "expires": 1.0}, NOW)
    refused = vcm.answer(b.RequestNodes("k", (b.Wanted(1),)))
    assert isinstance(refused, b.Error)
    assert refused.code == "identity"
    assert vcm.hear() is None or vcm.hear() is None


def test_enrolled_anew_the_numbers_begin_anew(client: Make, engine: Engine, ca: Ca) -> None:
    in_transaction(engine, vcms.revoke, vcluster="pool")
    enrolled(engine, ca)
    in_transaction(engine, store.enqueue, 1, "lease", {"event": "warning", "expires": 1.0}, NOW)
    vcm = client(enrolled(engine, ca), hello=False)
    welcome = vcm.answer(b.Hello("pool", "test", 811))
    assert isinstance(welcome, b.Welcome)
    assert welcome.sequence == 1  # it has dealt with 811, it says; the last one is 1
    in_transaction(engine, store.enqueue, 1, "lease", {"event": "ended", "expires": 1.0}, NOW)
    heard = vcm.hear()
    assert heard is not None
    assert (heard[0].sequence, heard[1]) == (2, b.Lease("ended", 1.0))


def test_a_server_that_was_killed_does_not_hold_on_to_connections(
    reactor: Any, in_reactor: Any, pool: Pool, engine: Engine, site: Site, ca: Ca
) -> None:
    in_transaction(engine, founded, site)
    issued = enrolled(engine, ca)
    for server in ("cod1", "cod2"):
        in_transaction(
            engine,
            vcms.greet,
            vcluster="pool",
            serial=issued.serial,
            address="",
            about="",
            seen=0,
            server=server,
            now=NOW,
        )
        served = NmpServer(
            reactor,
            pool,
            SiteRef(site),
            "cod1",
            tls.listening(reactor, ca, [], 0),
            tls.identity,
            lambda: NOW + 1,
            lambda effects: None,
        )
        in_reactor(served.startService)
        in_reactor(lambda: pool.run(lambda tx: None))  # behind what the start has queued
        in_reactor(served.stopService)
        shown = in_transaction(engine, vcms.show, "pool").vcm.server
        assert shown == (None if server == "cod1" else "cod2")


# ---------------------------------------------------------------- known by address


def test_a_vcm_known_by_its_address_needs_no_certificate(
    client: Make, engine: Engine, ca: Ca
) -> None:
    in_transaction(engine, vcms.enrol, vcluster="pool", serial="", address="127.0.0.1", now=NOW)
    assert isinstance(client(None).answer(b.Status()), b.Vcluster)
    # the site's own, but not the one that was enrolled
    shown = client(ca.vcm("pool", datetime.now(UTC)), hello=False)
    shown.send(b.Hello("pool", "test", 0))
    assert shown.error().code == "identity"
    in_transaction(engine, vcms.enrol, vcluster="pool", serial="", address="127.0.0.9", now=NOW)
    elsewhere = client(None, hello=False)
    elsewhere.send(b.Hello("pool", "test", 0))
    assert "comes from 127.0.0.9" in elsewhere.error().sentence


@pytest.mark.parametrize("address", ["", "127.0.0.1"])
def test_a_vcm_with_a_certificate_has_to_show_it(
    client: Make, engine: Engine, ca: Ca, address: str
) -> None:
    issued = ca.vcm("pool", datetime.now(UTC))
    in_transaction(
        engine, vcms.enrol, vcluster="pool", serial=issued.serial, address=address, now=NOW
    )
    plain = client(None, hello=False)
    plain.send(b.Hello("pool", "test", 0))
    said = plain.error()
    assert (said.code, "a certificate is wanted" in said.sentence) == ("identity", True)
    client(issued)


def test_one_of_them_has_to_be_said(client: Make, engine: Engine) -> None:
    with pytest.raises(Refused, match="say which"):
        in_transaction(engine, vcms.enrol, vcluster="pool", serial="", address="", now=NOW)


def test_a_plain_port_speaks_no_tls(client: Make, server: NmpServer) -> None:
    vcm = client(None, hello=False)
    vcm.socket.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n")
    assert vcm.error().code == "malformed"


# ---------------------------------------------------------------- the look, on a clock


class Told:
    """A session as the server's look sees it."""

    def __init__(self, epoch: int, sent: int) -> None:
        self.greeted, self.sent, self.said, self.left = (
            Greeted(1, epoch, sent),
            sent,
            list[int](),
            "",
        )
        self.address, self.transport = (
            "10.0.0.9",
            SimpleNamespace(abortConnection=lambda: self.leave("aborted")),
        )

    def has_room(self) -> bool:
        return True

    def tell(self, row: OutboxMessage) -> None:
        if row.verb == "poison":
            raise KeyError(row.verb)
        self.said.append(row.sequence)
        self.sent = row.sequence

    def leave(self, reason: str) -> None:
        self.left = reason

    def look_after(self, now: float) -> None:
        raise RuntimeError("a bug")


class Reads:
    """A pool whose reads are answered by the test."""

    def __init__(self) -> None:
        self.asked: list[Deferred[Any]] = []

    def read(self, *args: Any) -> Deferred[Any]:
        self.asked.append(Deferred())
        return self.asked[-1]

    def run(self, *args: Any) -> Deferred[Any]:
        return succeed(None)

    def is_away(self, error: BaseException) -> bool:
        return False


@pytest.fixture
def still(site: Site) -> NmpServer:
    """A server with no ports, on a clock that stands still."""
    served = NmpServer(
        Clock(),
        Reads(),
        SiteRef(site),
        "cod1",
        lambda factory: [],
        tls.identity,
        lambda: NOW,
        lambda effects: None,
    )
    served.startService()
    return served


def row(sequence: int, vcluster_id: int = 1, verb: str = "lease") -> OutboxMessage:
    return OutboxMessage(vcluster_id, sequence, verb, {})


def test_what_was_read_for_one_connection_is_not_sent_on_the_next(still: Any) -> None:
    """The newer one starts before what the older one was sent and did not acknowledge."""
    old, new = Told(1, 10), Told(2, 5)
    still.sessions[1] = old
    still.poll()
    still.sessions[1] = new
    still.pool.asked[0].callback(([row(11)], {}))
    assert (old.said, new.said) == ([11], [])
    still.poll()
    still.pool.asked[1].callback(([row(n) for n in range(6, 12)], {}))
    assert new.said == [6, 7, 8, 9, 10, 11]


def test_what_is_more_than_one_look_reads_is_looked_for_at_once(still: Any) -> None:
    one = Told(1, 0)
    still.sessions[1] = one
    still.poll()
    still.pool.asked[0].callback(([row(n + 1) for n in range(vcms.MOST_EACH)], {}))
    still.pool.asked[1].callback(([row(vcms.MOST_EACH + 1)], {}))
    assert (len(one.said), len(still.pool.asked)) == (vcms.MOST_EACH + 1, 2)


def test_a_message_that_cannot_be_sent_is_its_vcm_s_trouble_alone(
    still: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = Told(1, 0), Told(1, 0)
    still.sessions.update({1: one, 2: other})
    still.poll()
    still.poll()  # while the first look is under way
    still.pool.asked[0].callback(([row(1, 1, "poison"), row(1, 2)], {}))
    assert (one.left, other.said) == ("a message cannot be sent", [1])
    assert len(still.pool.asked) == 2
    still.pool.asked[1].callback(([], {2: "the VCM was revoked"}))
    assert other.left == "the VCM was revoked"
    assert "cannot be sent" in caplog.text


def test_a_bug_with_one_connection_does_not_end_the_sweep(
    still: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = Told(1, 0), Told(1, 0)
    still.connected.update({one, other})
    still.reactor.advance(nmp.SWEEP)
    assert (one.left, other.left) == ("aborted", "aborted")
    still.reactor.advance(nmp.SWEEP)
    assert caplog.text.count("is cut off") == 4
