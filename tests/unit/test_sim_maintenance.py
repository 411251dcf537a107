"""Maintenance windows in the simulated site: which leases begin beside them, what they take, and
that the same rule holds as on the site."""

from __future__ import annotations

from typing import Any

import pytest

from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.snapshot import PassPlan, SiteSnapshot
from cod.sim.check.rules import broken
from cod.sim.run import Simulation, simulate
from cod.sim.scenario.tables import BadScenario
from cod.states import NodeState
from tests.unit.sim_site import (
    BOOT,
    EXACT,
    LOOK,
    PRIME,
    RESET,
    WIPE,
    Told,
    audit,
    scenario,
    world,
)

BEGINS, ENDS = 10_000.0, 15_000.0
TWO = [{"name": "node", "blocks": [2, 2], "times": EXACT}]


def window(**changed: Any) -> dict[str, Any]:
    """A window of the first block, known from 1,000 s on."""
    length = ENDS - BEGINS
    return {
        "name": "power feed",
        "begins": BEGINS,
        "length": length,
        "ahead": 9000.0,
        "blocks": [1],
    } | changed


def block(site: Any, number: int) -> list[NodeState]:
    return [one.state for one in site.pool.machines if one.kind.block == number]


def test_a_lease_that_would_run_into_a_window_gets_other_nodes_or_waits() -> None:
    site = world(scenario(types=TWO, window=[window()]))
    owner = Told(site, "low", may_spread=True)
    site.clock.run(2000)
    long, short = owner.create(2, "long", 9000.0), owner.create(1, "short", 7000.0)
    site.clock.run(2010)
    waits = owner.create(1, "waits", 9000.0)
    site.clock.run(2020)
    assert {one.kind.block for one in long.held} == {2}
    assert {one.kind.block for one in short.held} == {1}
    assert not waits.held
    (request,) = site.pending.values()
    assert "maintenance of @1 begins" in request.reason
    assert "(power feed)" in request.reason
    assert not audit(site)


def test_the_grace_after_a_lease_counts() -> None:
    """The grace is 40 s: nodes are not taken from a lease that has just ended."""
    site = world(scenario(types=TWO, window=[window(blocks=[])]))
    owner = Told(site, "low")
    site.clock.run(1500)
    now = site.clock.now + LOOK
    fits, late = (
        owner.create(1, "fits", BEGINS - 40 - now),
        owner.create(1, "late", BEGINS - 39 - now),
    )
    site.clock.run(1510)
    assert (len(fits.held), len(late.held)) == (1, 0)


def test_nodes_are_taken_when_it_begins_replaced_and_back_when_it_ends() -> None:
    site = world(scenario(types=TWO, window=[window()]))
    owner = Told(site, "low", may_spread=True)
    held = owner.create(2, "web", 1e6)  # before anybody knows of the window
    site.clock.run(BEGINS - 1)
    assert {one.kind.block for one in held.held} == {1}
    site.clock.run(BEGINS + LOOK + PRIME + BOOT)
    assert block(site, 1) == [NodeState.QUARANTINED] * 2
    assert {one.kind.block for one in held.held} == {2}
    assert owner.times("broken") == [BEGINS] * 2
    assert site.maintenance.taken == 2
    assert not audit(site)
    site.clock.run(ENDS + RESET + WIPE)
    assert block(site, 1) == [NodeState.INACTIVE] * 2
    assert not site.maintenance.times
    assert site.lifecycle.failures == 0, "maintenance is no failure"
    assert not audit(site)


def test_preemptible_clusters_use_nodes_until_it_begins() -> None:
    site = world(scenario(types=TWO, window=[window(blocks=[])]))
    owner = Told(site, "low", may_spread=True)
    site.clock.run(2000)
    cluster = site.create(
        owner, owner.group, 4, owner.template_id, name="p", needs="", cache=False, lease=1e6,
        may_spread=True, preemptible=True,
    )  # fmt: skip
    site.clock.run(BEGINS - 1)
    assert len(cluster.held) == 4
    site.clock.run(BEGINS + 1)
    assert not cluster.held


