"""Measures how much power machines draw, where their BMCs can tell. A failed measurement is
recorded, too: the site's own figures are then used, which are better than an old measurement."""

from __future__ import annotations

from cod.flows.nodes import power as flows
from cod.model import Meter
from cod.power.driver import PowerDriver, Target
from cod.power.poller import Poller


class Meters(Poller):
    """One server's meters."""

    about = "meter"

    def can(self, driver: PowerDriver) -> bool:
        """Return whether machines of that driver can be measured."""
        return driver.measures

    async def ask(self, driver: PowerDriver, target: Target) -> float | None:
        """Return the power draw in watts; None where the BMC does not measure."""
        return await driver.watts(target)

    async def record(self, meter: Meter, answer: float | None) -> None:
        """Record a machine's power draw in watts."""
        await self._pool.run(flows.measured, meter, answer)
