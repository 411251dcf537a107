"""Asks switches on which of their ports a MAC was heard last, where a driver can tell.

The switch that the node was on is asked first, the others only if this one does not know. Switches
without `nodes_on` are not asked, since an uplink looks like a node's port there. A whole site may
boot at once: therefore each switch gets one question at a time, for all MACs that wait. A switch
that does not answer is left alone for a while, so that boots do not wait for it one after the
other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from twisted.internet.defer import Deferred, DeferredSemaphore, gatherResults
from twisted.internet.defer import TimeoutError as TookTooLong

from cod.flows.nodes import switches as flows
from cod.model import SiteRef, Switch
from cod.power.accounts import sign_in
from cod.power.driver import PowerError
from cod.switches.driver import MacTableDriver, SwitchError, SwitchTarget

PATIENCE = 3.0  # seconds for an answer; a boot waits twice as long at most
REST = 60.0  # seconds in which a switch that did not answer is not asked again
MOST = 32  # switches that are asked for a MAC
AT_ONCE = 4  # questions that are open: they share the processor with DHCP
BATCH = 64  # MACs in one question

Ports = tuple[str, ...]  # all names of one port, 'SWITCH PORT'

log = logging.getLogger("cod.switches")


class MacTables:
    """The switches' tables of MAC addresses. `reactor` keeps the time for answers."""

    def __init__(
        self, reactor: Any, pool: Any, drivers: Mapping[str, MacTableDriver], site: SiteRef
    ) -> None:
        self._reactor, self._pool, self._drivers, self._site = reactor, pool, drivers, site
        # MACs that wait, by switch
        self._waiting: dict[str, list[tuple[str, Deferred[Ports]]]] = {}
        self._rests: dict[str, float] = {}  # until when a switch is left alone that did not answer
        self._slots = DeferredSemaphore(AT_ONCE)

    async def ports_of(self, mac: str) -> tuple[Ports, ...]:
        """Return the access ports on which the MAC of a node that has just booted was heard, at
        most one for each switch."""
        switches = self._site.current.switches
        tell = [each for each in switches if each.driver in self._drivers and each.nodes_on]
        if all(self._does_rest(each) for each in tell):
            return ()
        before = await self._pool.read(flows.switch_of, mac)
        if before is None:
            return ()
        own = [each for each in tell if each.name == before]
        others = [each for each in tell if each.name != before]
        return await self._ask(own, mac) or await self._ask(others[:MOST], mac)

    async def _ask(self, switches: Iterable[Switch], mac: str) -> tuple[Ports, ...]:
        awake = [each for each in switches if not self._does_rest(each)]
        answers = await gatherResults([self._answer(switch, mac) for switch in awake])
        return tuple(ports for ports in answers if ports)

    def _does_rest(self, switch: Switch) -> bool:
        return bool(self._rests.get(switch.name, 0.0) > self._reactor.seconds())

    def _answer(self, switch: Switch, mac: str) -> Deferred[Ports]:
        answer: Deferred[Ports] = Deferred()
        answer.addTimeout(PATIENCE, self._reactor)
        answer.addErrback(lambda _late: ())
        if switch.name in self._waiting:
            self._waiting[switch.name].append((mac, answer))
        else:
            self._waiting[switch.name] = [(mac, answer)]
            Deferred.fromCoroutine(self._serve(switch))
        return answer

    async def _serve(self, switch: Switch) -> None:
        """Ask the switch until no more MACs wait."""
        while waiting := [each for each in self._waiting[switch.name] if not each[1].called]:
            self._waiting[switch.name] = waiting
            async with self._slots:
                batch = [each for each in waiting if not each[1].called][:BATCH]
                found = await self._found(switch, [mac for mac, _ in batch]) if batch else {}
            for mac, answer in self._waiting[switch.name] if self._does_rest(switch) else batch:
                if not answer.called:
                    answer.callback(tuple(f"{switch.name} {port}" for port in found.get(mac, ())))
        del self._waiting[switch.name]

    async def _found(self, switch: Switch, macs: list[str]) -> Mapping[str, Ports]:
        try:
            asked = Deferred.fromCoroutine(self._locate(switch, macs))
            return await asked.addTimeout(PATIENCE, self._reactor)
        except (SwitchError, PowerError) as error:
            why = error.sentence
        except TookTooLong:
            why = f"no answer within {PATIENCE:.0f} s"
        except Exception as error:
            log.exception("switch %s: the %s driver is broken", switch.name, switch.driver)
            why = type(error).__name__
        log.info("switch %s does not tell where nodes are: %s", switch.name, why)
        self._rests[switch.name] = self._reactor.seconds() + REST
        return {}

    async def _locate(self, switch: Switch, macs: list[str]) -> Mapping[str, Ports]:
        target = SwitchTarget(switch, sign_in(self._site.current, switch.account))
        return await self._drivers[switch.driver].locate(target, macs)
