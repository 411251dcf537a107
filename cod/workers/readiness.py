"""Checks whether freshly booted systems answer, or their time has come, where their template has a
readiness check.

Every second each waiting node is checked once: by a TCP connection, and by GET of the template's
path if it has one. A failed check has no effect; a node fails by the deadline of state *boot*.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import Protocol

from cod.flows.nodes import readiness
from cod.flows.nodes.readiness import Check
from cod.model import Effect, SiteRef
from cod.periodic import Periodic
from cod.pool import Pool

PERIOD = 1.0  # seconds between looks
PATIENCE = 5.0  # seconds for one check
AT_ONCE = 200  # checks under way

log = logging.getLogger("cod.readiness")


class Prober(Periodic):
    """The readiness checks of one server; those under way when it stops have no effect. `effects`
    carries out the wake-ups that flows return."""

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        clock: Callable[[], float],
        effects: Callable[[Iterable[Effect]], object],
    ) -> None:
        super().__init__(reactor, pool, log, "cannot look which nodes wait", PERIOD)
        self._reactor, self._site, self._clock, self._effects = reactor, site, clock, effects
        self._under_way: set[int] = set()

    async def look(self) -> None:
        for check in await self._pool.read(readiness.waiting, self._clock()):
            if check.node_id not in self._under_way and len(self._under_way) < AT_ONCE:
                self._under_way.add(check.node_id)
                ensureDeferred(self._check(check))

    async def _check(self, check: Check) -> None:
        try:
            if not check.port or await answers(self._reactor, check):
                self._effects(
                    await self._pool.run(
                        readiness.answered, check, self._site.current.policy, self._clock()
                    )
                )
        except Exception:
            log.exception("the readiness check of %s failed", check.name)
        finally:
            self._under_way.discard(check.node_id)


async def answers(reactor: Any, check: Check) -> bool:
    """Return whether the system that `check` names answers within `PATIENCE` seconds."""
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
    """One connection: requests the path, reads the status line, fires `end`."""

    transport: Any

    def __init__(self, check: Check) -> None:
        self._check, self._head = check, b""
        self.end: Deferred[bool] = Deferred()

    def connectionMade(self) -> None:
        if not self._check.path:
            self.say(True)
            return
        self.transport.write(
            f"GET {self._check.path} HTTP/1.0\r\nHost: {self._check.address}\r\nConnection:"
            " close\r\n\r\n".encode()
        )

    def dataReceived(self, data: bytes) -> None:
        self._head += data[: 64 - len(self._head)]
        if len(self._head) >= 12:
            self.say(self._head.startswith(b"HTTP/1.") and self._head[9:10] in (b"2", b"3"))

    def connectionLost(self, reason: Any = None) -> None:
        """Report no answer: the connection was lost too early."""
        self.say(False)

    def say(self, true: bool) -> None:
        if not self.end.called:
            self.end.callback(true)
