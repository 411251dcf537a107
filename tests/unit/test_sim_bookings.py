"""Reservations in advance, and moves of nodes between two virtual clusters, in simulations."""

from __future__ import annotations

from typing import Any

import pytest

from cod.sim import moves
from cod.sim.cluster import Cluster
from cod.sim.run import Simulation
from cod.sim.scenario.tables import BadScenario
from cod.sim.world import World
from cod.states import VclusterState
from tests.unit.sim_site import (
    BOOT,
    LOOK,
    NOBODY,
    PRIME,
    RESET,
    WIPE,
    Told,
    audit,
    scenario,
    world,
)

HOUR, DAY = 3600.0, 86400.0
COUNTS = ("asked", "refused", "accepted", "begun", "late", "waiting")
RESERVED = {
    "name": "course",
    "group": "high",
    "model": "reservations",
    "nodes": [4],
    "hours": [1],
    "ahead": {"median": 2 * HOUR, "spread": 0},
    "length": {"median": HOUR, "spread": 0},
}
STARTS = 3 * HOUR  # what is reserved at 1:00, two hours ahead


def booked(*demand: dict[str, Any], **more: Any) -> Simulation:
    """A day in which one cluster of four nodes is reserved, beside other demands."""
    course = {**RESERVED, **more.pop("course", {})}
    return Simulation(scenario(demand=[course, *demand], days=more.pop("days", 1), **more))


def counts(simulation: Simulation, name: str = "course") -> tuple[int, ...]:
    found = simulation.result()["reservations"][name]
    return tuple(found[one] for one in COUNTS)


def course(simulation: Simulation) -> Cluster:
    return next(one for one in simulation.world.clusters.values() if one.name.startswith("course-"))


def test_what_is_reserved_begins_at_its_start_and_lasts_as_long_as_was_asked() -> None:
    simulation = booked()
    simulation.advance(STARTS - 1)
    assert counts(simulation) == (1, 0, 1, 0, 0, 1)
    assert course(simulation).state is VclusterState.PENDING
    simulation.advance(STARTS + 600)
    cluster = course(simulation)
    assert (cluster.leased_at, cluster.expires_at) == (STARTS, STARTS + HOUR)
    assert counts(simulation) == (1, 0, 1, 1, 0, 0)
    simulation.advance(DAY)
    assert cluster.state is VclusterState.ENDED
    assert not audit(simulation.world)
    result = simulation.result()
    assert result["reservations"]["course"]["delay"]["max"] == 0
    served = 4 * (HOUR - PRIME - BOOT)
    assert result["by"]["group"]["high"]["used_node_hours"] == round(served / HOUR, 3)
    assert result["waiting"]["granted"]["all"]["count"] == 0, "who reserves does not wait"


def test_a_reservation_has_its_nodes_from_vclusters_of_lower_priority_in_time() -> None:
    """The farm wants all four nodes, and lets reclaims run to their deadline."""
    farm = {"name": "farm", "group": "low", "model": "farm", "low": 1, "high": 8, "noise": 0}
    simulation = booked(farm, course={"nodes": [3], "hours": [20]}, days=2)
    simulation.advance(22 * HOUR - 2000)
    assert sum(machine.cluster is not None for machine in simulation.world.pool.machines) == 4
    simulation.advance(22 * HOUR)
    assert simulation.world.stats.seized == 3
    assert course(simulation).leased_at == 22 * HOUR
    assert counts(simulation) == (1, 0, 1, 1, 0, 0)
    assert not audit(simulation.world)


@pytest.mark.parametrize(
    ("change", "accepted"),
    [
        ({}, 1),
        ({"nodes": [5]}, 0),
        ({"hours": [1, 1.5]}, 1),
        ({"hours": [1, 4]}, 2),
        ({"ahead": {"median": 60, "spread": 0, "least": 0}}, 1),
        ({"ahead": {"median": 0, "spread": 0, "least": 0}}, 0),
        ({"length": {"median": 3 * HOUR, "spread": 0}, "group": "short"}, 0),
        ({"group": "few"}, 0),
        ({"group": "used"}, 0),
    ],
)
def test_the_policy_accepts_or_refuses(change: dict[str, Any], accepted: int) -> None:
    groups = [
        {"name": "low"},
        {"name": "high", "priority": 10},
        {"name": "short", "max_lease": 2 * HOUR},
        {"name": "few", "node_limit": 3},
        {"name": "used", "hours": 3},
    ]
    simulation = booked(course=change, group=groups)
    simulation.advance(simulation.end)
    asked = len(change.get("hours", [1]))
    assert counts(simulation)[:4] == (asked, asked - accepted, accepted, accepted)


