"""The sender of a captured disk waits for a server that answers late, on a clock that the test
moves."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

import pytest

from cod.orders import Deposit
from trampoline import deposit
from trampoline.deposit import Behind, Sender
from trampoline.errors import WayError
from trampoline.fetch import PATIENT

MIB = 1 << 20
TO = Deposit("http://127.0.0.1:1/captures/1.1", "5e" * 32, 0, patience=240)
OTHER = "http://127.0.0.1:2/captures/1.1"


class Time:
    """A clock that only `sleep` and changes of `now` move."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    moved = Time()
    monkeypatch.setattr(deposit, "time", moved)
    return moved


class Silent(Sender):
    """A sender whose server is silent until `answers` on the clock, and then has the disk up to
    `there`. Each try until then takes its whole time limit."""

    def __init__(self, time: Time, answers: float, there: int) -> None:
        super().__init__(TO, PATIENT)
        self.time, self.answers, self.there = time, answers, there
        self.asked: list[str] = []

    def _ask(self, url: str, method: str, path: str, body: bytes, stall: float) -> dict[str, Any]:
        self.asked.append(method)
        if self.time.now < self.answers:
            self.time.now += stall
            raise deposit._Broken(f"no answer for {stall:g} seconds")
        return {"at": self.there}


def test_a_server_that_is_silent_for_minutes_is_waited_for(time: Time) -> None:
    sender = Silent(time, 220.0, MIB)
    sender.put(bytes(1000), 0, MIB)
    assert 220 <= time.now < 240
    # small questions until it answers: the piece itself is not sent again and again meanwhile
    assert (sender.asked[0], sender.asked[-1], sender.asked.count("PUT")) == ("PUT", "PUT", 2)


def test_a_server_that_stays_silent_is_the_ways_fault(time: Time) -> None:
    sender = Silent(time, 9000.0, MIB)
    with pytest.raises(WayError, match=r"no answer for 15 seconds; gave up after \d\d tries in 2"):
        sender.put(bytes(1000), 0, MIB)
    assert 220 < time.now < 270, "before the node's deadline of 300 s"


class OneOfTwo(Silent):
    """A sender with a second server, which answers from the beginning, and has nothing."""

    def __init__(self, time: Time, answers: float) -> None:
        super().__init__(time, answers, MIB)
        self.deposit = replace(TO, others=OTHER)

    def _ask(self, url: str, method: str, path: str, body: bytes, stall: float) -> dict[str, Any]:
        if url != OTHER:
            return super()._ask(url, method, path, body, stall)
        self.deposit = replace(self.deposit, url=OTHER, others=TO.url)
        if method == "PUT":
            raise Behind(0)
        return {"at": 0}


def test_another_server_is_asked_once_the_first_has_been_silent_for_a_while(time: Time) -> None:
    sender = OneOfTwo(time, 9000.0)
    with pytest.raises(Behind) as behind:
        sender.put(bytes(1000), MIB, 2 * MIB)
    assert behind.value.at == 0, "it is sent all of it"
    assert 30 <= time.now < 60
    assert (sender.deposit.url, sender.deposit.others) == (OTHER, TO.url)


def test_a_server_that_is_started_again_soon_keeps_what_it_has(time: Time) -> None:
    sender = OneOfTwo(time, 25.0)
    sender.put(bytes(1000), 0, MIB)
    assert (sender.deposit.url, sender.sent) == (TO.url, 1000)


class Captures(ThreadingHTTPServer):
    """A server that keeps connections open, has nothing of the disk, and takes any piece. While it
    is `away`, it refuses all requests. `asked`: methods of the requests that it did not refuse."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.away, self.asked = False, list[str]()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/captures/1.1"


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Captures

    def do_GET(self) -> None:
        self._answer(0)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(MIB)

    def _answer(self, at: int) -> None:
        if not self.server.away:
            self.server.asked.append(self.command)
        body = b'{"at": %d}' % at
        self.send_response(503 if self.server.away else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def servers() -> Iterator[tuple[Captures, Captures]]:
    """Yield the node's own server, which is away, and another server."""
    with Captures() as own, Captures() as other:
        for each in (own, other):
            threading.Thread(target=each.serve_forever, args=(0.01,), daemon=True).start()
        own.away = True
        yield own, other
        own.shutdown()
        other.shutdown()


def test_a_look_at_another_server_leaves_the_own_one_its_pieces(
    time: Time, servers: tuple[Captures, Captures]
) -> None:
    own, other = servers
    sender = Sender(replace(TO, url=own.url, others=other.url), PATIENT)
    assert sender.at() == 0
    own.away = False
    sender.put(bytes(1000), 0, MIB)
    sender.close()
    assert (own.asked, other.asked) == (["PUT"], ["GET"])
    assert sender.deposit.url == own.url


def test_pieces_that_go_to_another_server_begin_another_pass(
    time: Time, servers: tuple[Captures, Captures]
) -> None:
    """The sender begins anew even if the other server has the disk up to the expected byte."""
    own, other = servers
    sender = Sender(replace(TO, url=own.url, others=other.url), PATIENT)
    assert sender.at() == 0
    with pytest.raises(Behind) as behind:
        sender.put(bytes(1000), 0, MIB)
    sender.close()
    assert (behind.value.at, sender.sent) == (MIB, 1000)
    assert (sender.deposit.url, sender.deposit.others) == (other.url, own.url)


class Recorder:
    """A socket that keeps the lengths of what is sent at once, and answers a piece."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.answer = BytesIO(b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"at": 3145728}')

    def sendall(self, data: bytes) -> None:
        self.sent.append(len(data))

    def makefile(self, *_: object) -> BytesIO:
        return self.answer

    def settimeout(self, seconds: float) -> None: ...
    def setsockopt(self, *_: int) -> None: ...
    def close(self) -> None: ...


def test_a_piece_may_take_longer_than_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python counts all that one `sendall` sends against the socket's time limit."""
    made = Recorder()
    monkeypatch.setattr(socket, "create_connection", lambda *_: made)
    sender = Sender(TO, PATIENT)
    sender.put(bytes(3 * MIB), 0, 3 * MIB)
    assert sum(made.sent[1:]) == sender.sent == 3 * MIB
    assert max(made.sent) <= 1 << 16
