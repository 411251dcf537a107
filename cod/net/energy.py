"""The energy accounts' clockwork: once a minute it puts down what nodes have used since; and who held them.

Each server with a manager part does it; the mark in the database sees to it that each minute is put down once. While
none runs, time is not lost: the next to come puts it down, with the nodes as it finds them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import LoopingCall

from cod.flows import energy, usage
from cod.model import Site
from cod.pool import Pool

PERIOD = 60.0  # seconds between counts

log = logging.getLogger("cod.energy")


class Accountant(Service):
    """One server's accountant."""

    def __init__(self, reactor: Any, pool: Pool, site: Site, clock: Callable[[], float]) -> None:
        self._pool, self._site, self._clock = pool, site, clock
        self._loop = LoopingCall(lambda: ensureDeferred(self._count()))
        self._loop.clock = reactor
        self._done: Deferred[Any] | None = None

    def startService(self) -> None:
        """Begin."""
        super().startService()  # type: ignore[no-untyped-call]
        self._done = self._loop.start(PERIOD)

    def stopService(self) -> Deferred[Any] | None:
        """End, after the count that is under way."""
        super().stopService()  # type: ignore[no-untyped-call]
        if self._loop.running:
            self._loop.stop()
        return self._done

    async def _count(self) -> None:
        try:
            reading = await self._pool.read(energy.count, self._site.energy, self._clock())
            if reading is None:
                return
            if reading.anew:
                log.warning("energy was last counted at %.0f, now it is %.0f: the clock was wrong, counting begins now",
                            reading.before, reading.now)
            await self._pool.run(energy.note, reading)
            await self._count_pool()
        except Exception as error:
            if not self._pool.is_race(error):
                log.error("energy is not put down: %s", error, exc_info=not self._pool.is_away(error))

    async def _count_pool(self) -> None:
        counted = await self._pool.read(usage.count, self._clock())
        if counted is not None:
            await self._pool.run(usage.note, counted)
