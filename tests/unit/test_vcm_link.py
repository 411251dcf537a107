"""A VCM's end of a connection on a clock: answers, silence, and what a newer COD may say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from cod.vcm.link import GREETING, Link, LinkLost, NmpError
from cod.vcm.retry import Options
from cod.vcm.service import MOST_ASKED, VcmService
from cod.wire.nmp import bodies as b
from cod.wire.nmp import xml
from cod.wire.nmp.frames import Decoder, Fault, Message, encode
from cod.wire.nmp.protocol import MOST_OPEN

HELLO = b.Hello("pool", "test 1.0", 4)


class _Transport(StringTransport):
    aborted = False

    def abortConnection(self) -> None:
        self.aborted = True


class Line:
    """A link, and what it has told."""

    def __init__(self, *, welcome: bool = True) -> None:
        self.clock, self.transport = Clock(), self._transport()
        self.welcomes, self.told, self.losses = (
            list[b.Welcome](),
            list[tuple[int, b.Body | None]](),
            list[str](),
        )
        self.link = Link(
            self.clock,
            HELLO,
            welcomed=self.welcomes.append,
            received=lambda *what: self.told.append(what),
            lost=self.losses.append,
        )
        self.link.makeConnection(self.transport)
        self.asked = [message.id for message, _ in self.said()]
        if welcome:
            self.hear(b.Welcome("pool", "cod1", 30.0, 4), answers=self.asked[0])

    @staticmethod
    def _transport() -> Any:
        return _Transport()

    def said(self) -> list[tuple[Message, b.Body]]:
        data = self.transport.value()
        self.transport.clear()
        return [(message, xml.read(message)) for message in Decoder().feed(data)]

    def hear(self, body: b.Body, *, answers: str = "", sequence: int = 0) -> None:
        self.raw(Message(xml.verb(body), "c1", xml.write(body), answers, sequence))

    def raw(self, message: Message) -> None:
        self.link.dataReceived(encode(message))

    def ask(self, body: b.Body) -> tuple[str, list[Any]]:
        """The question's id, and what came of it."""
        ended: list[Any] = []
        answer: Deferred[b.Body] = self.link.ask(body)
        answer.addBoth(
            lambda result: ended.append(result.value if isinstance(result, Failure) else result)
        )
        return self.said()[-1][0].id, ended


def test_hello_and_welcome() -> None:
    line = Line(welcome=False)
    assert line.welcomes == []
    line.hear(b.Welcome("pool", "cod1", 30.0, 4), answers=line.asked[0])
    assert [welcome.sequence for welcome in line.welcomes] == [4]


def test_a_question_after_the_end_fails_at_once() -> None:
    """A caller may hear of the end by the failure of one question, and ask the next: it must not
    wait for ever."""
    line = Line()
    failed: list[Any] = []

    def next_question(failure: Failure) -> None:
        failed.append(failure.value)
        line.link.ask(b.Status()).addErrback(lambda failure: failed.append(failure.value))

    line.link.ask(b.Status()).addErrback(next_question)
    line.link.connectionLost(Failure(ConnectionDone()))
    assert [type(error) for error in failed] == [LinkLost, LinkLost]
    assert str(failed[1]) == "the connection has ended"


@pytest.mark.parametrize("ends", ["by us", "by COD"])
def test_a_question_after_goodbye_fails_at_once(ends: str) -> None:
    line = Line()
    if ends == "by us":
        line.link.leave("enough")
    else:
        line.hear(b.Bye("enough"))
    failed: list[Any] = []
    line.link.ask(b.Status()).addErrback(lambda failure: failed.append(failure.value))
    assert [(type(error), str(error)) for error in failed] == [(LinkLost, "enough")]


def test_a_hello_that_is_refused_ends_it() -> None:
    line = Line(welcome=False)
    line.hear(b.Error("identity", "who are you?"), answers=line.asked[0])
    assert line.transport.disconnecting
    line.link.connectionLost(Failure(ConnectionDone()))
    assert line.losses == ["who are you?"]


def test_questions_are_answered_in_any_order_or_lost() -> None:
    line = Line()
    (one, first), (two, second), (_, third) = (
        line.ask(b.Status()),
        line.ask(b.Extend(9.0)),
        line.ask(b.Status()),
    )
    line.hear(b.Error("refused", "no"), answers=two)
    line.hear(b.Vcluster("pool", "active", 1, 1, 0.0), answers=one)
    assert isinstance(first[0], b.Vcluster)
    assert isinstance(second[0], NmpError)
    assert second[0].code == "refused"
    line.link.connectionLost(Failure(ConnectionDone()))
    assert isinstance(third[0], LinkLost)
    assert line.losses == ["closed by COD"]


