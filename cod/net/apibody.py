"""A request to the REST API as it arrives: who asks, and where the body goes.

A body is JSON of at most `JSON_LIMIT` bytes, of strangers `STRANGERS`, kept in memory, or, where it says that it is
one, a piece of an upload, which goes to disk as it arrives, and only once it is known that who asks may send it. What
is refused on the way is answered when the request is all there, so that the client can hear why.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import suppress
from io import BytesIO
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.web import http

from cod import states
from cod.flows.replies import Changed
from cod.flows.signin import Session
from cod.model import Refused, SlowDown, Who
from cod.pool import Pool
from cod.wire.tus import PIECE_TYPE

if TYPE_CHECKING:
    from cod.net.api import Api
    from cod.net.piece import Piece

JSON_LIMIT = 2**20
STRANGERS = 2**16  # bytes of a body of who has not signed in
SWALLOWED = 2**24  # bytes of a body that is refused, read on so that the client can hear why
AT_A_TIME = 2**18  # bytes of a piece that are read from the network in one go; Twisted's 64 KiB cost a third more CPU
SWALLOWED_PIECE = 2**26  # the same of a piece of an upload
STATUS = {"invalid": 422, "not_found": 404, "conflict": 409, "forbidden": 403,
          "unauthorised": 401, "slow_down": 429, "busy": 503, "quota": 413}
READS_ONLY = "this token may only read"

log = logging.getLogger("cod.api")


class Wrong(Exception):
    """The request cannot be answered: HTTP status, stable code, a sentence, the part of the input that is meant; and
    what is wrong with each part, where several are; `wait`: seconds after which it is worth asking again."""

    def __init__(
        self, status: int, code: str, detail: str, field: str | None = None, faults: dict[str, str] | None = None,
        wait: int = 0,
    ) -> None:
        super().__init__(detail)
        self.wait = wait
        self.status, self.code, self.detail, self.field = status, code, detail, field
        self.faults = faults or ({field: detail} if field else {})

    def headers(self) -> dict[str, str]:
        """Return what a client needs to know when to ask again (RFC 9110, 10.2.3; RateLimit-Reset, in seconds)."""
        if not self.wait:
            return {}
        limited = {"RateLimit-Remaining": "0", "RateLimit-Reset": str(self.wait)} if self.status == 429 else {}
        return {"Retry-After": str(self.wait)} | limited


class Arriving(http.Request, ABC):
    """A request on a connection of `api` until it is all there; then `_answer`, in `net.apirequest`, is called."""

    channel: Any
    content: Any

    def __init__(self, api: Api, channel: Any) -> None:
        super().__init__(channel)
        self.api = api
        self._started = api.real_reactor.seconds()
        self._piece: Piece | None = None
        self._length: int | None = None
        self._refusal: Wrong | None = None
        self._stranger: Wrong | None = None
        self._who: Who | None = None
        self.session: Session | None = None
        self._received = self._swallowed = 0
        self._gone = False
        self._headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        self._authentic: Deferred[None] | None = None
        self.notifyFinish().addErrback(self._lost)

    def getHeader(self, key: Any) -> Any:
        """Return a header as Twisted does, but take bytes that are not UTF-8 as text instead of raising."""
        if isinstance(key, bytes):
            return super().getHeader(key)
        values = self.requestHeaders.getRawHeaders(key.encode("ascii"))
        return values[-1].decode(errors="replace") if values else None

    @property
    def address(self) -> str:
        """Where it came from over TCP. Where COD itself has no TLS, a proxy on this host says so; others are not asked.
        """
        peer = str(self.channel.transport.getPeer().host)
        told = (self.getHeader("x-forwarded-for") or "").rpartition(",")[2].strip()
        if self.api.proxied and told:
            with suppress(ValueError):
                return str(ip_address(told)) if ip_address(peer).is_loopback else peer
        return peer

    def _lost(self, _reason: Any) -> None:
        self._gone = True
        self._leave_piece()

    def _leave_piece(self, _result: Any = None) -> None:
        """Whatever became of the request, the upload's file is free for others."""
        if self._piece is not None:
            ensureDeferred(self._piece.leave())

    def gotLength(self, length: int | None) -> None:
        """The headers are there: find out who asks, and decide where the body goes."""
        self.content, self._length = BytesIO(), length
        self._take_line(self.channel._command, self.channel._path)  # Twisted tells them when the body is there, too
        if self.channel._version == b"HTTP/1.1" and len(self.requestHeaders.getRawHeaders(b"host", [])) != 1:
            self._refuse(Wrong(400, "bad_request", "a request of HTTP/1.1 names its host once (RFC 9112, 3.2)"))
        if all(map(self.requestHeaders.hasHeader, (b"content-length", b"transfer-encoding"))):
            self.channel.persistent = False
        self._authentic = ensureDeferred(self._authenticate())
        if self._is_piece():
            self.channel.pauseProducing()
            self.channel.transport.bufferSize = AT_A_TIME
            self._authentic.addCallback(lambda _none: ensureDeferred(self._open_piece()))
        elif length is not None and length > JSON_LIMIT and not self._is_form():
            self._refuse(_too_large())

    def _take_line(self, command: bytes, uri: bytes) -> None:
        self.method, self.uri, self.path = command, uri, uri.partition(b"?")[0]

    def _is_piece(self) -> bool:
        return bool(self.getHeader("content-type") == PIECE_TYPE)

    def _is_form(self) -> bool:
        """Is it a form with a file?"""
        return False

    @abstractmethod
    async def _open_piece(self) -> None:
        """Begin a piece of an upload, if its sender may send it: make `_piece`, or refuse it, and read on."""

    async def _authenticate(self) -> None:
        try:
            self._who = await self.api.caller(self)
        except Wrong as wrong:
            if wrong.status == 401 and self.getHeader("authorization") is None:
                self._stranger = wrong  # who may see the pages for signing in, and send their forms
                self._check_size()
            else:
                self._refuse(wrong)
        except Exception as error:
            self._refuse(unexpected(error))

    def handleContentChunk(self, data: bytes) -> None:
        """A piece of the body."""
        self._received += len(data)
        self._check_size()
        if self._refusal is not None or (self._piece is not None and self._piece.error is not None):
            self._swallow(data)
        elif self._piece is not None:
            self._piece.feed(data)
        else:
            self.content.write(data)

    def _check_size(self) -> None:
        """Refuse a body that memory is not for."""
        limit = STRANGERS if self._stranger else JSON_LIMIT
        if self._received > limit and not (self._is_piece() or self._is_form()):
            self._refuse(_too_large())

    def _swallow(self, data: bytes) -> None:
        self._swallowed += len(data)
        if self._swallowed > (SWALLOWED_PIECE if self._is_piece() or self._is_form() else SWALLOWED):
            self.channel.loseConnection()

    def _refuse(self, wrong: Wrong) -> None:
        self._refusal = self._refusal or wrong
        self._swallowed += len(self.content.getvalue())
        self.content = BytesIO()

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """The whole request is there. Unlike Twisted's own, this one looks into no form: bodies are JSON or files."""
        self.clientproto = version
        self._take_line(command, path)
        assert self._authentic is not None
        self._authentic.addCallback(lambda _none: ensureDeferred(self._answer()))
        self._authentic.addErrback(self._broken)
        self._authentic.addCallback(self._leave_piece)

    @abstractmethod
    async def _answer(self) -> None:
        """All of it is there, and it is known who asks."""

    def _broken(self, failure: Any) -> None:
        log.error("the answer to %s could not be sent", shown(self.path), exc_info=failure.value)
        if not self._gone and not self.finished:
            self.channel.loseConnection()


