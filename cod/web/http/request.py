"""A request to the web server: its method and path, its sender, its body, and how its answer is
sent: tagged and compressed (RFC 9110, 8).

A request handles all of these in the same way for every kind of body. The kinds differ in their
`Body`, which is chosen once when the headers have arrived (`web.server.body_of`): one in memory
(`MemoryBody`) or a file (`http.uploads.body`). A refusal is answered when all of the request has
arrived, so that the client can read the reason. Every answer of the API that is not a success is a
problem document (RFC 9457).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import re
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

from cod.flows.people import access, signin
from cod.flows.people.access import SignedIn
from cod.model import Who
from cod.web.http import sessions
from cod.web.http.errors import HttpProblem, problem_of
from cod.web.http.port import WebPort
from cod.web.http.sessions import check_host, same_origin

PREFIX = "/api/v1"  # the paths of the API begin with it
WORTH_PACKING = 1400  # bytes: an answer that fits into one packet gains nothing by compression
FASTEST = 1  # zlib's level: other requests wait while a large list is compressed
BODY_LIMIT = 2**20  # bytes of a body in memory
STRANGERS_LIMIT = 2**16  # bytes of a body from a client that has not signed in
PACKED = '-gzip"'  # the end of a gzip form's tag
_TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e]*"')
log = logging.getLogger("cod.api")


class Body(ABC):
    """The body of a request: takes the bytes as they arrive, and answers the request when all of it
    has arrived.

    swallows  bytes of a refused body that are still read, so that the client can read the reason
    quiet     a success is not logged
    """

    swallows = 2**24
    quiet = False

    def __init__(self, request: WebRequest) -> None:
        self.request = request

    def begin(self) -> None:  # noqa: B027 (nothing to do for many)
        """Begin: the headers have arrived, and the sender is being looked up."""

    @abstractmethod
    def take(self, data: bytes) -> None:
        """Take the next bytes of a request that is not refused yet."""

    @abstractmethod
    def drop(self) -> int:
        """Forget the bytes of a refused request that are in memory; return their number."""

    @abstractmethod
    async def answer(self) -> None:
        """Answer: all of the request has arrived, and its sender is known."""

    def leave(self) -> None:  # noqa: B027
        """Release the body's resources: the connection is gone, or the answer is sent."""


class MemoryBody(Body):
    """A body in memory, of at most `BODY_LIMIT` bytes, or `STRANGERS_LIMIT` from a client that has
    not signed in."""

    def __init__(self, request: WebRequest) -> None:
        super().__init__(request)
        self.content = bytearray()

    def begin(self) -> None:
        """Refuse a body that is too long by its Content-Length."""
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
        """Refuse a body that is too long for a client that has not signed in. It may have arrived
        before that was known."""
        if self.request.stranger and len(self.content) > STRANGERS_LIMIT:
            self.request.refuse(_too_large())


