"""One client's HTTP/1.1 connection: h11 reads and writes the heads, sendfile the bodies of files.
twisted.web is not used, because its channel hides the socket's writability from a response, and
sendfile needs to know it.

A connection answers one request at a time and does not read meanwhile, so pipelined requests wait
in the kernel. A client that is too slow with its request, or that does not take the answer, is cut
off: see `HttpLimits`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import Protocol as Interface

import h11
import prometheus_client as prometheus
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure

from cod.net.bootfiles import OpenFile
from cod.net.bootserver.sendfile import SendFile
from cod.wire.http import answer

BYTES = prometheus.Counter(
    "cod_http_bytes_total", "bytes of files that were given to the network", ["kind"]
)

log = logging.getLogger("cod.http")


class BodyLost(Exception):
    """A request's body did not arrive, or was longer than allowed."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """head: bytes of a request's head; request, idle, stall: seconds to send one whole request,
    between requests, and without any progress of an answer; connections in all and from one
    address."""

    head: int = 16384
    request: float = 15.0
    idle: float = 30.0
    stall: float = 60.0
    connections: int = 4096
    per_peer: int = 128


DEFAULTS = HttpLimits()


class Server(Interface):
    """A connection's view of its server: limits, reactor seconds, the Date header, and the answers.

    takes_body  whether the answer of a request may read its body (`Connection.body`); the bodies of
                all others are not read
    """

    limits: HttpLimits
    reactor: Any

    def seconds(self) -> float: ...
    def date(self) -> str: ...
    def joined(self, connection: Connection) -> None: ...
    def left(self, connection: Connection) -> None: ...
    def takes_body(self, request: h11.Request) -> bool: ...
    def respond(self, connection: Connection, request: h11.Request) -> None: ...


class Connection(Protocol):
    """One client's connection. Progress moves `deadline` on; the server's scan enforces it."""

    transport: Any

    def __init__(self, server: Server, peer: str) -> None:
        self.peer = peer
        self.deadline = server.seconds() + server.limits.request
        self._server = server
        self._sending: SendFile | None = None
        self._kind = ""
        self._seen = -1  # how far `_sending` was at the last look
        self._busy = self._lost = False
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=server.limits.head)
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._room = 0  # bytes that the body may have
        self._wanted: Deferred[bytes] | None = None

    def connectionMade(self) -> None:
        """Switch Nagle's algorithm off: answers are written whole, so it could only delay them."""
        self.transport.setTcpNoDelay(True)
        self._server.joined(self)

    def connectionLost(self, reason: Failure = Failure(ConnectionError())) -> None:  # noqa: B008
        self._busy = self._lost = True
        self._count()
        self._lose_body("the connection ended")
        self._server.left(self)

    def dataReceived(self, data: bytes) -> None:
        if (
            self._http.their_state is h11.IDLE
            and not self._busy
            and not self._http.trailing_data[0]
        ):
            self.deadline = self._server.seconds() + self._server.limits.request
        self._http.receive_data(data)
        self._advance()

    def check(self, now: float) -> None:
        """Cut the connection off when it is overdue and has not moved since the last look."""
        if self._sending is not None and self._sending.at != self._seen:
            self._seen = self._sending.at
            self.deadline = now + self._server.limits.stall
        if now >= self.deadline:
            self.transport.abortConnection()

    def _advance(self) -> None:
        while not self._busy:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                self._http_error(error)
                return
            if event is h11.NEED_DATA:
                return
            if isinstance(event, h11.Request):
                if {b"content-length", b"transfer-encoding"} <= {
                    name for name, _value in event.headers
                }:
                    # RFC 9112, section 6.1: smuggling
                    self._http_error(h11.RemoteProtocolError("two lengths"))
                    return
                self._request = event
                if self._server.takes_body(event):
                    self._begin()
            elif self._wanted is not None and isinstance(event, h11.EndOfMessage | h11.Data):
                self._take(event)
            elif isinstance(event, h11.EndOfMessage | h11.Data):
                # nobody takes its body: answer without reading it
                self._begin()
            else:  # the client closed its side, or asked for another protocol
                self.transport.loseConnection()
                return

    def _http_error(self, error: h11.RemoteProtocolError) -> None:
        self._busy = True
        log.debug("http %s: %s", self.peer, error)
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status = error.error_status_hint or 400
            self.transport.write(
                self._http.send(
                    h11.Response(
                        status_code=status,
                        headers=[("Content-Length", "0"), ("Connection", "close")],
                    )
                )
            )
        self.transport.loseConnection()

    # ------------------------------------------------------------ bodies

    def body(self, room: int) -> Deferred[bytes]:
        """Return the request's body, of at most `room` bytes; fails with `BodyLost`. Call this
        before answering only."""
        wanted: Deferred[bytes] = Deferred()
        self._body.clear()
        self._room, self._wanted = room, wanted
        if self._lost:
            self._lose_body("the connection ended")
            return wanted
        self.patience(self._server.limits.stall)
        if self._http.they_are_waiting_for_100_continue:
            self.transport.write(
                self._http.send(h11.InformationalResponse(status_code=100, headers=[]))
            )
        self._busy = False
        self.transport.resumeProducing()
        # not at once: a body that has arrived would fire the Deferred before the caller has it
        self._server.reactor.callLater(0, self._advance)
        return wanted

    def patience(self, seconds: float) -> None:
        """Allow `seconds` without progress."""
        self.deadline = self._server.seconds() + seconds

    def _take(self, event: h11.EndOfMessage | h11.Data) -> None:
        assert self._wanted is not None
        if isinstance(event, h11.Data):
            self._body += event.data
            self.patience(self._server.limits.stall)
            if len(self._body) <= self._room:
                return
            self._pause()
            self._lose_body("it is too long")
            return
        self._pause()
        wanted, self._wanted = self._wanted, None
        wanted.callback(bytes(self._body))

    def _pause(self) -> None:
        self._busy = True
        self.transport.pauseProducing()

    def _lose_body(self, why: str) -> None:
        if self._wanted is not None:
            wanted, self._wanted = self._wanted, None
            wanted.errback(BodyLost(why))

    # ------------------------------------------------------------ answering

    def _begin(self) -> None:
        assert self._request is not None
        self._pause()
        self.deadline = self._server.seconds() + self._server.limits.stall
        self._server.respond(self, self._request)

    def reply(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self._head(status, len(body), headers)
        if body and self._asked() != b"HEAD":
            self.transport.write(self._http.send(h11.Data(data=body)))
        self._finish()

    def reply_file(self, file: OpenFile, kind: str, *headers: tuple[str, str]) -> int:
        """Answer with a file, whole or in part as the request's headers say; return the status."""
        assert self._request is not None
        what = answer(dict(self._request.headers), file.size, file.etag)
        self._head(what.status, what.length, (*what.headers, *headers))
        if what.length == 0 or self._asked() == b"HEAD":
            self._finish()
            return what.status
        # h11 counts these bytes against Content-Length; sendfile puts them on the wire
        self._http.send_with_data_passthrough(h11.Data(data=_Sized(what.length)))  # type: ignore[arg-type]
        self._sending = SendFile(self.transport, file, what.start, what.length)
        self._kind, self._seen = kind, -1
        self._sending.start().addCallback(self._sent)
        return what.status

    def _asked(self) -> bytes:
        return self._request.method if self._request else b""

    def _head(self, status: int, length: int, headers: Sequence[tuple[str, str]]) -> None:
        fields = [("Date", self._server.date()), *headers]
        if status != 304:
            fields.append(("Content-Length", str(length)))
        # an unread body follows: the connection cannot go on
        if self._http.their_state is h11.SEND_BODY:
            fields.append(("Connection", "close"))
        self.transport.write(self._http.send(h11.Response(status_code=status, headers=fields)))

    def _sent(self, _: None) -> None:
        self._count()
        self._finish()

    def _count(self) -> None:
        if self._sending is not None:
            BYTES.labels(self._kind).inc(self._sending.at - self._sending.begin)
            self._sending = None

    def _finish(self) -> None:
        self._http.send(h11.EndOfMessage())
        self.deadline = self._server.seconds() + self._server.limits.idle
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            self.transport.loseConnection()
            return
        self._http.start_next_cycle()
        self._busy = False
        self.transport.resumeProducing()
        # another request may wait; a call for each, not recursion, as there may be many
        if self._http.trailing_data[0]:
            self._server.reactor.callLater(0, self._advance)


class _Sized:
    """A stand-in for bytes that reach the socket by another way (h11's recipe for sendfile)."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length
