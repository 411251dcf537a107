"""Services in the networks of isolated vclusters, started and stopped with the networks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.threads import deferToThreadPool

from cod.flows.boot import dhcp as flow
from cod.model import SiteRef, Subnet
from cod.net.socketservice import why
from cod.periodic import Periodic
from cod.pool import Pool

EVERY = 1.0  # seconds

log = logging.getLogger("cod.networks")

Make = Callable[[Subnet], Sequence[Any]]


class NetworkServices(Periodic):
    """The services that `make` returns for each network of an isolated vcluster; they run while the
    network exists.

    Services that cannot start, because the network's interface or its address is still missing, are
    started at the next look.

    join   called in a thread before a network's services start: makes its interface; may raise
           OSError
    leave  called in a thread with all existing networks, at the start and after the services of
           deleted networks have stopped
    """

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        make: Make,
        join: Callable[[Subnet], None] | None = None,
        leave: Callable[[Sequence[Subnet]], None] | None = None,
    ) -> None:
        super().__init__(reactor, pool, log, "networks of isolated vclusters", EVERY, at_once=True)
        self.running_in: dict[str, tuple[Subnet, list[Any]]] = {}
        self._reactor, self._site, self._make = reactor, site, make
        self._join, self._leave = join, leave
        self._tidy = False
        self._reported: dict[str, str] = {}

    async def look(self) -> None:
        """Start and stop services, so that they match the networks."""
        wanted = {
            each.name: each
            for each in await self._pool.run_at(0, flow.isolated_subnets, self._site.current)
        }
        gone = [name for name, (subnet, _) in self.running_in.items() if wanted.get(name) != subnet]
        for name in gone:
            await self._stop(name)
        if self._leave is not None and (gone or not self._tidy):
            await self._in_thread(self._leave, list(wanted.values()))
            self._tidy = True
        for name, subnet in wanted.items():
            if name not in self.running_in and self.running:
                await self._start(subnet)

    def stopService(self) -> Deferred[Any]:
        """Stop all services, after the look that is under way."""
        return (
            super()
            .stopService()
            .addCallback(
                lambda _: DeferredList(
                    [Deferred.fromCoroutine(self._stop(name)) for name in list(self.running_in)]
                )
            )
        )

    async def _start(self, subnet: Subnet) -> None:
        started: list[Any] = []
        try:
            if self._join is not None:
                await self._in_thread(self._join, subnet)
            for service in self._make(subnet):
                service.startService()
                started.append(service)
        except (OSError, CannotListenError) as error:
            for service in reversed(started):
                await maybeDeferred(service.stopService)
            if self._reported.get(subnet.name) != str(error):
                self._reported[subnet.name] = str(error)
                log.error("%s (%s): %s", subnet.name, subnet.network, why(error))
            return
        self._reported.pop(subnet.name, None)
        self.running_in[subnet.name] = subnet, started
        log.info("%s (%s) is served", subnet.name, subnet.network)

    async def _stop(self, name: str) -> None:
        _, services = self.running_in.pop(name)
        for service in reversed(services):
            await maybeDeferred(service.stopService)
        log.info("%s is not served any more", name)

    def _in_thread(self, function: Callable[..., None], *args: Any) -> Deferred[Any]:
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), function, *args)
