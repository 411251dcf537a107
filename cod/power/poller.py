"""Asks each machine's BMC the same question once in a round of five minutes, spread over the round.

One of the site's servers does it. A BMC that refuses (because of a wrong password, for example) is
left alone for an hour: otherwise it might lock the account with which its machine is switched.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.defer import TimeoutError as TookTooLong

from cod.claimkeeper import ClaimKeeper
from cod.flows.nodes import power as flows
from cod.model import Meter, SiteRef
from cod.periodic import Periodic
from cod.power.accounts import sign_in
from cod.power.driver import PowerDriver, PowerError, Target

ROUND = 300.0  # seconds in which every machine is asked
TICK = 10.0  # seconds between the round's parts
AT_ONCE = 40  # machines asked at once: more of them take longer rounds
PATIENCE = 20.0  # seconds for one answer
# seconds until a BMC that refused is asked again, unless its address or account changes
ALONE = 3600.0
LEASE = 2 * ROUND  # the claim of the one server that asks

log = logging.getLogger("cod.power")


class Poller(Periodic):
    """One server's rounds. `reactor` keeps the time of its pauses, `clock()` is the time of day for
    the rows.

    about  the polled subject: the name of the claim, and the subject in the log
    """

    about = ""

    def __init__(
        self,
        reactor: Any,
        pool: Any,
        drivers: Mapping[str, PowerDriver],
        server_name: str,
        clock: Callable[[], float],
        site: SiteRef,
    ) -> None:
        super().__init__(reactor, pool, log, f"asking for {self.about}", TICK, at_once=True)
        self._reactor = reactor
        self._drivers = {name: driver for name, driver in drivers.items() if self.can(driver)}
        self._keeper = ClaimKeeper(reactor, pool, self.about, server_name, LEASE)
        self._clock = clock
        self._site = site
        self._after = 0
        self._alone: dict[Meter, float] = {}
        self._next_round = 0.0  # by the reactor

    @abstractmethod
    def can(self, driver: PowerDriver) -> bool:
        """Return whether machines of that driver are asked."""

    @abstractmethod
    async def ask(self, driver: PowerDriver, target: Target) -> Any:
        """Return the answer; None where the BMC cannot tell, and is left alone for an hour."""

    @abstractmethod
    async def record(self, meter: Meter, answer: Any) -> None:
        """Record a machine's answer; None: there was no answer."""

    async def look(self) -> None:
        """Ask the next machines. After the last machine the list begins anew, once the round is
        over."""
        now = self._reactor.seconds()
        begins = self._after == 0
        if begins and now + TICK / 2 < self._next_round:
            return  # ticks come a little early or late
        if await self._keeper.keep(self._clock()) is None:
            return
        found = await self._pool.read(
            flows.meters, sorted(self._drivers), self._after, TICK / ROUND, AT_ONCE
        )
        if begins:  # and not before: a database that is away costs no round
            self._next_round = now + ROUND
        self._after = found[-1].node_id if found else 0
        self._alone = {meter: until for meter, until in self._alone.items() if until > now}
        asked = [
            Deferred.fromCoroutine(self._one(each)) for each in found if each not in self._alone
        ]
        await DeferredList(asked, consumeErrors=True)

    async def _one(self, meter: Meter) -> None:
        refused, answer = False, None
        try:
            answer = await Deferred.fromCoroutine(self._ask(meter)).addTimeout(
                PATIENCE, self._reactor
            )
            refused = answer is None
        except (PowerError, TookTooLong) as error:
            log.debug("%s: no %s: %s", meter.node, self.about, error)
            refused = isinstance(error, PowerError) and error.lasting
        except Exception:
            log.exception("%s: the %s driver is broken", meter.node, meter.driver)
        if refused:
            self._alone[meter] = self._reactor.seconds() + ALONE
        await self.record(meter, answer)

    async def _ask(self, meter: Meter) -> Any:
        target = Target(meter.address, sign_in(self._site.current, meter.account))
        return await self.ask(self._drivers[meter.driver], target)
