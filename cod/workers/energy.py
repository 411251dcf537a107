"""The energy accounts' clockwork: once a minute it puts down what nodes have used since; and who
held them.

Each server with a manager part does it; the mark in the database sees to it that each minute is put
down once. While none runs, time is not lost: the next to come puts it down, with the nodes as it
finds them.
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
    """One server's accountant."""

    def __init__(self, reactor: Any, pool: Pool, site: SiteRef, clock: Callable[[], float]) -> None:
        super().__init__(reactor, pool, log, "energy is not put down", PERIOD, at_once=True)
        self._site, self._clock = site, clock

    async def look(self) -> None:
        """Count what has been used since, and who holds what."""
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
