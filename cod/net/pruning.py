"""Once an hour what is old is deleted, in small transactions with pauses between them: nobody has to wait for it.

Each server with a manager part does it; that two do it at once harms nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.internet.task import LoopingCall, deferLater

from cod.flows import pruning
from cod.pool import Pool

PERIOD = 3600.0  # seconds between looks
PAUSE = 0.2  # seconds between transactions

log = logging.getLogger("cod.pruning")


class Pruner(Service):
    """One server's. `keep`: seconds for which what is done is kept; 0: for ever."""

    def __init__(self, reactor: Any, pool: Pool, keep: float, clock: Callable[[], float]) -> None:
        self._reactor, self._pool, self._keep, self._clock = reactor, pool, keep, clock
        self._loop = LoopingCall(lambda: ensureDeferred(self._prune()))
        self._loop.clock = reactor
        self._pause: Deferred[None] | None = None
        self._done: Deferred[Any] | None = None

    def startService(self) -> None:
        """Begin; the first look is an hour away, when the clock will be right."""
        super().startService()  # type: ignore[no-untyped-call]
        if self._keep:
            self._done = self._loop.start(PERIOD, now=False)

    def stopService(self) -> Deferred[Any] | None:
        """End, after the transaction that is under way."""
        super().stopService()  # type: ignore[no-untyped-call]
        if self._loop.running:
            self._loop.stop()
        if self._pause is not None:
            self._pause.cancel()
        return self._done

    async def _prune(self) -> None:
        try:
            before = self._clock() - self._keep
            for table in pruning.TABLES:
                if deleted := await self._table(table, before):
                    log.info("deleted %d old rows of %s", deleted, table)
        except Exception as error:
            log.error("old rows are not deleted: %s", error, exc_info=not self._pool.is_away(error))

    async def _table(self, table: str, before: float) -> int:
        deleted, batch = 0, pruning.BATCH
        while batch == pruning.BATCH and self.running:
            batch = await self._pool.run(pruning.prune, table, before)
            deleted += batch
            await self._rest()
        return deleted

    async def _rest(self) -> None:
        self._pause = deferLater(self._reactor, PAUSE, lambda: None)
        with suppress(CancelledError):
            await self._pause
        self._pause = None