def test_a_node_in_two_windows_comes_back_after_the_later_one() -> None:
    later = window(name="second", begins=BEGINS + 1000, length=ENDS - BEGINS)
    site = world(scenario(types=TWO, window=[window(), later]))
    site.clock.run(ENDS + 500)
    assert block(site, 1) == [NodeState.QUARANTINED] * 2
    assert len(site.maintenance.times) == 1
    site.clock.run(ENDS + 1000 + RESET + WIPE)
    assert block(site, 1) == [NodeState.INACTIVE] * 2


def test_a_node_that_is_repaired_meanwhile_stays_out() -> None:
    types = [{**TWO[0], "repair": 1.0}]
    site = world(scenario(types=types, window=[window()]))
    site.clock.run(BEGINS - 3000)
    site.lifecycle.fail(site.pool.machines[0])
    site.clock.run(BEGINS + 3000)
    assert block(site, 1) == [NodeState.QUARANTINED] * 2
    site.clock.run(ENDS + RESET + WIPE)
    assert block(site, 1) == [NodeState.INACTIVE] * 2


DEMANDS = [
    {"name": "jobs", "model": "jobs", "group": "low", "nodes": [1, 2],
     "arrivals": {"per_day": 60}, "runtime": {"median": 2000, "most": 5000}},
    {"name": "batch", "model": "queue", "group": "middle", "least": 1, "most": 4,
     "arrivals": {"per_day": 60}, "runtime": {"median": 1500}},
]  # fmt: skip


@pytest.mark.slow
def test_a_month_with_windows_keeps_every_promise_of_the_policy() -> None:
    every_other_day = [
        window(name=f"w{day}", begins=day * 86400.0, length=20_000.0, blocks=[1 + day % 2])
        for day in range(1, 20, 2)
    ]
    made = scenario(
        types=[{"name": "node", "blocks": [4, 4], "times": EXACT, "mtbf": 300, "repair": 2}],
        demand=DEMANDS,
        days=20,
        window=every_other_day,
        policy={"inertia": 300},
    )
    faults: list[str] = []

    def look(seen: SiteSnapshot, planned: PassPlan, now: float) -> None:
        faults.extend(broken(seen, planned, made.policy, now))

    run = Simulation(made, look)
    for _ in run.slices(5):
        pass
    assert not faults
    assert run.world.maintenance.taken > 0
    assert run.result()["maintenance"] == {"windows": 10, "taken": run.world.maintenance.taken}


def test_the_check_sees_a_grant_that_runs_into_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[str] = []
    made = scenario(types=TWO, window=[window(blocks=[])])

    def look(seen: SiteSnapshot, planned: PassPlan, now: float) -> None:
        faults.extend(broken(seen, planned, made.policy, now))

    monkeypatch.setattr(Feasibility, "closed", lambda self, request: 0)
    site = world(made, look)
    owner = Told(site, "low")
    site.clock.run(2000)
    owner.create(1, "long", 9000.0)
    site.clock.run(2010)
    assert faults == [f"request 2: nodes that maintenance takes at {BEGINS - 40}"]


@pytest.mark.slow
def test_a_scenario_without_windows_is_as_ever() -> None:
    plain = simulate(scenario(demand=DEMANDS, days=3))
    far = simulate(scenario(demand=DEMANDS, days=3, window=[window(begins=1e8, blocks=[])]))
    assert plain.pop("maintenance") == {"windows": 0, "taken": 0}
    assert far.pop("maintenance") == {"windows": 1, "taken": 0}
    assert plain == far


@pytest.mark.parametrize(
    ("windows", "says"),
    [
        ([window(blocks=[3])], "window.power feed.blocks: there is no block 3, the last is 2"),
        ([window(counts=[1, 2])], "window.power feed.counts: there should be one for each of"),
        ([window(), window()], "window: 'power feed' is used twice"),
        ([window(length=0)], "window.power feed.length: should be at least 1"),
        ([{"name": "x"}], "window.x.begins: "),
        ([window(name=f"w{one}") for one in range(31)], "more than 30 windows are planned"),
    ],
)
def test_windows_that_make_no_sense_are_refused(windows: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(BadScenario, match=says.replace("(", r"\(")):
        scenario(types=TWO, window=windows)
