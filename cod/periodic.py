"""The base class of services that do something periodically."""

from __future__ import annotations

from abc import ABC, abstractmethod
from logging import Logger
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import LoopingCall

from cod.pool import Pool


class Periodic(Service, ABC):
    """A service that calls `look` every `period` seconds. An exception of `look` is logged and the next call still
    happens; a transaction that another server won is not an error. `stopService` waits for the call under way.

    reactor  the clock
    trouble  the words that begin the log line of an exception
    at_once  call `look` at the start; otherwise one period later, when a freshly booted host has set its clock
    """

    def __init__(
        self, reactor: Any, pool: Pool, log: Logger, trouble: str, period: float, *, at_once: bool = False
    ) -> None:
        self._pool, self._log, self._trouble, self._period, self._at_once = pool, log, trouble, period, at_once
        self._loop = LoopingCall(lambda: ensureDeferred(self._look()))
        self._loop.clock = reactor
        self._done: Deferred[Any] | None = None

    @abstractmethod
    async def look(self) -> None:
        """Do what there is to do now."""

    def startService(self) -> None:
        """Begin."""
        super().startService()  # type: ignore[no-untyped-call]
        self._done = self._loop.start(self._period, now=self._at_once)

    def stopService(self) -> Deferred[Any] | None:
        """End, after the look that is under way."""
        super().stopService()  # type: ignore[no-untyped-call]
        if self._loop.running:
            self._loop.stop()
        return self._done

    async def _look(self) -> None:
        try:
            await self.look()
        except Exception as error:
            if not self._pool.is_race(error):
                self._log.error("%s: %s", self._trouble, error, exc_info=not self._pool.is_away(error))
