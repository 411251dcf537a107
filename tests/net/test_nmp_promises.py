"""docs/nmp read as by somebody who trusts nothing in it: what it promises beyond what the other
tests are about."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from cod.flows.vcms import vcms
from cod.flows.vcms.vcms import Greeted
from cod.model import Refused, Site
from cod.net.nmp.session import WINDOW
from cod.wire.nmp import bodies as b
from cod.wire.nmp import xml
from cod.wire.nmp.frames import LONGEST_LINE, MOST_HEADERS, Decoder, Fault, Message, encode
from cod.wire.nmp.protocol import MOST_OPEN
from tests.net.test_nmp_session import KEEPALIVE, Line, owed


@pytest.fixture
def line(site: Site) -> Line:
    return Line(site)


def raw(
    line: Line, verb: str, body: bytes = b"", number: str = "r1", answers: str = ""
) -> list[tuple[str, b.Body]]:
    """Say it as it stands; what is said to that, and which message it names."""
    line.session.dataReceived(encode(Message(verb, number, body, answers)))
    return [(message.answers, said) for message, said in line.heard()]


# ---------------------------------------------------------------- errors name what they are about


def named(line: Line, verb: str, body: bytes = b"", answers: str = "") -> tuple[str, str]:
    ((about, said),) = raw(line, verb, body, answers=answers)
    assert isinstance(said, b.Error), said
    return about, said.code


def test_an_error_names_the_message_whatever_is_wrong_with_it(line: Line) -> None:
    """A VCM that is newer than COD asks what COD does not know: it must not wait for an answer for
    ever."""
    assert named(line, "dance") == ("r1", "unknown-verb")
    assert named(line, "extend", b"<extend/>") == ("r1", "invalid")
    assert named(line, "welcome") == ("r1", "out-of-state")
    assert named(line, "hello", b'<hello vcluster="pool" vcm="x" seen="0"/>') == (
        "r1",
        "out-of-state",
    )
    assert named(line, "pong", b"<pong/>", answers="c99") == ("r1", "out-of-state")
    assert named(line, "ack", b'<ack sequence="99"/>') == ("r1", "out-of-state")
    assert not line.transport.disconnecting


def test_a_question_too_many_is_named_and_the_others_still_have_their_answers(line: Line) -> None:
    line.host.held = []
    line.say(*[b.Extend(60.0)] * MOST_OPEN)
    last = line.say(b.Extend(60.0))
    ((message, said),) = line.heard()
    assert isinstance(said, b.Error)
    assert (message.answers, said.code) == (last, "too-many")
    while line.host.held:
        line.host.held.pop().errback(Failure(Refused("conflict", "no")))
    assert last not in [message.answers for message, _ in line.heard()]


def test_an_error_of_the_vcm_s_about_anything_is_heard(line: Line) -> None:
    """COD does not argue about errors."""
    line.session.tell(owed(6))
    assert raw(line, "error", b'<error code="invalid" sentence="what?"/>', answers="c2")[1:] == []
    assert raw(line, "error", b'<error code="invalid" sentence="what?"/>', answers="nothing") == []
    assert isinstance(line.ask(b.Ping()), b.Pong)


# ---------------------------------------------------------------- frames


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_a_line_has_at_most_so_many_bytes_however_it_ends(end: bytes) -> None:
    def frame(length: int) -> bytes:
        return (
            b"NMP/1.0 ping"
            + end
            + b"Message-Id: 1"
            + end
            + b"X: "
            + b"x" * (length - 3)
            + end
            + end
        )

    (message,) = Decoder().feed(frame(LONGEST_LINE))
    assert message.verb == "ping"
    for data in (frame(LONGEST_LINE + 1), frame(LONGEST_LINE + 1)[: LONGEST_LINE + 60]):
        with pytest.raises(Fault, match="longer than 1024 bytes"):
            list(Decoder().feed(data))
    one_by_one = Decoder()
    assert [
        each.verb for byte in frame(LONGEST_LINE) for each in one_by_one.feed(bytes([byte]))
    ] == ["ping"]


def test_so_many_headers_and_not_one_more() -> None:
    def frame(count: int) -> bytes:
        more = b"".join(b"X-%d: y\r\n" % number for number in range(count - 1))
        return b"NMP/1.0 ping\r\nMessage-Id: 1\r\n" + more + b"\r\n"

    assert len(list(Decoder().feed(frame(MOST_HEADERS)))) == 1
    with pytest.raises(Fault, match="more than 32 header lines"):
        list(Decoder().feed(frame(MOST_HEADERS + 1)))


def test_a_sentence_of_the_world_s_is_cut_to_what_may_be_said() -> None:
    """A reason may be as long as what it quotes; a body that the other side has to refuse helps
    nobody."""
    said = b.Refusal(1, "k", "4 nodes are wanted; " * 500)
    read = xml.read(Message("refusal", "1", xml.write(said), sequence=1))
    assert isinstance(read, b.Refusal)
    assert (len(read.reason), said.reason.startswith(read.reason)) == (2000, True)


@pytest.mark.parametrize(
    ("said", "meant"), [("yes", True), (" yes ", True), ("no", False), (" no", False)]
)
def test_yes_is_yes_with_blanks_around_it(said: str, meant: bool) -> None:
    """The schema lets them be."""
    body = f'<request-nodes key="k" wait="{said}" spread="{said}"><wanted count="1"/></request-nodes>'.encode()
    read = xml.read(Message("request-nodes", "1", body))
    assert isinstance(read, b.RequestNodes)
    assert (read.wait, read.spread) == (meant, meant)


def test_a_certificate_is_not_cut() -> None:
    said = b.Enrolled("MIIB" * 700)
    assert xml.read(Message("enrolled", "1", xml.write(said), "q")) == said


def test_a_request_without_a_key_of_its_own_is_none() -> None:
    """All that have an empty one would be the same request; it stands for those that no VCM
    made."""
    body = xml.write(b.RequestNodes("", (b.Wanted(1),)))
    with pytest.raises(Fault) as refused:
        xml.read(Message("request-nodes", "1", body))
    assert (refused.value.code, refused.value.fatal) == ("invalid", False)
    xml.read(
        Message(
            "grant", "1", xml.write(b.Grant(1, "", 0.0, (b.Member("n", "n", "", "prime", ""),)))
        )
    )


# ---------------------------------------------------------------- acknowledgements


def told(line: Line) -> list[Deferred[None]]:
    """The window is full, and one acknowledgement is being written down."""
    for number in range(6, 6 + WINDOW):
        line.session.tell(owed(number))
    line.heard()
    assert not line.session.has_room()
    held: list[Deferred[None]] = []
    line.host.held = held
    line.say(b.Ack(6))
    return held


@pytest.mark.parametrize("order", [(5 + WINDOW, 7, 8), (7, 5 + WINDOW, 8), (8, 7, 5 + WINDOW)])
def test_of_acknowledgements_in_any_order_the_highest_counts(
    line: Line, order: tuple[int, ...]
) -> None:
    """A VCM of many threads says them as they come; one that was passed over would leave the window
    full for ever."""
    held = told(line)
    line.say(*map(b.Ack, order))
    held.pop().callback(None)
    held.pop().callback(None)
    assert (held, line.session.acked, line.session.has_room()) == ([], 5 + WINDOW, True)


@pytest.mark.parametrize("wrong", [b"<ack/>", b'<ack sequence="9999"/>'])
def test_one_before_a_wrong_one_counts(line: Line, wrong: bytes) -> None:
    held = told(line)
    line.say(b.Ack(5 + WINDOW))
    assert raw(line, "ack", wrong) == []
    held.pop().callback(None)
    held.pop().callback(None)
    assert (line.session.acked, len(line.errors())) == (5 + WINDOW, 1)


# ---------------------------------------------------------------- the newest connection


def test_who_came_first_and_was_looked_up_last_gives_way(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads of the pool may finish in any order."""
    host = Line(site, hello=False).host
    waiting: list[Deferred[Greeted]] = []

    def run(flow: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        if flow is not vcms.greet:
            return succeed(None)
        waiting.append(Deferred())
        return waiting[-1]

    monkeypatch.setattr(host, "run", run)
    first, second = (Line(site, hello=False, host=host) for _ in range(2))
    for line in (first, second):
        line.say(b.Hello("pool", "test", 0))
    waiting[1].callback(Greeted(1, 8, 0))
    waiting[0].callback(Greeted(1, 7, 0))
    assert [type(body) for _, body in first.heard()] == [b.Bye]
    assert [type(body) for _, body in second.heard()] == [b.Welcome]
    assert (host.sessions, first.transport.disconnecting) == ({1: second.session}, True)


# ---------------------------------------------------------------- silence


def test_a_silent_vcm_has_twice_as_long_for_its_answer(line: Line) -> None:
    """Let the VCM be less patient than COD."""
    line.later(KEEPALIVE)
    assert [type(body) for _, body in line.heard()] == [b.Ping]
    line.later(2 * KEEPALIVE - 1)
    assert not line.transport.aborted
    line.later(1)
    assert line.transport.aborted
