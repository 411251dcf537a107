"""Services that do something periodically, on Twisted's `TimerService`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from logging import Logger
from typing import Any

from twisted.application.internet import TimerService
from twisted.internet.defer import Deferred

from cod.pool import Pool


def every(reactor: Any, period: float, function: Callable[[], object]) -> TimerService:
    """Return a service that calls `function` at its start and every `period` seconds by the clock of `reactor`."""
    timer = TimerService(period, function)
    timer.clock = reactor
    return timer


class Periodic(TimerService, ABC):
    """A service that calls `look` every `period` seconds. An exception of `look` is logged and the next call still
    happens; a transaction that another server won is not an error. `stopService` waits for the call under way.

    reactor  the clock
    trouble  the words that begin the log line of an exception
    at_once  call `look` at the start; otherwise one period later, when a freshly booted host has set its clock
    """

    def __init__(
        self, reactor: Any, pool: Pool, log: Logger, trouble: str, period: float, *, at_once: bool = False
    ) -> None:
        super().__init__(period, self._tick)  # type: ignore[no-untyped-call]
        self.clock = reactor
        self._pool, self._log, self._trouble, self._at_once = pool, log, trouble, at_once

    @abstractmethod
    async def look(self) -> None:
        """Do what there is to do now."""

    def startService(self) -> None:
        """Begin."""
        self._waits = not self._at_once
        super().startService()  # type: ignore[no-untyped-call]

    def stopService(self) -> Deferred[Any]:
        """End, after the look that is under way, which can see by `running` that it should come to its end."""
        done: Deferred[Any] = super().stopService()  # type: ignore[no-untyped-call]
        self.running = False
        return done

    def _tick(self) -> Deferred[None] | None:
        if self._waits:  # the timer's first call is at its start
            self._waits = False
            return None
        return Deferred.fromCoroutine(self._look())

    async def _look(self) -> None:
        try:
            await self.look()
        except Exception as error:
            if not self._pool.is_race(error):
                self._log.error("%s: %s", self._trouble, error, exc_info=not self._pool.is_away(error))
