"""The NMP server over real TLS on loopback: a VCM's service on the other end, foreign certificates,
and rubbish."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import logging
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from sqlalchemy import Engine, update
from twisted.internet.threads import blockingCallFromThread
from twisted.python.threadpool import ThreadPool

from cod.core import vcm_outbox
from cod.flows.people import groups
from cod.flows.scheduler import requests, vclusters
from cod.flows.vcms import vcms
from cod.model import Site
from cod.net.nmp import connection, limits, tls
from cod.net.nmp.server import NmpServer
from cod.pool import Pool, in_transaction
from cod.security.ca import Ca, Issued
from cod.store import tables as t
from cod.store import vcms as store
from cod.store.engine import Tx
from cod.store.nodes import nodes as node_rows
from cod.store.scheduler import requests as request_rows
from cod.store.scheduler import vclusters as vcluster_rows
from cod.vcm.connect import over_tls
from cod.vcm.pool import ANY, Demand
from cod.vcm.retry import Options
from cod.vcm.service import VcmService
from cod.wire.nmp import bodies as b
from tests.contexts import flow_context
from tests.net.nmplab import NOW, Client, add_web, enrolled, founded, port, serving
from tests.net.passed import Threads, files_passed, threads_at_work
from tests.store import manager_world as world
from tests.waiting import until

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like


@pytest.fixture
def ca(tmp_path: Path) -> Ca:
    return Ca(tmp_path / "ca", "test")


@pytest.fixture
def server(
    reactor: Any, in_reactor: Any, pool: Pool, engine: Engine, site: Site, ca: Ca
) -> Iterator[NmpServer]:
    """A server at a free port of loopback; its clock stands still."""
    listen = tls.listening(reactor, ca, ["127.0.0.1"], 0)
    yield from serving(reactor, in_reactor, pool, site, listen, lambda: NOW)


@pytest.fixture
def client(
    server: NmpServer, engine: Engine, site: Site, ca: Ca, tmp_path: Path
) -> Iterator[Callable[..., Client]]:
    """Makes clients of the vcluster 'pool', which have said hello unless they are told not to."""
    in_transaction(engine, founded, site)
    made: list[Client] = []
    issued = enrolled(engine, ca)

    def make(certificate: Issued | None = None, *, hello: bool = True, seen: int = 0) -> Client:
        made.append(Client(server, ca, certificate or issued, tmp_path))
        if hello:
            assert isinstance(made[-1].answer(b.Hello("pool", "test 1.0", seen)), b.Welcome)
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_files_of_cod_that_a_vcms_request_passes(
    client: Callable[..., Client],
    server: NmpServer,
    in_reactor: Any,
    threads_at_work: Threads,
) -> None:
    vcm = client()
    for timer in server._timers:  # whose looks pass other files
        in_reactor(timer.stopService)
    until(lambda: not server._looking)
    with files_passed(*threads_at_work) as found:
        assert isinstance(vcm.answer(b.RequestNodes("k1", (b.Wanted(1),))), b.Request)
    assert "net/nmp/verbs.py" in found
    assert len(found) <= 17, sorted(found)


# ---------------------------------------------------------------- identity


def test_a_vcm_is_known_by_its_certificate(client: Callable[..., Client], engine: Engine) -> None:
    client()
    view = in_transaction(engine, vcms.show, "pool")
    assert (view.vcm.server, view.vcm.about) == ("cod1", "test 1.0")


def test_a_certificate_speaks_for_its_own_vcluster_only(
    client: Callable[..., Client], engine: Engine, site: Site, ca: Ca
) -> None:
    other = client(ca.vcm("web", datetime.now(UTC)), hello=False)
    other.send(b.Hello("pool", "test", 0))
    assert (other.error().code, other.hear() is None or other.hear() is None) == ("identity", True)
    # of the site's CA, but not the one that is enrolled
    own = client(ca.vcm("pool", datetime.now(UTC)), hello=False)
    own.send(b.Hello("pool", "test", 0))
    assert own.error().code == "identity"
    client()


def test_a_new_certificate_replaces_the_old_one_at_once(
    client: Callable[..., Client], engine: Engine, ca: Ca, server: NmpServer
) -> None:
    old = client()
    new = enrolled(engine, ca)
    assert farewell(old) == "the VCM was enrolled anew"
    client(new)


def farewell(vcm: Client) -> str:
    """The reason with which the server says goodbye; what it says before is passed over."""
    while (heard := vcm.hear()) is not None:
        if isinstance(heard[1], b.Bye):
            assert vcm.hear() is None
            return heard[1].reason
    raise AssertionError("closed without a goodbye")


def test_revoked_and_enrolled_again_the_old_connection_hears_why_and_the_new_one_stays(
    client: Callable[..., Client], engine: Engine, ca: Ca, server: NmpServer
) -> None:
    """The numbers of connections began again, so that the newcomer was taken for the older one and
    sent away."""
    old = [client() for _ in range(3)][-1]
    in_transaction(engine, vcms.revoke, vcluster="pool")
    assert farewell(old) == "the VCM was revoked"
    lingering = client(enrolled(engine, ca, now=NOW + 1))
    in_transaction(engine, vcms.revoke, vcluster="pool")
    new = client(enrolled(engine, ca, now=NOW + 2))  # while the one before is still connected
    assert farewell(lingering) in (
        "the VCM was revoked",
        "the VCM was enrolled anew",
        "a newer connection has taken its place",
    )
    assert isinstance(new.answer(b.Status()), b.Vcluster)


def test_when_the_vcluster_has_ended_the_goodbye_says_so(
    client: Callable[..., Client], engine: Engine, site: Site
) -> None:
    vcm = client()
    in_transaction(engine, vclusters.delete, flow_context(site, NOW, "test"), name="pool")
    in_transaction(engine, world.arrive, NOW)
    in_transaction(engine, world.run_pass, site, NOW)
    assert farewell(vcm) == "the vcluster has ended"


def _reached(server: NmpServer, ca: Ca, issued: Issued, folder: Path) -> None:
    """In TLS 1.3 a client learns only when it reads that its certificate was refused."""
    client = Client(server, ca, issued, folder)
    client.send(b.Hello("pool", "test", 0))
    if client.hear() is None:
        raise ConnectionError


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("expired", "certificate verify failed"),
        ("other CA", "certificate verify failed"),
        ("server's", "verify failed"),
    ],
)
def test_a_handshake_is_refused_without_a_valid_certificate(
    server: NmpServer,
    engine: Engine,
    ca: Ca,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    said: str,
) -> None:
    stranger = Ca(tmp_path / "stranger", "other")
    issued = {
        "expired": ca.vcm("pool", datetime.now(UTC) - timedelta(days=500)),
        "other CA": stranger.vcm("pool", datetime.now(UTC)),
        "server's": ca.server([], datetime.now(UTC)),
    }[kind]  # is none for a client
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _reached(server, ca, issued, tmp_path)
    until(lambda: "shut out in the TLS handshake" in caplog.text)
    assert said in caplog.text


def test_a_certificate_that_ends_while_it_is_connected(
    client: Callable[..., Client], engine: Engine, ca: Ca, server: NmpServer, in_reactor: Any
) -> None:
    issued = enrolled(engine, ca)
    vcm = client(issued)
    end = x509.load_pem_x509_certificate(issued.certificate).not_valid_after_utc.timestamp()
    for now, closed in ((end - 1, False), (end, True)):
        server.clock = lambda now=now: now
        in_reactor(server._sweep)
        heard = vcm.answer(b.Ping()) if not closed else vcm.hear()[1]  # type: ignore[index]
        assert isinstance(heard, b.Bye if closed else b.Pong)


# ---------------------------------------------------------------- asking, and what is owed


def test_a_request_is_made_once_however_often_it_is_said(
    client: Callable[..., Client], engine: Engine
) -> None:
    vcm = client()
    asked = b.RequestNodes("k1", (b.Wanted(2),), reason="jobs wait")
    first, second = vcm.answer(asked), vcm.answer(asked)
    assert isinstance(first, b.Request)
    assert first == second
    assert (first.key, first.state) == ("k1", "pending")
    assert vcm.answer(b.RequestStatus(first.request)) == first
    withdrawn = vcm.answer(b.Withdraw(first.request))
    assert isinstance(withdrawn, b.Request)
    assert (withdrawn.key, withdrawn.state) == ("k1", "withdrawn")
    assert vcm.answer(b.Withdraw(first.request)) == replace(
        withdrawn, state="withdrawn", reason=withdrawn.reason
    )


def test_what_no_machines_could_ever_meet_is_taken_in_and_rejected_by_the_pass(
    client: Callable[..., Client], engine: Engine, site: Site
) -> None:
    """A person is refused at once; a VCM hears of it as of every other request."""
    vcm = client()
    asked = vcm.answer(b.RequestNodes("k1", (b.Wanted(9),), reason="jobs wait"))
    assert isinstance(asked, b.Request)
    assert asked.state == "pending"
    in_transaction(engine, world.run_pass, site, NOW)
    after = vcm.answer(b.RequestStatus(asked.request))
    assert isinstance(after, b.Request)
    assert after.state == "rejected"
    assert after.reason.startswith("9 nodes wanted, the site has 3 matching")


def test_what_belongs_to_other_vclusters_is_not_there(
    client: Callable[..., Client], engine: Engine, site: Site
) -> None:
    vcm = client()
    in_transaction(engine, add_web, site)
    theirs = in_transaction(
        engine, vclusters.resize, flow_context(site, NOW, "x"), name="web", size=2
    )
    assert theirs is not None
    for body in (b.RequestStatus(3), b.Withdraw(3), b.ReclaimAnswer(1, (b.Named("n1"),))):
        answer = vcm.answer(body)
        assert isinstance(answer, b.Error)
        assert (answer.code, "has no" in answer.sentence) == ("refused", True)
    assert vcm.answer(b.ReleaseNodes((b.Named("node1"),))) == b.Done()  # web's: passed over
    assert in_transaction(engine, _held, "web") == 1


def test_a_request_of_thousands_of_tuples_is_not_even_looked_up(
    client: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    vcm = client()
    monkeypatch.setattr(requests, "submit", lambda *words: pytest.fail("it was looked up"))
    answer = vcm.answer(b.RequestNodes("k", (b.Wanted(1, "a"),) * 101))
    assert isinstance(answer, b.Error)
    assert (answer.code, answer.sentence) == (
        "refused",
        "a request has at most 100 tuples, not 101",
    )


def test_another_group_s_template_is_not_there(
    client: Callable[..., Client], engine: Engine
) -> None:
    """Offer a VCM the templates of its group and of the site alone, like everybody."""
    vcm = client()

    def templates(tx: Tx) -> None:
        for name in ("theirs", "ours"):
            group = groups.create(
                tx, name=name, priority=1, default_lease=None, max_lease=None, now=NOW
            )
            tx.execute(
                update(t.config_templates)
                .where(t.config_templates.c.id == world.add_template(tx, name))
                .values(group_id=group.id, name=f"{name}/{name}")
            )
        tx.execute(update(t.vclusters).values(group_id=group.id))

    in_transaction(engine, templates)
    answer = vcm.answer(b.RequestNodes("k1", (b.Wanted(1), b.Wanted(1, "theirs/theirs@1"))))
    assert isinstance(answer, b.Error)
    assert (answer.code, answer.sentence) == (
        "refused",
        (
            "there is no template 'theirs/theirs@1' for group ours: its nodes run its own templates"
            " that are not retired, and the site's"
        ),
    )
    for key, template in (("k2", "ours"), ("k3", "debian@1"), ("k4", "")):
        assert isinstance(vcm.answer(b.RequestNodes(key, (b.Wanted(1, template),))), b.Request)


def test_what_it_says_about_itself_is_one_line_of_the_log(
    client: Callable[..., Client], engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    vcm = client()
    vcm.answer(b.RequestNodes("grow", (b.Wanted(1),), reason="many\njobs\n2026-01-01 ERROR wait"))
    assert "VCM of pool: request-nodes grow: many jobs 2026-01-01 ERROR wait" in caplog.messages
    vcm.send(b.Error("invalid", "no\nline of ours"))
    until(lambda: "VCM of pool says: no line of ours" in caplog.messages, lambda: caplog.messages)


def test_how_far_a_disk_is_written(
    client: Callable[..., Client], engine: Engine, site: Site
) -> None:
    vcm = client()
    vcm.answer(b.RequestNodes("k", (b.Wanted(1),)))
    in_transaction(engine, world.run_pass, site, NOW)

    def written(tx: Tx, done: int) -> None:
        tx.execute(
            update(t.nodes)
            .where(t.nodes.c.state == "prime")
            .values(progress_done=done, progress_total=100)
        )

    told = []
    for done in (40, 70):
        in_transaction(engine, written, done)
        while not isinstance((heard := vcm.hear() or (None, None))[1], b.Progress):
            assert heard[1] is not None
        told.append(heard[1])
    assert [(one.phase, one.done, one.total) for one in told if isinstance(one, b.Progress)] == [
        ("prime", 40, 100),
        ("prime", 70, 100),
    ]


def test_the_history_says_why_a_vcm_gave_a_node_back(
    client: Callable[..., Client], engine: Engine, site: Site
) -> None:
    vcm = client()
    vcm.answer(b.RequestNodes("k", (b.Wanted(1),)))
    in_transaction(engine, world.run_pass, site, NOW)
    while not isinstance((heard := vcm.hear() or (None, None))[1], b.Grant):
        assert heard[1] is not None
    assert heard[0] is not None
    vcm.send(b.Ack(heard[0].sequence))
    (member,) = heard[1].members
    assert isinstance(
        vcm.answer(b.ReleaseNodes((b.Named(member.hostname),), "idle\nfor 600 s")), b.Done
    )

    def cause(tx: Tx) -> str:
        node = node_rows.by_name(tx, member.node)
        assert node is not None
        return str(node_rows.history(tx, node.id)[-1]["cause"])

    assert in_transaction(engine, cause) == "its VCM gave it back: idle for 600 s"


def _held(tx: Tx, name: str) -> int:
    vcluster = vcluster_rows.by_name(tx, name)
    assert vcluster is not None
    return vcluster_rows.held(tx, vcluster.id)


def test_what_is_owed_is_sent_until_it_is_acknowledged(
    client: Callable[..., Client], engine: Engine
) -> None:
    vcm = client()
    for number in range(3):
        in_transaction(
            engine, store.enqueue, 1, "lease", {"event": "warning", "expires": float(number)}, NOW
        )
    heard = [vcm.hear() for _ in range(3)]
    assert [one[0].sequence for one in heard if one] == [1, 2, 3]
    vcm.send(b.Ack(2))
    until(lambda: in_transaction(engine, store.unacknowledged, {1: 0})[0].sequence == 3)
    vcm.close()
    again = client(seen=2)
    one = again.hear()
    assert one is not None
    assert (one[0].sequence, one[1]) == (3, b.Lease("warning", 2.0))


def test_an_acknowledgement_from_the_future_is_refused(
    client: Callable[..., Client], engine: Engine
) -> None:
    vcm = client(seen=10**9)  # nor is such a memory believed
    in_transaction(engine, store.enqueue, 1, "lease", {"event": "ended", "expires": 1.0}, NOW)
    assert vcm.hear() is not None
    vcm.send(b.Ack(7))
    assert vcm.error().code == "out-of-state"
    assert len(in_transaction(engine, store.unacknowledged, {1: 0})) == 1


def test_the_newest_connection_wins(client: Callable[..., Client]) -> None:
    old = client()
    new = client()
    assert farewell(old) == "a newer connection has taken its place"
    assert isinstance(new.answer(b.Status()), b.Vcluster)


def test_the_whole_picture(client: Callable[..., Client], engine: Engine) -> None:
    seen = client().answer(b.Status())
    assert isinstance(seen, b.Vcluster)
    assert (seen.name, seen.state, seen.size, seen.floor) == ("pool", "active", 1, 1)
    (member,) = seen.members
    assert (member.hostname, member.state, member.template) == ("n1", "active", "debian@1")
    assert member.address.startswith("10.77.")


# ---------------------------------------------------------------- rubbish


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "malformed"),
        (b"NMP/1.0 status\r\nMessage-Id: 1\r\n\r\n<status/>", "out-of-state"),
        (b"NMP/9.0 hello\r\nMessage-Id: 1\r\n\r\n", "version"),
        (b"NMP/1.0 hello\r\nMessage-Id: 1\r\nContent-Length: 99999999\r\n\r\n", "too-large"),
    ],
)
def test_what_ends_a_connection(client: Callable[..., Client], data: bytes, code: str) -> None:
    vcm = client(hello=False)
    vcm.socket.sendall(data)
    assert vcm.error().code == code
    while vcm.hear() is not None:
        pass


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"NMP/1.0 dance\r\nMessage-Id: 1\r\n\r\n", "unknown-verb"),
        (b"NMP/1.0 grant\r\nMessage-Id: 1\r\n\r\n", "out-of-state"),
        (b"NMP/1.0 extend\r\nMessage-Id: 1\r\n\r\n<extend/>", "invalid"),
        (
            b"NMP/1.0 status\r\nMessage-Id: 1\r\n\r\n" + b"<status>" * 3000 + b"</status>" * 3000,
            "invalid",
        ),
        (
            b"NMP/1.0 request-nodes\r\nMessage-Id: 1\r\n\r\n<request-nodes key='k'><wanted"
            b" count='1'><requires>" + b"<cpu/>" * 8000 + b"</requires></wanted></request-nodes>",
            "refused",
        ),
        (
            b"NMP/1.0 extend\r\nMessage-Id: 1\r\n\r\n<!DOCTYPE extend []><extend seconds='9'/>",
            "invalid",
        ),
    ],
)
def test_what_a_connection_survives(client: Callable[..., Client], frame: bytes, code: str) -> None:
    vcm = client()
    head, _, body = frame.partition(b"\r\n\r\n")
    vcm.socket.sendall(head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert vcm.error().code == code
    assert isinstance(vcm.answer(b.Status()), b.Vcluster)


def test_a_rule_s_no_is_told(client: Callable[..., Client]) -> None:
    vcm = client()
    for body, says in (
        (b.RequestNodes("k", (b.Wanted(100_000),)), "addresses"),
        (b.RequestNodes("k", (b.Wanted(1, "nosuch"),)), "no template"),
        (b.ReleaseNodes((b.Named("n1"),)), "no node left"),
    ):
        answer = vcm.answer(body)
        assert isinstance(answer, b.Error)
        assert says in answer.sentence


def test_a_flood_is_answered_with_refusals(
    client: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RATE", 0.0)  # however long we take for sending it
    vcm = client()
    for _ in range(int(limits.BURST) + 50):
        vcm.send(b.Ack(0))
    assert vcm.error().code == "too-many"


def test_a_silent_stranger_is_shown_out(
    client: Callable[..., Client], server: NmpServer, in_reactor: Any
) -> None:
    vcm = client(hello=False)
    vcm.socket.sendall(b"NMP/1.0 he")
    until(lambda: bool(server.connected))
    later = server.reactor.seconds() + connection.GREETING + 1
    for session in list(server.connected):
        in_reactor(session.look_after, later)
    assert "in time" in vcm.error().sentence


# ---------------------------------------------------------------- with a VCM


class Toy:
    """A pool that wants as many nodes as it is told."""

    def __init__(self) -> None:
        self.want, self.members, self.said = 1, dict[str, str](), list[str]()

    def look(self, members: Any, coming: Counter[str], now: float) -> Demand:
        more = self.want - len(members) - coming.total()
        return Demand(
            {ANY: max(0, more)},
            tuple(sorted(members)[self.want :]),
            withdraw={"": max(0, -more)},
            why="told to",
        )

    def add(self, member: b.Member) -> None:
        self.members[member.hostname] = member.address

    def choose(self, reclaim: b.Reclaim, members: Any, now: float) -> list[b.Named]:
        return [b.Named(name) for name in sorted(members)[-reclaim.count :]]

    def remove(self, member: b.Member, lost: bool) -> None:
        self.members.pop(member.hostname, None)


@pytest.fixture
def keep(
    reactor: Any,
    in_reactor: Any,
    server: NmpServer,
    engine: Engine,
    site: Site,
    ca: Ca,
    tmp_path: Path,
) -> Iterator[Callable[[], tuple[VcmService, Toy]]]:
    in_transaction(engine, founded, site)
    issued = enrolled(engine, ca)
    threads = ThreadPool(1, 4)
    threads.start()
    started: list[VcmService] = []

    def make() -> tuple[VcmService, Toy]:
        toy = Toy()
        connect = over_tls(
            reactor, [("127.0.0.1", port(server))], issued.certificate, issued.key, ca.certificate
        )
        options = Options("pool", "toy 1.0", tmp_path / "state.json", interval=0.05)
        service = VcmService(reactor, threads, options, toy, connect, time.time)
        in_reactor(service.startService)
        started.append(service)
        return service, toy

    yield make
    for service in started:
        if service.running:
            blockingCallFromThread(reactor, service.stopService)
    threads.stop()


def _pass(engine: Engine, site: Site) -> None:
    in_transaction(engine, world.run_pass, site, NOW)
    in_transaction(engine, world.arrive, NOW)


def test_a_pool_grows_and_shrinks(
    keep: Callable[[], tuple[VcmService, Toy]], engine: Engine, site: Site
) -> None:
    _, toy = keep()
    until(lambda: toy.members.keys() == {"n1"})  # with no memory, it learns what there is
    toy.want = 3
    until(lambda: len(in_transaction(engine, _pending)) == 2)
    _pass(engine, site)
    until(lambda: toy.members.keys() == {"n1", "n2", "n3"})
    assert all(address.startswith("10.77.") for address in toy.members.values())
    toy.want = 1
    until(lambda: in_transaction(engine, _held, "pool") == 1)
    assert toy.members.keys() == {"n1"}


def _pending(tx: Tx) -> list[Any]:
    return request_rows.every(tx, states=["pending"])


def test_the_keys_of_requests_are_their_vcm_s_own(engine: Engine) -> None:
    assert vcms.own_key(vcms.request_key(7, "grow-1")) == "grow-1"
    assert vcms.own_key("from-the-portal") == ""
