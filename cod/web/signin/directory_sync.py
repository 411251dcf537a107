"""Asks the LDAP directory from time to time whether it still knows those who are signed in here, or
have tokens or keys: who was removed or locked there shall not be let in until a session or a token
runs out.

A directory that is away says nothing about anybody: all stays as it is. Each server with a manager
part asks; that two do harms nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from twisted.internet.threads import deferToThreadPool

from cod.flows.people import directory_sync
from cod.model import Refused, SiteRef
from cod.periodic import Periodic
from cod.pool import Pool
from cod.web.signin import directory

PERIOD = 60.0  # seconds between looks at the clock
AGAIN = 300.0  # seconds after which a directory that was away is asked again

log = logging.getLogger("cod.ldap")


class DirectorySync(Periodic):
    """One server's. How often it is asked is `site.signin.ldap.check`, which SIGHUP may change."""

    def __init__(self, reactor: Any, pool: Pool, site: SiteRef, clock: Callable[[], float]) -> None:
        super().__init__(reactor, pool, log, "who has left the directory is not known", PERIOD)
        self._reactor, self._site, self._clock = reactor, site, clock
        self._last = float("-inf")  # when the directory was asked
        self._pause = 0.0

    async def look(self) -> None:
        """Ask, if it is time."""
        rules, now = self._site.current.signin.ldap, self._clock()
        pause = self._pause or rules.check
        # the clock may have been set back
        if not rules.url or not rules.check or 0 <= now - self._last < pause:
            return
        self._last, self._pause = now, 0.0
        try:
            await self._ask(now)
        except Refused:  # `directory` has said why
            self._pause = AGAIN

    async def _ask(self, since: float) -> None:
        asked = await self._pool.read(directory_sync.asked, now=since)
        if not asked:
            return
        subjects = [user.subject for user in asked if user.subject]
        known = await deferToThreadPool(
            self._reactor,
            self._reactor.getThreadPool(),
            directory.known,
            self._site.current.signin.ldap,
            subjects,
        )
        gone, back = await self._pool.run(
            directory_sync.put_down, asked=asked, known=known, since=since, now=self._clock()
        )
        for name in gone:
            log.warning(
                "%s is not in the directory any more: signed out, and let in no more until it is",
                name,
            )
        for name in back:
            log.info("%s is in the directory again", name)
