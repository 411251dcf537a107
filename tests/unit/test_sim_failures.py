"""Wrong templates and failing machines in the simulated site: what they cost with the table of
blame, and without it."""

from __future__ import annotations

from typing import Any

import pytest

from cod.policy.nodes import blame
from cod.sim.cluster import Cluster
from cod.sim.run import Simulation
from cod.sim.world import World
from cod.states import NodeState
from tests.unit.sim_site import EXACT, Told, audit, scenario, world

DAY, HOUR = 86400.0, 3600.0
TYPE = {"name": "node", "blocks": [8], "times": EXACT}


def site(**top: Any) -> World:
    """Eight machines; those that are set aside come back after four weeks."""
    return world(scenario(types=[TYPE | {"repair": 28 * 24}], **top))


def wrong(owner: Told, size: int, name: str = "wrong") -> Cluster:
    template = owner.world.template(cache=False, wrong=True)
    return owner.create(size, name, 3 * DAY, template_id=template)


def aside(there: World) -> int:
    return sum(machine.state is NodeState.QUARANTINED for machine in there.pool.machines)


def counts(there: World) -> tuple[int, int, int]:
    failures = there.failures
    return failures.healthy_aside, failures.failing_aside, failures.given_back


def test_a_wrong_template_costs_one_machine() -> None:
    there = site()
    cluster = wrong(Told(there, "low"), 4)
    there.clock.run(2 * DAY)
    assert (aside(there), counts(there)) == (1, (1, 0, 4))
    assert (len(cluster.held), cluster.stopped, cluster.size) == (0, 4, 4)
    assert audit(there) == []
    there.clock.run(4 * DAY)
    assert cluster.state == "ended"
    assert there.failures.wrong == set()


@pytest.mark.slow
def test_without_the_table_a_wrong_template_costs_every_machine() -> None:
    there = site(blame=False)
    wrong(Told(there, "low"), 4)
    there.clock.run(2 * DAY)
    assert (aside(there), counts(there)) == (8, (8, 0, 0))
    assert audit(there) == []


def test_one_group_s_wrong_templates_cost_three_machines() -> None:
    there = site()
    owner, other = Told(there, "low"), Told(there, "high")
    for number in range(5):
        wrong(owner, 1, f"wrong{number}")
        there.clock.run((number + 1) * 4 * HOUR)
    assert counts(there) == (3, 0, 5)
    wrong(other, 1)
    there.clock.run(2 * DAY)
    assert (aside(there), counts(there)) == (4, (4, 0, 6))


def test_the_rules_are_the_policy_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame, "BREAKER", 3)
    there = site()
    wrong(Told(there, "low"), 1)
    there.clock.run(2 * DAY)
    assert counts(there) == (2, 0, 1)


def test_a_failing_machine_is_set_aside_and_another_takes_its_place() -> None:
    there = site()
    there.pool.machines[0].failing = True
    owner = Told(there, "low")
    cluster = owner.create(2, "right", 28 * DAY)
    there.clock.run(DAY)
    assert counts(there) == (0, 1, 0)
    assert there.pool.machines[0].state is NodeState.QUARANTINED
    assert [machine.state for machine in cluster.held] == [NodeState.ACTIVE] * 2
    assert audit(there) == []


@pytest.mark.slow
def test_as_many_machines_fail_all_the_time() -> None:
    there = site(failing_machines=0.25)
    for owner in (Told(there, "low"), Told(there, "high")):
        owner.create(4, owner.group.name, 100 * DAY)
    before = {machine.id for machine in there.pool.machines if machine.failing}
    there.clock.run(DAY)
    assert len(before) == 2
    there.clock.run(40 * DAY)
    after = {machine.id for machine in there.pool.machines if machine.failing}
    assert len(after) == 2
    assert after != before


def test_a_stopped_request_with_a_right_template_is_tried_again() -> None:
    there = site()
    owner = Told(there, "low")
    for machine in there.pool.machines[:2]:
        machine.failing = True
    cluster = owner.create(2, "right", 28 * DAY)  # of both machines, and none has become ready
    there.clock.run(DAY)
    # the second one went back, and was set aside when it was tried again after a success
    assert counts(there) == (0, 2, 1)
    assert there.stats.outcomes[0, "stopped"] == 1
    assert cluster.stopped == 0
    assert [machine.state for machine in cluster.held] == [NodeState.ACTIVE] * 2
    assert audit(there) == []


@pytest.mark.slow
def test_figures_say_what_healthy_machines_lost() -> None:
    jobs = {
        "name": "jobs",
        "group": "low",
        "model": "jobs",
        "arrivals": {"per_day": 12},
        "runtime": {"median": 1800, "spread": 0},
    }
    lost = {}
    for judged in (True, False):
        made = scenario(
            types=[TYPE], demand=[jobs], days=20, wrong_templates=0.1, blame=judged, seed=3
        )
        run = Simulation(made)
        run.advance(run.end)
        assert audit(run.world) == []
        faults = run.result()["faults"]
        assert faults["wrong_templates"] > 10
        lost[judged] = faults["healthy_lost"]
    assert 0 < lost[True] < lost[False]
