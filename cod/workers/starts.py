"""Forecasts when waiting requests will start, and compares the forecasts with what happens.

Forecasts are computed in a process of their own, which runs when nothing else needs the processor,
so that no pass waits for it. The process gets the site as a pass sees it, at most once in a while:
after each run there is a pause of `REST` times the run's length. Only the server that holds the
claim 'starts' does it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred

from cod.childprocess import ChildProcess
from cod.claimkeeper import ClaimKeeper
from cod.flows.scheduler import starts
from cod.model import SiteRef
from cod.periodic import Periodic
from cod.pool import Pool

PERIOD = 5.0  # seconds between looks
REST = 4.0
AGAIN = 300.0  # seconds after which starts are reckoned anew though nothing seems to have changed
CLAIM = 60.0  # seconds that the claim outlives its owner's last sign
BATCH = 500  # starts that are stored in one transaction

log = logging.getLogger("cod.starts")


class StartForecasts(Periodic):
    """One server's forecasts of starts. `program`: the process's command, as a list of words."""

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        server: str,
        clock: Callable[[], float],
        program: Sequence[str],
    ) -> None:
        super().__init__(reactor, pool, log, "the starts of requests are not told", PERIOD)
        self._reactor, self._site, self._clock = reactor, site, clock
        self._program = program
        self._keeper = ClaimKeeper(reactor, pool, "starts", server, CLAIM)
        self._seen: starts.Observed | None = None
        self._next = self._rests = 0.0
        self._child: ChildProcess | None = None

    def stopService(self) -> Deferred[Any]:
        """End at once; a forecast that is being computed is dropped."""
        done = super().stopService()
        if self._child is not None:
            self._child.kill()
        return done

    async def look(self) -> None:
        """Make the forecasts anew if something has changed."""
        now, began = self._clock(), self._reactor.seconds()
        if not await self._hold(now) or began < self._rests:  # keeps the claim in a pause
            return
        seen = await self._pool.snapshot(starts.look, self._site.current, now, self._seen)
        before, self._seen = self._seen, seen
        if before is not None and seen.site is before.site and began < self._next:
            return
        self._next = began + AGAIN
        if seen.site.requests:
            await self._tell(starts.question(seen, self._site.current, now))
        if not self.running or not await self._hold(self._clock()):
            return
        await self._pool.run(starts.settle, self._clock())
        self._rests = self._reactor.seconds() + REST * (self._reactor.seconds() - began)

    async def _hold(self, now: float) -> bool:
        return await self._keeper.keep(now) is not None

    async def _tell(self, question: bytes) -> None:
        child, program = ChildProcess(question), self._program[0]
        self._reactor.spawnProcess(child, program, list(self._program), dict(os.environ))
        self._child = child
        status, output, trouble = await child.ended
        self._child = None
        if not self.running or not await self._hold(self._clock()):
            return
        if status != 0:
            log.error(
                "the process that reckons starts failed: %s",
                trouble[-500:].decode(errors="replace"),
            )
            return
        changed = await self._pool.read(starts.changed, starts.answer(output))
        for first in range(0, len(changed), BATCH):
            await self._pool.run(starts.tell, changed[first : first + BATCH], self._clock())
