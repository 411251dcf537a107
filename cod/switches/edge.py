"""Carries out the wishes for switch ports: claims switches with due ports, changes the ports, and
reads them back.

There is one session at a time with each switch, for all its due ports, and at most `AT_ONCE`
sessions at a time. A port that is in its VLAN already is left alone, and so is one whose node is
held because the port is in a VLAN that the database does not know of. If a switch accepted a change
but does not show the port in its VLAN, the change has failed. A session is given up after `ATTEMPT`
seconds, which is shorter than a claim lasts. If the VLANs that a session has found cannot be
written to the database, the session ends, and does not count as a failure of the switch.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as TookTooLong

from cod.flows.nodes import switches as flows
from cod.flows.nodes.switches import PortOutcome, SwitchTask
from cod.model import Effect, SiteRef, SwitchPort
from cod.periodic import Claimer
from cod.power.accounts import sign_in
from cod.power.driver import PowerError
from cod.switches.driver import SwitchDriver, SwitchError, SwitchSession, SwitchTarget

POLL = 0.5  # seconds between looks for what is due
ATTEMPT = 90.0  # seconds for one session
LEASE = ATTEMPT + 15.0
AT_ONCE = 16
LEFT = "left in its VLAN: its node is held"
PAGE = 100  # nodes whose reports one transaction reads

log = logging.getLogger("cod.switches")


class NotWritten(Exception):
    """The VLANs in which ports were found could not be written to the database, so the ports were
    not changed."""


class SwitchEdge(Claimer):
    """One server's switch edge. `reactor` keeps its time, `clock()` is the time of day for the
    rows."""

    def __init__(
        self,
        reactor: Any,
        pool: Any,
        drivers: Mapping[str, SwitchDriver],
        server_name: str,
        clock: Callable[[], float],
        site: SiteRef,
        effects: Callable[[tuple[Effect, ...]], None],
    ) -> None:
        super().__init__(reactor, pool, log, "looking for switch ports", POLL)
        self._reactor, self._drivers, self._server = reactor, drivers, server_name
        self._clock, self._site, self._effects = clock, site, effects
        self._busy: set[str] = set()  # names of switches that have a session
        self._known: int | None = None  # the hash of the switches that the rows were made for

    async def look(self) -> None:
        """Claim switches with due ports, and begin a session with each."""
        site = self._site.current
        # at the start, and when the site file was read again
        digest = hash(repr(site.switches))  # the settings themselves are not kept
        if self._known != digest:
            await self._pool.run(
                flows.began, self._server, [each.name for each in site.switches], self._clock()
            )
            after: int | None = 0 if site.switches else None
            while after is not None:
                after = await self._pool.run(flows.place_reported, site, after, PAGE, self._clock())
            self._known = digest
        room = AT_ONCE - len(self._busy)
        if not site.switches or room <= 0 or not await self._pool.read(flows.is_due, self._clock()):
            return
        for task in await self._pool.run(
            flows.claim, self._server, site.switches, list(self._busy), room, self._clock(), LEASE
        ):
            self._busy.add(task.switch.name)
            self.begin(self._carry_out(task))

    async def _carry_out(self, task: SwitchTask) -> None:
        name = task.switch.name
        try:
            try:
                attempt = Deferred.fromCoroutine(self._attempt(task))
                outcomes, about = await attempt.addTimeout(ATTEMPT, self._reactor)
            except (SwitchError, PowerError) as error:
                sentence = error.sentence
            except NotWritten as error:
                log.warning("switch %s: %s; its claim will run out", name, error)
                return
            except TookTooLong:
                sentence = f"no answer within {ATTEMPT:.0f} s"
            except Exception as error:
                log.exception("switch %s: the %s driver is broken", name, task.switch.driver)
                sentence = f"the {task.switch.driver} driver failed: {type(error).__name__}"
            else:
                self._tell(task, outcomes)
                self._effects(
                    await self._pool.run(flows.ended, task, outcomes, about, self._clock())
                )
                return
            log.warning("switch %s: %s", name, sentence)
            self._effects(await self._pool.run(flows.failed, task, sentence, self._clock()))
        except Exception:
            log.exception("switch %s: the outcome was not written; its claim will run out", name)
        finally:
            self._busy.discard(name)

    async def _attempt(self, task: SwitchTask) -> tuple[dict[int, PortOutcome], str]:
        target = SwitchTarget(task.switch, sign_in(self._site.current, task.switch.account))
        session = await self._drivers[task.switch.driver].open(target)
        try:
            return await settle(session, task, self._found_elsewhere), session.about
        finally:
            await session.close()

    async def _found_elsewhere(
        self, task: SwitchTask, found: Sequence[tuple[SwitchPort, int]]
    ) -> frozenset[int]:
        try:
            return await self._pool.run(flows.found, task, found, self._clock())
        except CancelledError:
            raise NotWritten(f"the database did not answer within {ATTEMPT:.0f} s") from None
        except Exception as error:
            raise NotWritten(f"the VLANs of its ports were not written: {error}") from error

    def _tell(self, task: SwitchTask, outcomes: Mapping[int, PortOutcome]) -> None:
        for port, vlan in task.ports:
            outcome, where = outcomes[port.id], f"switch {task.switch.name}, port {port.port}"
            if outcome.error:
                log.warning("%s: %s", where, outcome.error)
            elif outcome.found != vlan:
                log.info("%s: in VLAN %d, was in %s", where, vlan, outcome.found)


async def settle(
    session: SwitchSession,
    task: SwitchTask,
    elsewhere: Callable[[SwitchTask, Sequence[tuple[SwitchPort, int]]], Awaitable[frozenset[int]]],
) -> dict[int, PortOutcome]:
    """Put the task's ports into their VLANs and read them back; return the outcomes by the ports'
    ids. `elsewhere` is called, before the change, with the ports that are in other VLANs, and
    returns the ids of those that are left there."""
    wanted = {port.port: vlan for port, vlan in task.ports}
    found = dict(await session.read(wanted)) if wanted else {}
    strays = [
        (port, vlan_read)
        for port, vlan in task.ports
        if isinstance(vlan_read := found[port.port], int) and vlan_read != vlan
    ]
    left = await elsewhere(task, strays) if strays else frozenset()
    change = {port.port: wanted[port.port] for port, _ in strays if port.id not in left}
    refused = dict(await session.change(change)) if change else {}
    now = found | dict(await session.read(change)) if change else found
    outcomes = {
        port.id: _outcome(vlan, found[port.port], now[port.port], refused.get(port.port))
        for port, vlan in task.ports
    }
    stay = {port.id: PortOutcome(vlan, vlan, LEFT, left=True) for port, vlan in strays}
    return outcomes | {port_id: stay[port_id] for port_id in left}


def _outcome(
    wanted: int, found: int | SwitchError, now: int | SwitchError, refused: SwitchError | None
) -> PortOutcome:
    before = found if isinstance(found, int) else None
    if isinstance(now, SwitchError):
        return PortOutcome(before, None, now.sentence, now.lasting)
    if now == wanted:
        return PortOutcome(before, now)
    if refused is not None:
        return PortOutcome(before, now, refused.sentence, refused.lasting)
    return PortOutcome(
        before,
        now,
        f"the switch accepted VLAN {wanted} and still shows "
        + (f"VLAN {now}" if now else "no access VLAN"),
    )