class WebRequest(http.Request):
    """One request.

    api_path  the path below the API's prefix, its segments unquoted; '': the path is not the API's
    who       the user or program that sent the request, once known; None for strangers
    stranger  the refusal of a sender without token and session, for paths that need a sign-in
    refusal   the reason why the request will not be carried out
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
        """Return a header as Twisted does, but decode bytes that are not UTF-8 with replacements
        instead of raising."""
        if isinstance(key, bytes):
            return super().getHeader(key)
        values = self.requestHeaders.getRawHeaders(key.encode("ascii"))
        return values[-1].decode(errors="replace") if values else None

    @property
    def address(self) -> str:
        """Return the client's address. If COD itself has no TLS, the header of a proxy on this host
        gives the address. Other peers' headers are ignored."""
        peer = str(self.channel.transport.getPeer().host)
        forwarded = (self.getHeader("x-forwarded-for") or "").rpartition(",")[2].strip()
        if self.port.proxied and forwarded:
            with suppress(ValueError):
                return str(ip_address(forwarded)) if ip_address(peer).is_loopback else peer
        return peer

    @property
    def verb(self) -> str:
        """Return the method that decides what is done. HEAD counts as a GET whose body is not
        sent."""
        return "GET" if self.method == b"HEAD" else self.method.decode("latin-1")

    @property
    def is_page(self) -> bool:
        """Return whether the path is that of a page or an asset, not the API's."""
        return not self.api_path and self.path not in (b"/metrics", b"/api", b"/api/")

    # ------------------------------------------------ arriving

    def gotLength(self, length: int | None) -> None:
        """Parse the request line, start to look up the sender, and choose the body. Twisted calls
        this method when the headers have arrived."""
        self.length = length
        # Twisted gives a request its first line only when the body has arrived.
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
        """Hand the next bytes to the body, or discard them if the request is refused."""
        assert self.body is not None
        if self.refusal is None:
            self.body.take(data)
        else:
            self.swallow(data)

    def swallow(self, data: bytes) -> None:
        """Discard and count bytes of a refused body, and close the connection if there are too
        many."""
        assert self.body is not None
        self._swallowed += len(data)
        if self._swallowed > self.body.swallows:
            self.channel.loseConnection()

    def refuse(self, wrong: HttpProblem) -> None:
        """Answer with `wrong` once the whole body has arrived. If there are several refusals, the
        first is sent."""
        assert self.body is not None
        self.refusal = self.refusal or wrong
        self._swallowed += self.body.drop()

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Answer: all of the request has arrived. Unlike Twisted's own, this method parses no form,
        because bodies are JSON or files."""
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
                self.stranger = wrong  # may see the pages for signing in, and send their forms
            else:
                self.refuse(wrong)
        except Exception as error:
            self.refuse(problem_of(error))

    async def caller(self) -> Who:
        """Return the user or program that sent the request. Raises `HttpProblem` (401)."""
        if self.port.local:
            return Who(f"user:{_peer_name(self.channel)}", admin=True, local=True)
        shown = self.getHeader("authorization")
        if shown is None and (
            cookie := sessions.cookies(self.getHeader("cookie")).get(sessions.SESSION)
        ):
            self.session = await self._session(cookie)
            if self.session is None:
                raise HttpProblem(401, "unauthorised", "you are not signed in any more")
            return self.session.who
        kind, _, token = (shown or "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise HttpProblem(401, "unauthorised", "show a token: Authorization: Bearer TOKEN")
        who = await self.port.pool.read(
            access.caller,
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

    async def _session(self, cookie: str) -> SignedIn | None:
        """Return the session of a cookie, with its user; None if it is over. Requests that a page
        makes by itself do not prolong it."""
        pool, now = self.port.pool, self.port.clock()
        found = await pool.read(
            access.session,
            cookie=access.digest(cookie),
            address=self.address,
            rules=self.port.site.current.signin,
            now=now,
        )
        if found is not None and found.stale and not _by_itself(self.path, self.uri):
            await pool.run(signin.seen, found.session.id, now)
        return found

    def permitted(self, open_to_strangers: bool = False) -> Who:
        """Return the user or program that sent the request. Raises `HttpProblem` if the request is
        refused already, if the sender has not signed in and the route is not open to strangers, or
        if a browser's session is used by a page that is not the site's."""
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
        """Answer a GET, with 304 if the client has that answer already."""
        self.headers["ETag"] = tag(body)
        if fits(self.getHeader("if-none-match"), body):
            return self.send(304, b"")
        return self.send_text(200, body, kind, secret)

    def send_text(
        self, status: int, body: bytes, kind: str = "application/json", secret: bool = False
    ) -> None:
        """Send text, compressed by gzip if the client accepts that. Answers to a browser's session
        and answers with a secret are not compressed: an attacker who can make a browser send
        requests, and sees the length of the answers, could find out their content."""
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
        """Send an answer, and log it. `why` is the reason, for the log."""
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


def as_json(value: Any) -> bytes:
    """Return a value as the bytes of JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        errors="replace"
    )


def tag(body: bytes) -> str:
    """Return the strong entity tag of a reply."""
    return f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'


def tags(header: str) -> frozenset[str]:
    """Return the tags in a header; '*' stands for any tag. A tag of a gzip form is returned as that
    of the plain form.

    A weak tag keeps its `W/`, so that it never matches (RFC 9110, 8.8.3: If-Match compares
    strongly).
    """
    if header.strip() == "*":
        return frozenset("*")
    return frozenset(
        one[: -len(PACKED)] + '"' if one.endswith(PACKED) else one for one in _TAG.findall(header)
    )


def fits(header: str | None, body: bytes) -> bool:
    """Return whether the header `If-None-Match` has the tag of that reply. The comparison is weak,
    as RFC 9110 requires for this header."""
    named = frozenset() if header is None else tags(header)
    return "*" in named or tag(body) in {each.removeprefix("W/") for each in named}


def packed_tag(plain: str) -> str:
    """Return the tag of a reply's gzip form: its bytes differ, and so must its strong tag (RFC
    9110, 8.8.3.3)."""
    return plain[:-1] + PACKED


def gzips(accept: str) -> bool:
    """Return whether an `Accept-Encoding` header accepts gzip (RFC 9110, 12.5.3)."""
    accepted = {}
    for each in accept.lower().split(","):
        coding, _, weight = each.replace(" ", "").partition(";q=")
        accepted[coding] = weight.rstrip("0.") != "" if weight else True
    return accepted.get("gzip", accepted.get("*", False))


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
    """Return a status's reason phrase. (Twisted's own list ends with RFC 2616, and lacks 422.)"""
    try:
        return HTTPStatus(status).phrase
    except ValueError:  # 460 is the tus protocol's
        return "Checksum Mismatch" if status == 460 else "Unknown"


def shown(path: bytes) -> str:
    """Return a path for the log: on one line, shortened, and without its query string."""
    return ascii(path[:200].decode("latin-1"))[1:-1]


def _by_itself(path: bytes, uri: bytes) -> bool:
    """Return whether a page sends such requests by itself, whether or not anybody looks at it: for
    events, its live parts, the output of a console."""
    query = uri.partition(b"?")[2]
    terminal = path.endswith(b"/console") and b"raw=" in query
    return path.endswith(b"/events") or b"part=" in query or terminal


def _peer_name(channel: Any) -> str:
    """Return the name of the user at the other end of the UNIX socket, by the uid that the kernel
    reports (SO_PEERCRED)."""
    peer = channel.transport.getHandle().getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    uid = struct.unpack("3i", peer)[1]
    return "root" if uid == 0 else f"uid{uid}"
