"""A request to the REST API as it arrives: who asks, and where the body goes.

A body is JSON of at most `JSON_LIMIT` bytes, of strangers `STRANGERS`, kept in memory, or, where it says that it is
one, a piece of an upload, which goes to disk as it arrives, and only once it is known that who asks may send it. What
is refused on the way is answered when the request is all there, so that the client can hear why.
"""

from __future__ import annotations

import logging
import socket
import struct
from abc import ABC, abstractmethod
from contextlib import suppress
from io import BytesIO
from ipaddress import ip_address
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.web import http

from cod.flows.people import tokens
from cod.flows.people.signin import Session
from cod.model import Who
from cod.web.context import Context
from cod.web.errors import HttpProblem, unexpected
from cod.web.portal import sessions
from cod.web.uploads.piece import Piece
from cod.wire.tus import PIECE_TYPE

JSON_LIMIT = 2**20
STRANGERS = 2**16  # bytes of a body of who has not signed in
SWALLOWED = 2**24  # bytes of a body that is refused, read on so that the client can hear why
AT_A_TIME = 2**18  # bytes of a piece that are read from the network in one go; Twisted's 64 KiB cost a third more CPU
SWALLOWED_PIECE = 2**26  # the same of a piece of an upload

log = logging.getLogger("cod.api")


class StreamingRequest(http.Request, ABC):
    """A request until it is all there; then `_answer`, in `web.request`, is called."""

    channel: Any
    content: Any

    def __init__(self, context: Context, channel: Any) -> None:
        super().__init__(channel)
        self.context = context
        self._started = context.reactor.seconds()
        self._piece: Piece | None = None
        self._length: int | None = None
        self._refusal: HttpProblem | None = None
        self._stranger: HttpProblem | None = None
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
        if self.context.proxied and told:
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
            self._refuse(HttpProblem(400, "bad_request", "a request of HTTP/1.1 names its host once (RFC 9112, 3.2)"))
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
            self._who = await self.caller()
        except HttpProblem as wrong:
            if wrong.status == 401 and self.getHeader("authorization") is None:
                self._stranger = wrong  # who may see the pages for signing in, and send their forms
                self._check_size()
            else:
                self._refuse(wrong)
        except Exception as error:
            self._refuse(unexpected(error))

    async def caller(self) -> Who:
        """Return who sent it. Raises `HttpProblem` (401)."""
        if self.context.local:
            return Who(f"user:{_peer_name(self.channel)}", admin=True, local=True)
        shown = self.getHeader("authorization")
        cookie = sessions.cookies(self.getHeader("cookie")).get(sessions.SESSION)
        if shown is None and cookie:
            return await self._by_cookie(cookie)
        kind, _, token = (shown or "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise HttpProblem(401, "unauthorised", "show a token: Authorization: Bearer TOKEN")
        who: Who | None = await self.context.pool.read(tokens.caller, token.strip(), self.address, self.context.clock(),
                                               self.context.site.signin)
        if who is None:
            raise HttpProblem(401, "unauthorised", "the token is not valid: unknown, expired, revoked, or its user "
                              "has to "
                              "sign in first")
        return who

    async def _by_cookie(self, cookie: str) -> Who:
        self.session = await self.context.signin.session(
            cookie, address=self.address, by_itself=_by_itself(getattr(self.channel, "_path", b"/events")))
        if self.session is None:
            raise HttpProblem(401, "unauthorised", "you are not signed in any more")
        return self.session.who

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

    def _refuse(self, wrong: HttpProblem) -> None:
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


def _too_large() -> HttpProblem:
    return HttpProblem(413, "too_large", f"the body may have at most {JSON_LIMIT} bytes, of strangers {STRANGERS}")


def _by_itself(uri: bytes) -> bool:
    """Does a page ask for that, whether or not anybody looks at it: events, its live parts?"""
    path, _, query = uri.partition(b"?")
    return path.endswith(b"/events") or b"part=" in query


def _peer_name(channel: Any) -> str:
    """The user at the other end of the UNIX socket, by number: the kernel says (SO_PEERCRED)."""
    peer = channel.transport.getHandle().getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    uid = struct.unpack("3i", peer)[1]
    return "root" if uid == 0 else f"uid{uid}"
