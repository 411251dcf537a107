"""The simulated site: small cases with known answers, and books that always balance."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cod.policy.scheduler.snapshot import PassPlan, Preempt, RequestGrant, Share, SiteSnapshot
from cod.sim import apply_plan
from cod.sim.check.rules import broken
from cod.sim.cluster import Cluster, SimMachine
from cod.sim.run import Simulation
from cod.sim.world import World
from cod.states import NodeState, VclusterState, WrongEvent
from tests.unit.sim_site import (
    BOOT,
    EXACT,
    LOOK,
    PRIME,
    RESET,
    WAKE,
    WIPE,
    Told,
    audit,
    scenario,
    world,
)

LONG = 1e6
ASLEEP = {"manage": True, "warm_low": 0, "warm_high": 0, "idle_time": 0}


def founded(site: World, owner: Told, size: int, lease: float = LONG) -> Cluster:
    return owner.create(size, owner.group.name, lease)


def states(site: World) -> list[str]:
    return [machine.state.value for machine in site.pool.machines]


# ---------------------------------------------------------------- one node, one request


def test_a_warm_node_is_primed_and_booted() -> None:
    site = world(scenario(1))
    owner = Told(site, "low")
    site.clock.run(10)
    founded(site, owner, 1)
    site.clock.run(1000)
    assert owner.times("granted") == [10 + LOOK]
    assert owner.times("up") == [10 + LOOK + PRIME + BOOT]
    assert site.stats.ready[0] == [LOOK + PRIME + BOOT]
    assert site.stats.granted[0] == [LOOK]


def test_a_cold_node_is_woken_first() -> None:
    site = world(scenario(1, energy=ASLEEP))
    owner = Told(site, "low")
    site.clock.run(500)
    assert states(site) == ["off"]
    founded(site, owner, 1)
    site.clock.run(1000)
    assert owner.times("up") == [500 + LOOK + WAKE + PRIME + BOOT]
    assert (site.lifecycle.wakes, site.lifecycle.sleeps) == (1, 1)


def test_a_node_comes_back_wiped_and_serves_the_next() -> None:
    site = world(scenario(1))
    first, second = Told(site, "low"), Told(site, "middle")
    cluster = founded(site, first, 1)
    site.clock.run(200)
    founded(site, second, 1)
    site.clock.run(300)
    site.delete(cluster)
    site.clock.run(1000)
    back = 300 + RESET + WIPE
    assert second.times("granted") == [back + LOOK]
    assert second.times("up") == [back + LOOK + PRIME + BOOT]
    assert cluster.state is VclusterState.ENDED
    assert first.times("ended") == [back + LOOK]


@pytest.mark.parametrize(("group", "primes"), [("low", False), ("middle", True)])
def test_a_disk_that_was_kept_is_not_primed_for_the_same_group(group: str, primes: bool) -> None:
    site = world(scenario(1))
    owner = Told(site, "low", cache=True)
    cluster = founded(site, owner, 1)
    site.clock.run(200)
    site.delete(cluster)
    site.clock.run(200 + RESET)
    assert states(site) == ["inactive"]  # a disk that is kept is not wiped
    site.clock.run(400)
    other = owner if group == "low" else Told(site, group, cache=True)
    founded(site, other, 1)
    site.clock.run(1000)
    assert other.times("up")[-1] == 400 + LOOK + (PRIME if primes else 0) + BOOT


def test_a_disk_that_was_not_written_whole_is_wiped() -> None:
    site = world(scenario(1))
    owner = Told(site, "low", cache=True)
    site.clock.run(10)
    cluster = founded(site, owner, 1)
    site.clock.run(10 + LOOK + PRIME / 2)
    site.delete(cluster)
    site.clock.run(10 + LOOK + PRIME / 2 + RESET)
    assert states(site) == ["wipe"]


def test_a_request_for_more_than_the_site_has_is_rejected() -> None:
    site = world(scenario(2))
    owner = Told(site, "low")
    site.clock.run(10)
    cluster = founded(site, owner, 3)
    site.clock.run(20)
    assert owner.times("refused") == [10 + LOOK]
    assert owner.times("ended") == [10 + LOOK]
    assert cluster.state is VclusterState.ENDED
    assert site.stats.outcomes[0, "rejected"] == 1


def test_who_would_not_wait_is_rejected_when_there_is_nothing() -> None:
    site = world(scenario(1))
    first, second = Told(site, "low"), Told(site, "low")
    founded(site, first, 1)
    site.clock.run(50)
    second.create(1, "now", LONG, may_wait=False)
    site.clock.run(60)
    assert second.times("refused") == [50 + LOOK]


def test_what_is_withdrawn_is_not_granted() -> None:
    site = world(scenario(2))
    owner = Told(site, "low")
    cluster = founded(site, owner, 1)
    site.clock.run(10)
    site.withdraw(site.grow(cluster, 1))
    site.clock.run(500)
    assert len(cluster.held) == 1
    assert site.stats.outcomes[0, "withdrawn"] == 1


# ---------------------------------------------------------------- contention


def contended(
    grace: float = 60, inertia: float = 0, by_priority: dict[str, float] | None = None
) -> Any:
    """Two nodes, both held by 'low', which founded with one and grew by one at 200 s; 'high' asks
    for one at 500 s."""
    policy = {"reclaim_grace": grace, "inertia": inertia, "inertia_by_priority": by_priority or {}}
    site = world(scenario(2, policy=policy))
    low, high = Told(site, "low"), Told(site, "high")
    cluster = founded(site, low, 1)
    site.clock.run(200)
    site.grow(cluster, 1)
    site.clock.run(500)
    founded(site, high, 1)
    return site, low, high, cluster


def test_what_nobody_gives_back_is_seized_at_the_deadline() -> None:
    site, low, high, cluster = contended()
    site.clock.run(2000)
    asked = 500 + LOOK
    assert low.times("asked back") == [asked]
    assert low.times("taken") == [asked + 60]
    back = asked + 60 + RESET + WIPE
    assert high.times("up") == [back + LOOK + PRIME + BOOT]
    assert (site.stats.taken, site.stats.seized, site.stats.given) == (1, 1, 0)
    assert (cluster.size, len(cluster.held)) == (1, 1)


def test_what_is_given_back_in_time_comes_sooner() -> None:
    site, low, high, cluster = contended()
    site.clock.run(510)
    site.restore(cluster, [machine for machine in cluster.held if machine.reclaim])
    site.clock.run(2000)
    assert low.times("taken") == []
    assert high.times("granted") == [510 + RESET + WIPE + LOOK]
    assert (site.stats.taken, site.stats.seized, site.stats.given) == (1, 0, 1)


def test_a_reclaimed_node_is_kept_for_whom_it_was_taken() -> None:
    site, _, high, cluster = contended()
    site.clock.run(510)
    site.restore(cluster, [machine for machine in cluster.held if machine.reclaim])
    rival = Told(site, "high")
    founded(site, rival, 1)
    site.clock.run(700)
    assert high.times("granted")
    assert not rival.times("granted")


def test_what_comes_free_meanwhile_is_not_taken() -> None:
    """Take one of the two nodes asked back: another vcluster ends, and gives the second."""
    site = world(scenario(4, policy={"reclaim_grace": 300, "inertia": 0}))
    low, other, high = Told(site, "low"), Told(site, "high"), Told(site, "high")
    cluster, ends = founded(site, low, 1), founded(site, other, 1)
    site.clock.run(200)
    site.grow(cluster, 2)
    site.clock.run(500)
    founded(site, high, 2)
    site.clock.run(510)
    assert cluster.leaving == 2
    site.delete(ends)
    site.clock.run(520)
    assert cluster.leaving == 1
    site.clock.run(3000)
    assert (len(low.times("taken")), site.stats.seized, cluster.size, cluster.leaving) == (
        1,
        1,
        2,
        0,
    )
    assert high.times("granted")


def test_a_request_that_is_withdrawn_spares_what_was_reclaimed_for_it() -> None:
    site, low, _, cluster = contended()
    site.clock.run(510)
    site.withdraw(next(iter(site.pending.values())))
    assert not site.reclaims
    assert cluster.leaving == 0
    site.clock.run(2000)
    assert low.times("taken") == []
    assert len(cluster.held) == 2


def test_what_comes_back_for_a_request_that_is_withdrawn_is_anybodys() -> None:
    site, _, _, cluster = contended()
    site.clock.run(510)
    (machine,) = (one for one in cluster.held if one.reclaim)
    (request,) = site.pending.values()
    site.restore(cluster, [machine])
    assert machine.reserved == request.id
    site.withdraw(request)
    assert machine.reserved == 0
    assert not audit(site)
    rival = Told(site, "middle")
    founded(site, rival, 1)
    site.clock.run(1000)
    assert rival.times("granted") == [510 + RESET + WIPE + LOOK]


@pytest.mark.parametrize(
    ("inertia", "by_priority", "until"),
    [(1000, {}, 1000), (0, {"0": 700}, 700), (1000, {"0": 0}, 500 + LOOK)],
)
def test_inertia_keeps_young_nodes(
    inertia: float, by_priority: dict[str, float], until: float
) -> None:
    site, low, _, _ = contended(inertia=inertia, by_priority=by_priority)
    site.clock.run(3000)  # the older of its nodes it was granted at 0
    assert low.times("asked back") == [until]


def test_nothing_is_taken_below_the_creation_size() -> None:
    site = world(scenario(2))
    low, high = Told(site, "low"), Told(site, "high")
    founded(site, low, 2)
    site.clock.run(500)
    founded(site, high, 1)
    site.clock.run(5000)
    assert not high.times("granted")
    assert site.stats.taken == 0


def test_nothing_is_taken_from_equals() -> None:
    site = world(scenario(2))
    first, second = Told(site, "high"), Told(site, "high")
    cluster = founded(site, first, 1)
    site.clock.run(10)
    site.grow(cluster, 1)
    site.clock.run(500)
    founded(site, second, 1)
    site.clock.run(5000)
    assert not second.times("granted")


# ---------------------------------------------------------------- leases


def test_a_lease_ends_with_a_warning_a_grace_and_a_seizure() -> None:
    site = world(scenario(1, policy={"lease_warnings": [100, 30], "drain_grace": 40}))
    owner = Told(site, "low")
    founded(site, owner, 1, lease=300)
    site.clock.run(2000)
    end = LOOK + 300
    assert [(at, number) for at, what, number in owner.heard if what == "warned"] == [
        (pytest.approx(end - 100 + LOOK, abs=LOOK), 100),
        (pytest.approx(end - 30 + LOOK, abs=LOOK), 30),
    ]
    assert owner.times("over") == [pytest.approx(end + 40, abs=3 * LOOK)]
    assert site.stats.expired == 1
    assert owner.times("ended") == [pytest.approx(end + 40 + RESET + WIPE, abs=4 * LOOK)]
    assert states(site) == ["inactive"]


def test_a_lease_that_is_extended_goes_on() -> None:
    site = world(scenario(1, policy={"drain_grace": 40}))
    owner = Told(site, "low")
    cluster = founded(site, owner, 1, lease=300)
    site.clock.run(310)  # it drains
    assert cluster.drain_until is not None
    site.extend(cluster, 500)
    site.clock.run(700)
    assert cluster.drain_until is None
    assert len(cluster.held) == 1
    site.clock.run(2000)
    assert owner.times("over") == [pytest.approx(310 + 500 + 40, abs=3 * LOOK)]


def test_an_extension_never_shortens() -> None:
    site = world(scenario(1))
    cluster = founded(site, Told(site, "low"), 1, lease=1000)
    site.clock.run(10)
    before = cluster.expires_at
    site.extend(cluster, 5)
    assert cluster.expires_at == before


# ---------------------------------------------------------------- failures


def test_a_node_that_breaks_is_replaced_and_comes_back() -> None:
    site = world(
        scenario(2, types=[{"name": "node", "blocks": [2], "times": EXACT, "repair": 1.0}])
    )
    owner = Told(site, "low")
    cluster = founded(site, owner, 1)
    site.clock.run(500)
    (machine,) = cluster.held
    site.lifecycle.fail(machine)
    assert owner.times("broken") == [500]
    assert site.pool.held == 500  # what it was held for is not forgotten
    site.clock.run(1000)
    assert (len(cluster.held), cluster.size) == (1, 1)
    assert machine not in cluster.held
    assert machine.state is NodeState.QUARANTINED
    site.clock.run(500 + 3600 + RESET + WIPE)
    assert machine.state is NodeState.INACTIVE
    assert not audit(site)


def test_a_reclaimed_node_that_breaks_is_not_replaced() -> None:
    site, _, _, cluster = contended()
    site.clock.run(510)
    site.lifecycle.fail(next(machine for machine in cluster.held if machine.reclaim))
    assert not audit(site)
    assert (cluster.size, len(cluster.held)) == (1, 1)
    assert not any(request.kind == "replace" for request in site.pending.values())


def test_nodes_that_never_wake_are_set_aside_after_their_retries() -> None:
    made = scenario(
        1,
        types=[{"name": "node", "blocks": [1], "times": EXACT, "wake_fails": 1.0, "repair": 100}],
        energy={**ASLEEP, "wake_time": 200},
    )
    site = world(made)
    owner = Told(site, "low")
    site.clock.run(500)
    founded(site, owner, 1)
    site.clock.run(500 + LOOK + 4 * 200 - 1)
    assert states(site) == ["trampoline"]
    site.clock.run(500 + LOOK + 4 * 200)
    assert states(site) == ["quarantined"]
    assert (site.lifecycle.wakes, site.lifecycle.wakes_failed, site.lifecycle.failures) == (1, 4, 1)
    assert not audit(site)


def test_failures_come_at_their_rate() -> None:
    made = scenario(
        100, types=[{"name": "node", "blocks": [100], "times": EXACT, "mtbf": 100.0, "repair": 0.5}]
    )
    site = world(made)
    site.clock.run(50 * 3600)
    assert 35 <= site.lifecycle.failures <= 65  # 50 are expected
    assert not audit(site)


# ---------------------------------------------------------------- energy


def test_energy_adds_up_by_hand() -> None:
    energy = {**ASLEEP, "watts_off": 5, "watts_idle": 80, "watts_busy": 200}
    site = world(scenario(1, energy=energy))
    owner = Told(site, "low")
    site.clock.run(500)
    asleep_at = site.pool.machines[0].since
    founded(site, owner, 1)
    site.clock.run(1000)
    (machine,) = site.pool.machines
    site.pool.count(machine)
    woken = 500 + LOOK
    idle, off, busy = asleep_at + WAKE, woken - asleep_at, 1000 - woken - WAKE
    assert site.pool.joules == pytest.approx(80 * idle + 5 * off + 200 * busy)
    assert site.pool.spared == pytest.approx(75 * off)
    assert site.pool.by_group == {"low": pytest.approx(80 * WAKE + 200 * busy)}
    assert site.pool.held == pytest.approx(1000 - woken)


def test_the_reserve_keeps_its_marks() -> None:
    site = world(
        scenario(10, energy={"manage": True, "warm_low": 2, "warm_high": 3, "idle_time": 60})
    )
    site.clock.run(1000)
    assert states(site).count("inactive") == 3
    founded(site, Told(site, "low"), 2)
    site.clock.run(3000)
    assert 2 <= states(site).count("inactive") <= 3
    assert not audit(site)


# ---------------------------------------------------------------- what cannot be


def test_a_plan_that_grants_what_is_not_there_is_not_carried_out() -> None:
    site = world(scenario(1))
    founded(site, Told(site, "low"), 1)
    seen = site.snapshot()
    (free,), (request,) = seen.free_nodes, seen.requests
    with pytest.raises(apply_plan.ImpossiblePlan, match="2 nodes wanted"):
        apply_plan.apply(
            site, PassPlan(grants=(RequestGrant(request.id, (Share(0, 1, free, 2),)),))
        )
    assert not audit(site)


def test_a_take_of_more_than_may_be_taken_is_not_carried_out() -> None:
    site, _, _, cluster = contended(inertia=1e6)
    (kind,) = {machine.kind for machine in cluster.held}
    (request,) = site.pending.values()
    with pytest.raises(apply_plan.ImpossiblePlan, match="of 0 that may be"):
        apply_plan.apply(site, PassPlan(preemptions=(Preempt(request.id, cluster.id, kind, 1),)))


def test_the_lifecycle_is_the_products() -> None:
    site = world(scenario(1))
    with pytest.raises(WrongEvent):
        site.lifecycle.wake(site.pool.machines[0])  # it is awake


# ---------------------------------------------------------------- any site


DEMANDS = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {
                "model": st.just("jobs"),
                "group": st.sampled_from(["low", "middle", "high"]),
                "nodes": st.lists(st.integers(1, 4), min_size=1, max_size=3),
                "may_spread": st.booleans(),
                "may_wait": st.booleans(),
                "extends": st.booleans(),
                "cache": st.booleans(),
                "estimate": st.sampled_from([1.0, 3.0]),
                "arrivals": st.fixed_dictionaries(
                    {
                        "per_day": st.integers(10, 150),
                        "burst": st.sampled_from([1, 4]),
                        "day_wave": st.sampled_from([0.0, 0.9]),
                    }
                ),
                "runtime": st.fixed_dictionaries({"median": st.integers(60, 7200)}),
            }
        ),
        st.fixed_dictionaries(
            {
                "model": st.just("queue"),
                "group": st.sampled_from(["low", "middle"]),
                "least": st.integers(1, 2),
                "nodes": st.lists(st.integers(1, 5), min_size=1, max_size=3),
                "idle_limit": st.sampled_from([60, 600]),
                "answer": st.sampled_from([5, 300]),
                "jobs_per_node": st.sampled_from([0.5, 1.0, 2.0]),
                "arrivals": st.fixed_dictionaries({"per_day": st.integers(10, 200)}),
                "runtime": st.fixed_dictionaries({"median": st.integers(60, 7200)}),
            }
        ),
        st.fixed_dictionaries(
            {
                "model": st.just("farm"),
                "group": st.sampled_from(["low", "middle", "high"]),
                "low": st.integers(1, 2),
                "high": st.integers(2, 6),
                "noise": st.sampled_from([0.0, 0.4]),
                "interval": st.sampled_from([120, 900]),
                "answer": st.sampled_from([5, 300]),
            }
        ),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(DEMANDS, st.sampled_from([0, 300, 3000]), st.booleans(), st.integers(0, 10_000))
def test_the_books_balance_and_the_promises_hold(
    demands: list[dict[str, Any]], inertia: float, manage: bool, seed: int
) -> None:
    made = scenario(
        demand=[{"name": f"d{number}", **one} for number, one in enumerate(demands)],
        days=0.5,
        seed=seed,
        policy={"inertia": inertia, "lease_warnings": [3600, 300], "default_lease": 7200},
        energy={"manage": manage, "warm_low": 1, "warm_high": 2, "idle_time": 300},
        types=[
            {"name": "thin", "blocks": [4, 3], "mtbf": 40, "repair": 2, "wake_fails": 0.2},
            {"name": "fat", "blocks": [3], "cost": 3},
        ],
    )

    def watch(seen: SiteSnapshot, planned: PassPlan, now: float) -> None:
        assert not broken(seen, planned, made.policy, now)
        if simulation.world.stats.passes % 16 == 0:
            assert not audit(simulation.world)

    simulation = Simulation(made, watch)
    simulation.advance(simulation.end)
    assert not audit(simulation.world)
    assert simulation.result()["days"] == 0.5


def test_the_audit_sees_a_lost_and_a_doubled_node() -> None:
    site = world(scenario(2))
    cluster = founded(site, Told(site, "low"), 1)
    site.clock.run(500)
    (machine,) = cluster.held
    cluster.held.pop(machine)
    assert any("disagree" in one for one in audit(site))
    cluster.held.update({machine: None, _other(site, machine): None})
    assert any("free and held" in one for one in audit(site))


def _other(site: World, machine: SimMachine) -> SimMachine:
    return next(one for one in site.pool.machines if one is not machine)
