"""Tells the secondaries which zones have changed (NOTIFY, RFC 1996), until they have answered.

Serials are compared periodically, so each edge notices every change, whichever server or process
made it. At its start it notifies of all zones, since it does not know what was missed.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from time import time
from typing import Any

import prometheus_client as prometheus
from twisted.internet.protocol import DatagramProtocol

from cod.flows.boot import zones
from cod.model import SiteRef
from cod.net.dns import transferkey, tsig
from cod.periodic import Periodic
from cod.pool import Pool
from cod.wire import dns as wire

PERIOD = 2.0  # seconds between looks
# seconds until a NOTIFY without an answer is sent again, or given up
RETRIES = (2.0, 4.0, 8.0, 16.0, 32.0)
AT_ONCE = 100  # unanswered at a time, of each secondary

NOTIFIES = prometheus.Counter(
    "cod_dns_notifies_total", "DNS zone changes that secondaries were told of", ["result"]
)

log = logging.getLogger("cod.dns")

Target = tuple[str, tuple[str, int]]
"""A zone, and the secondary that is told."""


class ZoneNotifier(Periodic):
    """A service that looks for changed zones, and notifies the site's secondaries of them."""

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        clock: Callable[[], float] = time,
        *,
        period: float = PERIOD,
    ) -> None:
        super().__init__(reactor, pool, log, "looking for changed zones", period, at_once=True)
        self._reactor, self._site, self._clock = reactor, site, clock
        self._configured = False
        self._notified: dict[Target, int] = {}
        self._waiting: dict[int, Any] = {}
        self._socket = _Answers(self._answered)
        self._port: Any = None
        self._random = random.SystemRandom()

    def startService(self) -> None:
        self._port = self._reactor.listenUDP(0, self._socket)
        super().startService()

    def stopService(self) -> Any:
        """End. Unanswered notifications are sent again at the next start."""
        for _, call in self._waiting.values():
            call.cancel()
        self._waiting.clear()
        port, self._port = self._port, None
        if port is not None:
            port.stopListening()
        return super().stopService()

    async def look(self) -> None:
        """Notify each secondary of the zones whose serials have changed since its last
        notification."""
        site = self._site.current
        if not self._configured:
            await self._pool.run(zones.configured, site, self._clock())
            self._configured = True
        if not site.dns.secondaries:
            return
        found = await self._pool.read(zones.every, site)
        present = {zone.name for zone, _ in found}
        self._notified = {
            target: serial for target, serial in self._notified.items() if target[0] in present
        }
        busy = {target for target, _ in self._waiting.values()}
        unanswered = Counter(secondary for _, secondary in busy)
        for zone, serial in found:
            for secondary in site.dns.secondaries:
                target = (zone.name, secondary)
                if (
                    self._notified.get(target) != serial
                    and target not in busy
                    and unanswered[secondary] < AT_ONCE
                ):
                    unanswered[secondary] += 1
                    self._notified[target] = serial  # before an answer: `_tell` repeats by itself
                    self._tell(target, list(RETRIES))

    def _tell(self, target: Target, waits: list[float]) -> None:
        if self._port is None:
            return
        zone, secondary = target
        if not waits:
            NOTIFIES.labels("unanswered").inc()
            log.warning(
                "the secondary %s does not answer that the zone %s has changed: it looks by itself"
                " within %d s",
                secondary[0],
                zone,
                wire.REFRESH,
            )
            return
        number = self._random.getrandbits(16)
        while number in self._waiting:
            number = self._random.getrandbits(16)
        try:
            key = transferkey.read(self._site.current)
            message = wire.notify(zone, number)
            if key is not None:
                message = tsig.MessageSigner(key, self._clock()).sign(message)
            self._socket.transport.write(message, secondary)
        except (OSError, transferkey.NoKey) as error:
            log.debug("no NOTIFY to %s: %s", secondary[0], error)
        again = self._reactor.callLater(waits[0], self._again, number, waits[1:])
        self._waiting[number] = target, again

    def _again(self, number: int, waits: list[float]) -> None:
        target, _ = self._waiting.pop(number)
        self._tell(target, waits)

    def _answered(self, data: bytes, peer: tuple[str, int]) -> None:
        answer = wire.notified(data)
        if answer is None or answer[0] not in self._waiting:
            return
        number, taken = answer
        (zone, secondary), again = self._waiting[number]
        if secondary != peer[:2]:
            return
        NOTIFIES.labels("answered" if taken else "refused").inc()
        if not taken:
            log.warning("the secondary %s refuses NOTIFYs of the zone %s", peer[0], zone)
        del self._waiting[number]
        again.cancel()


class _Answers(DatagramProtocol):
    """The socket that sends NOTIFY messages and receives their answers."""

    transport: Any

    def __init__(self, answered: Callable[[bytes, tuple[str, int]], object]) -> None:
        self._answered = answered

    def datagramReceived(self, data: bytes, addr: Any) -> None:
        self._answered(data, addr)

    def connectionRefused(self) -> None:
        """Do nothing: the time limit ends the attempt."""
