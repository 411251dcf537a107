"""The web server: HTTP in front of the API's table in `web.api.resources` and the portal's pages.

A local administrator comes through a UNIX socket that only root can open; programs show a bearer
token, browsers the cookie of a session.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, ensureDeferred, maybeDeferred
from twisted.internet.task import LoopingCall
from twisted.web import http

from cod.model import SettingRules, SiteRef
from cod.pool import Pool
from cod.security import webcert
from cod.security.signer import VcmAuthority
from cod.web.api import metrics
from cod.web.api.context import Context
from cod.web.api.events import Hub
from cod.web.api.json_body import JsonBody
from cod.web.api.simulator import Simulator
from cod.web.api.upload_body import PieceBody, UploadBody
from cod.web.http.channel import MOST_OF_ONE, Channel, ConnectionCount
from cod.web.http.rate_limits import RateLimits
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

SWEEP = 60.0  # seconds between looks for uploads that nothing more comes of
DAY = 86400.0
BACKLOG = 512  # connections that wait to be taken

log = logging.getLogger("cod.api")


class Api(http.HTTPFactory):
    """The API, and the portal unless it is local, on one listening port."""

    def __init__(self, context: Context) -> None:
        super().__init__(timeout=60, reactor=context.reactor)
        self.context = context
        self.connections = ConnectionCount(
            None if context.local or context.proxied else MOST_OF_ONE
        )
        self.portal = None if context.local else Portal(context, PAGES, ACTIONS)

    protocol = Channel  # type: ignore[assignment]

    def log(self, request: http.Request) -> None:
        """Twisted's own access log is not used; `WebRequest` writes one line."""

    def buildProtocol(self, addr: Any) -> Any:
        """Return a connection, whose requests are ours."""
        channel: Any = super().buildProtocol(addr)
        channel.requestFactory = lambda connection, _queued: WebRequest(
            self.context, connection, partial(body_of, self.context, self.portal)
        )
        return channel

    def stop(self) -> None:
        """End the event streams, so that shutdown need not wait for their clients."""
        self.context.hub.stop()


class ApiServer(Service):
    """The API on its UNIX socket and on each (address, port) of `listen`; `ports` says what was
    bound."""

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
                    fingerprint=(lambda: tls.fingerprint) if tls else str,
                    signin=SignIn(reactor, pool, site, clock),
                    hub=Hub(reactor, pool),
                    simulator=self._simulator,
                    rate_limits=RateLimits(clock),
                )
            )
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
        except (OSError, webcert.BadWebCertificate) as error:
            log.error("the certificate cannot be taken over; the old one stays: %s", error)

    def stopService(self) -> Deferred[Any]:
        """Take no more connections, and end the event streams and a simulation under way."""
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
    """Decide by a request's line and headers where its body goes. `portal`: None where there are no
    pages."""
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
    """Remove the socket of a server that is gone; one that answers is left alone, and binding will
    fail."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except OSError:
            return
