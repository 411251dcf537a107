"""Measures what machines draw, where their BMCs can tell. What could not be measured is told, too:
an old figure is worse than none, for then the site's own figures are used."""

from __future__ import annotations

from cod.flows.nodes import power as flows
from cod.power.driver import PowerDriver, Target
from cod.power.poller import Poller


class Meters(Poller):
    """One server's meters."""

    about = "meter"

    def can(self, driver: PowerDriver) -> bool:
        """Return whether machines of that driver can be measured."""
        return driver.measures

    async def ask(self, driver: PowerDriver, target: Target) -> float | None:
        """Return watts; None where the BMC does not measure."""
        return await driver.watts(target)

    async def record(self, meter: flows.Meter, answer: float | None) -> None:
        """Record the watts that a machine draws."""
        await self._pool.run(flows.measured, meter, answer)
