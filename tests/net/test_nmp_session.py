"""One VCM's connection on a clock that is moved and a transport that is looked into: limits,
silence, backpressure."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from cod.flows.vcms import vcms
from cod.flows.vcms.vcms import Greeted
from cod.model import OutboxMessage, Refused, Result, Site, SiteRef
from cod.net.nmp import limits
from cod.net.nmp.connection import BACKLOG, GREETING, LINGER, STALLED
from cod.net.nmp.limits import BYTES, HELLOS, Quotas
from cod.net.nmp.session import WINDOW, VcmSession
from cod.net.nmp.tls import PeerIdentity
from cod.net.quietlog import MOST_KNOWN, QUIET, QuietLog
from cod.tokenbucket import Bucket
from cod.wire.nmp import bodies as b
from cod.wire.nmp import xml
from cod.wire.nmp.frames import LONGEST_BODY, LONGEST_HELLO, Decoder, Message, encode
from cod.wire.nmp.protocol import MOST_OPEN

KEEPALIVE = 30.0


class Host:
    """What a session needs of its server. Flows are answered at once, unless `held` collects
    them."""

    def __init__(self, site: Site) -> None:
        self.reactor, self.site, self.server = Clock(), SiteRef(site), "cod1"
        self.pool = self
        self.sessions: dict[int, VcmSession] = {}
        self.connected: set[VcmSession] = set()
        self.strangers: Counter[str] = Counter()
        self.quiet = QuietLog(logging.getLogger("cod.nmp"), self.reactor.seconds)
        self.quotas = Quotas(self.reactor.seconds)
        self.ran: list[str] = []
        self.authority = None
        self.held: list[Deferred[Any]] | None = None
        self.fails: Exception | None = None
        self.polled = 0
        self.until = inf

    def clock(self) -> float:
        return float(self.reactor.seconds())

    def effects(self, effects: object) -> None:
        self.ran.append("effects")

    def identity(self, transport: object) -> PeerIdentity:
        return PeerIdentity("serial", "pool", True, self.until)

    def poll(self) -> None:
        self.polled += 1

    def is_away(self, error: BaseException) -> bool:
        return True

    def run(self, flow: Callable[..., Any], *args: Any, **kwargs: Any) -> Deferred[Any]:
        self.ran.append(flow.__name__)
        done: Deferred[Any] = Deferred()
        if self.fails is not None and flow is not vcms.gone:
            done.errback(Failure(self.fails))
            return done
        if flow is vcms.greet:
            return succeed(Greeted(1, 1, 5))
        if self.held is not None:
            self.held.append(done)
            return done
        return succeed(Result(b.Vcluster("pool", "active", 1, 1, 0.0)))


class Line:
    """A session and its transport."""

    def __init__(self, site: Site, *, hello: bool = True, host: Host | None = None) -> None:
        self.host = host or Host(site)
        self.transport: Any = _Transport()
        self.session = VcmSession(self.host, "10.0.0.9")
        self.session.makeConnection(self.transport)
        self.number = 0
        if hello:
            assert isinstance(self.ask(b.Hello("pool", "test", 0)), b.Welcome)

    def say(self, *bodies: b.Body, number: str = "") -> str:
        data = b""
        for body in bodies:
            self.number += 1
            number = number or f"t{self.number}"
            data += encode(Message(xml.verb(body), number, xml.write(body)))
            last, number = number, ""
        self.session.dataReceived(data)
        return last

    def heard(self) -> list[tuple[Message, b.Body]]:
        """What the session has said since."""
        data = self.transport.value()
        self.transport.clear()
        return [(message, xml.read(message)) for message in Decoder().feed(data)]

    def ask(self, body: b.Body) -> b.Body | None:
        number = self.say(body)
        return next((said for message, said in self.heard() if message.answers == number), None)

    def errors(self) -> list[str]:
        return [body.code for _, body in self.heard() if isinstance(body, b.Error)]

    def later(self, seconds: float) -> None:
        """Time passes; the server's sweep comes by."""
        self.host.reactor.advance(seconds)
        self.session.look_after(self.host.reactor.seconds())


class _Transport(StringTransport):
    aborted = False

    def abortConnection(self) -> None:
        self.aborted = True

    @property
    def listening(self) -> bool:
        return bool(self.producerState == "producing")


@pytest.fixture
def line(site: Site) -> Line:
    return Line(site)


@pytest.fixture
def stranger(site: Site) -> Line:
    return Line(site, hello=False)


# ---------------------------------------------------------------- before the welcome


