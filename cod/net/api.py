"""The web server: HTTP in front of the API's table in `net.table` and the portal's pages.

A local administrator comes through a UNIX socket that only root can open; programs show a bearer token, browsers the
cookie of a session.
"""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, ensureDeferred, maybeDeferred
from twisted.internet.task import LoopingCall
from twisted.web import http

from cod import webcert
from cod.ca import Ca
from cod.flows import tokens
from cod.model import Site, Who
from cod.net import metrics
from cod.net.apibody import Arriving, Wrong
from cod.net.apichannel import MOST_OF_ONE, Channel, Crowd
from cod.net.apirequest import ApiRequest
from cod.net.events import Hub
from cod.net.intake import Intake
from cod.net.portal import ACTIONS, PAGES, visits
from cod.net.portal.front import Portal
from cod.net.rations import Rations
from cod.net.signin import SignIn
from cod.net.webtls import WebTls
from cod.pool import Pool

SWEEP = 60.0  # seconds between looks for uploads that nothing more comes of
DAY = 86400.0
BACKLOG = 512  # connections that wait to be taken

log = logging.getLogger("cod.api")


class Api(http.HTTPFactory):
    """The API on one listening port. `local` says whether that port is the UNIX socket.

    images        folder that images are served from
    intake        takes uploads
    upload_limit  bytes
    wake          carries out the effects of a flow
    metrics       makes the text of `/metrics`, or None
    webhook_key   the secret that webhooks' keys are derived from
    authority     the site's certificate authority for VCMs
    names         host names of the server, beside its addresses
    proxied       it has no TLS of its own: a proxy on this host says where requests come from
    consoles      folder that consoles are kept in, or None
    fingerprint   says the SHA-256 of the web server's certificate, hex; '' where there is none
    """

    def __init__(
        self, reactor: Any, pool: Pool, site: Site, *, local: bool, images: Path, intake: Intake, upload_limit: int,
        wake: Callable[[Any], object], metrics: Callable[[], Deferred[bytes]] | None = None,
        clock: Callable[[], float] = time.time, webhook_key: bytes = b"", authority: Ca | None = None,
        names: Sequence[str] = (), proxied: bool = False, consoles: Path | None = None,
        fingerprint: Callable[[], str] = str,
    ) -> None:
        super().__init__(timeout=60, reactor=reactor)
        self.fingerprint = fingerprint
        self.proxied, self.consoles = proxied, consoles
        self.crowd = Crowd(None if local or proxied else MOST_OF_ONE)
        self.names = frozenset(name.lower() for name in names)
        self.webhook_key, self.authority = webhook_key, authority
        self.pool, self.site, self.local, self.clock, self.wake = pool, site, local, clock, wake
        self.images, self.intake, self.upload_limit, self.metrics = images, intake, upload_limit, metrics
        self.real_reactor = reactor
        self.hub = Hub(reactor, pool)
        self.rations = Rations(clock)
        self.portal = None if local else Portal(self, PAGES, ACTIONS)
        self.signin = SignIn(reactor, pool, site, clock)

    protocol = Channel  # type: ignore[assignment]

    def log(self, request: http.Request) -> None:
        """Twisted's own access log is not used; `ApiRequest` writes one line."""

    def buildProtocol(self, addr: Any) -> Any:
        """A connection, whose requests are ours."""
        channel: Any = super().buildProtocol(addr)
        channel.requestFactory = lambda connection, _queued: ApiRequest(self, connection)
        return channel

    def stop(self) -> None:
        """End the event streams, so that shutdown need not wait for their clients."""
        self.hub.stop()

    async def caller(self, request: Arriving) -> Who:
        """Who sent `request`. Raises `Wrong` (401)."""
        if self.local:
            return Who(f"user:{_peer_name(request)}", admin=True, local=True)
        shown = request.getHeader("authorization")
        cookie = visits.cookies(request.getHeader("cookie")).get(visits.SESSION)
        if shown is None and cookie:
            return await self._by_cookie(request, cookie)
        kind, _, token = (shown or "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise Wrong(401, "unauthorised", "show a token: Authorization: Bearer TOKEN")
        who: Who | None = await self.pool.read(tokens.caller, token.strip(), request.address, self.clock(),
                                               self.site.signin)
        if who is None:
            raise Wrong(401, "unauthorised", "the token is not valid: unknown, expired, revoked, or its user has to "
                        "sign in first")
        return who

    async def _by_cookie(self, request: Arriving, cookie: str) -> Who:
        request.session = await self.signin.session(
            cookie, address=request.address, by_itself=_by_itself(getattr(request.channel, "_path", b"/events")))
        if request.session is None:
            raise Wrong(401, "unauthorised", "you are not signed in any more")
        return request.session.who


def _by_itself(uri: bytes) -> bool:
    """Does a page ask for that, whether or not anybody looks at it: events, its live parts?"""
    path, _, query = uri.partition(b"?")
    return path.endswith(b"/events") or b"part=" in query


def _peer_name(request: Arriving) -> str:
    """The user at the other end of the UNIX socket, by number: the kernel says (SO_PEERCRED)."""
    peer = request.channel.transport.getHandle().getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    uid = struct.unpack("3i", peer)[1]
    return "root" if uid == 0 else f"uid{uid}"


class ApiServer(Service):
    """The API on its UNIX socket and on each (address, port) of `listen`; `ports` says what was bound."""

    def __init__(
        self, reactor: Any, pool: Pool, site: Site, path: Path, listen: Sequence[tuple[str, int]], images: Path,
        incoming: Path, upload_limit: int, wake: Callable[[Any], object], clock: Callable[[], float] = time.time,
        webhook_key: bytes = b"", authority: Ca | None = None, tls: WebTls | None = None, names: Sequence[str] = (),
        consoles: Path | None = None,
    ) -> None:
        self._reactor, self._path, self._listen, self._tls = reactor, path, listen, tls
        self.intake = Intake(reactor, pool, site, incoming, wake, clock)
        self._apis = [
            Api(reactor, pool, site, local=local, images=images, intake=self.intake, upload_limit=upload_limit,
                wake=wake, clock=clock, metrics=partial(metrics.page, pool, site, clock), webhook_key=webhook_key,
                authority=authority, names=names, proxied=tls is None, consoles=consoles,
                fingerprint=(lambda: tls.fingerprint) if tls else str)
            for local in (True, False)
        ]
        self._sweep = LoopingCall(lambda: ensureDeferred(self.intake.sweep()))
        self._renewal = LoopingCall(self.reread)
        self._sweep.clock = self._renewal.clock = reactor
        self._listening: list[Any] = []
        self.ports: list[int] = []

    def startService(self) -> None:
        """Listen. Raises CannotListenError or OSError."""
        super().startService()  # type: ignore[no-untyped-call]
        _free(self._path)
        self._listening = [self._reactor.listenUNIX(str(self._path), self._apis[0], mode=0o600)]
        for address, port in self._listen:
            self._listening.append(self._open(address, port))
        self.ports = [port.getHost().port for port in self._listening[1:]]
        self.intake.start()
        self._sweep.start(SWEEP)
        if self._tls:
            self._renewal.start(DAY, now=False)

    def _open(self, address: str, port: int) -> Any:
        if self._tls is None:
            return self._reactor.listenTCP(port, self._apis[1], interface=address)
        return self._reactor.listenSSL(port, self._apis[1], self._tls, BACKLOG, address)

    def reread(self) -> None:
        """Take over a certificate that has changed."""
        try:
            if self._tls:
                self._tls.reread()
        except (OSError, webcert.Unusable) as error:
            log.error("the certificate cannot be taken over; the old one stays: %s", error)

    def stopService(self) -> Deferred[Any]:
        """Take no more connections and end the event streams."""
        super().stopService()  # type: ignore[no-untyped-call]
        for loop in (self._sweep, self._renewal):
            if loop.running:
                loop.stop()
        for api in self._apis:
            api.stop()
        return DeferredList([ensureDeferred(self.intake.stop()),
                             *(maybeDeferred(port.stopListening) for port in self._listening)])


def _free(path: Path) -> None:
    """Remove the socket of a server that is gone; one that answers is left alone, and binding will fail."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except OSError:
            return