@pytest.mark.slow
def test_what_is_late_through_a_failure_is_told_and_begins_when_it_can() -> None:
    simulation = booked()
    machine = simulation.world.pool.machines[0]
    simulation.world.clock.at(STARTS - 60, simulation.world.lifecycle.fail, machine)
    simulation.advance(STARTS + HOUR)
    assert counts(simulation) == (1, 0, 1, 0, 1, 1)
    repaired = STARTS - 60 + machine.spec.repair * HOUR
    simulation.run_on(repaired + HOUR)
    simulation.advance(repaired + HOUR)
    assert counts(simulation) == (1, 0, 1, 0, 1, 1), "a day is over"


def test_a_late_reservation_lasts_as_long_as_one_in_time() -> None:
    kind = {"name": "node", "blocks": [4], "repair": 1, "times": {"reset": 80, "spread": 0}}
    simulation = booked(types=[kind])
    machine = simulation.world.pool.machines[0]
    simulation.world.clock.at(STARTS - 60, simulation.world.lifecycle.fail, machine)
    simulation.advance(STARTS + 2 * HOUR)
    cluster = course(simulation)
    assert cluster.leased_at > STARTS + HOUR - 60
    assert cluster.expires_at == cluster.leased_at + HOUR
    assert counts(simulation) == (1, 0, 1, 1, 1, 0)
    delay = simulation.result()["reservations"]["course"]["delay"]["max"]
    assert delay == cluster.leased_at - STARTS


def test_no_lease_is_extended_beyond_a_reservation() -> None:
    simulation = booked()
    site = simulation.world
    owner = Told(site, "high")
    cluster = owner.create(2, "long", 1.5 * HOUR)
    simulation.advance(1.2 * HOUR)
    site.extend(cluster, 10 * HOUR)
    erased = site.policy.drain_grace + site.policy.turnaround
    assert cluster.expires_at == STARTS - erased
    simulation.advance(STARTS)
    assert counts(simulation) == (1, 0, 1, 1, 0, 0)


# ---------------------------------------------------------------- moves


def two(site: World, *, group: str = "low") -> tuple[Cluster, Cluster]:
    """A vcluster of three nodes, and one of a single node, which run."""
    source = Told(site, "low").create(3, "source", 1e6)
    target = Told(site, group).create(1, "target", 1e6)
    site.clock.run(1000)
    assert (len(source.held), len(target.held)) == (3, 1)
    return source, target


def move(site: World, source: Cluster, target: Cluster, count: int = 2, **more: Any) -> Any:
    site.stats.bookings.of_moves("m")
    return moves.start(site, source, target, count, more.get("within"), "m")


def test_nodes_that_nobody_gives_back_move_at_the_deadline() -> None:
    site = world()
    source, target = two(site)
    request = move(site, source, target, within=300)
    assert not audit(site)
    site.clock.run(1300)
    assert (source.size, len(source.held)) == (1, 1)
    site.clock.run(1300 + RESET + WIPE + LOOK)
    assert (target.size, len(target.held)) == (3, 3)
    site.clock.run(2000)
    assert site.stats.bookings.moves["m"]["ended"] == 1
    assert site.stats.bookings.moves["m"]["moved"] == request.moved == 2
    assert site.stats.seized == 2
    assert site.stats.granted[0] == [0.0, 0.0], "two creations, and no move"
    assert not audit(site)


def test_what_others_want_meanwhile_does_not_stop_nodes_that_move() -> None:
    site = world()
    source, target = two(site)
    move(site, source, target)
    Told(site, "low").create(1, "first", 1e6)
    site.clock.run(3000)
    assert len(target.held) == 3
    assert not audit(site)


def test_a_move_that_loses_a_node_ends_with_the_other() -> None:
    site = world()
    source, target = two(site)
    request = move(site, source, target, within=0)
    site.clock.run(1000 + LOOK + 10)
    site.lifecycle.fail(next(iter(site.pool.kept)))
    site.clock.run(3000)
    assert site.stats.bookings.moves["m"] == {
        **dict.fromkeys(("asked", "refused", "nodes", "rejected", "withdrawn"), 0),
        "ended": 1,
        "moved": 1,
    }
    assert (request.moved, target.size, source.size) == (1, 2, 1)
    assert not audit(site)


def test_a_move_of_which_nothing_is_left_is_rejected() -> None:
    site = world()
    source, target = two(site)
    move(site, source, target, 1, within=0)
    site.clock.run(1000 + LOOK + 10)
    site.lifecycle.fail(next(iter(site.pool.kept)))
    site.clock.run(3000)
    assert site.stats.bookings.moves["m"]["rejected"] == 1
    assert (target.size, source.size) == (1, 2)
    assert not audit(site)


