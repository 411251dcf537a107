"""A request to the web server: what it asks for, who sends it, where its body goes, and how an
answer is sent.

A request is all of these for every kind of body. What differs is its `Body`, chosen once when the
headers are there (`web.server.body_of`): in memory (`MemoryBody`) or a file
(`http.uploads.body`). What is refused on the way is answered when the request is all
there, so that the client can hear why. Every answer of the API that is not a success is a problem
document (RFC 9457).
"""

from __future__ import annotations

import gzip
import logging
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.web import http

from cod.flows.people.access import SignedIn, caller
from cod.model import Who
from cod.web.http import sessions
from cod.web.http.errors import HttpProblem, unexpected
from cod.web.http.port import WebPort
from cod.web.http.representations import as_json, fits, gzips, packed_tag, tag
from cod.web.http.sessions import check_host, same_origin

PREFIX = "/api/v1"  # of the paths of the API
WORTH_PACKING = 1400  # bytes: what fits into one packet comes no sooner for being smaller
FASTEST = 1  # of zlib's levels: a large list is packed while others wait
BODY_LIMIT = 2**20  # bytes of a body in memory
STRANGERS_LIMIT = 2**16  # bytes of a body from a client that has not signed in
log = logging.getLogger("cod.api")


class Body(ABC):
    """Takes the body of a request as it arrives, and answers the request when all of it is there.

    swallows  bytes of a body that is refused which are read on, so that the client can hear why
    quiet     a success is not worth a line in the log
    """

    swallows = 2**24
    quiet = False

    def __init__(self, request: WebRequest) -> None:
        self.request = request

    def begin(self) -> None:  # noqa: B027 (nothing to do for many)
        """Begin: the headers are there, and who asks is being found out."""

    @abstractmethod
    def take(self, data: bytes) -> None:
        """Take the next bytes, of a request that is not refused yet."""

    @abstractmethod
    def drop(self) -> int:
        """Forget, for a refused request, what was gathered in memory; return how much that was."""

    @abstractmethod
    async def answer(self) -> None:
        """Answer: all of the request is there, and it is known who asks."""

    def leave(self) -> None:  # noqa: B027
        """Release the body's resources: the connection is gone, or the answer is sent."""


class MemoryBody(Body):
    """A body of at most `BODY_LIMIT` bytes, of strangers `STRANGERS_LIMIT`, kept in memory."""

    def __init__(self, request: WebRequest) -> None:
        super().__init__(request)
        self.content = bytearray()

    def begin(self) -> None:
        """Refuse what says that it is too long."""
        if self.request.length is not None and self.request.length > BODY_LIMIT:
            self.request.refuse(_too_large())

    def take(self, data: bytes) -> None:
        """Keep the next bytes."""
        self.content += data
        if len(self.content) > (STRANGERS_LIMIT if self.request.stranger else BODY_LIMIT):
            self.request.refuse(_too_large())

    def drop(self) -> int:
        """Forget the bytes."""
        count = len(self.content)
        self.content.clear()
        return count

    def check_sender(self) -> None:
        """Refuse what came faster than was found out that a stranger sent it."""
        if self.request.stranger and len(self.content) > STRANGERS_LIMIT:
            self.request.refuse(_too_large())


