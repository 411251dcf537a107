"""Counts energy: once a minute it records how much energy nodes have used since the last time, and
which holders had them.

Each server with a manager part does it; by a mark in the database, each minute is recorded once.
While no server runs, no time is lost: the next server to start records it, with the nodes as they
are then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from cod.flows.nodes import energy
from cod.flows.scheduler import usage
from cod.model import SiteRef
from cod.periodic import Periodic
from cod.pool import Pool

PERIOD = 60.0  # seconds between counts

log = logging.getLogger("cod.energy")


class Accountant(Periodic):
    """One server's counter of energy."""

    def __init__(self, reactor: Any, pool: Pool, site: SiteRef, clock: Callable[[], float]) -> None:
        super().__init__(reactor, pool, log, "energy is not put down", PERIOD, at_once=True)
        self._site, self._clock = site, clock

    async def look(self) -> None:
        """Record the energy that has been used since the last look, and who holds which nodes."""
        site = self._site.current
        reading = await self._pool.read(energy.count, site.energy, self._clock())
        if reading is None:
            return
        if reading.clock_reset:
            log.warning(
                "energy was last counted at %.0f, now it is %.0f: the clock was wrong, counting"
                " begins now",
                reading.before,
                reading.now,
            )
        await self._pool.run(energy.note, reading, site.policy, site.energy)
        counted = await self._pool.read(usage.count, self._clock())
        if counted is not None:
            await self._pool.run(usage.note, counted)
