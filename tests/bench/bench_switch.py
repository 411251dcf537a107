"""Flips of switch ports: how long one takes in a session of its own, and how many a second a
session makes, by driver.

`ovs` is a real Open vSwitch with ports that are dummies. Each flip is applied by its daemon and
read back.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from threading import Thread
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.threads import blockingCallFromThread

from cod.model import Switch
from cod.switches.driver import SwitchTarget
from cod.switches.ovs import OvsDriver
from tests.bench.arena import Measure, Smoke, write
from tests.ovs import OpenVSwitch

SINGLE, BATCH, BATCHES = 200, 64, 20
SMOKE = Smoke(
    rows=("ovs: ",), sizes={"SINGLE": 2, "BATCH": 2, "BATCHES": 2}, needs=("ovs-vswitchd",)
)


def main() -> None:
    from twisted.internet import reactor as the_reactor

    reactor: Any = the_reactor
    Thread(target=reactor.run, kwargs={"installSignalHandlers": False}, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="cod-") as folder:
        switch = OpenVSwitch(Path(folder))
        switch.start()
        try:
            names = [f"p{n}" for n in range(BATCH)]
            switch.add_ports(*names)
            write(
                "switch",
                measured(reactor, OvsDriver(reactor), Switch("leaf", "ovs", switch.address), names),
            )
        finally:
            switch.stop()


def measured(reactor: Any, driver: OvsDriver, switch: Switch, names: list[str]) -> list[Measure]:
    """Flip one port many times, each in a session; then all ports in one."""

    async def flip(ports: list[str], vlan: int) -> None:
        session = await driver.open(SwitchTarget(switch))
        try:
            await session.read(ports)
            await session.change(dict.fromkeys(ports, vlan))
            assert await session.read(ports) == dict.fromkeys(ports, vlan)
        finally:
            await session.close()

    def timed(ports: list[str], vlan: int) -> float:
        begin = time.perf_counter()
        blockingCallFromThread(reactor, lambda: Deferred.fromCoroutine(flip(ports, vlan)))
        return time.perf_counter() - begin

    single = sorted(timed(names[:1], 20 + n % 2) for n in range(SINGLE))
    batch = sorted(timed(names, 20 + n % 2) for n in range(BATCHES))
    return [
        Measure(
            "ovs: one flip in a session, read back (median)",
            round(1000 * single[SINGLE // 2], 2),
            "ms",
        ),
        Measure(f"ovs: {BATCH} ports in a session", round(BATCH / batch[BATCHES // 2]), "flips/s"),
    ]


if __name__ == "__main__":
    main()
