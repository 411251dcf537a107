"""Looks whether freshly booted systems answer, or their time has come, where their template has a readiness check.

Every second each node that waits is looked at once: a TCP connection, and GET of the template's path if it has one.
How a check ends does not matter unless it ends well; the deadline of state *boot* is what ends a node's patience.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import Protocol
from twisted.internet.task import LoopingCall

from cod.flows.nodes import readiness
from cod.flows.nodes.readiness import Check
from cod.model import Effect, Site
from cod.pool import Pool

PERIOD = 1.0  # seconds between looks
PATIENCE = 5.0  # seconds for one check
AT_ONCE = 200  # checks under way

log = logging.getLogger("cod.readiness")


class Prober(Service):
    """The checks of one server. `effects` carries out the wake-ups that flows return."""

    def __init__(
        self, reactor: Any, pool: Pool, site: Site, clock: Callable[[], float],
        effects: Callable[[Iterable[Effect]], object],
    ) -> None:
        self._reactor, self._pool, self._site = reactor, pool, site
        self._clock, self._effects = clock, effects
        self._under_way: set[int] = set()
        self._loop = LoopingCall(lambda: ensureDeferred(self._look()))
        self._loop.clock = reactor

    def startService(self) -> None:
        """Begin."""
        super().startService()  # type: ignore[no-untyped-call]
        self._loop.start(PERIOD, now=False)

    def stopService(self) -> None:
        """End; checks under way come to nothing."""
        super().stopService()  # type: ignore[no-untyped-call]
        if self._loop.running:
            self._loop.stop()

    async def _look(self) -> None:
        try:
            waiting = await self._pool.read(readiness.waiting, self._clock())
        except Exception as error:
            log.error("cannot look which nodes wait: %s", error, exc_info=not self._pool.is_away(error))
            return
        for check in waiting:
            if check.node_id not in self._under_way and len(self._under_way) < AT_ONCE:
                self._under_way.add(check.node_id)
                ensureDeferred(self._check(check))

    async def _check(self, check: Check) -> None:
        try:
            if not check.port or await answers(self._reactor, check):
                self._effects(await self._pool.run(readiness.answered, check, self._site.policy, self._clock()))
        except Exception:
            log.exception("the readiness check of %s failed", check.name)
        finally:
            self._under_way.discard(check.node_id)


async def answers(reactor: Any, check: Check) -> bool:
    """Does the system behind `check` answer, within `PATIENCE` seconds?"""
    asker = _Asker(check)
    endpoint = TCP4ClientEndpoint(reactor, check.address, check.port, timeout=PATIENCE)
    connecting = connectProtocol(endpoint, asker)
    connecting.addErrback(lambda _: asker.say(False))
    late = reactor.callLater(PATIENCE, asker.say, False)
    try:
        return await asker.end
    finally:
        if late.active():
            late.cancel()
        if asker.transport is not None:
            asker.transport.abortConnection()


class _Asker(Protocol):
    """One connection: asks for the path, reads the status line, fires `end`."""

    transport: Any

    def __init__(self, check: Check) -> None:
        self._check, self._head = check, b""
        self.end: Deferred[bool] = Deferred()

    def connectionMade(self) -> None:
        """Ask, or be content."""
        if not self._check.path:
            self.say(True)
            return
        self.transport.write(
            f"GET {self._check.path} HTTP/1.0\r\nHost: {self._check.address}\r\nConnection: close\r\n\r\n".encode())

    def dataReceived(self, data: bytes) -> None:
        """The status line tells."""
        self._head += data[: 64 - len(self._head)]
        if len(self._head) >= 12:
            self.say(self._head.startswith(b"HTTP/1.") and self._head[9:10] in (b"2", b"3"))

    def connectionLost(self, reason: Any = None) -> None:
        """Too early: no answer."""
        self.say(False)

    def say(self, true: bool) -> None:
        """The result, once."""
        if not self.end.called:
            self.end.callback(true)
