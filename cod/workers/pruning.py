"""Deletes old rows once an hour, in small transactions with pauses between them, so that nobody has
to wait for it.

Each server with a manager part does it; when two do it at once, there is no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater

from cod.flows import pruning
from cod.model import SiteRef
from cod.periodic import Periodic
from cod.pool import Pool

PERIOD = 3600.0  # seconds between looks
PAUSE = 0.2  # seconds between transactions

log = logging.getLogger("cod.pruning")


class Pruner(Periodic):
    """One server's deletion of old rows. `keep`: seconds for which the rows of ended things are
    kept; 0: for ever."""

    def __init__(
        self, reactor: Any, pool: Pool, site: SiteRef, keep: float, clock: Callable[[], float]
    ) -> None:
        super().__init__(reactor, pool, log, "old rows are not deleted", PERIOD)
        self._reactor, self._site, self._keep, self._clock = reactor, site, keep, clock
        self._pause: Deferred[None] | None = None

    def stopService(self) -> Deferred[Any]:
        """End, after the transaction under way."""
        done = super().stopService()
        if self._pause is not None:
            self._pause.cancel()
        return done

    async def look(self) -> None:
        now, new_time = self._clock(), self._site.current.policy.new_time
        if new_time and (forgotten := await self._batches(pruning.forget_machines, now - new_time)):
            log.info("forgot %d machines that asked to network-boot and never reported", forgotten)
        for table in pruning.TABLES if self._keep else ():
            if deleted := await self._batches(pruning.prune, table, now - self._keep):
                log.info("deleted %d old rows of %s", deleted, table)

    async def _batches(self, flow: Callable[..., int], *arguments: object) -> int:
        deleted, batch = 0, pruning.BATCH
        while batch == pruning.BATCH and self.running:
            batch = await self._pool.run(flow, *arguments)
            deleted += batch
            await self._rest()
        return deleted

    async def _rest(self) -> None:
        self._pause = deferLater(self._reactor, PAUSE, lambda: None)
        with suppress(CancelledError):
            await self._pause
        self._pause = None