class WebRequest(http.Request):
    """One request.

    api_path  below the API's prefix, its segments unquoted; '': the path is none of the API's
    who       who asks, as soon as that is known
    stranger  why that is nobody, where no token and no session was shown
    refusal   why it will not be answered
    """

    channel: Any

    def __init__(self, port: WebPort, channel: Any, body_of: Callable[[WebRequest], Body]) -> None:
        super().__init__(channel)
        self.port, self._body_of = port, body_of
        self._started = port.reactor.seconds()
        self.body: Body | None = None
        self.length: int | None = None
        self.api_path = ""
        self.refusal: HttpProblem | None = None
        self.stranger: HttpProblem | None = None
        self.who: Who | None = None
        self.session: SignedIn | None = None
        self.authentic: Deferred[None] | None = None
        self.gone = False
        self.headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        self._swallowed = 0
        self.notifyFinish().addErrback(self._lost)

    # ------------------------------------------------ the question

    def getHeader(self, key: Any) -> Any:
        """Return a header as Twisted does, but take bytes that are not UTF-8 as text instead of
        raising."""
        if isinstance(key, bytes):
            return super().getHeader(key)
        values = self.requestHeaders.getRawHeaders(key.encode("ascii"))
        return values[-1].decode(errors="replace") if values else None

    @property
    def address(self) -> str:
        """Return the client's address. Where COD itself has no TLS, a proxy on this host says it;
        others are not asked.
        """
        peer = str(self.channel.transport.getPeer().host)
        forwarded = (self.getHeader("x-forwarded-for") or "").rpartition(",")[2].strip()
        if self.port.proxied and forwarded:
            with suppress(ValueError):
                return str(ip_address(forwarded)) if ip_address(peer).is_loopback else peer
        return peer

    @property
    def verb(self) -> str:
        """Return the method that decides what is done: HEAD is a GET whose body is not sent."""
        return "GET" if self.method == b"HEAD" else self.method.decode("latin-1")

    @property
    def is_page(self) -> bool:
        """Return whether the path is a page's or an asset's, not the API's."""
        return not self.api_path and self.path not in (b"/metrics", b"/api", b"/api/")

    # ------------------------------------------------ arriving

    def gotLength(self, length: int | None) -> None:
        """Find out what is asked and by whom, and decide where the body goes: the headers are
        there."""
        self.length = length
        # Twisted tells a request its first line when the body is there, too.
        self.method, self.uri = self.channel._command, self.channel._path
        self.path = self.uri.partition(b"?")[0]
        path = unquoted(self.path.decode("latin-1"))
        self.api_path = path.removeprefix(PREFIX) if path.startswith(f"{PREFIX}/") else ""
        self.body = self._body_of(self)
        if (
            self.channel._version == b"HTTP/1.1"
            and len(self.requestHeaders.getRawHeaders(b"host", [])) != 1
        ):
            self.refuse(
                HttpProblem(
                    400, "bad_request", "a request of HTTP/1.1 names its host once (RFC 9112, 3.2)"
                )
            )
        if all(map(self.requestHeaders.hasHeader, (b"content-length", b"transfer-encoding"))):
            self.channel.persistent = False
        self.authentic = ensureDeferred(self._authenticate())
        self.body.begin()

    def handleContentChunk(self, data: bytes) -> None:
        """Hand the next bytes to the body, or count them."""
        assert self.body is not None
        if self.refusal is None:
            self.body.take(data)
        else:
            self.swallow(data)

    def swallow(self, data: bytes) -> None:
        """Count what comes of a body that is refused; there is an end to that."""
        assert self.body is not None
        self._swallowed += len(data)
        if self._swallowed > self.body.swallows:
            self.channel.loseConnection()

    def refuse(self, wrong: HttpProblem) -> None:
        """Answer with `wrong` as soon as the whole body has come. Of several refusals the first is
        sent."""
        assert self.body is not None
        self.refusal = self.refusal or wrong
        self._swallowed += self.body.drop()

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Answer: all is there. Unlike Twisted's own, this method looks into no form: bodies are
        JSON or files."""
        self.clientproto = version
        assert self.body is not None
        assert self.authentic is not None
        body = self.body
        self.authentic.addCallback(lambda _none: ensureDeferred(body.answer()))
        self.authentic.addErrback(self._broken)
        self.authentic.addCallback(lambda _none: body.leave())

    def _broken(self, failure: Any) -> None:
        log.error("the answer to %s could not be sent", shown(self.path), exc_info=failure.value)
        if not self.gone and not self.finished:
            self.channel.loseConnection()

    def _lost(self, _reason: Any) -> None:
        self.gone = True
        if self.body is not None:
            self.body.leave()

    # ------------------------------------------------ who asks

    async def _authenticate(self) -> None:
        try:
            self.who = await self.caller()
        except HttpProblem as wrong:
            if wrong.status == 401 and self.getHeader("authorization") is None:
                self.stranger = wrong  # who may see the pages for signing in, and send their forms
            else:
                self.refuse(wrong)
        except Exception as error:
            self.refuse(unexpected(error))

    async def caller(self) -> Who:
        """Return the user or program that sent the request. Raises `HttpProblem` (401)."""
        if self.port.local:
            return Who(f"user:{_peer_name(self.channel)}", admin=True, local=True)
        shown = self.getHeader("authorization")
        if shown is None and (
            cookie := sessions.cookies(self.getHeader("cookie")).get(sessions.SESSION)
        ):
            self.session = await self.port.signin.session(
                cookie, address=self.address, by_itself=_by_itself(self.path, self.uri)
            )
            if self.session is None:
                raise HttpProblem(401, "unauthorised", "you are not signed in any more")
            return self.session.who
        kind, _, token = (shown or "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise HttpProblem(401, "unauthorised", "show a token: Authorization: Bearer TOKEN")
        who = await self.port.pool.read(
            caller,
            token.strip(),
            self.address,
            self.port.clock(),
            self.port.site.current.signin,
        )
        if who is None:
            raise HttpProblem(
                401,
                "unauthorised",
                "the token is not valid: unknown, expired, revoked, or its user "
                "has to sign in first",
            )
        return who

    def permitted(self, open_to_strangers: bool = False) -> Who:
        """Return the user or program that asks. Raises `HttpProblem` for what is refused already,
        for strangers unless the route is open to them, and for a browser's cookie unless a page of
        ours asks."""
        is_open = open_to_strangers and self.getHeader("authorization") is None
        if wrong := self.refusal or (None if is_open else self.stranger):
            raise wrong
        if self.session:
            check_host(self.getHeader("host"), self.port.names)
            visit = sessions.visit(self.session, self.getHeader("cookie"))
            genuine = same_origin(self.getHeader) and visit.proves(
                self.getHeader("x-csrf-token") or ""
            )
            if self.verb != "GET" and not genuine:
                raise HttpProblem(
                    403,
                    "form_expired",
                    "a browser's script should send X-CSRF-Token, from a page of this site",
                )
        return self.who or Who("nobody", address=self.address)

    # ------------------------------------------------ the answer

    def send_tagged(
        self, body: bytes, kind: str = "application/json", secret: bool = False
    ) -> None:
        """Answer a GET; with 304 where the client has that answer already."""
        self.headers["ETag"] = tag(body)
        if fits(self.getHeader("if-none-match"), body):
            return self.send(304, b"")
        return self.send_text(200, body, kind, secret)

    def send_text(
        self, status: int, body: bytes, kind: str = "application/json", secret: bool = False
    ) -> None:
        """Send text, by gzip where the client takes that. Not to a browser's session, nor with a
        secret in it: who can make a browser ask, and sees the length of the answer, would learn
        what is in it."""
        if len(body) >= WORTH_PACKING and not secret and self.session is None:
            self.headers["Vary"] = "Accept-Encoding"
            if gzips(self.getHeader("accept-encoding") or ""):
                body = gzip.compress(body, FASTEST, mtime=0)
                self.headers["Content-Encoding"] = "gzip"
                if status == 200 and "ETag" in self.headers and self.verb == "GET":
                    self.headers["ETag"] = packed_tag(self.headers["ETag"])
        self.send(status, body, kind)

    def problem(self, wrong: HttpProblem) -> None:
        """Send a problem document."""
        if wrong.status == 401:
            self.headers["WWW-Authenticate"] = "Bearer"
        self.headers |= wrong.headers()
        body = {
            "type": f"urn:cod:problem:{wrong.code}",
            "title": phrase(wrong.status),
            "status": wrong.status,
            "detail": wrong.detail,
            "code": wrong.code,
        }
        if wrong.field:
            body["field"] = wrong.field
        if wrong.status == 422 and wrong.faults:
            body["errors"] = [
                {"field": field, "detail": detail} for field, detail in wrong.faults.items()
            ]
        if wrong.remedies:
            body["remedies"] = [
                {"count": one.count, "spread": one.spread} for one in wrong.remedies
            ]
        self.send(wrong.status, as_json(body), "application/problem+json", wrong.detail)

    def send(self, status: int, body: bytes, kind: str = "application/json", why: str = "") -> None:
        """Send an answer, and write a line into the log. `why`: for the log."""
        assert self.body is not None
        quiet = status < 400 and (self.method in (b"GET", b"HEAD") or self.body.quiet)
        log.log(
            logging.DEBUG if quiet else logging.INFO,
            "%s %s %s: %d in %.0f ms%s",
            self.who.name if self.who else "nobody",
            self.method.decode("latin-1"),
            shown(self.path),
            status,
            1000 * (self.port.reactor.seconds() - self._started),
            f": {why}" if why else "",
        )
        if self.gone:
            return
        out: Any = self
        out.setResponseCode(status, phrase(status).encode())
        if status not in (204, 304):
            self.headers |= {"Content-Type": kind, "Content-Length": str(len(body))}
        for name, value in self.headers.items():
            out.setHeader(name, value)
        if self.method != b"HEAD":
            out.write(body)
        out.finish()


def _too_large() -> HttpProblem:
    return HttpProblem(
        413,
        "too_large",
        f"the body may have at most {BODY_LIMIT} bytes, of strangers {STRANGERS_LIMIT}",
    )


def unquoted(path: str) -> str:
    """Return a request's path with each of its segments unquoted."""
    return "/".join(unquote(part, errors="replace") for part in path.split("/"))


def phrase(status: int) -> str:
    """Return a status's reason phrase. (Twisted's own list ends with RFC 2616: it has no 422.)"""
    try:
        return HTTPStatus(status).phrase
    except ValueError:  # 460 is the tus protocol's
        return "Checksum Mismatch" if status == 460 else "Unknown"


def shown(path: bytes) -> str:
    """Return a path for the log: one line, not for ever. The query string stays out."""
    return ascii(path[:200].decode("latin-1"))[1:-1]


def _by_itself(path: bytes, uri: bytes) -> bool:
    """Return whether a page asks for that, whether or not anybody looks at it: events, its live
    parts, what came on a console."""
    query = uri.partition(b"?")[2]
    terminal = path.endswith(b"/console") and b"raw=" in query
    return path.endswith(b"/events") or b"part=" in query or terminal


def _peer_name(channel: Any) -> str:
    """Return the user at the other end of the UNIX socket, by number: the kernel says
    (SO_PEERCRED)."""
    peer = channel.transport.getHandle().getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    uid = struct.unpack("3i", peer)[1]
    return "root" if uid == 0 else f"uid{uid}"
