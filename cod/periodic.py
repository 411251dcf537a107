"""Services that do something periodically, on Twisted's `TimerService`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from logging import Logger
from typing import Any

from twisted.application.internet import TimerService
from twisted.internet.defer import Deferred, succeed

from cod.pool import Pool


class Timer(TimerService):
    """A service that calls `function` every `period` seconds by the clock of `reactor`.

    at_once  also at the start
    """

    def __init__(
        self, reactor: Any, period: float, function: Callable[[], object], *, at_once: bool = False
    ) -> None:
        super().__init__(period, self._tick)  # type: ignore[no-untyped-call]
        self.clock = reactor
        self._function, self._at_once = function, at_once

    def startService(self) -> None:
        """Start the timer."""
        self._waits = not self._at_once
        super().startService()  # type: ignore[no-untyped-call]

    def stopService(self) -> Deferred[Any]:
        """Stop the timer, after the call under way. That call can see by `running` that it should
        end soon."""
        if not self.running:
            return succeed(None)
        done: Deferred[Any] = super().stopService()  # type: ignore[no-untyped-call]
        self.running = False
        return done

    def _tick(self) -> object:
        if self._waits:  # the timer's first call is at its start
            self._waits = False
            return None
        return self._function()


class Periodic(Timer, ABC):
    """A service that calls `look` every `period` seconds. An exception of `look` is logged and the
    next call still happens; a transaction that another server won is not an error. `stopService`
    waits for the call under way.

    reactor  the clock
    trouble  the words that begin the log line of an exception
    at_once  call `look` at the start; otherwise one period later, when a freshly booted host has
             set its clock
    """

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        log: Logger,
        trouble: str,
        period: float,
        *,
        at_once: bool = False,
    ) -> None:
        super().__init__(
            reactor, period, lambda: Deferred.fromCoroutine(self._look()), at_once=at_once
        )
        self._pool, self._log, self._trouble = pool, log, trouble

    @abstractmethod
    async def look(self) -> None:
        """Do the work that is due now."""

    async def _look(self) -> None:
        try:
            await self.look()
        except Exception as error:
            if not self._pool.is_race(error):
                self._log.error(
                    "%s: %s", self._trouble, error, exc_info=not self._pool.is_away(error)
                )


class Claimer(Periodic):
    """A periodic service whose looks begin work that continues after them (`begin`), and that can
    be told to look now (`wake`). `stopService` waits for all work under way."""

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        log: Logger,
        trouble: str,
        period: float,
        *,
        at_once: bool = True,
    ) -> None:
        super().__init__(reactor, pool, log, trouble, period, at_once=at_once)
        self._work: set[Deferred[None]] = set()
        self._looking = self._again = False

    def wake(self) -> None:
        """Look now. While a look is under way: look again after it."""
        self._again = True
        if self.running and not self._looking:
            self.begin(self._look())

    def begin(self, work: Coroutine[Deferred[Any], Any, None]) -> None:
        """Run the coroutine; `stopService` waits until it has ended. The coroutine should log its
        own errors."""
        ended: Deferred[None] = Deferred()
        self._work.add(ended)

        def end(_result: object) -> None:
            self._work.discard(ended)
            ended.callback(None)

        Deferred.fromCoroutine(work).addBoth(end)

    def stopService(self) -> Deferred[Any]:
        """Begin no more work; fires when the work under way has ended."""
        return Deferred.fromCoroutine(self._ended(super().stopService()))

    async def _ended(self, looked: Deferred[Any]) -> None:
        await looked
        while self._work:
            await next(iter(self._work))

    async def _look(self) -> None:
        if self._looking:
            return
        self._looking = self._again = True
        while self._again and self.running:
            self._again = False
            await super()._look()
        self._looking = False
