"""What groups are promised, as the simulator's own rules see it: right plans are not refused, and
faults that are planted in the policy are found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from cod.model import Energy, Policy
from cod.policy.scheduler import preemption
from cod.policy.scheduler.plan import plan
from cod.policy.scheduler.preemption import Beyond
from cod.policy.scheduler.snapshot import (
    PREEMPTIBLE,
    Allocation,
    Entitlement,
    PassPlan,
    Preempt,
    SiteSnapshot,
)
from cod.policy.sharing import entitlements
from cod.sim.check.rules import broken
from cod.sim.run import Simulation
from cod.sim.scenario.tables import BadScenario, read
from cod.sim.timeline import MonthUsage
from tests.unit.policy_sites import SMALL, free, holder, kind, request, site

HERE = kind(SMALL, 1)
NOW = 100_000.0
RULES = Policy(hold_after=3600.0, age_step=10.0, inertia=0.0)
EQUAL = Entitlement(share=0, weight=1.0)
"""Of groups with equal shares; how many nodes these are, `entitlements.shared` says."""


def world(held: dict[int, int], *requests: Any, **columns: Any) -> SiteSnapshot:
    """Groups that hold so many nodes each, in a vcluster whose id is ten times theirs."""
    made: dict[str, Any] = {
        "holders": [holder(10 * one, count, group_id=one) for one, count in held.items()],
        "allocations": [Allocation(10 * one, HERE, count, count) for one, count in held.items()],
        "entitlements": {one: replace(EQUAL, rank=one) for one in (1, 2, 3)},
        "requests": requests,
    }
    return entitlements.shared(site(**{**made, **columns}))


def ask(number: int, count: int, group: int, **columns: Any) -> Any:
    return request(number, count, **{"group_id": group, "submitted_at": NOW - 60.0, **columns})


def planned(seen: SiteSnapshot, rules: Policy = RULES) -> PassPlan:
    return plan(seen, rules, Energy(), NOW)


def found(seen: SiteSnapshot, made: PassPlan) -> str:
    return "; ".join(broken(seen, made, RULES, NOW))


def guaranteed(one: int = 0, two: int = 0, **more: Any) -> dict[str, Any]:
    return {"entitlements": {1: Entitlement(guarantee=one), 2: Entitlement(guarantee=two, **more)}}


HIGH = [holder(10, 8, group_id=1, priority=9), holder(20, 4, group_id=2)]
SPARE = [holder(10, 8, priority=PREEMPTIBLE), holder(20, 4, group_id=2)]


@pytest.mark.parametrize(
    ("seen", "count"),
    [
        (world({1: 8, 2: 4}, ask(1, 2, 2)), 2),
        (world({1: 8, 2: 4}, ask(1, 4, 2), **guaranteed(two=8)), 4),
        (world({1: 8, 2: 4}, ask(1, 4, 2), holders=HIGH, **guaranteed(4, 8)), 4),
        (world({1: 8, 2: 4}, ask(1, 7, 2, priority=5), **guaranteed(one=1)), 7),
        (world({1: 8, 2: 4}, ask(1, 8, 2), holders=SPARE), 8),
        (world({1: 8, 2: 4}, ask(1, 3, 2)), 0),
        (world({1: 8, 2: 4}, ask(1, 2, 1)), 0),
    ],
)
def test_what_the_policy_takes_from_equals_is_right(seen: SiteSnapshot, count: int) -> None:
    made = planned(seen)
    assert sum(preempt.count for preempt in made.preemptions) == count
    assert found(seen, made) == ""


def lose_all(_entitlement: Entitlement, kept: int) -> Beyond:
    return Beyond(kept, kept)


def test_a_policy_that_forgets_guarantees_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = world({1: 8, 2: 4}, ask(1, 6, 2, priority=5), **guaranteed(one=4))
    assert found(seen, planned(seen)) == ""
    monkeypatch.setattr(preemption, "beyond", lose_all)
    assert "6 are taken of 8, 4 guaranteed" in found(seen, planned(seen))


def test_a_policy_that_takes_the_shares_of_equals_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first group has more than its share, but its nodes are new; the third has its share."""
    held = {1: 6, 2: 2, 3: 4}
    rows = [
        Allocation(10 * one, HERE, count, 0 if one == 1 else count) for one, count in held.items()
    ]
    seen = world(held, ask(1, 2, 2), allocations=rows)
    assert found(seen, planned(seen)) == ""
    monkeypatch.setattr(preemption, "beyond", lose_all)
    assert "group 3: 2 are taken of 4 by equals, its share is 4" in found(seen, planned(seen))


