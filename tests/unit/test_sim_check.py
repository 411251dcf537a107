"""What `cod simulate --check` knows of types that are apart, of moves and of reservations in
advance: right plans are not refused, and faults that are planted are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cod.model import Energy, Policy, RequestTuple
from cod.policy.reservations import supply
from cod.policy.reservations.forecast import Forecast
from cod.policy.scheduler import preemption
from cod.policy.scheduler.plan import plan
from cod.policy.scheduler.preemption import Beyond
from cod.policy.scheduler.snapshot import (
    Allocation,
    Entitlement,
    IncomingNodes,
    OpenReclaim,
    PassPlan,
    Preempt,
    PreemptLess,
    RequestGrant,
    RequestRefusal,
    Share,
    SiteSnapshot,
    TypeEntitlement,
)
from cod.policy.sharing import entitlements
from cod.sim.check.rules import broken
from cod.sim.run import Simulation
from cod.sim.scenario.tables import BadScenario
from tests.unit.policy_sites import BIG, BIG_ONLY, SMALL, free, holder, kind, request, site
from tests.unit.sim_site import EXACT, audit, scenario

HERE, ROOMY = kind(SMALL, 1), kind(BIG, 2)
NOW = 100_000.0
RULES = Policy(inertia=0.0, reclaim_grace=60.0, turnaround=300.0, drain_grace=100.0)
LEAD = 360.0  # before a start nodes begin to be taken


def found(seen: SiteSnapshot, made: PassPlan, rules: Policy = RULES) -> str:
    return "; ".join(broken(seen, made, rules, NOW))


def planned(seen: SiteSnapshot, rules: Policy = RULES) -> PassPlan:
    return plan(seen, rules, Energy(), NOW)


def ask(number: int, count: int, group: int, **columns: Any) -> Any:
    made = {"group_id": group, "submitted_at": NOW - 60.0 + number, "may_spread": True}
    attributes = columns.pop("attributes", "")
    return request(number, RequestTuple(count, attributes, 1), **{**made, **columns})


# ---------------------------------------------------------------- types that are apart


def apart(
    held: dict[int, tuple[int, int]], *requests: Any, sure: dict[int, int], **columns: Any
) -> SiteSnapshot:
    """Groups with equal shares that hold so many small and big nodes, each group in a vcluster
    whose id is ten times its own; big ones are apart. `sure`: how many of these are guaranteed."""
    made: dict[str, Any] = {
        "holders": [
            holder(10 * one, small + big, group_id=one) for one, (small, big) in held.items()
        ],
        "allocations": [
            Allocation(10 * one, where, count, count)
            for one, counts in held.items()
            for where, count in zip((HERE, ROOMY), counts, strict=True)
            if count
        ],
        "entitlements": {
            one: Entitlement(
                share=0,
                weight=1.0,
                rank=one,
                part=0.25,
                apart={BIG: TypeEntitlement(sure.get(one, 0), 0, 1.0)},
            )
            for one in (1, 2, 3, 4)
        },
        "requests": requests,
    }
    return entitlements.shared(site(**{**made, **columns}))


TWO = {1: (2, 6), 2: (6, 0)}


@pytest.mark.parametrize(
    ("asked", "sure", "taken"),
    [
        ({"attributes": BIG_ONLY}, {}, 3),
        ({"attributes": BIG_ONLY, "count": 4}, {}, 0),
        ({"attributes": BIG_ONLY, "count": 4}, {2: 4}, 4),
        ({"attributes": BIG_ONLY, "count": 3}, {1: 4}, 0),
        ({"attributes": BIG_ONLY, "count": 2}, {1: 4}, 2),
        ({"count": 3}, {}, 0),
    ],
)
def test_what_the_policy_takes_of_types_that_are_apart_is_right(
    asked: dict[str, Any], sure: dict[int, int], taken: int
) -> None:
    seen = apart(TWO, ask(1, asked.pop("count", 3), 2, **asked), sure=sure)
    made = planned(seen)
    assert sum(preempt.count for preempt in made.preemptions) == taken
    assert found(seen, made) == ""


def lose_all(_entitlement: Any, kept: int) -> Beyond:
    return Beyond(kept, kept)


def test_a_policy_that_forgets_guarantees_of_types_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = apart(TWO, ask(1, 4, 2, attributes=BIG_ONLY, priority=5), sure={1: 4})
    assert found(seen, planned(seen)) == ""
    monkeypatch.setattr(preemption, "beyond", lose_all)
    assert "4 are taken of 6 of type 2, 4 guaranteed" in found(seen, planned(seen))


def test_a_policy_that_takes_what_a_share_of_another_type_allows_is_found_out() -> None:
    """Group 2 has room within its share of the small ones alone; the big ones are apart."""
    seen = apart({1: (8, 4), 2: (0, 2)}, ask(1, 2, 2, attributes=BIG_ONLY), ask(2, 2, 2), sure={})
    assert found(seen, planned(seen)) == ""
    big = PassPlan(preemptions=(Preempt(1, 10, ROOMY, 2),))
    foreign = PassPlan(preemptions=(Preempt(2, 10, ROOMY, 2),))
    assert "request 1 of priority 0 takes from vcluster 10 of 0" in found(seen, big)
    assert "request 2 of priority 0 takes from vcluster 10 of 0" in found(seen, foreign)
    assert found(seen, PassPlan(preemptions=(Preempt(2, 10, HERE, 2),))) == ""


def test_a_policy_that_claims_too_much_of_a_type_is_found_out() -> None:
    asks = [ask(number, 2, 2, attributes=BIG_ONLY) for number in (1, 2)]
    seen = apart(TWO, *asks, sure={})
    assert found(seen, planned(seen)) == ""
    both = PassPlan(preemptions=(Preempt(1, 10, ROOMY, 2), Preempt(2, 10, ROOMY, 2)))
    said = found(seen, both)
    assert (
        "group 2: has 0 of type 2 and takes for 4 by its guarantee of 0 and its share of 3" in said
    )
    assert "group 1: 4 are taken of 6 of type 2 by equals, its share is 3" in said


def test_shares_of_a_type_that_are_not_filled_are_found() -> None:
    seen = apart(TWO, ask(1, 3, 2, attributes=BIG_ONLY), sure={})
    assert found(seen, PassPlan()) == ""
    own = {
        one: replace(each, apart={BIG: TypeEntitlement(0, 6 if one == 1 else 0, 1.0)})
        for one, each in seen.entitlements.items()
    }
    said = found(replace(seen, entitlements=own), PassPlan())
    assert "group 1: its share of type 2 is 6, not 3.00" in said
    assert "group 2: its share of type 2 is 0, not 3.00" in said


def test_a_request_that_counts_for_a_wrong_type_is_found() -> None:
    seen = apart(TWO, ask(1, 3, 2, attributes=BIG_ONLY), sure={})
    (one,) = seen.requests
    wrong = replace(seen, requests=[replace(one, parts=())])
    assert "request 1: counts as {0: 3} by type, not {2: 3}" in found(wrong, PassPlan())


def test_a_policy_that_does_not_rank_by_dominant_shares_is_found_out() -> None:
    """Group 1 has used least and holds three of four big nodes; group 2 holds four of ten small
    ones. Two of these are free."""
    held = {1: (0, 3), 2: (4, 1), 3: (2, 0)}
    asks = (ask(1, 2, 1), ask(2, 2, 2))
    seen = apart(held, *asks, sure={}, free_nodes=[free(2, HERE)], site={SMALL: 10, BIG: 4})
    rules = replace(RULES, fair_half_life=3600.0, fair="dominant")
    right = planned(seen, rules)
    assert [one.request_id for one in right.grants] == [2]
    assert found(seen, right, rules) == ""
    wrong = planned(seen, replace(rules, fair="tree"))
    assert [one.request_id for one in wrong.grants] == [1]
    said = found(seen, wrong, rules)
    assert "request 2 waits, and request 1, which is behind it, gets nodes" in said


# ---------------------------------------------------------------- moves

MOVE = ask(7, 3, 1, vcluster_id=20, source_id=10)
COME = free(1, HERE, reserved=7)
TAKING = OpenReclaim(70, 10, 7, HERE, 1, NOW + 100)


def moving(*requests: Any, **columns: Any) -> SiteSnapshot:
    """A move of three nodes: one has come, one is on its way, and one is still held."""
    made: dict[str, Any] = {
        "holders": [
            replace(holder(10, 4, group_id=1), leaving=1),
            holder(20, 2, group_id=1),
            holder(30, 4, group_id=2),
        ],
        "allocations": [
            Allocation(one, HERE, count, count) for one, count in ((10, 4), (20, 2), (30, 4))
        ],
        "free_nodes": [COME, free(2, HERE)],
        "coming": [IncomingNodes(HERE, 1, 7)],
        "reclaims": [TAKING],
        "requests": [MOVE, *requests],
    }
    return site(**{**made, **columns})


def test_a_right_plan_of_a_move() -> None:
    seen = moving(ask(8, 2, 2))
    made = planned(seen)
    assert [one.request_id for one in made.grants] == [7, 8]
    assert found(seen, made) == ""
    gone = moving(free_nodes=[], coming=[], reclaims=[])
    assert [one.code for one in planned(gone).refusals] == ["ended"]
    assert found(gone, planned(gone)) == ""


def given(number: int, *parts: tuple[Any, int]) -> PassPlan:
    shares = tuple(Share(0, 1, where, count) for where, count in parts)
    return PassPlan(grants=(RequestGrant(number, shares),))


FREE = free(2, HERE)
ENDED = RequestRefusal(7, "ended", "")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (PassPlan(), "request 7: 1 nodes have come, and are not given"),
        (given(7, (COME, 1), (FREE, 1)), "request 7: 1 nodes that are not those which move"),
        (given(8, (COME, 1), (FREE, 1)), "request 8: nodes that are reserved for request 7"),
        (replace(given(7, (COME, 1)), refusals=(ENDED,)), "request 7: ends, 3 nodes are still"),
        (replace(given(7, (COME, 1)), refusals=(ENDED,)), "request 7 is decided about twice"),
        (
            replace(given(7, (COME, 1)), preemptions=(Preempt(7, 30, HERE, 1),)),
            "request 7: takes nodes for a move",
        ),
        (
            replace(given(7, (COME, 1)), reductions=(PreemptLess(70, 1, 0),)),
            "reclaim 70: 1 nodes that move are let stay",
        ),
    ],
)
def test_faults_about_moves_are_found(wrong: PassPlan, words: str) -> None:
    assert words in found(moving(ask(8, 2, 2)), wrong)


# ---------------------------------------------------------------- reservations in advance

SOON, START = NOW + 1000.0, NOW + 10_000.0


def reserved(starts_at: float, count: int = 4, **columns: Any) -> Any:
    return ask(5, count, 2, starts_at=starts_at, lease=3600.0, priority=3, **columns)


def booked(
    starts_at: float, *requests: Any, ends: float | None = None, **columns: Any
) -> SiteSnapshot:
    """Four nodes are free, and four held by a vcluster of the lowest priority, whose lease `ends`
    at a time."""
    made: dict[str, Any] = {
        "holders": [replace(holder(10, 4, floor=0), expires_at=ends)],
        "allocations": [Allocation(10, HERE, 4, 4)],
        "free_nodes": [free(4, HERE)],
        "requests": [reserved(starts_at), *requests],
    }
    return site(**{**made, **columns})


LONG, SHORT = ask(8, 4, 1, lease=1e6), ask(8, 4, 1, lease=5000.0)


@pytest.mark.parametrize(
    ("seen", "granted", "taken"),
    [
        (booked(START), [], 0),
        (booked(START, LONG), [], 0),
        (booked(START, SHORT), [8], 0),
        (booked(START, LONG, ends=NOW + 5000), [8], 0),
        (booked(NOW, LONG), [5], 0),
        (booked(NOW + LEAD, free_nodes=[]), [], 4),
        (booked(NOW + LEAD + 1, free_nodes=[]), [], 0),
        (booked(NOW - 100, LONG, free_nodes=[free(3, HERE)]), [], 1),
    ],
)
def test_right_plans_beside_a_reservation(
    seen: SiteSnapshot, granted: list[int], taken: int
) -> None:
    made = planned(seen)
    assert [one.request_id for one in made.grants] == granted
    assert sum(preempt.count for preempt in made.preemptions) == taken
    assert found(seen, made) == ""


FOUR = free(4, HERE)


@pytest.mark.parametrize(
    ("seen", "wrong", "words"),
    [
        (booked(START), given(5, (FOUR, 4)), "request 5: begins 10000 s before its start"),
        (
            booked(SOON, free_nodes=[]),
            PassPlan(preemptions=(Preempt(5, 10, HERE, 4),)),
            "request 5: takes nodes 640 s before it has to for its start",
        ),
        (
            booked(NOW - 10),
            PassPlan(refusals=(RequestRefusal(5, "late", ""),)),
            "request 5: is called late, 10 s after its start",
        ),
        (
            booked(NOW - 70),
            PassPlan(refusals=(RequestRefusal(5, "reserved", ""),)),
            "request 5: is called reserved, 70 s after its start",
        ),
        (
            booked(NOW - 10, LONG),
            given(8, (FOUR, 4)),
            "request 5: waits after its start, and request 8 gets nodes that are enough for it",
        ),
        (
            booked(START, LONG),
            given(8, (FOUR, 4)),
            "request 5: 4 nodes are reserved, 4 were there for its start, 0 are left",
        ),
        (
            booked(START, replace(LONG, priority=9), ends=NOW + 5000, free_nodes=[]),
            PassPlan(preemptions=(Preempt(8, 10, HERE, 4),)),
            "request 5: 4 nodes are reserved, 4 were there for its start, 0 are left",
        ),
    ],
)
def test_faults_about_reservations_are_found(
    seen: SiteSnapshot, wrong: PassPlan, words: str
) -> None:
    assert words in found(seen, wrong)


def test_a_policy_that_keeps_nothing_for_a_start_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = booked(START, LONG)
    monkeypatch.setattr(Forecast, "layers", lambda _self: ())
    made = planned(seen)
    assert [one.request_id for one in made.grants] == [8]
    assert "0 are left" in found(seen, made)


def test_a_policy_that_takes_too_early_for_a_start_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = booked(SOON, free_nodes=[])
    monkeypatch.setattr(supply, "lead", lambda *_: 5000.0)
    made = planned(seen)
    assert sum(preempt.count for preempt in made.preemptions) == 4
    assert "takes nodes 640 s before it has to" in found(seen, made)


def test_what_a_reservation_will_take_makes_no_room_within_a_share() -> None:
    """Group 1 has all of its share, of which two nodes go at the start."""
    share = {1: 4, 3: 3}
    seen = site(
        holders=[holder(10 * one, 4, group_id=one) for one in share],
        allocations=[Allocation(10 * one, HERE, 4, 4) for one in share],
        entitlements={one: Entitlement(share=each, weight=1.0) for one, each in share.items()},
        requests=[reserved(START, 2), ask(8, 1, 1)],
    )
    assert planned(seen).preemptions == ()


# ---------------------------------------------------------------- whole simulations

TYPES: list[dict[str, Any]] = [
    {"name": "thin", "blocks": [5, 3], "times": EXACT},
    {"name": "gpu", "blocks": [4], "cost": 5, "memory_mib": 262144, "times": EXACT},
]
NEEDS = '<requires><memory><mib min="128GiB"/></memory></requires>'
GROUPS: list[dict[str, Any]] = [
    {"name": "one", "guarantee": 1, "guarantee_of": {"gpu": 2}},
    {"name": "two", "shares": 2, "shares_of": {"gpu": 3}},
    {"name": "three", "limit_of": {"gpu": 1}},
    {"name": "four", "priority": 5},
]


def queue(group: str, what: str, count: int) -> dict[str, Any]:
    return {
        "name": f"{group}-{what}",
        "group": group,
        "model": "queue",
        "least": 1,
        "nodes": [1, 1, 2],
        "needs": NEEDS if what == "gpu" else "",
        "arrivals": {"per_day": count},
        "runtime": {"median": 1800, "spread": 0.8},
    }


BUSY = [
    queue("one", "any", 60),
    queue("one", "gpu", 60),
    queue("two", "any", 90),
    queue("two", "gpu", 90),
    queue("three", "any", 60),
]
BOOKED = {
    "name": "course",
    "group": "four",
    "model": "reservations",
    "nodes": [1, 2],
    "arrivals": {"per_day": 16},
    "ahead": {"median": 5000, "spread": 0.5},
    "length": {"median": 2400, "spread": 0.2},
}
MOVED = {
    "name": "m",
    "model": "moves",
    "source": "two-any",
    "target": "one-any",
    "hours": [2, 4, 6],
}


def checked(*more: dict[str, Any], fair: str = "tree", **top: Any) -> tuple[Simulation, list[str]]:
    policy = {"fair_half_life": 86400, "fair": fair, "inertia": 120, "turnaround": 300}
    made = scenario(
        types=TYPES, group=GROUPS, demand=[*BUSY, *more], policy=policy, days=0.35, seed=4, **top
    )
    wrong: list[str] = []
    simulation = Simulation(
        made, lambda seen, plan_, now: wrong.extend(broken(seen, plan_, made.policy, now))
    )
    simulation.advance(simulation.end)
    return simulation, wrong


@pytest.mark.slow
@pytest.mark.parametrize("fair", ["tree", "dominant"])
def test_plans_of_a_site_with_types_apart_are_right(fair: str) -> None:
    simulation, wrong = checked(fair=fair)
    assert wrong == []
    assert simulation.world.stats.taken > 0, "all have one priority"
    assert not audit(simulation.world)
    assert simulation.world.snapshot().apart == {2}


@pytest.mark.slow
def test_plans_beside_reservations_and_moves_are_right() -> None:
    simulation, wrong = checked(BOOKED, MOVED)
    assert wrong == []
    result = simulation.result()
    assert result["reservations"]["course"]["begun"] > 0
    assert result["moves"]["m"]["ended"] > 0
    assert not audit(simulation.world)


def test_what_is_guaranteed_of_a_type_to_others_is_given_as_growth() -> None:
    few = [{**queue("two", "gpu", 0), "least": 4}]
    made = scenario(types=TYPES, group=GROUPS, demand=few, days=0.1)
    simulation = Simulation(made)
    simulation.advance(1000)
    (cluster,) = simulation.world.clusters.values()
    assert (len(cluster.held), cluster.creation_size) == (4, 2)


@pytest.mark.parametrize("key", ["shares_of", "guarantee_of", "limit_of"])
def test_types_that_are_not_there_are_told(key: str) -> None:
    with pytest.raises(BadScenario) as bad:
        scenario(types=TYPES, group=[{"name": "low", key: {"fpga": 1}}])
    assert bad.value.problems == [f"group.low.{key}: there is no type 'fpga'"]
