"""Carries out changes of volumes: claims due changes, has the file server carry them out, and
records the outcome.

Each change is carried out at least once, unless a newer change replaces it. A file server works on
at most `AT_ONCE` volumes at a time; an attempt is given up after `ATTEMPT` seconds, which is
shorter than a claim lasts. Every `COMPARE` seconds one of the site's servers compares the exports
of each file server with the database: lost exports (of a file server that was rebuilt, or whose
configuration was replaced) are made anew, and unknown exports are withdrawn.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as TookTooLong

from cod.claimkeeper import ClaimKeeper
from cod.fileservers.driver import FileServerDriver, FileServerError, Outcome
from cod.flows.volumes import exports as flows
from cod.model import FileServer, SiteRef, VolumeTask
from cod.periodic import Claimer

POLL = 1.0  # seconds between looks for changes
AT_ONCE = 4
ATTEMPT = 90.0  # seconds for one attempt
LEASE = ATTEMPT + 15.0
COMPARE = 300.0  # seconds between comparisons

log = logging.getLogger("cod.fileservers")


class FileServerEdge(Claimer):
    """One server's edge to the site's file servers. `clock()` is the time of day for the rows;
    `effects` wakes other processes."""

    def __init__(
        self,
        reactor: Any,
        pool: Any,
        drivers: Mapping[str, FileServerDriver],
        server_name: str,
        clock: Callable[[], float],
        site: SiteRef,
        effects: Callable[[Any], None],
    ) -> None:
        super().__init__(reactor, pool, log, "looking for changes of volumes", POLL)
        self._reactor, self._drivers = reactor, drivers
        self._server, self._clock, self._site, self._effects = server_name, clock, site, effects
        self._keeper = ClaimKeeper(reactor, pool, "fileservers", server_name, 2 * COMPARE)
        self._busy: dict[str, int] = defaultdict(int)
        self._begun = False
        self._compared: dict[str, float] = {}

    async def look(self) -> None:
        """Claim changes and begin to carry them out; compare the file servers whose comparison is
        due."""
        now, site = self._clock(), self._site.current
        if not self._begun:
            await self._pool.run(flows.began, self._server, now)
            self._begun = True
        servers = {one.name: one for one in site.fileservers}
        room = {name: AT_ONCE - self._busy[name] for name in servers}
        for task in await self._pool.run(flows.claim, self._server, room, site, now, LEASE):
            self._busy[task.fileserver] += 1
            self.begin(self._carry_out(servers[task.fileserver], task))
        due = [each for each in servers if now >= self._compared.get(each, 0.0) + COMPARE]
        if servers and await self._keeper.keep(now) is not None:
            for name in due:
                self._compared[name] = now
                self.begin(self._compare(servers[name]))

    async def _carry_out(self, server: FileServer, task: VolumeTask) -> None:
        try:
            outcome, error = await self._attempt(server, task)
            if outcome is None:
                log.warning("volume %s: %s", task.name, error)
                await self._pool.run(flows.failed, task, error, self._clock())
            elif outcome.goes_on:
                await self._pool.run(flows.failed, task, "", self._clock(), goes_on=True)
            else:
                done = await self._pool.run(flows.succeeded, task, outcome.enforced, self._clock())
                if done.value:
                    log.info(
                        "volume %s: change %d carried out by %s",
                        task.name,
                        task.sequence,
                        server.name,
                    )
                self._effects(done.effects)
        except Exception:
            log.exception(
                "volume %s: the outcome was not written; its claim will run out", task.name
            )
        finally:
            self._busy[server.name] -= 1

    async def _attempt(self, server: FileServer, task: VolumeTask) -> tuple[Outcome | None, str]:
        """Have the driver carry out the task. Return (its outcome, ''), or (None, a sentence about
        the error)."""
        attempt = Deferred.fromCoroutine(
            self._drivers[server.driver].carry_out(server, task.wanted)
        )
        try:
            return await attempt.addTimeout(ATTEMPT, self._reactor), ""
        except FileServerError as error:
            return None, error.sentence
        except TookTooLong:
            return None, f"file server {server.name} did not answer within {ATTEMPT:.0f} s"
        except Exception as error:
            log.exception("volume %s: the %s driver is broken", task.name, server.driver)
            return None, f"the {server.driver} driver failed: {type(error).__name__}"

    async def _compare(self, server: FileServer) -> None:
        driver = self._drivers[server.driver]
        try:
            found = await Deferred.fromCoroutine(driver.exports(server)).addTimeout(
                ATTEMPT, self._reactor
            )
            for number in await self._pool.run(flows.compared, server.name, found, self._clock()):
                log.warning(
                    "file server %s: export %d belongs to no volume and is withdrawn",
                    server.name,
                    number,
                )
                await Deferred.fromCoroutine(driver.withdraw(server, number)).addTimeout(
                    ATTEMPT, self._reactor
                )
        except (FileServerError, TookTooLong) as error:
            log.warning("file server %s cannot be compared: %s", server.name, error)
        except Exception as error:
            log.error(
                "file server %s: %s", server.name, error, exc_info=not self._pool.is_away(error)
            )
