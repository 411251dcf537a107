"""How soon a node is ready, by how near it is: idle in its own pool, parked there, parked in
another virtual cluster's pool, asleep.

Two whole machines under QEMU and a Grid Engine pool that parks idle nodes
(tests/system/pool_story.py). Two jobs wake both; further ones find them idle, then parked. Then
another virtual cluster of equal priority requests a node: the pool gives a parked one back, which
is erased and installed anew, as for a job of another type. Writes build/bench/tiers.json.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from tests.bench.arena import Measure, Smoke, write
from tests.system.pool_story import IMAGE, KNOBS, MACHINES, PATIENCE, Story, story
from tests.system.qemu import build_all

PARKING = {"park": 3600.0}  # seconds: longer than all of this takes
OTHER = "other"
ASLEEP, IDLE = "asleep: job to running", "idle in its pool: job to running"
PARKED = "parked in its pool: job to running"
ELSEWHERE = "parked in another pool: request to the new system being up"
# what U-LITE publishes for its virtual machines, in seconds
U_LITE = {ASLEEP: "60 to 90", IDLE: "less than 10", PARKED: "less than 10", ELSEWHERE: "30 to 40"}
SMOKE = Smoke(test="tests/system/test_pool_whole.py")


def main() -> None:
    build_all("execd")
    with story(knobs=PARKING) as pool:
        found = tiers(pool)
    write("tiers", measures(found))
    for name, seconds in found.items():
        print(f"{name}: {seconds:.1f} s; U-LITE: {U_LITE[name]} s")


def measures(found: Mapping[str, float]) -> list[Measure]:
    """Return the tiers as rows of the table."""
    return [Measure(name, round(seconds, 2), "s") for name, seconds in found.items()]


def tiers(pool: Story) -> dict[str, float]:
    """Return the seconds of each tier; both machines are asleep at the start."""
    found = {ASLEEP: _to_running(pool, len(MACHINES)), IDLE: _to_running(pool, 1)}
    time.sleep(2 * KNOBS["idle_limit"] + KNOBS["calm"])
    pool.reaches("active")  # else they have gone back
    found[PARKED] = _to_running(pool, 1)
    time.sleep(2 * KNOBS["idle_limit"] + KNOBS["calm"])
    began = time.time()
    pool.rack.cod("vcluster", "create", OTHER, "--size", "1", "--template", IMAGE)
    pool.rack.wait(lambda: _others(pool), "another cluster has a parked node", PATIENCE)
    found[ELSEWHERE] = time.time() - began
    return found


def _to_running(pool: Story, jobs: int) -> float:
    """Submit jobs at once; seconds until all of them have run, less their own time, which is
    short."""
    began = time.time()
    numbers = [pool.submit(60.0 if jobs > 1 else 1.0) for _ in range(jobs)]

    def running() -> bool:
        shown = pool.cell.run("qstat", "-s", "r", "-u", "*").stdout
        return all(f" {number} " in shown for number in numbers)

    pool.rack.wait(running, "the jobs run", PATIENCE)
    seconds = time.time() - began
    pool.ended(*numbers)
    return seconds


def _others(pool: Story) -> bool:
    return any(
        node["state"] == "active" and node["vcluster"] == OTHER
        for node in pool.rack.nodes().values()
    )


if __name__ == "__main__":
    main()
