"""Reserves, once a minute, the clusters of series that start within four weeks. Refused ones are
tried again every ten minutes, until their starts.

Each server with a manager part does it; when two do it at once, there is no harm: each start is
decided once, in a transaction of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from cod.flows.scheduler import series, vclusters
from cod.model import SiteRef
from cod.periodic import Periodic
from cod.pool import Pool

PERIOD = 60.0  # seconds between looks
AGAIN = 600.0  # seconds between tries of what was refused

log = logging.getLogger("cod.series")


class SeriesKeeper(Periodic):
    """One server's reservation of the clusters of series."""

    def __init__(self, reactor: Any, pool: Pool, site: SiteRef, clock: Callable[[], float]) -> None:
        super().__init__(reactor, pool, log, "clusters of series are not reserved", PERIOD)
        self._site, self._clock = site, clock
        self._tried_at = 0.0

    async def look(self) -> None:
        """Decide the starts that are due. A failure for one start does not affect the others."""
        now = self._clock()
        again = not 0.0 <= now - self._tried_at < AGAIN  # below 0: the clock was set back
        if again:
            self._tried_at = now
        for series_id, start in await self._pool.read(series.due, now, again):
            if not self.running:
                return
            try:
                await self._pool.run(
                    series.reserve,
                    series_id=series_id,
                    start=start,
                    create=vclusters.create,
                    site=self._site.current,
                    now=self._clock(),
                )
            except Exception as error:
                if not self._pool.is_race(error):
                    log.exception("a start of series %d cannot be decided", series_id)
