"""Once an hour: do certificates of VCMs end, or that of the site's authority, without having been renewed?

Each server with a manager part looks; the rows see to it that everybody is told once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import LoopingCall

from cod.flows import certificates
from cod.pool import Pool

PERIOD = 3600.0  # seconds between looks

log = logging.getLogger("cod.certificates")


class CertificateWatch(Service):
    """One server's. `authority_ends_at`: when the authority's certificate does, as it is now. Raises OSError."""

    def __init__(
        self, reactor: Any, pool: Pool, authority_ends_at: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self._pool, self._ends_at, self._clock = pool, authority_ends_at, clock
        self._loop = LoopingCall(lambda: ensureDeferred(self._look()))
        self._loop.clock = reactor
        self._done: Deferred[Any] | None = None

    def startService(self) -> None:
        """Begin; the first look is an hour away, when the clock will be right: who is told is told once."""
        super().startService()  # type: ignore[no-untyped-call]
        self._done = self._loop.start(PERIOD, now=False)

    def stopService(self) -> Deferred[Any] | None:
        """End, after the look that is under way."""
        super().stopService()  # type: ignore[no-untyped-call]
        if self._loop.running:
            self._loop.stop()
        return self._done

    async def _look(self) -> None:
        try:
            told = await self._pool.run(certificates.look, self._ends_at(), self._clock())
            if told:
                log.warning("%d certificates end, or have ended: see the notices", told)
        except Exception as error:
            if not self._pool.is_race(error):
                log.error("certificates' ends are not looked for: %s", error, exc_info=not self._pool.is_away(error))