def test_the_welcome_says_where_cod_stands(stranger: Line) -> None:
    assert stranger.host.strangers == {"10.0.0.9": 1}
    assert stranger.ask(b.Hello("pool", "test", 0)) == b.Welcome("pool", "cod1", KEEPALIVE, 5)
    assert (stranger.host.strangers, stranger.host.polled, stranger.session.sent) == ({}, 1, 5)


def test_a_hello_that_is_too_long_is_not_read(stranger: Line) -> None:
    stranger.session.dataReceived(
        b"NMP/1.0 hello\r\nMessage-Id: 1\r\nContent-Length: %d\r\n\r\n" % (LONGEST_HELLO + 1)
    )
    assert stranger.errors() == ["too-large"]
    assert stranger.transport.disconnecting


@pytest.mark.parametrize(
    "frame",
    [
        b"NMP/1.0 dance\r\nMessage-Id: 1\r\n\r\n",
        b"NMP/1.0 welcome\r\nMessage-Id: 1\r\n\r\n",
        b"NMP/1.0 hello\r\nMessage-Id: 1\r\nContent-Length: 8\r\n\r\n<hello/>",
    ],
)
def test_every_fault_ends_what_has_not_begun(stranger: Line, frame: bytes) -> None:
    stranger.session.dataReceived(frame)
    assert len(stranger.errors()) == 1
    assert stranger.transport.disconnecting


def test_a_database_that_is_away_sends_the_vcm_away_for_now(stranger: Line) -> None:
    stranger.host.fails = OSError("away")
    stranger.say(b.Hello("pool", "test", 0))
    assert stranger.errors() == ["unavailable"]
    assert stranger.transport.disconnecting
    stranger.later(LINGER)
    assert stranger.transport.aborted


def test_silence_before_the_hello(stranger: Line) -> None:
    stranger.later(GREETING - 1)
    assert not stranger.transport.disconnecting
    stranger.later(1)
    assert stranger.transport.disconnecting
    stranger.later(LINGER)  # it does not hear that either
    assert stranger.transport.aborted
    assert stranger.errors() == ["malformed"]  # and not one more with each sweep


def test_empty_lines_before_the_hello_win_no_time(stranger: Line) -> None:
    for _ in range(int(GREETING)):
        assert not stranger.transport.disconnecting
        stranger.session.dataReceived(b"\r\n")
        stranger.later(1)
    assert stranger.transport.disconnecting


def test_who_comes_again_and_again_is_sent_away_for_a_while(site: Site) -> None:
    host = Host(site)
    for _ in range(int(HELLOS[1])):
        assert isinstance(
            Line(site, hello=False, host=host).ask(b.Hello("pool", "test", 0)), b.Welcome
        )
    ran = len(host.ran)
    late = Line(site, hello=False, host=host)
    late.say(b.Hello("pool", "test", 0))
    assert late.errors() == ["too-many"]
    assert late.transport.disconnecting
    assert "greet" not in host.ran[ran:]  # no transaction
    host.reactor.advance(1.0)
    assert isinstance(Line(site, hello=False, host=host).ask(b.Hello("pool", "test", 0)), b.Welcome)
    assert isinstance(
        Line(site, hello=False, host=Host(site)).ask(b.Hello("pool", "test", 0)), b.Welcome
    )


def test_what_a_vcm_may_say_does_not_begin_anew_with_a_connection(site: Site) -> None:
    first = Line(site)
    first.host.quotas.forget(first.host.sessions)  # it has used nothing yet, but will
    for _ in range(10):
        first.ask(b.Status())
    second = Line(site, host=first.host)
    assert isinstance(second.ask(b.Status()), b.Error)
    first.host.reactor.advance(60.0)
    first.host.quotas.forget({})
    assert first.host.quotas.of(1) is not second.session._quota  # nothing is remembered for ever
    assert isinstance(Line(site, host=first.host).ask(b.Status()), b.Vcluster)


def test_a_hello_that_waits_for_the_database_is_not_silence(stranger: Line) -> None:
    held = Deferred[Any]()
    stranger.host.run = lambda *args, **kwargs: held  # type: ignore[method-assign]
    stranger.say(b.Hello("pool", "test", 0))
    stranger.later(GREETING + 1)
    held.callback(Greeted(1, 1, 0))
    assert isinstance(stranger.heard()[0][1], b.Welcome)


