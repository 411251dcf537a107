"""Carries out changes of volumes: claims what is due, asks the file server, writes down what came of it.

Each change is carried out at least once, unless a newer one replaces it; a file server is asked for no more than
`AT_ONCE` volumes at a time; one that hangs is given up on after `ATTEMPT` seconds, which is shorter than a claim lasts.
Every `COMPARE` seconds one of the site's servers compares what each file server exports with the database: exports that
were lost (a file server that was rebuilt or whose configuration was replaced) are made anew, strays are withdrawn.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as TookTooLong

from cod.fileservers.driver import FileServerDriver, FileServerError, Outcome
from cod.flows.volumes import exports as flows
from cod.model import FileServer, SiteRef, VolumeTask

POLL = 1.0  # seconds between looks for changes
AT_ONCE = 4
ATTEMPT = 90.0  # seconds for one attempt
LEASE = ATTEMPT + 15.0
COMPARE = 300.0  # seconds between comparisons

log = logging.getLogger("cod.fileservers")


class FileServerEdge(Service):
    """One server's edge to the site's file servers. `clock()` is the time of day for the rows; `effects` wakes others.
    """

    def __init__(
        self, reactor: Any, pool: Any, drivers: Mapping[str, FileServerDriver], server_name: str,
        clock: Callable[[], float], site: SiteRef, effects: Callable[[Any], None],
    ) -> None:
        self._reactor, self._pool, self._drivers = reactor, pool, drivers
        self._server, self._clock, self._site, self._effects = server_name, clock, site, effects
        self._running: dict[str, int] = defaultdict(int)
        self._tasks: set[Deferred[None]] = set()
        self._timer: Any = None
        self._begun = False
        self._compared: dict[str, float] = {}

    def startService(self) -> None:
        """Begin to look for changes."""
        super().startService()  # type: ignore[no-untyped-call]
        self._look()

    def stopService(self) -> Deferred[None]:
        """Claim nothing more; fires when what is under way has ended."""
        super().stopService()  # type: ignore[no-untyped-call]
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        return Deferred.fromCoroutine(self._drained())

    async def _drained(self) -> None:
        while self._tasks:
            await next(iter(self._tasks))

    def _look(self) -> None:
        self._timer = None
        self._keep(self._claim())

    async def _claim(self) -> None:
        try:
            now, site = self._clock(), self._site.current
            if not self._begun:
                await self._pool.run(flows.began, self._server, now)
                self._begun = True
            servers = {one.name: one for one in site.fileservers}
            room = {name: AT_ONCE - self._running[name] for name in servers}
            for task in await self._pool.run(flows.claim, self._server, room, site, now, LEASE):
                self._running[task.fileserver] += 1
                self._keep(self._carry_out(servers[task.fileserver], task))
            for name, server in servers.items():
                if now >= self._compared.get(name, 0.0) + COMPARE:
                    self._compared[name] = now
                    self._keep(self._compare(server))
        except Exception as error:
            log.error("looking for changes of volumes: %s", error, exc_info=not self._pool.is_away(error))
        finally:
            if self.running:
                self._timer = self._reactor.callLater(POLL, self._look)

    def _keep(self, work: Any) -> None:
        """Remember the coroutine until it has ended, so that `stopService` can wait for it."""
        task: Deferred[None] = Deferred.fromCoroutine(work)
        if task.called:
            return
        ended: Deferred[None] = Deferred()
        self._tasks.add(ended)

        def end(_result: object) -> None:
            self._tasks.discard(ended)
            ended.callback(None)

        task.addBoth(end)

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
                    log.info("volume %s: change %d carried out by %s", task.name, task.sequence, server.name)
                self._effects(done.effects)
        except Exception:
            log.exception("volume %s: the outcome was not written; its claim will run out", task.name)
        finally:
            self._running[server.name] -= 1

    async def _attempt(self, server: FileServer, task: VolumeTask) -> tuple[Outcome | None, str]:
        """(outcome, '') or (None, what went wrong)."""
        attempt = Deferred.fromCoroutine(self._drivers[server.driver].carry_out(server, task.wanted))
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
            now = self._clock()
            if not await self._pool.run(flows.may_compare, self._server, now, 2 * COMPARE):
                return
            found = await Deferred.fromCoroutine(driver.exports(server)).addTimeout(ATTEMPT, self._reactor)
            for number in await self._pool.run(flows.compared, server.name, found, self._clock()):
                log.warning("file server %s: export %d belongs to no volume and is withdrawn", server.name, number)
                await Deferred.fromCoroutine(driver.withdraw(server, number)).addTimeout(ATTEMPT, self._reactor)
        except (FileServerError, TookTooLong) as error:
            log.warning("file server %s cannot be compared: %s", server.name, error)
        except Exception as error:
            log.error("file server %s: %s", server.name, error, exc_info=not self._pool.is_away(error))
