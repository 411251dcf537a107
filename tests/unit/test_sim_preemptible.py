"""Preemptible demand in the simulator: a filler that uses what a site's jobs leave."""

from __future__ import annotations

from typing import Any

import pytest

from cod.sim.check.rules import broken
from cod.sim.run import Simulation, simulate
from cod.sim.scenario import tables

pytestmark = pytest.mark.slow


def filled(*, preemptible: bool, hold_after: float = 1.0) -> Any:
    """The figures of a quarter of a day of the filler's scenario; each plan keeps the policy's
    promises."""
    scenario = tables.load("docs/examples/filler.toml")
    for key, value in {
        "days": "0.25",
        "policy.hold_after": str(hold_after),
        "demand.filler.preemptible": "true" if preemptible else "false",
    }.items():
        tables.change(scenario, key, value)
    read = tables.read(scenario)
    complaints: list[str] = []
    run = Simulation(
        read, lambda seen, planned, now: complaints.extend(broken(seen, planned, read.policy, now))
    )
    run.advance(run.end)
    assert not complaints
    return run.result()


def test_what_is_held_back_is_lent_to_a_preemptible_filler() -> None:
    """Nodes stand empty for a request that waits long, unless the filler is preemptible."""
    plain, preemptible = filled(preemptible=False), filled(preemptible=True)
    assert preemptible["utilisation"]["active"] > plain["utilisation"]["active"]
    started = [one["by"]["group"]["batch"]["jobs"]["started"] for one in (plain, preemptible)]
    assert started[1] >= 0.97 * started[0]


@pytest.mark.parametrize(
    ("days", "most"), [(1, 1.08), pytest.param(3, 1.03, marks=pytest.mark.nightly)]
)
def test_a_preemptible_filler_uses_all_nodes_and_hardly_delays_others(
    days: int, most: float
) -> None:
    """docs/simulator has the figures of three days; one day has fewer jobs to average over."""
    found = {}
    for per_day in (0, 40000):
        scenario = tables.load("docs/examples/filler.toml")
        for key, value in {
            "days": str(days),
            "policy.hold_after": "1",
            "demand.filler.arrivals.per_day": str(per_day),
            "demand.filler.preemptible": "true" if per_day else "false",
        }.items():
            tables.change(scenario, key, value)
        found[per_day] = simulate(tables.read(scenario))
    assert found[40000]["utilisation"]["active"] >= 0.985
    without, filled = (one["by"]["group"]["batch"]["wait"]["mean"] for one in found.values())
    assert filled <= most * without


def test_jobs_that_lose_nodes_ask_for_others_and_run_in_the_end() -> None:
    scenario = tables.load("docs/examples/filler.toml")
    scenario["type"][0]["blocks"] = [4]
    scenario["demand"] = [
        {
            "name": "low",
            "group": "filler",
            "model": "jobs",
            "preemptible": True,
            "nodes": [2],
            "arrivals": {"per_day": 24},
            "runtime": {"median": 3000, "spread": 0},
        },
        {
            "name": "high",
            "group": "batch",
            "model": "jobs",
            "nodes": [3],
            "arrivals": {"per_day": 6},
            "runtime": {"median": 1000, "spread": 0},
        },
    ]
    scenario |= {"days": 1, "run_on": 2}
    run = Simulation(tables.read(scenario))
    for _ in run.slices(1):
        pass
    result = run.result()
    assert result["reallocation"]["taken"] > 0
    assert result["jobs"]["restarts"] > 0
    assert (
        result["by"]["group"]["filler"]["jobs"]["done"]
        == result["by"]["group"]["filler"]["jobs"]["submitted"]
    )