def test_one_node_stays_whatever_else_the_source_gives_up() -> None:
    site = world()
    source, target = two(site)
    move(site, source, target, within=300)
    staying = [one for one in source.held if not one.reclaim]
    site.restore(source, staying)
    site.clock.run(3000)
    assert (len(source.held), len(target.held)) == (1, 2)
    assert site.stats.bookings.moves["m"]["moved"] == 1
    assert not audit(site)


def test_a_move_ends_with_the_lease_of_the_vcluster_that_gets_the_nodes() -> None:
    site = world()
    source = Told(site, "low").create(3, "source", 1e6)
    target = Told(site, "low").create(1, "target", 2000)
    site.clock.run(1000)
    move(site, source, target, within=900)
    site.clock.run(1500)
    site.lease(target, 1600)  # it does not last as long as was thought
    site.clock.run(3000)
    assert site.stats.bookings.moves["m"]["withdrawn"] == 1
    assert (source.size, source.leaving) == (3, 0)
    assert not audit(site)


@pytest.mark.parametrize(
    ("count", "more", "why"),
    [
        (3, {}, "2 nodes can move at most"),
        (1, {"within": 1e6}, "ends before the nodes would be there"),
        (1, {"needs": "<requires><memory mib='9999999'/></requires>"}, "0 nodes match"),
        (1, {"limit": 1}, "the group may hold 1 nodes at once"),
        (1, {"state": VclusterState.RELEASING}, "is releasing, not active"),
    ],
)
def test_the_moves_that_are_refused(count: int, more: dict[str, Any], why: str) -> None:
    groups: list[dict[str, Any]] = [
        {"name": "low"},
        {"name": "high", "node_limit": more.get("limit")},
    ]
    made = Simulation(scenario(group=[one for one in groups if one.get("node_limit", 1)]))
    site = made.world
    if "limit" not in more:
        site.groups.pop("high", None)
    source, target = two(site, group="high")
    target.needs = more.get("needs", "")
    target.state = more.get("state", target.state)
    with pytest.raises(moves.NotMoved, match=why):
        move(site, source, target, count, **more)
    assert not site.reclaims
    assert site.stats.bookings.moves["m"]["ended"] == 0


def test_no_move_leaves_a_reservation_without_its_nodes() -> None:
    """All nodes are held. The reservation counts on the source, whose lease ends before; the target
    keeps its nodes."""
    simulation = booked(course={"nodes": [2], "group": "low"})
    site = simulation.world
    source = Told(site, "low").create(3, "source", 1.8 * HOUR)
    target = Told(site, "low").create(1, "target", 9 * HOUR)
    simulation.advance(1.1 * HOUR)
    assert counts(simulation) == (1, 0, 1, 0, 0, 1)
    with pytest.raises(moves.NotMoved, match="are reserved in advance"):
        move(site, source, target, 2)
    assert not audit(site)
    move(site, source, target, 1)
    simulation.advance(STARTS)
    assert counts(simulation) == (1, 0, 1, 1, 0, 0)
    assert not audit(site)


# ---------------------------------------------------------------- scenarios

QUEUE = {"group": "low", "model": "queue", "least": 2, "most": 6, "nodes": [1]}
MOVES = {"name": "m", "model": "moves", "source": "one", "target": "two", "hours": [6, 18]}


@pytest.mark.slow
def test_nodes_move_between_two_demands_at_their_hours() -> None:
    queues = [
        {**QUEUE, "name": name, "arrivals": {"per_day": 60}, "runtime": {"median": 7200}}
        for name in ("one", "two")
    ]
    simulation = Simulation(scenario(8, demand=[*queues, MOVES], days=3))
    simulation.advance(simulation.end)
    found = simulation.result()["moves"]["m"]
    assert found["asked"] == 6
    assert found["ended"] == found["moved"] == found["nodes"] == 6 - found["refused"] > 0
    assert found["took"]["count"] == found["ended"]
    assert not audit(simulation.world)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"source": "none"}, "demand.m.source: 'none' should be a demand: a queue or a farm"),
        ({"target": "nobody"}, "demand.m.target: 'nobody' should be a demand: a queue or a farm"),
        ({"target": "one"}, "demand.m.target: should be another demand than the source"),
        ({"hours": [25]}, "demand.m.hours.0: should be at most 24, not 25"),
        ({"group": "low"}, "demand.m.group: no such key"),
    ],
)
def test_moves_are_between_two_queues_or_farms(change: dict[str, Any], problem: str) -> None:
    queues = [{**QUEUE, "name": name} for name in ("one", "two")]
    with pytest.raises(BadScenario) as bad:
        scenario(demand=[*queues, NOBODY, {**MOVES, **change}])
    assert problem in bad.value.problems[0]