def test_a_policy_that_lets_everybody_take_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = world({1: 8, 2: 4}, ask(1, 2, 2), ask(2, 4, 3))
    seen = replace(
        seen, entitlements={**seen.entitlements, 2: replace(seen.entitlements[2], rank=1)}
    )
    assert found(seen, planned(seen)) == ""
    monkeypatch.setattr(preemption, "within", lambda *_: "share")
    assert "request 1 of priority 0 takes from vcluster 10 of 0" in found(seen, planned(seen))


def test_a_policy_that_leaves_shares_to_idle_groups_is_found_out() -> None:
    seen = world({1: 8, 2: 4}, ask(1, 2, 2))
    parts = {one: each.share for one, each in seen.entitlements.items()}
    assert parts == {1: 6, 2: 6, 3: 0}
    assert found(seen, PassPlan()) == ""
    idle = {one: replace(each, share=4) for one, each in seen.entitlements.items()}
    said = found(replace(seen, entitlements=idle), PassPlan())
    assert "group 1: its share is 4, not 6.00" in said
    assert "group 3: its share is 4, not 0.00" in said


def test_odd_nodes_go_to_somebody_and_to_nobody_twice() -> None:
    """Three groups that share ten nodes have three or four each; nobody has two or five."""
    seen = world({1: 6, 2: 4}, ask(1, 5, 2), ask(2, 5, 3))
    first = [one for one, each in seen.entitlements.items() if each.share == 4]
    assert len(first) == 1
    for wrong, words in (
        ({1: 3, 2: 3, 3: 3}, "all shares together are 9, not 10.00"),
        ({1: 5, 2: 3, 3: 2}, "group 1: its share is 5, not 3.33"),
    ):
        own = {one: replace(each, share=wrong[one]) for one, each in seen.entitlements.items()}
        assert words in found(replace(seen, entitlements=own), PassPlan())
    turned = {
        one: replace(each, share=4 if one == 3 else 3) for one, each in seen.entitlements.items()
    }
    assert found(replace(seen, entitlements=turned), PassPlan()) == "", "each may be the one"


def test_subgroups_are_looked_at_together() -> None:
    rows = {1: replace(EQUAL, rank=1), 2: replace(EQUAL, rank=2), 3: replace(EQUAL, parent=1)}
    seen = world({1: 4, 2: 8, 3: 2}, ask(1, 9, 3), ask(2, 9, 2), entitlements=rows)
    assert found(seen, PassPlan()) == ""
    own = {
        one: replace(each, share=0 if one != 2 else 14) for one, each in seen.entitlements.items()
    }
    assert "group 2: its share is 14, not 7.00" in found(
        replace(seen, entitlements=own), PassPlan()
    )


def two_that_want_the_last(**columns: Any) -> SiteSnapshot:
    """Two nodes are free; a request of group 2 has waited two hours, one of group 1, whose rank is
    the best, a minute."""
    old = ask(1, 2, 2, **{"submitted_at": NOW - 7200, **columns})
    return world({1: 6, 2: 6}, old, ask(2, 2, 1), free_nodes=[free(2, HERE)])


@pytest.mark.parametrize("fault", ["age", "rank", "priority"])
def test_a_policy_that_lets_somebody_pass_is_found_out(fault: str) -> None:
    """Planned by a wrong policy, looked at by the right one."""
    seen = two_that_want_the_last(
        **{"age": {}, "rank": {"submitted_at": NOW - 90}, "priority": {"priority": 1}}[fault]
    )
    if fault == "rank":
        ranks = {1: 2, 2: 1, 3: 3}
        own = {one: replace(each, rank=ranks[one]) for one, each in seen.entitlements.items()}
        seen = replace(seen, entitlements=own)
    right = planned(seen)
    assert [one.request_id for one in right.grants] == [1]
    assert found(seen, right) == ""
    wrong = {
        "age": lambda: planned(seen, replace(RULES, hold_after=0.0)),
        "rank": lambda: planned(
            replace(
                seen,
                entitlements={
                    one: replace(each, rank=3 - each.rank) if each.rank < 3 else each
                    for one, each in seen.entitlements.items()
                },
            )
        ),
        "priority": lambda: planned(
            replace(
                seen, requests=[replace(one, priority=1 - one.priority) for one in seen.requests]
            )
        ),
    }[fault]()
    assert [one.request_id for one in wrong.grants] == [2]
    assert "request 1 waits, and request 2, which is behind it, gets nodes" in found(seen, wrong)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"limit": 5}, "group 2: would hold 6, its limit is 5"),
        ({"type_limits": {SMALL: 5}}, "would hold 6 of type 1, its limit is 5"),
        ({"used_up": True}, "its group has used all node-hours"),
    ],
)
def test_a_policy_that_forgets_limits_is_found_out(rule: dict[str, Any], words: str) -> None:
    def seen(**own: Any) -> SiteSnapshot:
        return world({2: 4}, ask(1, 2, 2), free_nodes=[free(3, HERE)], **guaranteed(two=1, **own))

    assert found(seen(**rule), planned(seen(**rule))) == ""
    assert planned(seen()).grants != ()
    assert words in found(seen(**rule), planned(seen()))


