"""How fast a year is replayed: the scenario `year` (500 nodes, about a hundred thousand requests)
on one core.

    .venv/bin/python -m tests.bench.bench_simulate [--days D]

Measured in CPU seconds of the one process, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import replace
from typing import Any

from cod.sim.run import Simulation
from cod.sim.scenario.tables import load, read
from tests.bench.arena import Measure, Smoke, write

SMOKE = Smoke(rows=("simulate ",), words=("--days", "1"))


def main() -> None:
    """Replay, and write build/bench/simulate.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=365.0)
    days = parser.parse_args().days
    simulation = Simulation(replace(read(load("year")), days=days))
    begun = time.process_time()
    simulation.advance(simulation.end)
    seconds = time.process_time() - begun
    write("simulate", measures(simulation.result(), seconds))


def measures(result: dict[str, Any], seconds: float) -> list[Measure]:
    """The run's figures."""
    requests = sum(row["submitted"] for row in result["requests"].values())
    name = f"simulate {result['days']:g} days, {result['nodes']} nodes, {requests} requests"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        Measure(name, round(seconds, 1), "s"),
        Measure(
            f"{name}: events", round(result["events"] / seconds), "events/s", goal="> 5000 events/s"
        ),
        Measure(f"{name}: passes", round(result["passes"] / seconds), "passes/s"),
        Measure(f"{name}: memory", round(memory), "MiB"),
    ]


if __name__ == "__main__":
    main()
