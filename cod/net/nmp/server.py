"""The NMP server: virtual cluster managers connect to it over TLS (docs/nmp).

Each connection is a `VcmSession` (net/nmp/session.py). Messages to VCMs are looked for twice a
second for all VCMs in one read, and at once when a flow of this host wakes the server. One sweep
every few seconds checks all connections for silence, so an idle connection costs some memory and no
timer.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater

from cod.flows.vcms import vcms
from cod.model import Effect, SiteRef
from cod.net.nmp.limits import MOST_CONNECTIONS, MOST_STRANGERS, Quotas
from cod.net.nmp.session import ShownIdentity, VcmSession
from cod.net.quietlog import QuietLog
from cod.periodic import Timer
from cod.pool import Pool
from cod.security.ca import Ca

SWEEP = 2.0
POLL = 0.5
PARTING = 2.0  # seconds in which connections end when the server is stopped

log = logging.getLogger("cod.nmp")


class NmpServer(Service):
    """The server for VCMs, on the ports that `listen` opens.

    listen     called with the factory; opens the ports and returns them
    identity, authority   see `net.nmp.session.Server`
    server     this server's name among those that share its database
    """

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        server: str,
        listen: Callable[[Any], Sequence[Any]],
        identity: Callable[[Any], ShownIdentity],
        clock: Callable[[], float],
        effects: Callable[[Iterable[Effect]], object],
        authority: Ca | None = None,
    ) -> None:
        self.reactor, self.pool, self.site, self.server = reactor, pool, site, server
        self.clock, self.effects = clock, effects
        self.identity, self.authority = identity, authority
        self.sessions: dict[int, VcmSession] = {}
        self.connected: set[VcmSession] = set()
        self.strangers: Counter[str] = Counter()
        self.quiet, self.quotas = QuietLog(log, reactor.seconds), Quotas(reactor.seconds)
        self._listen = listen
        self.ports: Sequence[Any] = ()
        self._timers = [Timer(reactor, POLL, self.poll), Timer(reactor, SWEEP, self._sweep)]
        self._looking = self._again = False
        self._shown: Deferred[None] = succeed(None)

    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]
        self.pool.run(vcms.started, self.server, self.clock()).addErrback(
            lambda failure: log.warning(
                "former connections were not closed: %s", failure.getErrorMessage()
            )
        )
        self.ports = self._listen(_Sessions(self))
        for timer in self._timers:
            timer.startService()

    async def _stop(self) -> None:
        for port in self.ports:
            await port.stopListening()
        for session in list(self.connected):
            session.leave("this server is being stopped")
        end = self.reactor.seconds() + PARTING
        while self.connected and self.reactor.seconds() < end:
            await deferLater(self.reactor, 0.02)
        for session in list(self.connected):
            session.transport.abortConnection()

    def stopService(self) -> Deferred[None]:
        super().stopService()  # type: ignore[no-untyped-call]
        for timer in self._timers:
            timer.stopService()
        return ensureDeferred(self._stop())

    def poll(self) -> None:
        """Look for messages to the VCMs that are connected to this server."""
        if self._looking:
            self._again = True
        elif self.sessions and self.running:
            self._looking = True
            ensureDeferred(self._look())

    async def _look(self) -> None:
        asked = dict(self.sessions)
        try:
            sent = {
                one: (session.greeted, session.sent if session.has_room() else None)
                for one, session in asked.items()
            }
            messages, over = await self.pool.read(vcms.fresh, self.server, sent)
            for vcluster_id, reason in over.items():
                asked[vcluster_id].leave(reason)
            for row in messages:
                # The messages were read for this session: a newer session of the same VCM has read
                # its own.
                session = asked[row.vcluster_id]
                if not session.has_room() or row.sequence <= session.sent:
                    continue
                try:
                    session.tell(row)
                except Exception:
                    log.exception(
                        "message %d for vcluster %d cannot be sent", row.sequence, row.vcluster_id
                    )
                    session.leave("a message cannot be sent")
            self._again = self._again or len(messages) >= vcms.MOST_EACH  # there may be more
        except Exception as error:
            log.error(
                "what VCMs are owed could not be read: %s",
                error,
                exc_info=not self.pool.is_away(error),
            )
        finally:
            self._looking, again, self._again = False, self._again, False
            if again:
                self.poll()

    def _sweep(self) -> None:
        now = self.reactor.seconds()
        for session in list(self.connected):
            try:
                session.look_after(now)
            except Exception:
                # a bug that one connection triggers must not keep the others from the sweep
                log.exception("VCM at %s is cut off", session.address)
                session.transport.abortConnection()
        self.quiet.flush()
        self.quotas.forget(self.sessions)
        if self.sessions and self._shown.called:
            self._shown = ensureDeferred(self._show())

    async def _show(self) -> None:
        """Send VCMs the progress of disks that are being written. A failure does no harm."""
        try:
            for vcluster_id, node, phase, done, total in await self.pool.read(
                vcms.progress, self.server
            ):
                if (session := self.sessions.get(vcluster_id)) is not None:
                    session.show(node, phase, done, total)
        except Exception as error:
            log.debug("how far disks are written could not be read: %s", error)


class _Sessions(Factory):
    """Makes a session for each connection."""

    noisy = False

    def __init__(self, server: NmpServer) -> None:
        self._server = server

    def buildProtocol(self, addr: IAddress | None) -> VcmSession | None:
        """Return a session; None if there are too many connections. Connections that have not said
        hello have a limit of their own, so that they leave room for VCMs."""
        address = str(getattr(addr, "host", ""))
        strangers = self._server.strangers.get(address, 0)
        if len(self._server.connected) >= MOST_CONNECTIONS or strangers >= MOST_STRANGERS:
            self._server.quiet.warning(
                (address, "room"),
                f"a connection from {address} is refused: "
                f"{strangers} others from there have not said hello",
            )
            return None
        return VcmSession(self._server, address)