@pytest.mark.parametrize(
    "message",
    [
        Message("lease", "c9", b"<lease event='sung' expires='1'/>", sequence=5),
        Message("aria", "c9", b"<aria/>", sequence=5),
    ],
)
def test_what_a_newer_cod_owes_is_passed_over_once(message: Message) -> None:
    line = Line()
    line.raw(message)
    line.hear(b.Lease("warning", 1.0), sequence=6)
    assert line.told == [(5, None), (6, b.Lease("warning", 1.0))]
    assert not line.transport.disconnecting


def test_what_it_says_besides_is_not_heard() -> None:
    line = Line()
    line.raw(Message("aria", "c9", b"<aria/>"))
    line.hear(b.Progress("node1", "write", 1, 2))
    assert line.told == [(0, b.Progress("node1", "write", 1, 2))]


def test_an_answer_that_cannot_be_understood_is_an_answer() -> None:
    line = Line()
    number, ended = line.ask(b.Status())
    line.raw(Message("vcluster", "c9", b"<vcluster/>", number))
    assert isinstance(ended[0], LinkLost)
    assert not line.transport.disconnecting


def test_rubbish_ends_it() -> None:
    line = Line()
    line.link.dataReceived(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert line.transport.disconnecting


def test_pings_both_ways_and_silence() -> None:
    line = Line()
    line.hear(b.Ping())
    assert [body for _, body in line.said()] == [b.Pong()]
    line.clock.advance(30.0)
    ((asked, ping),) = line.said()
    assert ping == b.Ping()
    line.hear(b.Pong(), answers=asked.id)
    line.clock.advance(30.0)
    line.clock.advance(29.0)
    assert not line.transport.aborted
    line.clock.advance(1.0)
    assert line.transport.aborted


def test_no_welcome_in_time() -> None:
    line = Line(welcome=False)
    line.clock.advance(GREETING)
    assert line.transport.aborted
    line.link.connectionLost(Failure(ConnectionDone()))
    assert line.losses == ["COD has fallen silent"]


def test_cod_says_goodbye() -> None:
    line = Line()
    line.hear(b.Bye("restarting"))
    assert line.transport.disconnecting
    line.link.connectionLost(Failure(ConnectionDone()))
    assert line.losses == ["restarting"]


def test_left_before_it_is_connected_it_says_nothing() -> None:
    """A VCM that is stopped while COD does not answer."""
    losses: list[str] = []
    link = Link(
        Clock(), HELLO, welcomed=losses.append, received=lambda *what: None, lost=losses.append
    )
    link.leave("the VCM is being stopped")
    transport: Any = _Transport()
    link.makeConnection(transport)
    assert (transport.value(), transport.disconnecting) == (b"", True)
    link.connectionLost(Failure(ConnectionDone()))
    assert losses == ["the VCM is being stopped"]


def test_a_question_too_many_is_not_waited_for() -> None:
    line = Line()
    for _ in range(MOST_OPEN):
        line.ask(b.Status())
    with pytest.raises(Fault, match="wait for answers"):
        line.link.ask(b.Status())
    assert len(line.link._answers) == MOST_OPEN


def test_a_service_asks_not_too_much_at_once(tmp_path: Path) -> None:
    """Ask as when a hundred nodes leave and COD is slow."""
    asked: list[Deferred[b.Body]] = []

    def ask(body: b.Body) -> Deferred[b.Body]:
        asked.append(Deferred())
        return asked[-1]

    service: Any = VcmService(
        Clock(),
        None,
        Options("pool", "t", tmp_path / "s"),
        None,
        lambda link: Deferred(),
        lambda: 0.0,
    )
    service._link, service._open = SimpleNamespace(ask=ask), True
    ended = [ensureDeferred(service._ask(b.Status())) for _ in range(100)]
    assert len(asked) == MOST_ASKED < MOST_OPEN
    asked[0].callback(b.Done())
    assert len(asked) == MOST_ASKED + 1
    service._open = False  # what waits is not asked on no connection
    for one in asked[1:]:
        one.errback(LinkLost("gone"))
    assert len(asked) == MOST_ASKED + 1
    lost: list[Any] = []
    for one in ended[1:]:
        one.addErrback(lambda failure: lost.append(failure.check(LinkLost)))
    assert lost == [LinkLost] * 99