def test_what_has_no_right_at_all_is_found_out() -> None:
    seen = world(
        {1: 8, 2: 4},
        ask(1, 2, 2, priority=9, vcluster_id=20),
        holders=[holder(10, 8, group_id=1, drain_until=NOW + 60), holder(20, 4, group_id=2)],
    )
    own = found(seen, PassPlan(preemptions=(Preempt(1, 20, HERE, 1),)))
    over = found(seen, PassPlan(preemptions=(Preempt(1, 10, HERE, 1),)))
    assert "request 1: takes from its own vcluster 20" in own
    assert "request 1: takes from vcluster 10, whose lease is over" in over


def _demand(name: str, count: int = 30) -> dict[str, Any]:
    return {
        "name": name,
        "group": name,
        "model": "queue",
        "nodes": [1, 1, 2],
        "least": 1,
        "arrivals": {"per_day": count},
        "runtime": {"median": 3600, "spread": 0.8},
    }


SHARED = {
    "name": "three groups that share",
    "days": 0.5,
    "seed": 3,
    "policy": {"fair_half_life": 86400, "inertia": 300, "reclaim_grace": 60},
    "type": [{"name": "thin", "blocks": [6, 4], "memory_mib": 65536}],
    "group": [
        {"name": "one", "guarantee": 2},
        {"name": "two", "shares": 2},
        {"name": "three"},
        {"name": "four", "parent": "three", "shares": 2},
        {"name": "idle", "shares": 5},
    ],
    "demand": [
        _demand(name, count)
        for name, count in (("one", 30), ("two", 60), ("three", 40), ("four", 40))
    ],
}


@pytest.mark.slow
def test_plans_of_a_site_with_shares_are_right_while_equals_lose_nodes() -> None:
    made = read(SHARED)
    wrong: list[str] = []
    equals = 0

    def watch(seen: SiteSnapshot, made_: PassPlan, now: float) -> None:
        nonlocal equals
        wrong.extend(broken(seen, made_, made.policy, now))
        equals += len(made_.preemptions)

    simulation = Simulation(made, watch)
    simulation.advance(simulation.end)
    assert wrong == []
    assert equals > 0, "all have one priority"
    assert simulation.world.groups["four"].parent_id == simulation.world.groups["three"].id


@pytest.mark.parametrize("parent", ["four", "nobody"])
def test_a_subgroup_is_of_a_group_that_is_none(parent: str) -> None:
    groups = [{"name": "three"}, {"name": "four", "parent": parent}]
    tables = {**SHARED, "group": groups, "demand": [{**_demand("three"), "group": "three"}]}
    with pytest.raises(BadScenario, match=f"'{parent}' should be a group that is no subgroup"):
        read(tables)


@pytest.mark.slow
def test_a_group_that_has_used_its_node_hours_gets_no_more() -> None:
    """Twelve node-hours of a month are used up within hours; the other group goes on."""
    groups = [{"name": "one", "hours": 12}, {"name": "two"}]
    demand = [
        {**_demand(name, 60), "model": "jobs", "nodes": [1], "runtime": {"median": 3600}}
        for name in ("one", "two")
    ]
    for one in demand:
        del one["least"]
    made = read({**SHARED, "group": groups, "demand": demand})
    wrong: list[str] = []
    granted: dict[int, list[float]] = {1: [], 2: []}
    spent: list[float] = []

    def watch(seen: SiteSnapshot, planned_: PassPlan, now: float) -> None:
        wrong.extend(broken(seen, planned_, made.policy, now))
        group = {one.id: one.group_id for one in seen.requests}
        for grant in planned_.grants:
            granted[group[grant.request_id]].append(now)
        if seen.entitlements[1].used_up:
            spent.append(now)

    simulation = Simulation(made, watch)
    simulation.advance(simulation.end)
    assert wrong == []
    assert granted[1]
    assert max(granted[1]) <= spent[0] < max(granted[2])


def test_node_hours_begin_anew_with_the_month() -> None:
    usage = MonthUsage()
    usage.count(Counter({7: 2}), 30 * 86400.0)
    usage.count(Counter({7: 1}), 31 * 86400.0 - 60)
    assert usage.used == {7: 2 * (86400 - 60)}
    usage.count(Counter(), 31 * 86400.0 + 100)
    assert usage.used == {7: 100}, "January 1970 has 31 days"