def test_a_vcm_that_goes_while_it_is_looked_up_is_noted_as_gone(stranger: Line) -> None:
    held, ran = Deferred[Any](), []

    def run(flow: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        ran.append((flow.__name__, args[:3]))
        return held if flow is vcms.greet else succeed(None)

    stranger.host.run = run  # type: ignore[method-assign]
    stranger.say(b.Hello("pool", "test", 0))
    stranger.session.connectionLost(Failure(ConnectionDone()))
    held.callback(Greeted(1, 7, 0))
    assert ran == [("greet", ()), ("gone", (1, "cod1", 7))]
    assert stranger.host.sessions == {}


def test_who_was_shut_out_in_the_handshake_is_written_down(
    stranger: Line, caplog: pytest.LogCaptureFixture
) -> None:
    stranger.session.connectionLost(
        Failure(OSError([("SSL routines", "", "certificate has expired")]))
    )
    assert "10.0.0.9 was shut out in the TLS handshake: certificate has expired" in caplog.text


# ---------------------------------------------------------------- too much


def test_too_many_messages_are_refused_and_their_questions_answered(line: Line) -> None:
    for _ in range(int(limits.BURST) + 20):
        line.say(b.Ping())
    said = [(message.answers, body) for message, body in line.heard()]
    refused = [answers for answers, body in said if isinstance(body, b.Error)]
    assert len(refused) == 20
    assert all(refused)  # each names its question: nobody waits for an answer
    line.host.reactor.advance(1.0)
    assert isinstance(line.ask(b.Ping()), b.Pong)


def test_costly_questions_have_a_rate_of_their_own(line: Line) -> None:
    answers = [line.ask(b.Status()) for _ in range(11)]
    assert [isinstance(one, b.Vcluster) for one in answers] == [True] * 10 + [False]
    assert isinstance(line.ask(b.Ping()), b.Pong)
    line.host.reactor.advance(1.0)
    assert isinstance(line.ask(b.Status()), b.Vcluster)


def test_who_only_makes_faults_is_shown_out_and_fills_no_log(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(150):
        line.session.dataReceived(b"NMP/1.0 dance\r\nMessage-Id: 1\r\n\r\n")
    assert len(line.errors()) == 101
    assert line.transport.disconnecting
    assert len(caplog.records) == 1
    line.host.reactor.advance(QUIET)
    line.host.quiet.flush()
    assert "pool: unknown-verb, 100 times more" in caplog.records[1].getMessage()


def test_a_body_of_a_vcm_s_is_limited(line: Line) -> None:
    line.session.dataReceived(
        b"NMP/1.0 release-nodes\r\nMessage-Id: 1\r\nContent-Length: %d\r\n\r\n" % (LONGEST_BODY + 1)
    )
    assert line.errors() == ["too-large"]


def test_bytes_have_a_rate(line: Line) -> None:
    names = tuple(b.Named("n" * 60 + str(n)) for n in range(600))
    size = len(xml.write(b.ReleaseNodes(names)))
    for _ in range(int(BYTES[1] / size) + 1):
        assert line.transport.listening
        line.say(b.ReleaseNodes(names))
    assert not line.transport.listening
    assert line.errors() == []
    line.later(2.0)
    assert line.transport.listening


def test_questions_wait_and_are_bounded_while_one_is_carried_out(line: Line) -> None:
    line.host.held = []
    for _ in range(BACKLOG + 2):
        line.say(b.Extend(60.0))
    assert len(line.host.held) == 1  # one after the other
    assert not line.transport.listening
    line.later(10 * KEEPALIVE)  # it is we who do not listen: nobody is shown out
    assert not line.transport.disconnecting
    while line.host.held:
        line.host.held.pop().errback(Failure(Refused("conflict", "no")))
    assert line.transport.listening
    assert line.errors() == ["refused"] * (BACKLOG + 2)


def test_a_question_too_many_of_those_open(line: Line) -> None:
    line.host.held = []
    line.say(*[b.Extend(60.0)] * (MOST_OPEN + 1))
    assert line.errors() == ["too-many"]


def test_the_same_question_twice(line: Line) -> None:
    line.host.held = []
    line.say(b.Extend(60.0), number="q1")
    line.say(b.Extend(60.0), number="q1")
    assert [message.answers for message, _ in line.heard()] == [""]
    assert len(line.host.held) == 1
    line.host.held.pop().errback(Failure(Refused("conflict", "no")))
    assert [message.answers for message, _ in line.heard()] == ["q1"]  # it is answered, once


# ---------------------------------------------------------------- a peer that does not read


def owed(number: int) -> OutboxMessage:
    return OutboxMessage(1, number, "lease", {"event": "warning", "expires": 1.0})


def test_nothing_more_is_said_to_who_does_not_read(line: Line) -> None:
    line.transport.producer.pauseProducing()  # the transport's buffer is full
    assert not line.session.has_room()
    assert not line.transport.listening
    line.say(b.Status(), b.Extend(1.0))
    assert line.heard() == []
    assert "spoken" not in line.host.ran  # nor is anything carried out for it
    line.transport.producer.resumeProducing()
    assert isinstance(line.heard()[0][1], b.Vcluster)
    assert line.session.has_room()
    assert line.transport.listening


def test_who_does_not_read_for_a_minute_is_cut_off(line: Line) -> None:
    line.transport.producer.pauseProducing()
    line.later(STALLED - 1)
    assert not line.transport.aborted
    line.later(1)
    assert line.transport.aborted


def test_who_does_not_acknowledge_is_told_no_more(line: Line) -> None:
    for number in range(6, 6 + WINDOW):
        assert line.session.has_room()
        line.session.tell(owed(number))
    assert not line.session.has_room()
    line.host.held = []
    line.say(b.Ack(6), b.Ack(7), b.Ack(8), b.Ack(9))
    line.host.held.pop().callback(None)
    line.host.held.pop().callback(None)
    # while the first is written down, the last one comes to say it all
    assert line.host.ran.count("spoken") == 2
    assert (line.session.acked, line.session.has_room()) == (9, True)
    line.say(b.Ack(8))
    assert line.host.held == []


# ---------------------------------------------------------------- silence


def test_a_silent_one_is_asked_and_then_cut_off(line: Line) -> None:
    line.later(KEEPALIVE)
    line.later(2.0)
    assert [type(body) for _, body in line.heard()] == [b.Ping]
    line.later(2 * KEEPALIVE)
    assert line.transport.aborted


def test_who_talks_and_never_answers_pings_does_no_harm(line: Line) -> None:
    for _ in range(2 * MOST_OPEN):
        line.later(KEEPALIVE)
        line.say(b.Ack(0))
    assert not line.transport.aborted
    assert [type(body) for _, body in line.heard()] == [b.Ping]


def test_a_certificate_that_ends_ends_the_connection(
    stranger: Line, caplog: pytest.LogCaptureFixture
) -> None:
    stranger.host.until = 20.0
    assert isinstance(stranger.ask(b.Hello("pool", "test", 0)), b.Welcome)
    stranger.later(19.0)
    assert stranger.heard() == []
    stranger.later(1.0)
    assert [body for _, body in stranger.heard()] == [b.Bye("its certificate has ended")]
    assert stranger.transport.disconnecting
    stranger.later(LINGER)  # whether it hears that or not
    assert stranger.transport.aborted
    assert caplog.messages == ["the certificate of the VCM of pool has ended"]


def test_one_byte_at_a_time_is_too_slow(line: Line) -> None:
    data = encode(Message("status", "1", xml.write(b.Status())))
    for place in range(len(data)):
        line.session.dataReceived(data[place : place + 1])
        line.later(1.0)
        if line.transport.disconnecting:
            break
    assert place == GREETING - 1
    assert line.errors() == ["malformed"]


def test_a_goodbye_behind_a_question_that_is_refused(line: Line) -> None:
    line.host.held = []
    line.say(b.Extend(60.0))
    line.session.dataReceived(
        b"NMP/1.0 extend\r\nMessage-Id: 1\r\nContent-Length: 9\r\n\r\n<extend/>"
    )
    line.say(b.Bye("done"))
    line.host.held.pop().callback(None)
    assert line.transport.disconnecting  # neither answer can be said any more
    assert line.heard() == []


def test_nothing_is_heard_after_the_end(line: Line) -> None:
    line.session.leave("enough")
    line.say(b.Extend(60.0))
    assert "spoken" not in line.host.ran
    assert [type(body) for _, body in line.heard()] == [b.Bye]


# ---------------------------------------------------------------- what it is made of


def test_a_bucket() -> None:
    bucket = Bucket(2.0, 4.0, 10.0)
    assert [bucket.take(10.0) for _ in range(5)] == [True] * 4 + [False]
    assert bucket.take(10.5)
    bucket.spend(10.5, 3.0)
    assert bucket.level(11.0) == -2.0
    assert bucket.level(100.0) == 4.0


def test_a_quiet_log_forgets_the_oldest_when_there_are_too_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quiet = QuietLog(logging.getLogger("cod.nmp"), Clock().seconds)
    quiet.warning(("a", "x"), "one")
    quiet.warning(("a", "x"), "two")
    for n in range(MOST_KNOWN):
        quiet.warning((str(n), "x"), "other")
    assert [record.getMessage() for record in caplog.records[:2]] == ["one", "other"]
    assert caplog.records[-2].getMessage() == "a: x, 1 times more"
