"""The web server: its ports and connections, in front of the API's table in `web.api.resources` and
the portal's pages.

A local administrator comes through a UNIX socket that only root can open; programs show a bearer
token, browsers the cookie of a session.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, ensureDeferred, maybeDeferred
from twisted.internet.protocol import connectionDone
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure
from twisted.web import http

from cod.model import DatabaseHost, SettingRules, SiteRef
from cod.pool import Pool
from cod.security import webcert
from cod.security.signer import VcmAuthority
from cod.web.api import metrics
from cod.web.api.context import Context
from cod.web.api.events import Hub
from cod.web.api.json_body import JsonBody
from cod.web.api.simulator import Simulator
from cod.web.api.upload_body import PieceBody, UploadBody
from cod.web.http.request import Body, WebRequest
from cod.web.http.tls import WebTls
from cod.web.http.uploads import tus
from cod.web.http.uploads.intake import Intake
from cod.web.portal import file_form
from cod.web.portal.front import Portal
from cod.web.portal.page_body import PageBody
from cod.web.portal.registry import ACTIONS, PAGES
from cod.web.signin.service import SignIn
from cod.wire.tus import PIECE_TYPE

SWEEP = 60.0  # seconds between searches for uploads that have expired
DAY = 86400.0
BACKLOG = 512  # connections that wait to be accepted
# connections at once, of all clients and from one address, which many people may share
MOST, MOST_OF_ONE = 4096, 2048

log = logging.getLogger("cod.api")


def _refusal(detail: str) -> bytes:
    """Return the bytes of an answer to a request that cannot be read; the connection is closed
    after it."""
    problem = {
        "type": "urn:cod:problem:bad_request",
        "title": "Bad Request",
        "status": 400,
        "code": "bad_request",
        "detail": detail,
    }
    body = json.dumps(problem).encode()
    return (
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\nCache-Control:"
        b" no-store\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    ) + body


_UNREADABLE = _refusal("this is no HTTP request that can be read")
_LONG = _refusal("a line of the request is longer than 16,384 bytes: ask for less at once")


class ConnectionCount:
    """The number of open connections. `of_one` is the most that one address may have; None: as many
    as all together."""

    def __init__(self, of_one: int | None) -> None:
        self._of_one, self._by_peer = of_one, Counter[str]()

    def enter(self, peer: str) -> bool:
        """Return whether one more connection from that address may open. If so, count it."""
        fits = self._by_peer.total() < MOST and (
            self._of_one is None or self._by_peer[peer] < self._of_one
        )
        if fits:
            self._by_peer[peer] += 1
        else:
            log.debug("a connection from %s is turned away: there are too many", peer)
        return fits

    def leave(self, peer: str) -> None:
        """Count a connection as closed."""
        self._by_peer[peer] -= 1
        if not self._by_peer[peer]:
            del self._by_peer[peer]


class Channel(http.HTTPChannel):
    """HTTP/1.1 by Twisted, with our own answers to what is not HTTP and to excess connections."""

    transport: Any
    factory: Any
    _peer: str | None = None

    def connectionMade(self) -> None:
        """Count the connection, or close it if there are too many."""
        super().connectionMade()  # type: ignore[no-untyped-call]
        peer = str(getattr(self.transport.getPeer(), "host", ""))
        if self.factory.connections.enter(peer):
            self._peer = peer
        else:
            self.transport.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Count the connection as closed."""
        if self._peer is not None:
            self.factory.connections.leave(self._peer)
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def _respondToBadRequestAndDisconnect(self) -> None:
        """Send a problem document, and close. Twisted's own answer has only the status."""
        self._refuse(_UNREADABLE)

    def lineLengthExceeded(self, line: bytes) -> None:
        """Send a problem document, and close. Twisted itself closes without an answer."""
        self._refuse(_LONG)

    def _refuse(self, answer: bytes) -> None:
        self.transport.write(answer)
        self.loseConnection()  # type: ignore[no-untyped-call]


class Api(http.HTTPFactory):
    """The API, and the portal unless the port is local, on one listening port."""

    def __init__(self, context: Context) -> None:
        super().__init__(timeout=60, reactor=context.reactor)
        self.context = context
        self.connections = ConnectionCount(
            None if context.local or context.proxied else MOST_OF_ONE
        )
        self.portal = None if context.local else Portal(context, PAGES, ACTIONS)

    protocol = Channel  # type: ignore[assignment]

    def log(self, request: http.Request) -> None:
        """Write nothing: Twisted's access log is not used, because `WebRequest` logs each
        request."""

    def buildProtocol(self, addr: Any) -> Any:
        """Return a connection whose requests are `WebRequest`s."""
        channel: Any = super().buildProtocol(addr)
        channel.requestFactory = lambda connection, _queued: WebRequest(
            self.context, connection, partial(body_of, self.context, self.portal)
        )
        return channel

    def stop(self) -> None:
        """End the event streams, so that shutdown need not wait for their clients."""
        self.context.hub.stop()


