"""What is told of the starts of requests that wait, in small cases with known answers and in frozen
worlds (`tests.unit.frozen`)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from cod.model import NodeType, Policy, RequestTuple
from cod.policy.hardware import match
from cod.policy.reservations.future import Future
from cod.policy.reservations.starts import NO_LEASE, TOO_FAR, Start, predicted
from cod.policy.scheduler.snapshot import (
    PREEMPTIBLE,
    WARM,
    Allocation,
    Entitlement,
    FreeNodes,
    IncomingNodes,
    NodeKind,
    PendingRequest,
    SiteSnapshot,
    VclusterHolder,
)
from tests.unit import frozen

KIND = NodeKind(1, 1, "")
ERASED, DRAIN, GRACE, LOOK = 100.0, 50.0, 60.0, 1.0
RULES = Policy(
    turnaround=ERASED, drain_grace=DRAIN, reclaim_grace=GRACE, inertia=0.0, hold_after=0.0
)
NODE = NodeType(
    id=1,
    name="node",
    digest="1",
    attributes=match.canonical("<node/>"),
    cost=1.0,
    created_at=0.0,
)
DOCUMENT = '<template name="t"><image target="disk" name="t"/></template>'


def asked(number: int, count: int, *, priority: int = 0, lease: float = 1000.0) -> PendingRequest:
    """A request of a vcluster of its own, whose id is a hundred more."""
    tuples = (RequestTuple(count, "", 1),)
    return PendingRequest(number, number + 100, priority, number, 0, "", tuples, lease=lease)


def holder(number: int, held: int, expires: float | None, priority: int = 0) -> VclusterHolder:
    return VclusterHolder(number, f"v{number}", priority, held, held, expires_at=expires)


def site(
    free: int, requests: list[PendingRequest], holders: list[VclusterHolder], coming: int = 0
) -> SiteSnapshot:
    """A site of one block of nodes that are alike."""
    pending = [VclusterHolder(one.vcluster_id, "", one.priority, 0, 0) for one in requests]
    nodes = free + coming + sum(one.held for one in holders)
    return SiteSnapshot(
        {1: NODE},
        free_nodes=[FreeNodes(KIND, WARM, free)] if free else [],
        coming=[IncomingNodes(KIND, coming)] if coming else [],
        allocations=[Allocation(one.id, KIND, one.held, one.held) for one in holders if one.held],
        holders={one.id: one for one in [*holders, *pending]},
        site={1: nodes},
        requests=requests,
        templates={1: DOCUMENT},
    )


def told(seen: SiteSnapshot, policy: Policy = RULES, now: float = 10.0) -> dict[int, Start]:
    return {one.request_id: one for one in predicted(seen, policy, now)}


def test_what_is_free_starts_now() -> None:
    assert told(site(2, [asked(1, 2)], []))[1].at == 10.0


def test_a_lease_that_ends_gives_its_nodes_after_grace_and_erasing() -> None:
    found = told(site(0, [asked(1, 2)], [holder(7, 2, 500.0)]))
    assert found[1].at == pytest.approx(500 + DRAIN + ERASED, abs=3 * LOOK)


def test_nodes_on_their_way_take_the_turnaround() -> None:
    found = told(site(0, [asked(1, 2)], [], coming=2))
    assert found[1].at == pytest.approx(10 + ERASED, abs=2 * LOOK)


def test_nodes_on_their_way_since_a_while_come_that_much_sooner() -> None:
    seen = site(0, [asked(1, 2)], [], coming=2)
    early, last = IncomingNodes(KIND, 1, since=-70.0), IncomingNodes(KIND, 1, since=-40.0)
    found = told(replace(seen, coming=[early, last]))
    assert found[1].at == pytest.approx(-40 + ERASED, abs=2 * LOOK)


def test_nodes_that_are_late_take_another_turnaround() -> None:
    seen = replace(site(0, [asked(1, 2)], []), coming=[IncomingNodes(KIND, 2, since=-500.0)])
    assert told(replace(seen, site={1: 2}))[1].at == pytest.approx(10 + ERASED, abs=2 * LOOK)


def test_nodes_on_their_way_say_since_when() -> None:
    future = Future(site(0, [asked(1, 2)], [holder(7, 2, 500.0)]), RULES, 10.0)
    future.advance(500.0)
    future.advance(500.0 + DRAIN)
    future.advance(500.0 + DRAIN + 30.0)
    (one,) = future.snapshot().coming
    assert one.since == 500.0 + DRAIN


def test_one_waits_for_the_lease_of_the_other() -> None:
    found = told(site(0, [asked(1, 2), asked(2, 2)], [holder(7, 2, 500.0)]))
    first = found[1].at
    assert first is not None
    assert found[2].at == pytest.approx(first + 1000 + DRAIN + ERASED, abs=3 * LOOK)


def test_lower_priority_gives_its_nodes_by_a_reclaim() -> None:
    lower = replace(holder(7, 3, None), floor=1)
    found = told(site(0, [asked(1, 2, priority=5)], [lower]))
    assert found[1].at == pytest.approx(10 + GRACE + ERASED, abs=2 * LOOK)


def test_preemptible_nodes_are_taken_though_their_lease_is_long() -> None:
    lower = replace(holder(7, 3, 9e6, PREEMPTIBLE), floor=0)
    found = told(site(0, [asked(1, 2)], [lower]))
    assert found[1].at == pytest.approx(10 + GRACE + ERASED, abs=2 * LOOK)


def test_a_lease_without_end_gives_nothing_back() -> None:
    found = told(site(0, [asked(1, 2)], [holder(7, 2, None)]))
    assert (found[1].at, found[1].why) == (None, NO_LEASE)


def test_who_waits_behind_a_lease_without_end_has_no_start() -> None:
    endless = asked(1, 2, lease=float("inf"))
    found = told(site(0, [endless, asked(2, 2)], [holder(7, 2, 500.0)]))
    assert found[1].at is not None
    assert (found[2].at, found[2].why) == (None, NO_LEASE)


def test_a_limit_is_the_reason_where_leases_are_not() -> None:
    request = replace(asked(1, 2), group_id=4)
    seen = replace(site(4, [request], []), entitlements={4: Entitlement(limit=2)})
    own = replace(holder(7, 1, None), group_id=4)
    seen = replace(
        seen,
        holders={**seen.holders, 7: own},
        allocations=[Allocation(7, KIND, 1, 1)],
        site={1: 5},
    )
    found = told(seen)[1]
    assert found.at is None
    assert "limit" in found.why or "may hold" in found.why


def test_odd_nodes_of_shares_go_round_in_later_turns() -> None:
    sure = Entitlement(share=1, weight=1.0, had_odd=True)
    seen = replace(site(3, [], []), entitlements={4: sure, 5: replace(sure, had_odd=False)})
    future = Future(seen, RULES, 10.0)
    assert future.snapshot().entitlements[4].had_odd
    future.advance(2 * 86400.0)
    assert not future.snapshot().entitlements[4].had_odd


def test_dear_energy_is_the_reason_where_leases_are_not() -> None:
    seen = replace(site(2, [asked(1, 2, priority=PREEMPTIBLE)], []), dear="energy is dear")
    assert (told(seen)[1].at, told(seen)[1].why) == (None, "energy is dear")


def test_fewer_nodes_would_start_sooner() -> None:
    leases = [holder(7, 2, 500.0), holder(8, 2, 5000.0)]
    found = told(site(0, [asked(1, 4)], leases))
    assert found[1].at == pytest.approx(5000 + DRAIN + ERASED, abs=4 * LOOK)
    assert found[1].sooner is not None
    count, when = found[1].sooner
    assert (count, when) == (2, pytest.approx(500 + DRAIN + ERASED, abs=3 * LOOK))
    fewer = told(site(0, [asked(1, count)], leases))
    assert fewer[1].at == when


def test_a_reservation_begins_at_its_time() -> None:
    request = replace(asked(1, 2), starts_at=7200.0)
    assert told(site(2, [request], []))[1].at == pytest.approx(7200, abs=2 * LOOK)


def test_without_time_left_nobody_is_told_but_the_reason() -> None:
    seen = site(0, [asked(1, 2)], [holder(7, 2, 500.0)])
    (found,) = predicted(seen, RULES, 10.0, go_on=lambda: False)
    assert (found.at, found.why) == (None, TOO_FAR)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 8])
def test_starts_do_not_depend_on_the_order_of_rows(seed: int) -> None:
    world, _ = frozen.frozen(seed)
    seen, dice = world.snapshot(), Random(seed)
    rows = {
        name: dice.sample(list(getattr(seen, name)), len(getattr(seen, name)))
        for name in ("free_nodes", "coming", "allocations", "reclaims", "requests")
    }
    first = told(seen, world.policy, frozen.FROZEN)
    assert told(replace(seen, **rows), world.policy, frozen.FROZEN) == first


@pytest.mark.slow
def test_starts_in_frozen_worlds_are_told_and_right() -> None:
    """Machines take the times that are known of them; nothing new is asked for."""
    granted = told_ = right = 0
    for seed in (1, 5, 6, 7, 8, 12, 16, 24, 28):
        counts = frozen.shares(list(frozen.outcomes(seed)))
        granted, told_, right = granted + counts[0], told_ + counts[1], right + counts[2]
    print(f"{granted} granted, {told_} of them told, {right} of these within the turnaround")
    assert granted >= 100
    assert told_ >= 0.95 * granted
    assert right >= 0.95 * told_
