"""Many PXE machines switched on within some seconds, behind one relay: ``python -m
tests.bench.dhcp_crowd``.

Each is first firmware, then iPXE: two DISCOVER-OFFER-REQUEST-ACK exchanges, as those of `cod lab
storm`. Prints JSON: seconds from a machine's first DISCOVER to its last ACK, sorted, and how many
machines got none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time

from cod.lab.standin import BootFailed
from cod.lab.storm.relay import STAGES, Relay, open_relay


async def boot(relay: Relay, mac: bytes, at: float) -> list[float]:
    """Make both exchanges from `at` on; return how long each took, or nothing."""
    await asyncio.sleep(at)
    took = []
    for stage in ("firmware", "loader"):
        began = time.monotonic()
        try:
            await relay.exchange(mac, STAGES[stage])
        except BootFailed:
            return []
        took.append(time.monotonic() - began)
    return took


async def crowd(options: argparse.Namespace) -> dict[str, object]:
    """Switch all on; return what is printed."""
    relay = await open_relay(options.relay, options.server)
    base = int(options.base.replace(":", ""), 16)
    booting = [
        boot(relay, (base + number).to_bytes(6, "big"), random.uniform(0, options.seconds))
        for number in range(options.machines)
    ]
    booted = [took for took in await asyncio.gather(*booting) if took]
    return {
        "took": sorted(map(sum, booted)),
        "each": sorted(one for took in booted for one in took),
        "unanswered": options.machines - len(booted),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True, nargs="+")
    parser.add_argument("--relay", required=True)
    parser.add_argument("--base", required=True, help="the first machine's MAC")
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    print(json.dumps(asyncio.run(crowd(parser.parse_args()))))


if __name__ == "__main__":
    main()
