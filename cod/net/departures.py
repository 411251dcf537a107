"""Asks the LDAP directory from time to time whether it still knows those who are signed in here, or have tokens or
keys: who was removed or locked there shall not be let in until a session or a token runs out.

A directory that is away says nothing about anybody: all stays as it is. Each server with a manager part asks; that two
do harms nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThreadPool

from cod.flows import departures
from cod.model import Refused, Site
from cod.net import directory
from cod.pool import Pool

PERIOD = 60.0  # seconds between looks at the clock
AGAIN = 300.0  # seconds after which a directory that was away is asked again

log = logging.getLogger("cod.ldap")


class Departures(Service):
    """One server's. The period is `site.signin.ldap.check`, which SIGHUP may change."""

    def __init__(self, reactor: Any, pool: Pool, site: Site, clock: Callable[[], float]) -> None:
        self._reactor, self._pool, self._site, self._clock = reactor, pool, site, clock
        self._loop = LoopingCall(lambda: ensureDeferred(self.look()))
        self._loop.clock = reactor
        self._last = float("-inf")  # when the directory was asked
        self._pause = 0.0
        self._done: Deferred[Any] | None = None

    def startService(self) -> None:
        """Begin: a minute from now it is asked first."""
        super().startService()  # type: ignore[no-untyped-call]
        self._done = self._loop.start(PERIOD, now=False)

    def stopService(self) -> Deferred[Any] | None:
        """End, after the question that is under way."""
        super().stopService()  # type: ignore[no-untyped-call]
        if self._loop.running:
            self._loop.stop()
        return self._done

    async def look(self) -> None:
        """Ask, if it is time."""
        rules, now = self._site.signin.ldap, self._clock()
        pause = self._pause or rules.check
        if not rules.url or not rules.check or 0 <= now - self._last < pause:  # the clock may have been set back
            return
        self._last, self._pause = now, 0.0
        try:
            await self._ask(now)
        except Refused:  # `directory` has said why
            self._pause = AGAIN
        except Exception as error:
            log.error("who has left the directory is not known: %s", error, exc_info=not self._pool.is_away(error))

    async def _ask(self, since: float) -> None:
        asked = await self._pool.read(departures.asked, now=since)
        if not asked:
            return
        subjects = [user.subject for user in asked if user.subject]
        known = await deferToThreadPool(
            self._reactor, self._reactor.getThreadPool(), directory.known, self._site.signin.ldap, subjects)
        gone, back = await self._pool.run(
            departures.put_down, asked=asked, known=known, since=since, now=self._clock())
        for name in gone:
            log.warning("%s is not in the directory any more: signed out, and let in no more until it is", name)
        for name in back:
            log.info("%s is in the directory again", name)
