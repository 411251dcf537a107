"""Fair shares in the simulator: two equal pools that want 25 and 6.25 nodes of 20."""

from __future__ import annotations

from typing import Any

import pytest

from cod.sim.run import Simulation
from cod.sim.scenario import tables

pytestmark = pytest.mark.slow


def pools(**policy: float) -> Any:
    """The figures of two days, by group."""
    scenario = tables.load("docs/examples/two-pools.toml")
    scenario["days"] = 2
    scenario["policy"] = {**scenario["policy"], **policy}
    run = Simulation(tables.read(scenario))
    run.advance(run.end)
    return run.result()["by"]["group"]


def test_the_smaller_pool_is_served_by_its_share() -> None:
    without, fair = pools(), pools(fair_half_life=86400.0)
    assert fair["small"]["wait"]["mean"] < 1200 < without["small"]["wait"]["mean"]
    assert fair["small"]["jobs"]["never_started"] == 0
    assert fair["large"]["nodes_held"] > 11


def test_a_limit_bounds_what_a_group_holds() -> None:
    scenario = tables.load("docs/examples/two-pools.toml")
    scenario["days"] = 1
    tables.change(scenario, "group.large.node_limit", "8")
    run = Simulation(tables.read(scenario))
    run.advance(run.end)
    assert run.result()["by"]["group"]["large"]["nodes_held"] <= 8