def shown(path: bytes) -> str:
    """A path for the log: one line, not for ever. The query string stays out."""
    return ascii(path[:200].decode("latin-1"))[1:-1]


def _too_large() -> Wrong:
    return Wrong(413, "too_large", f"the body may have at most {JSON_LIMIT} bytes, of strangers {STRANGERS}")


def unexpected(error: Exception) -> Wrong:
    """What a flow raised, as the client sees it: a rule's sentence; a late event; the database away; a bug."""
    if isinstance(error, SlowDown):
        return Wrong(STATUS[error.code], error.code, error.sentence, wait=error.seconds)
    if isinstance(error, Refused):
        return Wrong(STATUS.get(error.code, 422), error.code, error.sentence, error.field or None)
    if isinstance(error, Changed):
        return Wrong(412, "changed", "it is not as it was when you saw it: look again")
    if isinstance(error, states.WrongEvent):
        return Wrong(409, "conflict", str(error))
    if Pool.is_away(error):
        return Wrong(503, "unavailable", "the database does not answer; try again")
    if Pool.is_race(error):
        log.warning("two requests at once: %s", error)
        return Wrong(409, "conflict", "somebody else changed the same thing at this moment; look again")
    log.error("a bug: %s", error, exc_info=error)
    return Wrong(500, "internal", "a bug in COD; the server's log has the details")
