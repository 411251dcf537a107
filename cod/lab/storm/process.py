"""One process of a storm's machines, inside their network's namespace: ``python -m
cod.lab.storm.process``. Prints JSON: the record of each machine, and processor time and peak memory
of this process."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import time
from contextlib import suppress

from cod.lab.storm.machine import Machine
from cod.lab.storm.relay import open_relay


async def storm(options: argparse.Namespace, began: float) -> tuple[list[dict[str, object]], float]:
    """Switch all machines on, wait until all are idle or the time is over, and then let them wait
    for a while. Return the machines' records since `began`, and the time at which that last wait
    began, by the monotonic clock."""
    relay = await open_relay(options.relay, options.server)
    numbers = range(options.first, options.first + options.machines)
    machines = [Machine(number, relay, began, options.whole) for number in numbers]
    turn = random.Random(options.first)
    running = [
        asyncio.create_task(machine.run(turn.uniform(0, options.over))) for machine in machines
    ]
    with suppress(TimeoutError):
        async with asyncio.timeout(options.over + options.patience):
            for machine in machines:
                await machine.idle.wait()
    records, settled = [machine.record() for machine in machines], time.monotonic()
    await asyncio.sleep(options.linger)
    for task in running:
        task.cancel()
    failed = await asyncio.gather(*running, return_exceptions=True)
    for error in failed:
        if not isinstance(error, asyncio.CancelledError):
            raise RuntimeError("a machine ended") from error
    return records, settled


def main() -> None:
    """Run the storm of the machines that the command line names; print its results as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True, nargs="+", help="of the site, one or several")
    parser.add_argument("--relay", required=True)
    parser.add_argument("--first", type=int, required=True, help="the number of the first machine")
    parser.add_argument("--machines", type=int, required=True)
    parser.add_argument("--over", type=float, required=True, help="seconds in which all are on")
    parser.add_argument("--patience", type=float, required=True, help="seconds after that")
    parser.add_argument("--linger", type=float, required=True, help="seconds in which all wait")
    parser.add_argument("--whole", action="store_true", help="fetch kernel and ramdisk whole")
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    before, began = time.process_time(), time.monotonic()
    machines, settled = asyncio.run(storm(options, began))
    used = time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    result = {"machines": machines, "cpu": used, "memory": peak, "began": began, "settled": settled}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
