"""Asks each machine's power driver whether the machine is on. So COD shows power states with their
age, and notices nodes that somebody else has switched off."""

from __future__ import annotations

from cod.flows.nodes import power as flows
from cod.model import Meter
from cod.power.driver import PowerDriver, Target
from cod.power.poller import Poller


class PowerPoll(Poller):
    """One server's poll of the machines' power states."""

    about = "power"

    def can(self, driver: PowerDriver) -> bool:
        """Return whether that driver can report the power state. Drivers that cannot switch a
        machine off cannot report it either."""
        return driver.switches_off

    async def ask(self, driver: PowerDriver, target: Target) -> str | None:
        """Return 'on' or 'off'; None where nobody can tell."""
        seen = await driver.status(target)
        return None if seen == "unknown" else seen

    async def record(self, meter: Meter, answer: str | None) -> None:
        """Record the power state that was seen. Without an answer the last state stays, and its age
        grows."""
        if answer is not None:
            await self._pool.run(flows.seen, meter, answer, self._clock())