class ApiServer(Service):
    """The API on its UNIX socket and on each (address, port) of `listen`. `ports` has the bound
    ports."""

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        path: Path,
        listen: Sequence[tuple[str, int]],
        images: Path,
        incoming: Path,
        upload_limit: int,
        wake: Callable[[Any], object],
        clock: Callable[[], float] = time.time,
        webhook_key: bytes = b"",
        authority: VcmAuthority | None = None,
        tls: WebTls | None = None,
        names: Sequence[str] = (),
        consoles: Path | None = None,
        settings: SettingRules | None = None,
        database: Callable[[], tuple[DatabaseHost, ...]] = tuple,
    ) -> None:
        self._reactor, self._path, self._listen, self._tls = reactor, path, listen, tls
        self.intake = Intake(reactor, pool, site, incoming, wake, clock)
        self._simulator = Simulator(reactor)
        self._apis = [
            Api(
                Context(
                    reactor=reactor,
                    pool=pool,
                    site=site,
                    clock=clock,
                    local=local,
                    images=images,
                    intake=self.intake,
                    upload_limit=upload_limit,
                    wake=wake,
                    metrics=partial(metrics.page, pool, site, clock),
                    webhook_key=webhook_key,
                    authority=authority,
                    names=frozenset(name.lower() for name in names),
                    proxied=tls is None,
                    consoles=consoles,
                    settings=settings,
                    database=database,
                    fingerprint=(lambda: tls.fingerprint) if tls else str,
                    signin=SignIn(reactor, pool, site, clock),
                    hub=Hub(reactor, pool),
                    simulator=self._simulator,
                )
            )
            for local in (True, False)
        ]
        self._sweep, self._renewal = self._sweeps(), LoopingCall(self.reread)
        self._renewal.clock = reactor
        self._listening: list[Any] = []
        self.ports: list[int] = []

    def startService(self) -> None:
        """Listen on all ports. Raises CannotListenError or OSError."""
        super().startService()  # type: ignore[no-untyped-call]
        _free(self._path)
        self._listening = [self._reactor.listenUNIX(str(self._path), self._apis[0], mode=0o600)]
        for address, port in self._listen:
            self._listening.append(self._open(address, port))
        self.ports = [port.getHost().port for port in self._listening[1:]]
        self.intake.start()
        self._sweep = self._sweeps()  # the former loop may still have a sweep under way
        self._sweep.start(SWEEP)
        if self._tls:
            self._renewal.start(DAY, now=False)

    def _sweeps(self) -> LoopingCall:
        loop = LoopingCall(lambda: ensureDeferred(self.intake.sweep()))
        loop.clock = self._reactor
        return loop

    def _open(self, address: str, port: int) -> Any:
        if self._tls is None:
            return self._reactor.listenTCP(port, self._apis[1], interface=address)
        return self._reactor.listenSSL(port, self._apis[1], self._tls, BACKLOG, address)

    def reread(self) -> None:
        """Use the certificate's file if it has changed."""
        try:
            if self._tls:
                self._tls.reread()
        except (OSError, webcert.BadWebCertificate) as error:
            log.error("the certificate cannot be taken over; the old one stays: %s", error)

    def stopService(self) -> Deferred[Any]:
        """Accept no more connections, and end the event streams and a running simulation."""
        super().stopService()  # type: ignore[no-untyped-call]
        for loop in (self._sweep, self._renewal):
            if loop.running:
                loop.stop()
        for api in self._apis:
            api.stop()
        self._simulator.stop()
        return DeferredList(
            [
                ensureDeferred(self.intake.stop()),
                *(maybeDeferred(port.stopListening) for port in self._listening),
            ]
        )


def body_of(context: Context, portal: Portal | None, request: WebRequest) -> Body:
    """Return the body for a request, chosen by its path and headers. `portal` is None if the port
    has no pages."""
    kind = str(request.getHeader("content-type") or "")
    if request.api_path and kind == PIECE_TYPE:
        return PieceBody(request, context)
    if f"{request.api_path}/".startswith(f"{tus.PATH}/"):
        return UploadBody(request, context)
    is_form = request.path == file_form.PATH.encode() and kind.startswith("multipart/form-data")
    if portal and is_form and request.method == b"POST":
        return file_form.FormBody(request, portal)
    if portal and request.is_page and request.getHeader("authorization") is None:
        return PageBody(request, portal)
    return JsonBody(request, context)


def _free(path: Path) -> None:
    """Remove the socket of a server that is gone. A socket that answers is left alone, and binding
    will fail."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except OSError:
            return
