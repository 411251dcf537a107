"""The policy's promises along whole simulated weeks; and that the rules which look at them see
every fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cod.model import NodeType, Policy, RequestTuple
from cod.policy.scheduler.snapshot import (
    COLD,
    WARM,
    Allocation,
    FreeNodes,
    IncomingNodes,
    NodeKind,
    OpenReclaim,
    PassPlan,
    PendingRequest,
    PowerChange,
    Preempt,
    PreemptLess,
    RequestGrant,
    RequestRefusal,
    Share,
    SiteSnapshot,
    VclusterHolder,
)
from cod.sim.check.rules import broken
from cod.sim.run import Simulation
from cod.sim.scenario.tables import load, read

NOW = 1000.0
HERE, THERE, BIG = NodeKind(1, 1, ""), NodeKind(1, 2, ""), NodeKind(2, 3, "")
FREE, ASLEEP, ROOMY = (
    FreeNodes(HERE, WARM, 3, idle=1),
    FreeNodes(THERE, COLD, 2),
    FreeNodes(BIG, WARM, 2),
)
KEPT = FreeNodes(HERE, WARM, 1, reserved=77)
TAKING = OpenReclaim(1, 5, 1, HERE, 1, 1200.0)
ROOM = '<requires><memory><mib min="4GiB"/></memory></requires>'
TYPES = {
    1: NodeType(1, "small", "1", '<node><memory mib="1024" /></node>', 1.0, 0.0),
    2: NodeType(2, "big", "2", '<node><memory mib="8192" /></node>', 1.0, 0.0),
}
LOW = VclusterHolder(5, "low", 0, held=4, floor=2, expires_at=5000.0)
HIGH = VclusterHolder(6, "high", 10, held=2, floor=0, expires_at=900.0)
DRAINING = VclusterHolder(7, "old", 0, held=1, floor=1, expires_at=500.0, drain_until=1100.0)


def request(
    number: int = 1, count: int = 2, attributes: str = "", **columns: Any
) -> PendingRequest:
    made = PendingRequest(
        number, number + 100, 10, 10.0, 1, "", (RequestTuple(count, attributes, 4),)
    )
    return replace(made, **columns)


def seen(*requests: PendingRequest, **columns: Any) -> SiteSnapshot:
    made = SiteSnapshot(
        types=TYPES,
        free_nodes=(FREE, ASLEEP, ROOMY, KEPT),
        holders={one.id: one for one in (LOW, HIGH, DRAINING)},
        allocations=(
            Allocation(5, HERE, 3, 2, 1500.0),
            Allocation(5, THERE, 1, 1),
            Allocation(6, HERE, 2, 2),
        ),
        requests=requests or (request(),),
    )
    return replace(made, **columns)


def granted(*shares: tuple[FreeNodes, int], number: int = 1) -> PassPlan:
    return PassPlan(
        grants=(RequestGrant(number, tuple(Share(0, 4, free, count) for free, count in shares)),)
    )


def taken(vcluster: int, kind: NodeKind, count: int, number: int = 1) -> PassPlan:
    return PassPlan(preemptions=(Preempt(number, vcluster, kind, count),))


def check(snapshot: SiteSnapshot, planned: PassPlan) -> list[str]:
    return broken(snapshot, planned, Policy(), NOW)


@pytest.mark.parametrize(
    ("snapshot", "planned"),
    [
        (seen(), PassPlan()),
        (seen(), granted((FREE, 2))),
        (seen(request(may_spread=True)), granted((FREE, 1), (ASLEEP, 1))),
        (seen(request(attributes=ROOM)), granted((ROOMY, 2))),
        (seen(request(77, 1)), granted((KEPT, 1), number=77)),
        (seen(free_nodes=(ASLEEP,)), taken(5, HERE, 2)),
        (seen(free_nodes=(KEPT,), reclaims=(TAKING,)), taken(5, HERE, 1)),
        (seen(request(1), request(2), reclaims=(TAKING,)), taken(5, HERE, 1)),
        (seen(request(1, 4), reclaims=(TAKING,)), PassPlan()),
        (seen(reclaims=(replace(TAKING, open=3),)), PassPlan(reductions=(PreemptLess(1, 3, 0),))),
        (
            seen(request(1, 4), reclaims=(replace(TAKING, open=3),)),
            PassPlan(reductions=(PreemptLess(1, 2, 1),)),
        ),
        (seen(), PassPlan(drains=(6,))),
        (seen(free_nodes=(), reclaims=(replace(TAKING, deadline=900.0),)), PassPlan(overdue=(1,))),
        (
            seen(),
            PassPlan(
                power_changes=(PowerChange(ASLEEP, 2, ""), PowerChange(FREE, 1, "", sleep=True))
            ),
        ),
        (seen(), PassPlan(refusals=(RequestRefusal(1, "busy", "waits"),))),
    ],
)
def test_what_is_as_promised(snapshot: SiteSnapshot, planned: PassPlan) -> None:
    assert check(snapshot, planned) == []


@pytest.mark.parametrize(
    ("snapshot", "planned", "words"),
    [
        (seen(), granted((FREE, 1)), "1 nodes for tuple 0, which wants 2"),
        (seen(), granted((FREE, 2), (ASLEEP, 0)), "a share of no nodes"),
        (seen(request(count=4)), granted((FREE, 4)), "4 nodes are used of a pool of 3"),
        (
            seen(request(1), request(2)),
            PassPlan(grants=granted((FREE, 2)).grants + granted((FREE, 2), number=2).grants),
            "4 nodes are used of a pool of 3",
        ),
        (seen(), granted((FREE, 1), (ASLEEP, 1)), "tuple 0 comes from 2 blocks"),
        (seen(request(attributes=ROOM)), granted((FREE, 2)), "which lack what it wants"),
        (seen(request(count=1)), granted((KEPT, 1)), "reserved for request 77"),
        (
            seen(request(subnet="a"), free_nodes=(FreeNodes(NodeKind(1, 1, "b"), WARM, 2),)),
            granted((FreeNodes(NodeKind(1, 1, "b"), WARM, 2), 2)),
            "nodes on b, its addresses are on a",
        ),
        (
            seen(),
            PassPlan(grants=(RequestGrant(1, (Share(0, 9, FREE, 2),)),)),
            "template 9 in place of 4",
        ),
        (
            seen(),
            PassPlan(grants=granted((FREE, 2)).grants, refusals=(RequestRefusal(1, "busy", ""),)),
            "decided about twice",
        ),
        (
            seen(),
            PassPlan(grants=granted((FREE, 2)).grants, preemptions=taken(5, HERE, 1).preemptions),
            "is granted and takes",
        ),
        (seen(), taken(6, HERE, 1), "of priority 10 takes from vcluster 6 of 10"),
        (seen(request(count=3)), taken(5, HERE, 3), "3 are taken, 2 are above its creation size"),
        (
            seen(allocations=(Allocation(5, HERE, 4, 1, 1500.0),)),
            taken(5, HERE, 2),
            "2 are taken, 1 are outside their inertia",
        ),
        (seen(), taken(5, BIG, 1), "1 are taken, 0 are outside their inertia"),
        (
            seen(request(attributes=ROOM)),
            taken(5, HERE, 1),
            "takes nodes of type 1, which lack what it wants",
        ),
        (seen(), taken(5, HERE, 0), "takes no nodes"),
        (
            seen(request(count=1)),
            taken(5, HERE, 2),
            "2 are taken, 3 are there or on their way, 1 wanted",
        ),
        (
            seen(free_nodes=(), reclaims=(TAKING,)),
            taken(5, HERE, 2),
            "3 are taken, 0 are there or on their way, 2 wanted",
        ),
        (
            seen(request(1), request(2), coming=(IncomingNodes(HERE, 1, reserved=1),)),
            taken(5, HERE, 2),
            "2 are taken, 1 are there or on their way, 2 wanted",
        ),
        (
            seen(reclaims=(TAKING,)),
            PassPlan(),
            "1 are taken, 3 are there or on their way, 2 wanted",
        ),
        (
            seen(
                request(1, 3, may_spread=True),
                free_nodes=(ASLEEP,),
                reclaims=(replace(TAKING, open=2),),
            ),
            PassPlan(),
            "2 are taken, 2 are there or on their way, 3 wanted",
        ),
        (
            seen(request(1, 4), reclaims=(replace(TAKING, open=3),)),
            PassPlan(reductions=(PreemptLess(1, 1, 2),)),
            "2 are taken, 3 are there",
        ),
        (
            seen(reclaims=(TAKING,)),
            PassPlan(reductions=(PreemptLess(1, 1, 1),)),
            "1 are open, 1 and 1 are not",
        ),
        (seen(), PassPlan(drains=(5,)), "drained before its lease is over"),
        (seen(), PassPlan(expired=(7,)), "seized before its grace is over"),
        (seen(), PassPlan(expired=(6,)), "seized before its grace is over"),
        (
            seen(reclaims=(OpenReclaim(1, 5, 1, HERE, 1, 1200.0),)),
            PassPlan(overdue=(1,)),
            "seized before its deadline",
        ),
        (
            seen(),
            PassPlan(power_changes=(PowerChange(FREE, 2, "", sleep=True),)),
            "2 nodes are put to sleep",
        ),
        (
            seen(),
            PassPlan(power_changes=(PowerChange(KEPT, 1, "", sleep=True),)),
            "1 nodes are put to sleep",
        ),
        (seen(), PassPlan(power_changes=(PowerChange(FREE, 1, ""),)), "woken that are awake"),
        (
            seen(),
            PassPlan(
                grants=granted((FREE, 2)).grants,
                power_changes=(PowerChange(FREE, 2, "", sleep=True),),
            ),
            "4 nodes are used",
        ),
    ],
)
def test_a_broken_promise_is_seen(snapshot: SiteSnapshot, planned: PassPlan, words: str) -> None:
    assert any(words in sentence for sentence in check(snapshot, planned)), check(snapshot, planned)


# ---------------------------------------------------------------- along a whole run


def watched(name: str, days: float, **policy: Any) -> tuple[Simulation, list[str], list[int]]:
    """Run a scenario that ships; what its plans broke, and how many grants and takes they had."""
    made = read({**load(name), "days": days})
    made = replace(made, policy=replace(made.policy, **policy))
    wrong: list[str] = []
    counts = [0, 0]

    def watch(snapshot: SiteSnapshot, planned: PassPlan, now: float) -> None:
        wrong.extend(broken(snapshot, planned, made.policy, now))
        counts[0] += len(planned.grants)
        counts[1] += len(planned.preemptions)

    simulation = Simulation(made, watch)
    simulation.advance(simulation.end)
    return simulation, wrong, counts


@pytest.mark.slow
@pytest.mark.parametrize("name", ["campus", "bursts"])
def test_every_plan_of_a_day_keeps_the_promises(name: str) -> None:
    _, wrong, (grants, preemptions) = watched(name, 1.0)
    assert wrong == []
    assert min(grants, preemptions) > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("days", "least"), [(5.0, 160), pytest.param(30.0, 1000, marks=pytest.mark.nightly)]
)
def test_every_plan_of_many_days_keeps_the_promises(days: float, least: int) -> None:
    _, wrong, (grants, preemptions) = watched("campus", days)
    assert wrong == []
    assert min(grants, preemptions) > least


def faulty(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """The policy, with its plans changed by `change(seen, plan)`."""
    from cod.policy.scheduler.plan import plan
    from cod.sim import world

    def planned(snapshot: SiteSnapshot, policy: Policy, energy: Any, now: float) -> PassPlan:
        made: PassPlan = change(snapshot, plan(snapshot, policy, energy, now))
        return made

    monkeypatch.setattr(world, "plan", planned)


@pytest.mark.slow
def test_a_policy_that_takes_too_much_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(snapshot: SiteSnapshot, planned: PassPlan) -> PassPlan:
        if len(planned.preemptions) != 1:
            return planned
        (preempt,) = planned.preemptions
        mobile = sum(
            one.mobile
            for one in snapshot.allocations
            if (one.vcluster_id, one.kind) == (preempt.vcluster_id, preempt.kind)
        )
        # beyond either the simulator itself finds it impossible
        holder = snapshot.holders[preempt.vcluster_id]
        most = min(mobile, holder.held - holder.leaving - holder.floor)
        return replace(
            planned, preemptions=(replace(preempt, count=preempt.count + (most > preempt.count)),)
        )

    faulty(monkeypatch, greedy)
    _, wrong, _ = watched("campus", 0.75)
    assert any("wanted" in sentence for sentence in wrong)


def test_a_policy_that_forgets_inertia_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan as in a world in which every node is mobile."""
    from cod.policy.scheduler.plan import plan
    from cod.sim import apply_plan, world

    def hasty(snapshot: SiteSnapshot, policy: Policy, energy: Any, now: float) -> PassPlan:
        free = replace(
            snapshot, allocations=[replace(one, mobile=one.count) for one in snapshot.allocations]
        )
        return plan(free, policy, energy, now)

    monkeypatch.setattr(world, "plan", hasty)
    with pytest.raises(apply_plan.ImpossiblePlan, match="that may be"):
        watched("bursts", 1.0, inertia=7200.0)
