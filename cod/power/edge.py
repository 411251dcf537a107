"""Carries out power wishes: claims due wishes, has the driver switch the machine, verifies, and
records the outcome.

Each wish is carried out at least once, unless its node has got a newer one. A driver switches at
most `Policy.power_at_once` machines at a time and at most `power_rate` a second (a rack that is
switched on at once trips its breaker). An attempt is given up after `ATTEMPT` seconds, which is
shorter than a claim lasts. A machine whose BMC has not answered for `SILENT_AFTER` seconds leaves
its place to the next machine and continues in a separate lane of `LANE` places, also at later
attempts until it answers, so that a rack of dead BMCs does not hold up the other machines.

`policy.nodes.power.command` decides which command is right, and which comes after it. Before a
machine is switched on it is told to boot from the network, where its BMC can do that. Where the
site file asks for a nonce (`core.nodes.boot_nonces`), no machine is switched on whose BMC does not
accept one.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as TookTooLong
from twisted.internet.task import deferLater

from cod.flows.nodes import power as flows
from cod.flows.nodes.power import PowerTask
from cod.model import Refused, SiteRef
from cod.periodic import Claimer
from cod.power.accounts import sign_in
from cod.power.driver import PowerDriver, PowerError, Target

POLL = 0.5  # seconds between looks for wishes
VERIFY = 15.0  # seconds in which a command must show (BMCs take up to eleven)
VERIFY_EVERY = 0.5
SILENT_AFTER = 3.0  # seconds in which a BMC that answers at all has mostly answered
LANE = 8  # machines of a driver with silent BMCs that are asked at a time, at most
ATTEMPT = 60.0  # seconds for one attempt, verification included
LEASE = ATTEMPT + 15.0
KEEP = 30 * 86400.0  # seconds for which finished wishes are kept
TIDY = 3600.0  # seconds between looks for those that are older
BATCH = 500  # of them deleted by one transaction

NO_NONCE = (
    "its BMC cannot hand its boot a nonce, which needs UEFI, the driver redfish and a BMC with"
    " HttpBootUri: set boot_nonce = false in its [[account]], or give the node another account"
)
NEEDS_OPERATOR = "it needs an operator: {} can wake a machine, but not switch off what runs on it"

log = logging.getLogger("cod.power")


@dataclass(slots=True)
class Pace:
    """A token bucket that limits power attempts. The bucket holds the attempts of one second, but
    at least one."""

    at: float
    tokens: float = 1.0

    def room(self, now: float, rate: float) -> int:
        """Return how many attempts may start now, at `rate` attempts a second."""
        self.tokens = min(max(rate, 1.0), self.tokens + max(0.0, now - self.at) * rate)
        self.at = now
        return int(self.tokens)

    def took(self, count: int) -> None:
        """Count `count` attempts as started."""
        self.tokens -= count


@dataclass(slots=True)
class Place:
    """An attempt's place among the running attempts. `given_up`: its BMC was silent, and the lane
    for silent machines was full."""

    driver: str
    node_id: int
    in_lane: bool
    given_up: bool = False


class PowerEdge(Claimer):
    """One server's power edge. `reactor` keeps the time of its pauses, `clock()` is the time of day
    for the rows."""

    def __init__(
        self,
        reactor: Any,
        pool: Any,
        drivers: Mapping[str, PowerDriver],
        server_name: str,
        clock: Callable[[], float],
        site: SiteRef,
    ) -> None:
        super().__init__(reactor, pool, log, "looking for power wishes", POLL)
        self._reactor = reactor
        self._drivers = drivers
        self._server = server_name
        self._clock = clock
        self._site = site
        self._paces = {name: Pace(clock() - 1.0) for name in drivers}
        self._busy: dict[str, int] = defaultdict(int)
        self._lane: dict[str, int] = defaultdict(int)  # as `_busy`, of silent machines
        self._silent: set[int] = set()  # nodes whose BMC did not answer when it was asked last
        self._begun = False
        self._tidied = 0.0

    async def look(self) -> None:
        """Claim wishes and begin to carry them out."""
        now = self._clock()
        if not self._begun:
            await self._pool.run(flows.began, self._server, now)
            self._begun = True
        room = {name: self._room(name, now) for name in self._drivers}
        lane = {name: self._lane_size() - self._lane[name] for name in self._drivers}
        silent = frozenset(self._silent)
        claimed = await self._pool.run(flows.claim, self._server, room, now, LEASE, silent, lane)
        for task in claimed:
            node_id = task.action.node_id
            place = Place(task.driver, node_id, node_id in silent)
            self._paces[task.driver].took(1)
            self._counts(place)[task.driver] += 1
            self.begin(self._carry_out(task, place))
        # Delete one batch of rows that are too old; the next look deletes the next batch.
        if (
            now >= self._tidied + TIDY
            and await self._pool.run(flows.prune, now - KEEP, BATCH) < BATCH
        ):
            self._tidied = now

    def _room(self, driver: str, now: float) -> int:
        rules = self._site.current.policy  # as it is now: SIGHUP changes it
        started = self._paces[driver].room(now, rules.power_rate)
        return max(0, min(rules.power_at_once - self._busy[driver], started))

    def _lane_size(self) -> int:
        """Return how many silent machines of a driver are tried at a time, in addition to the
        others: half as many, since a silent machine that answers after all is switched, too."""
        return max(1, min(LANE, self._site.current.policy.power_at_once // 2))

    def _counts(self, place: Place) -> dict[str, int]:
        return self._lane if place.in_lane else self._busy

    async def _carry_out(self, task: PowerTask, place: Place) -> None:
        about = {"node": task.node}
        try:
            power, error = await self._attempt(task, place)
            if error is None:
                log.info(
                    "%s: %s done, it is %s", task.node, task.action.desired, power, extra=about
                )
                patience = self._site.current.policy.patience
                await self._pool.run(flows.succeeded, task, power, self._clock(), patience)
            else:
                log.warning(
                    "%s: %s failed: %s", task.node, task.action.desired, error.sentence, extra=about
                )
                await self._pool.run(
                    flows.failed,
                    task,
                    error.sentence,
                    self._clock(),
                    lasting=error.lasting,
                    ignored=error.ignored,
                    silent=error.silent,
                    patience=self._site.current.policy.patience,
                )
        except Exception:
            log.exception(
                "%s: the outcome of %s was not written; its claim will run out",
                task.node,
                task.action.desired,
                extra=about,
            )
        finally:
            self._counts(place)[task.driver] -= 1

    async def _attempt(self, task: PowerTask, place: Place) -> tuple[str, PowerError | None]:
        """Carry out the wish. Return (the power state that was seen, None), or ('unknown', the
        error)."""
        attempt = Deferred.fromCoroutine(self._attain(self._drivers[task.driver], task, place))
        try:
            return await attempt.addTimeout(ATTEMPT, self._reactor), None
        except PowerError as error:
            return "unknown", error
        except TookTooLong:
            return "unknown", PowerError(
                f"no answer from the {task.driver} driver within {ATTEMPT:.0f} s", silent=True
            )
        except Exception as error:
            log.exception(
                "%s: the %s driver is broken", task.node, task.driver, extra={"node": task.node}
            )
            return "unknown", PowerError(f"the {task.driver} driver failed: {type(error).__name__}")

    async def _attain(self, driver: PowerDriver, task: PowerTask, place: Place) -> str:
        """Command the wished state, unless the machine is in that state already; return the power
        state that the driver sees afterwards."""
        target = Target(task.address, sign_in(self._site.current, task.account), task.firmware)
        command = flows.command(task, await self._first_answer(driver, target, place))
        wanted = "off" if task.action.desired in ("off", "soft") else "on"
        if command in ("off", "soft", "cycle") and not driver.switches_off:
            # The driver cannot switch off: the node's agent does, if it has the order to; otherwise
            # an operator has to.
            if task.agent and command != "cycle":
                return "unknown"
            if command == "cycle":
                await driver.on(target)  # the machine may be off: nobody can tell
            raise PowerError(NEEDS_OPERATOR.format(task.driver), lasting=True)
        if command in ("on", "cycle"):
            await self._order_boot(driver, task, target)
        if command == "on":
            await driver.on(target)
        elif command == "cycle":
            await driver.cycle(target)
        elif command == "off" or (
            command == "soft" and not await self._asked(driver, target) and not task.agent
        ):
            await driver.off(target)
        until = self._reactor.seconds() + VERIFY
        while (seen := await driver.status(target)) not in (wanted, "unknown"):
            if self._reactor.seconds() >= until:
                raise PowerError(
                    f"asked to be {wanted}, it is still {seen} after {VERIFY:.0f} s", ignored=True
                )
            await deferLater(self._reactor, VERIFY_EVERY, lambda: None)
        return seen

    async def _order_boot(self, driver: PowerDriver, task: PowerTask, target: Target) -> None:
        """Have the machine's next boot begin at the network, with a nonce where it needs one."""
        site = self._site.current
        if flows.hands_nonce(site.accounts, task.account):
            nonce = os.urandom(16).hex()
            try:
                uri = await self._pool.run(flows.boot_uri, task, nonce, site, self._clock())
            except Refused as refused:
                raise PowerError(refused.sentence, lasting=True) from None
            if uri:
                uefi = task.firmware != "bios"
                if not (uefi and await driver.boot_from_uri(target, uri)):
                    raise PowerError(NO_NONCE, lasting=True)
                return
        # If the BMC refuses, the machine follows its own boot order, which should begin at the
        # network anyway.
        try:
            await driver.boot_from_network(target)
        except PowerError as error:
            log.warning(
                "%s: not told to boot from the network: %s",
                task.node,
                error.sentence,
                extra={"node": task.node},
            )

    async def _first_answer(self, driver: PowerDriver, target: Target, place: Place) -> str:
        """Return the machine's power state. No command has been sent yet, so this question may be
        cancelled when the BMC is silent."""

        async def ask() -> str:
            return await driver.status(target)

        asked = Deferred.fromCoroutine(ask())
        watch = self._reactor.callLater(SILENT_AFTER, self._make_way, place, asked)
        try:
            power = await asked
        except CancelledError:
            if not place.given_up:
                raise  # the whole attempt took too long
            error = f"the BMC did not answer within {SILENT_AFTER:.0f} s"
            raise PowerError(error, silent=True) from None
        finally:
            if watch.active():
                watch.cancel()
        self._silent.discard(place.node_id)
        return power

    def _make_way(self, place: Place, asked: Deferred[str]) -> None:
        """Free the place of a silent machine: its attempt goes on in the lane for silent machines
        or, when that is full, ends and is repeated later."""
        self._silent.add(place.node_id)
        if place.in_lane:
            return
        if self._lane[place.driver] >= self._lane_size():
            place.given_up = True
            asked.cancel()
            return
        self._busy[place.driver] -= 1
        self._lane[place.driver] += 1
        place.in_lane = True

    async def _asked(self, driver: PowerDriver, target: Target) -> bool:
        """Return whether the node's operating system was asked to shut down. False also where the
        BMC refused to: then the machine is switched off."""
        try:
            return await driver.soft(target)
        except PowerError as error:
            raise PowerError(error.sentence, ignored=True) from None
