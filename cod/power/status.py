"""Asks a node's power driver whether the node is on now.

Where a driver does not answer, or cannot tell, the answer is 'unknown'. A whole site may boot at
once: only a limited number of questions is open at a time, and the others wait, at most as long as
an answer may take.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.defer import TimeoutError as TookTooLong

from cod.model import Meter, SiteRef
from cod.power.accounts import sign_in
from cod.power.driver import PowerDriver, PowerError, Target

PATIENCE = 6.0  # seconds for an answer: an agent waits ten for the end of its handshake
AT_ONCE = 64  # questions that are open

log = logging.getLogger("cod.power")


class PowerStatus:
    """The power drivers that are asked. `reactor` keeps the time for answers."""

    def __init__(self, reactor: Any, drivers: Mapping[str, PowerDriver], site: SiteRef) -> None:
        self._reactor = reactor
        self._drivers = drivers
        self._site = site
        self._slots = DeferredSemaphore(AT_ONCE)

    async def of(self, node: Meter) -> str:
        """Return 'on', 'off', or 'unknown' where nobody can tell."""
        if node.driver not in self._drivers:
            return "unknown"
        try:
            target = Target(node.address, sign_in(self._site.current, node.account))
            asked = Deferred.fromCoroutine(self._ask(node.driver, target))
            return str(await asked.addTimeout(PATIENCE, self._reactor))
        except (PowerError, TookTooLong) as error:
            log.info("%s: its power is not known: %s", node.node, error)
        except Exception:
            log.exception("%s: the %s driver is broken", node.node, node.driver)
        return "unknown"

    async def _ask(self, driver: str, target: Target) -> str:
        async with self._slots:
            return await self._drivers[driver].status(target)
