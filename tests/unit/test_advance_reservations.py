"""Reservations in advance: examples with a moved clock, and streams of requests on random sites."""

from __future__ import annotations

import cProfile
import math
import pstats
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from cod.model import Policy, RequestTuple
from cod.policy.reservations import admission, forecast, free_nodes, supply
from cod.policy.scheduler import reasons
from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.limits import GroupLimits
from cod.policy.scheduler.snapshot import (
    UNUSABLE,
    USABLE,
    Allocation,
    Decision,
    Entitlement,
    FreeNodes,
    IncomingNodes,
    OpenReclaim,
    PendingRequest,
    SiteSnapshot,
)
from tests.unit.policy_sites import (
    BIG,
    BIG_ONLY,
    NOW,
    POLICY,
    SMALL,
    TYPES,
    codes,
    free,
    granted,
    holder,
    kind,
    nodes_of,
    request,
    site,
)

ONE, TWO = kind(SMALL, 1), kind(SMALL, 2)
RULES = replace(
    POLICY,
    hold_after=0.0,
    drain_grace=100.0,
    turnaround=200.0,
    reclaim_grace=50.0,
    max_grace=80.0,
    inertia=60.0,
)
START = NOW + 10_000


def learnt(seconds: float | None) -> dict[int, Any]:
    """The site's types, where small nodes are known to take so long to come back."""
    return {**TYPES, SMALL: replace(TYPES[SMALL], turnaround=seconds)}


def reservation(
    number: int,
    count: int | RequestTuple,
    start: float = START,
    lease: float = 1000.0,
    **columns: Any,
) -> PendingRequest:
    return request(number, count, starts_at=start, lease=lease, **columns)


def decided(now: float = NOW, policy: Policy = RULES, **columns: Any) -> Decision:
    return decide(site(**columns), policy, now)


def test_it_waits_for_its_start_and_begins_then() -> None:
    seen: dict[str, Any] = {"free_nodes": [free(4, ONE)], "requests": [reservation(1, 4)]}
    done = decided(**seen)
    assert (granted(done), codes(done)) == ([], {1: "reserved"})
    assert done.refusals[0].sentence == "is reserved from 1970-01-01 03:03 UTC on"
    assert granted(decided(START - 1, **seen)) == []
    assert nodes_of(decided(START, **seen), 1) == {ONE: 4}


def test_nodes_are_lent_to_who_is_back_in_time_only() -> None:
    seen: dict[str, Any] = {
        "free_nodes": [free(4, ONE)],
        "requests": [reservation(1, 3), request(2, 1), request(3, 1), request(4, 2, lease=9_700.0)],
    }
    done = decided(**seen)
    # one is spare; the lease of 4, its grace and the erasing end by the start
    assert granted(done) == [2, 4]
    assert codes(done) == {1: "reserved", 3: "busy"}
    longer = [*seen["requests"][:3], request(4, 2, lease=9_701.0)]
    assert granted(decided(free_nodes=[free(4, ONE)], requests=longer)) == [2]


@pytest.mark.parametrize("priority", [0, 7])
def test_it_holds_against_every_priority(priority: int) -> None:
    done = decided(
        free_nodes=[free(4, ONE)], requests=[reservation(1, 4), request(2, 1, priority=priority)]
    )
    assert granted(done) == []


def test_what_leases_bring_back_in_time_need_not_stay_free() -> None:
    held: dict[str, Any] = {
        "free_nodes": [free(2, ONE)],
        "allocations": [Allocation(1, ONE, 2, 2)],
        "requests": [reservation(1, 2), request(2, 2, priority=1)],
    }
    early = decided(holders=[holder(1, 2, 2, expires_at=START - 300)], **held)
    assert granted(early) == [2]
    late = decided(holders=[holder(1, 2, 2, expires_at=START - 299)], **held)
    assert granted(late) == []


def test_what_it_counts_on_is_not_taken_for_others() -> None:
    """The lender's lease ends in time for the reservation: higher priorities may not move its nodes
    on."""
    seen: dict[str, Any] = {
        "holders": [holder(1, 2, 0, expires_at=START - 300)],
        "allocations": [Allocation(1, ONE, 2, 2)],
        "requests": [request(2, 2, priority=3)],
    }
    assert [preempt.count for preempt in decided(**seen).preemptions] == [2]
    seen["requests"].append(reservation(1, 2))
    assert decided(**seen).preemptions == ()


def test_nodes_of_lower_priority_are_reclaimed_in_time() -> None:
    seen: dict[str, Any] = {
        "holders": [holder(1, 4, 1)],
        "allocations": [Allocation(1, ONE, 4, 4)],
        "requests": [reservation(1, 3, priority=2)],
    }
    assert decided(START - 281, **seen).preemptions == ()
    [preempt] = decided(START - 280, **seen).preemptions
    assert (preempt.request_id, preempt.vcluster_id, preempt.count) == (1, 1, 3)


def test_nodes_of_a_quick_type_are_taken_in_time_where_those_of_a_slow_one_would_do() -> None:
    types = {**learnt(50.0), BIG: replace(TYPES[BIG], turnaround=5000.0)}
    seen = site(
        coming=[IncomingNodes(kind(BIG, 1), 3)],
        holders=[holder(1, 4, 1)],
        allocations=[Allocation(1, ONE, 4, 4)],
        requests=[],
    )
    seen = replace(seen, types=types)
    one = reservation(admission.LAST, 3, priority=2)
    assert admission.verdict(seen, one, RULES, START - 500).sentence == ""
    seen = replace(seen, requests=[replace(one, id=1)])
    [preempt] = decide(seen, RULES, START - 130).preemptions
    assert (preempt.vcluster_id, preempt.count) == (1, 3)


def test_what_a_types_nodes_take_to_come_back_is_counted_with() -> None:
    """Use what was learnt of a type in place of the site's 200 s."""
    slow = learnt(500.0)
    for ends, expected in ((START - 600, [2]), (START - 599, [])):
        seen = site(
            free_nodes=[free(2, ONE)],
            holders=[holder(1, 2, 2, expires_at=ends)],
            allocations=[Allocation(1, ONE, 2, 2)],
            requests=[reservation(1, 2), request(2, 2, priority=1)],
        )
        assert granted(decide(replace(seen, types=slow), RULES, NOW)) == expected
    preempted = site(
        holders=[holder(1, 4, 1)],
        allocations=[Allocation(1, ONE, 4, 4)],
        requests=[reservation(1, 3, priority=2)],
    )
    preempted = replace(preempted, types=slow)
    assert decide(preempted, RULES, START - 581).preemptions == ()
    assert [one.count for one in decide(preempted, RULES, START - 580).preemptions] == [3]
    coming = replace(site(free_nodes=[free(4, ONE)], requests=[reservation(1, 3)]), types=slow)
    for start, fits in ((START + 1599, False), (START + 1600, True)):
        second = reservation(admission.LAST, 2, start)
        assert (admission.verdict(coming, second, RULES, NOW).sentence == "") == fits


def test_two_that_do_not_fit_together_are_refused_with_the_next_start() -> None:
    seen = site(free_nodes=[free(4, ONE)], requests=[reservation(1, 3)])
    second = reservation(admission.LAST, 2, START + 500)
    said = admission.verdict(seen, second, RULES, NOW).sentence
    assert (
        said
        == "2 nodes are not free from 1970-01-01 03:11 UTC on: in the way are 3 nodes reserved for"
        " a vcluster (request 1) from 1970-01-01 03:03 UTC to 1970-01-01 03:20 UTC. The next"
        " start at which they would be is 1970-01-01 03:25 UTC"
    )
    assert (
        admission.verdict(seen, replace(second, starts_at=START + 1300), RULES, NOW).sentence == ""
    )
    assert admission.verdict(seen, reservation(admission.LAST, 1), RULES, NOW).sentence == ""


def test_what_is_proposed_in_place_of_a_refused_one_is_accepted() -> None:
    seen = site(
        free_nodes=[free(4, ONE)],
        requests=[reservation(1, 3)],
        holders=[holder(1, 2, 2, expires_at=START + 600.0)],
        allocations=[Allocation(1, ONE, 2, 2)],
    )
    wanted = reservation(admission.LAST, 3, START + 500)
    found = admission.verdict(seen, wanted, RULES, NOW)
    assert found.later is not None
    assert found.later % 60 == 0, "people type whole minutes"
    assert not admission.verdict(seen, replace(wanted, starts_at=found.later), RULES, NOW).sentence
    count = admission.largest(seen, wanted, RULES, NOW)
    fits = [
        not admission.verdict(
            seen, reservation(admission.LAST, number, START + 500), RULES, NOW
        ).sentence
        for number in (1, 2, 3)
    ]
    assert fits == [number <= count for number in (1, 2, 3)]
    assert 0 < count < 3
    nothing = reservation(admission.LAST, 2, START + 500)
    taken = site(free_nodes=[free(4, ONE)], requests=[reservation(1, 4)])
    assert admission.largest(taken, nothing, RULES, NOW) == 0


def test_nodes_are_free_until_they_are_reserved_and_after_they_have_come_back() -> None:
    seen = site(
        free_nodes=[free(4, ONE), free(1, kind(BIG, 1))],
        requests=[reservation(1, 3)],
        holders=[holder(1, 2, 2, expires_at=START - 1000)],
        allocations=[Allocation(1, TWO, 2, 2)],
    )
    found = free_nodes.of_types(seen, RULES, NOW, START + 5000)
    back = START - 1000 + RULES.drain_grace + RULES.turnaround
    over = START + 1000 + RULES.drain_grace + RULES.turnaround
    assert found[SMALL] == [(NOW, 4), (back, 6), (START, 3), (over, 6)]
    assert found[BIG] == [(NOW, 1)]
    assert [free_nodes.least(found[SMALL], time) for time in (NOW, START, over)] == [3, 3, 6]
    assert free_nodes.least([], NOW) == 0


def test_what_can_never_be_and_what_the_limit_forbids_is_refused() -> None:
    seen = site(
        free_nodes=[free(4, ONE)],
        requests=[reservation(1, 2)],
        entitlements={9: Entitlement(limit=3)},
    )
    assert (
        "the site has 4 matching" in admission.verdict(seen, reservation(2, 5), RULES, NOW).sentence
    )
    said = admission.verdict(seen, reservation(2, 2), RULES, NOW).sentence
    assert (
        said
        == "the group may hold 3 nodes at once; at that time it has 0 by leases that last longer"
        " and 2 by other reservations, and 2 were asked for"
    )


def test_the_limit_of_a_type_is_checked_at_its_time() -> None:
    """A group gets of a limited type what its leases and reservations of that time leave, else
    another type."""
    gpu = kind(BIG)
    seen = site(
        free_nodes=[free(4, gpu), free(2, ONE)],
        holders=[holder(1, 2, 2, group_id=9, expires_at=START - 100)],
        allocations=[Allocation(1, gpu, 2, 0)],
        requests=[reservation(1, RequestTuple(2, BIG_ONLY, 1))],
        entitlements={9: Entitlement(type_limits={BIG: 3})},
    )
    more = reservation(admission.LAST, RequestTuple(2, BIG_ONLY, 1))
    assert (
        admission.verdict(seen, more, RULES, NOW).sentence
        == "the group may hold 3 nodes of type big at once; at that time it has 0 by leases that"
        " last longer and 2 by other reservations, and 2 were asked for"
    )
    assert (
        "it has 2 by leases that last longer and 0 by other"
        in admission.verdict(seen, replace(more, starts_at=START - 1), RULES, NOW).sentence
    )
    assert admission.verdict(seen, replace(more, starts_at=START + 1300), RULES, NOW).sentence == ""
    either = replace(seen, requests=[*seen.requests, reservation(2, 2)])
    assert forecast.Forecast(either, Feasibility(either, NOW), RULES, NOW).failed == set()
    assert nodes_of(decide(either, RULES, START), 2) == {ONE: 2}


def test_what_a_group_has_reserved_counts_for_requests_that_last_until_then() -> None:
    seen: dict[str, Any] = {
        "free_nodes": [free(8, ONE)],
        "entitlements": {9: Entitlement(limit=4)},
        "requests": [reservation(1, 3), request(2, 2, lease=9_900.0), request(3, 2, lease=9_901.0)],
    }
    done = decided(**seen)
    assert (granted(done), codes(done)) == ([2], {1: "reserved", 3: "limit"})
    assert granted(decided(**{**seen, "requests": seen["requests"][::2]})) == []
    waits = next(refusal for refusal in done.refusals if refusal.request_id == 3)
    assert (
        waits.sentence
        == "waits: its group may hold 4 nodes at once, and has reserved some of them in advance"
    )
    assert nodes_of(decided(START, **seen), 1) == {ONE: 3}


def test_node_hours_of_each_month_count_with_what_is_used_and_reserved() -> None:
    """The first of February 1970 is day 31: half of this reservation is in each month."""
    february, hour = 31 * 86400.0, 3600.0
    seen = site(
        free_nodes=[free(9, ONE)], requests=[reservation(1, 2, february - 20 * hour, 10 * hour)]
    )
    asked = reservation(admission.LAST, 3, february - 10 * hour, 20 * hour)
    assert admission.over_hours(seen, asked, 100.0, 50 * hour, NOW) == ""
    assert (
        admission.over_hours(seen, asked, 100.0, 50 * hour + 7200, NOW)
        == "the group may use 100 node-hours in a month: of 1970-01, 52 are used, 20 reserved, and"
        " 30 were asked for"
    )
    assert admission.over_hours(seen, asked, 29.0, 0.0, NOW).startswith(
        "the group may use 29 node-hours"
    )
    assert admission.over_hours(seen, replace(asked, starts_at=february), 60.0, 1e9, NOW) == ""


def test_a_lease_is_not_extended_over_what_its_group_has_reserved_within_its_limit() -> None:
    seen = site(
        free_nodes=[free(8, ONE)],
        requests=[reservation(1, 3)],
        entitlements={9: Entitlement(limit=4)},
        holders=[holder(1, 2, 2, group_id=9, expires_at=NOW + 500)],
        allocations=[Allocation(1, ONE, 2, 0)],
    )
    end, why = admission.bound(seen, 1, START + 1, RULES, NOW)
    assert (end, why[:24]) == (START - 300, "3 nodes are reserved for")


def test_a_lease_lasts_as_long_as_the_reservation_of_its_vcluster_makes_it() -> None:
    """Request 1 lengthens the lease of vcluster 1 when it begins: nothing of what that holds is
    back for request 2."""
    seen = site(
        free_nodes=[free(1, ONE)],
        holders=[holder(1, 2, 2, expires_at=START + 100)],
        allocations=[Allocation(1, ONE, 2, 0)],
        requests=[reservation(1, 1, lease=9000.0, vcluster_id=1)],
    )
    assert admission.verdict(seen, reservation(2, 2, START + 500), RULES, NOW).sentence.startswith(
        "2 nodes are not free"
    )
    assert admission.verdict(seen, reservation(2, 2, START + 9300), RULES, NOW).sentence == ""


def test_a_lease_is_extended_up_to_what_is_reserved() -> None:
    seen = site(
        holders=[holder(1, 4, 4, expires_at=NOW + 500)],
        allocations=[Allocation(1, ONE, 4, 0)],
        requests=[reservation(1, 4)],
    )
    assert admission.bound(seen, 1, START - 300, RULES, NOW) == (START - 300, "")
    end, why = admission.bound(seen, 1, START - 200, RULES, NOW)
    assert (end, why) == (
        START - 300,
        "4 nodes are reserved for a vcluster (request 1) from 1970-01-01 03:03 UTC on",
    )


def test_a_reservation_whose_nodes_are_gone_begins_late() -> None:
    """Two of four nodes broke: what there is stays free for it, and it goes first when there is
    enough."""
    seen: dict[str, Any] = {
        "free_nodes": [free(2, ONE)],
        "site": {SMALL: 4},
        "requests": [reservation(1, 4), request(2, 1)],
    }
    assert (granted(decided(START, **seen)), codes(decided(START + 60, **seen))[1]) == ([], "late")
    assert granted(decided(START + 90, **{**seen, "free_nodes": [free(4, ONE)]})) == [1]


def test_one_that_is_late_says_when_its_nodes_are_expected() -> None:
    ends = START + 500
    seen: dict[str, Any] = {
        "free_nodes": [free(2, ONE)],
        "holders": [holder(1, 2, 2, priority=3, expires_at=ends)],
        "allocations": [Allocation(1, ONE, 2, 2)],
        "requests": [reservation(1, 4)],
    }
    [refusal] = decided(START + 60, **seen).refusals
    assert refusal.code == "late"
    assert refusal.sentence.endswith(f"they are expected by {reasons.at(ends + 300)}")
    [refusal] = decided(START + 60, **{**seen, "holders": [holder(1, 2, 2, priority=3)]}).refusals
    assert refusal.sentence.endswith("nobody knows yet when they are")


def test_a_vclusters_lease_goes_on_while_its_reservation_is_late() -> None:
    seen: dict[str, Any] = {
        "free_nodes": [free(2, ONE)],
        "site": {SMALL: 5},
        "holders": [holder(1001, 1, 1, expires_at=START + 100)],
        "allocations": [Allocation(1001, TWO, 1, 1)],
        "requests": [reservation(1, 4)],
    }
    assert codes(decided(START + 200, **seen)) == {1: "late"}
    assert granted(decided(START + 200, **{**seen, "free_nodes": [free(4, ONE)]})) == [1]


def test_an_accepted_set_is_kept_when_an_earlier_one_could_choose_anew() -> None:
    """The first would do with either block; the second is large, and only block 2 is large enough
    for it."""
    seen = site(
        free_nodes=[free(2, ONE), free(3, TWO)], requests=[reservation(1, 2), reservation(2, 3)]
    )
    found = forecast.Forecast(seen, Feasibility(seen, NOW), RULES, NOW)
    assert found.failed == set()
    assert {one.request.id: dict(one.place) for one in found.placed} == {1: {ONE: 2}, 2: {TWO: 3}}


# ---------------------------------------------------------------- streams


class World:
    """Nodes that vclusters hold until their leases end, or that are taken from those of lower
    priority in time."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.blocks = {kind(SMALL, block): self.draw.randint(2, 6) for block in (1, 2)}
        self.limits = {group: Entitlement(limit=self.draw.randint(4, 8)) for group in (8, 9)}
        # vcluster id, kind, count, ends, priority, floor, assigned at, group
        self.busy: list[list[Any]] = []
        # what nodes take to come back: as the site says, or as was learnt of their type
        self.turnaround = 300.0 if seed % 2 else RULES.turnaround
        # nodes being erased: free at, kind, count, reserved
        self.back: list[tuple[float, Any, int, int]] = []
        self.kept: list[tuple[Any, int, int]] = []  # kind, count, reserved for
        self.requests: list[PendingRequest] = []
        self.began: dict[int, float] = {}
        self.accepted: dict[int, float] = {}

    def seen(self, now: float) -> SiteSnapshot:
        left = dict(self.blocks)
        for _, where, count, *_ in self.busy:
            left[where] -= count
        for _, where, count, _ in self.back:
            left[where] -= count
        seen = site(
            free_nodes=[free(count, where) for where, count in left.items() if count],
            coming=[supply_row(where, count) for _, where, count, _ in self.back],
            holders=[
                holder(number, count, floor, priority, expires_at=ends, group_id=group)
                for number, _, count, ends, priority, floor, _, group in self.busy
            ],
            allocations=[
                Allocation(
                    number,
                    where,
                    count,
                    count if at + RULES.inertia <= now else 0,
                    at + RULES.inertia,
                )
                for number, where, count, _, _, _, at, _ in self.busy
            ],
            entitlements=self.limits,
            requests=list(self.requests),
            site={SMALL: sum(self.blocks.values())},
        )
        return replace(seen, types=learnt(self.turnaround if self.turnaround == 300.0 else None))

    def step(self, now: float) -> None:
        self.back = [one for one in self.back if one[0] > now]
        for one in [one for one in self.busy if one[3] + RULES.drain_grace <= now]:
            self.busy.remove(one)
            self.back.append((now + self.turnaround, one[1], one[2], 0))
        done = decide(self.seen(now), RULES, now)
        for grant in done.grants:
            wanted = next(one for one in self.requests if one.id == grant.request_id)
            self.requests.remove(wanted)
            self.began[wanted.id] = now
            for share in grant.shares:
                self.busy.append(
                    [
                        wanted.vcluster_id * 10 + share.free_nodes.kind.block,
                        share.free_nodes.kind,
                        share.count,
                        now + wanted.lease,
                        wanted.priority,
                        share.count,
                        now,
                        wanted.group_id,
                    ]
                )


def supply_row(where: Any, count: int) -> Any:
    from cod.policy.scheduler.snapshot import IncomingNodes

    return IncomingNodes(where, count)


def broken(seed: int) -> list[int]:
    """Return accepted reservations that did not begin at their start."""
    world, now = World(seed), NOW
    for number in range(1, 60):
        group = world.draw.choice([8, 9])
        if world.draw.random() < 0.4:
            asked = reservation(
                number,
                world.draw.randint(1, 4),
                now + 100 * world.draw.randint(3, 40),
                100.0 * world.draw.randint(2, 20),
                priority=world.draw.randint(0, 2),
                group_id=group,
            )
            if not admission.verdict(world.seen(now), asked, RULES, now).sentence:
                world.requests.append(asked)
                world.accepted[number] = asked.starts_at or 0.0
        else:
            world.requests.append(
                request(
                    number,
                    world.draw.randint(1, 4),
                    lease=100.0 * world.draw.randint(1, 30),
                    priority=world.draw.randint(0, 3),
                    submitted_at=now,
                    group_id=group,
                )
            )
        for _ in range(world.draw.randint(1, 4)):
            world.step(now)
            now += 100.0
    while (
        any(one in world.accepted for one in (request.id for request in world.requests))
        and now < NOW + 200_000
    ):
        world.step(now)
        now += 100.0
    return [one for one, start in world.accepted.items() if world.began.get(one) != start]


@pytest.mark.slow
def test_an_accepted_reservation_begins_in_time() -> None:
    assert {seed: late for seed in range(25) if (late := broken(seed))} == {}


@pytest.mark.slow
def test_a_planner_that_lends_beyond_the_start_breaks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast.Forecast, "layers", lambda self: ())
    assert any(broken(seed) for seed in range(25))


@pytest.mark.slow
def test_a_check_that_forgets_the_erasing_breaks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supply, "back_at", lambda one, *_: one.expires_at)
    assert any(broken(seed) for seed in range(25))


@pytest.mark.slow
def test_a_limit_that_forgets_what_is_reserved_breaks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupLimits, "book", lambda self, group_id, start, end, nodes: None)
    assert any(broken(seed) for seed in range(25))


def test_nothing_is_looked_at_without_reservations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan as before where nobody reserves: the forecast is not even made."""
    monkeypatch.setattr(forecast, "Forecast", None)
    assert granted(
        decided(free_nodes=[FreeNodes(ONE, 0, 2)], requests=[request(1, 1), request(2, 1)])
    ) == [1, 2]


# ---------------------------------------------------------------- starts that are near


class Holders:
    """Vclusters that have grown beyond what they were created with, and lose nodes to reservations
    of higher priority: reclaims run to their deadlines, and erasing takes all of its time.

    failing  how likely a node fails in a step, wherever it is; half of them are repaired
    ports    some nodes have usable switch ports, and some vclusters are isolated
    told     what was said last of reservations that were late, and when: (request, time, sentence)
    """

    STEP = 10.0

    def __init__(self, seed: int, failing: float = 0.0, ports: bool = False) -> None:
        self.draw, self.failing, self.ports = random.Random(seed), failing, ports
        self.repaired: list[tuple[float, Any]] = []
        self.blocks = {kind(SMALL, block): self.draw.randint(2, 8) for block in (1, 2)}
        if ports:
            self.blocks = {
                where._replace(port=port): count
                for where, count in self.blocks.items()
                for port in (USABLE, UNUSABLE)
            }
        self.held: dict[int, dict[str, Any]] = {}
        self.erased: list[tuple[float, Any, int, int]] = []  # when, kind, nodes, reserved for
        self.kept: list[tuple[Any, int, int]] = []  # kind, nodes, reserved for
        self.reclaims: dict[int, OpenReclaim] = {}
        self.requests: list[PendingRequest] = []
        self.began: dict[int, float] = {}
        self.accepted: dict[int, float] = {}
        self.told: dict[int, str] = {}

    def seen(self, now: float) -> SiteSnapshot:
        left = dict(self.blocks)
        for _, where in self.repaired:
            left[where] -= 1
        for one in self.held.values():
            left[one["kind"]] -= one["count"]
        for _, where, count, _ in self.erased:
            left[where] -= count
        for where, count, _ in self.kept:
            left[where] -= count
        leaving = Counter[int]()
        for reclaim in self.reclaims.values():
            leaving[reclaim.vcluster_id] += reclaim.open
        return site(
            free_nodes=[
                *(free(count, where) for where, count in left.items() if count),
                *(free(count, where, reserved=one) for where, count, one in self.kept),
            ],
            coming=[
                IncomingNodes(where, count, one, since=at - RULES.turnaround)
                for at, where, count, one in self.erased
            ],
            holders=[
                replace(
                    holder(number, one["count"], one["floor"], one["priority"]),
                    expires_at=one["ends"],
                    leaving=leaving[number],
                )
                for number, one in self.held.items()
            ],
            allocations=[
                Allocation(
                    number,
                    one["kind"],
                    one["count"],
                    max(0, one["count"] - leaving[number])
                    if one["at"] + RULES.inertia <= now
                    else 0,
                    one["at"] + RULES.inertia,
                )
                for number, one in self.held.items()
            ],
            reclaims=list(self.reclaims.values()),
            requests=list(self.requests),
            site={SMALL: sum(self.blocks.values())},
        )

    def step(self, now: float) -> None:
        self.repaired = [one for one in self.repaired if one[0] > now]
        back = [one for one in self.erased if one[0] <= now]
        self.erased = [one for one in self.erased if one[0] > now]
        self.kept += [(where, count, one) for _, where, count, one in back if one]
        for number, one in list(self.held.items()):
            if one["ends"] + RULES.drain_grace <= now:
                self._lose(number, one["count"], 0, now)
        for reclaim in [one for one in self.reclaims.values() if one.deadline <= now]:
            del self.reclaims[reclaim.id]
            self._lose(reclaim.vcluster_id, reclaim.open, reclaim.request_id, now)
        if self.failing and self.draw.random() < self.failing:
            self._fail(now)
        self._carry_out(decide(self.seen(now), RULES, now), now)

    def _fail(self, now: float) -> None:
        """Let one node fail: one of a vcluster, one that is being erased, or a free one."""
        back = now + 1000.0 if self.draw.random() < 0.5 else math.inf
        numbers = sorted(self.held)
        chosen = self.draw.randrange(len(numbers) + len(self.erased) + 2)
        if chosen < len(numbers):
            one = self.held[numbers[chosen]]
            leaving = sum(
                each.open for each in self.reclaims.values() if each.vcluster_id == numbers[chosen]
            )
            if one["count"] > max(1, leaving):
                one["count"] -= 1
                self.repaired.append((back, one["kind"]))
        elif chosen < len(numbers) + len(self.erased):
            at, where, count, wanted = self.erased.pop(chosen - len(numbers))
            if count > 1:
                self.erased.append((at, where, count - 1, wanted))
            self.repaired.append((back, where))
        else:
            where = sorted(self.blocks)[chosen - len(numbers) - len(self.erased)]
            if sum(one.count for one in self.seen(now).free_nodes if one.kind == where) > sum(
                count for kept, count, _ in self.kept if kept == where
            ):
                self.repaired.append((back, where))

    def _lose(self, number: int, count: int, request_id: int, now: float) -> None:
        one = self.held[number]
        one["count"] -= count
        self.erased.append((now + RULES.turnaround, one["kind"], count, request_id))
        if not one["count"]:
            del self.held[number]
            self.reclaims = {
                key: each for key, each in self.reclaims.items() if each.vcluster_id != number
            }

    def _carry_out(self, done: Decision, now: float) -> None:
        for reduction in done.reductions:
            reclaim = self.reclaims.pop(reduction.reclaim_id)
            if reduction.left:
                self.reclaims[reclaim.id] = replace(reclaim, open=reduction.left)
        for grant in done.grants:
            wanted = next(one for one in self.requests if one.id == grant.request_id)
            self.requests.remove(wanted)
            self.began[wanted.id] = now
            self.kept = [one for one in self.kept if one[2] != wanted.id]
            self.erased = [(*one[:3], 0 if one[3] == wanted.id else one[3]) for one in self.erased]
            for place, share in enumerate(grant.shares):
                floor = self.draw.randint(0, share.count)
                self.held[wanted.id * 10 + place] = {
                    "kind": share.free_nodes.kind,
                    "count": share.count,
                    "ends": now + wanted.lease,
                    "priority": wanted.priority,
                    "floor": share.count if wanted.starts_at is not None else floor,
                    "at": now,
                }
        for preempt in done.preemptions:
            number = len(self.began) * 1000 + len(self.reclaims) + int(now) * 100_000
            grace = self.draw.choice([0.0, RULES.reclaim_grace, RULES.max_grace])
            self.reclaims[number] = OpenReclaim(
                number,
                preempt.vcluster_id,
                preempt.request_id,
                preempt.kind,
                preempt.count,
                now + grace,
            )
        self.told |= {
            refusal.request_id: refusal.sentence
            for refusal in done.refusals
            if refusal.code == "late"
        }


def lived(seed: int, failing: float = 0.0, ports: bool = False) -> tuple[Holders, list[int]]:
    """Return a random world that has come to its end, and the reservations that began late."""
    world, now = Holders(seed, failing, ports), NOW
    for number in range(1, 30):
        reserves = world.draw.random() < 0.6
        columns: dict[str, Any] = {
            "priority": world.draw.randint(1, 3) if reserves else world.draw.randint(0, 1),
            "may_spread": world.draw.random() < 0.5,
            "submitted_at": now,
            "isolated": ports and world.draw.random() < 0.4,
        }
        count = world.draw.randint(1, 6)
        if reserves:
            start = now + 10 * world.draw.randint(1, 80)
            length = 100.0 * world.draw.randint(2, 9)
            asked = reservation(admission.LAST, count, start, length, **columns)
            if not admission.verdict(world.seen(now), asked, RULES, now).sentence:
                world.requests.append(replace(asked, id=number, vcluster_id=1000 + number))
                world.accepted[number] = start
        else:
            lease = 100.0 * world.draw.randint(3, 60)
            world.requests.append(request(number, count, lease=lease, **columns))
        for _ in range(world.draw.randint(1, 12)):
            world.step(now)
            now += Holders.STEP
    while any(one.starts_at is not None for one in world.requests) and now < NOW + 20_000:
        world.step(now)
        now += Holders.STEP
    limit = {one: start + reasons.PUNCTUAL for one, start in world.accepted.items()}
    return world, [one for one in limit if world.began.get(one, math.inf) > limit[one]]


def several(seeds: range) -> tuple[int, int]:
    """Return how many reservations were accepted in so many worlds, and how many began late."""
    accepted = late = 0
    for seed in seeds:
        world, those = lived(seed)
        accepted, late = accepted + len(world.accepted), late + len(those)
    return accepted, late


def test_a_start_that_comes_before_nodes_can_be_taken_is_refused_with_the_earliest() -> None:
    """Grace, erasing and a minute have to fit before it: 80, 200 and 60 s."""
    seen = site(holders=[holder(1, 4, 1)], allocations=[Allocation(1, ONE, 4, 4)])
    asked = reservation(admission.LAST, 2, NOW + 339, priority=2)
    said = admission.verdict(seen, asked, RULES, NOW).sentence
    first = math.ceil((NOW + 340) / 60) * 60
    assert said.endswith(f"The next start at which they would be is {reasons.at(first)}")
    assert admission.verdict(seen, replace(asked, starts_at=NOW + 340), RULES, NOW).sentence == ""
    assert (
        admission.verdict(seen, replace(asked, starts_at=float(first)), RULES, NOW).sentence == ""
    )


def test_a_start_that_comes_before_nodes_are_erased_is_refused() -> None:
    seen = site(coming=[IncomingNodes(ONE, 4)])
    asked = reservation(admission.LAST, 2, NOW + 199)
    assert admission.verdict(seen, asked, RULES, NOW).sentence != ""
    assert admission.verdict(seen, replace(asked, starts_at=NOW + 200), RULES, NOW).sentence == ""


def test_nodes_on_their_way_count_from_when_they_are_expected() -> None:
    """Count a whole turnaround from now for nodes whose time is over: they are tried again."""
    asked = reservation(admission.LAST, 2, NOW + 50)
    for since, start in ((NOW - 150, NOW + 50), (NOW - 300, NOW + 200)):
        seen = site(coming=[IncomingNodes(ONE, 4, since=since)])
        for starts_at, accepted in ((start - 1, False), (start, True)):
            one = replace(asked, starts_at=starts_at)
            assert (admission.verdict(seen, one, RULES, NOW).sentence == "") == accepted


def test_what_is_taken_for_one_does_not_come_back_for_another() -> None:
    """The first takes both nodes before their lease ends, and has them when it would have."""
    first = reservation(1, 2, NOW + 500, 1000.0, priority=2)
    seen = site(
        holders=[holder(1, 2, 0, expires_at=NOW + 480)],
        allocations=[Allocation(1, ONE, 2, 2)],
        requests=[first],
    )
    asked = reservation(admission.LAST, 2, NOW + 900)
    assert admission.verdict(replace(seen, requests=[]), asked, RULES, NOW).sentence == ""
    assert admission.verdict(seen, asked, RULES, NOW).sentence != ""


def test_a_late_one_is_told_when_what_is_taken_for_it_is_there() -> None:
    """Nothing is being taken yet: grace and erasing begin now."""
    late = reservation(1, 2, NOW - 100, priority=2)
    done = decided(
        holders=[holder(1, 4, 0)], allocations=[Allocation(1, ONE, 4, 4)], requests=[late]
    )
    [preempt] = done.preemptions
    assert preempt.count == 2
    first = math.ceil((NOW + 280) / 60) * 60
    assert done.refusals[0].sentence.endswith(f"expected by {reasons.at(first)}")


def test_nothing_is_counted_on_that_ends_before_it_can_be_taken() -> None:
    """What a lease that has ended still holds is not taken, and is back after the start."""
    ends = START - 290
    seen = site(holders=[holder(1, 4, 0, expires_at=ends)], allocations=[Allocation(1, ONE, 4, 4)])
    assert (
        admission.verdict(seen, reservation(admission.LAST, 2, priority=2), RULES, NOW).sentence
        != ""
    )


@pytest.mark.slow
def test_an_accepted_reservation_with_a_near_start_begins_in_time() -> None:
    accepted, late = several(range(15))
    assert accepted > 50
    assert late == 0


@pytest.mark.nightly
def test_none_of_a_thousand_accepted_reservations_begins_late() -> None:
    accepted, late = several(range(200))
    assert accepted > 1000
    assert late == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [77, 351, 408])
def test_worlds_whose_reservations_were_late_once(seed: int) -> None:
    """Nodes on their way were counted from now on, nodes taken for one reservation came back again
    for another at their lease's end, and one that began took what another counted on."""
    world, late = lived(seed)
    assert len(world.accepted) > 3
    assert late == []


@pytest.mark.parametrize("seed", [7, 13, 35, 84])
@pytest.mark.slow
def test_isolated_clusters_find_nodes_with_usable_ports(seed: int) -> None:
    """Others take such nodes only where none are left without usable ports."""
    world, late = lived(seed, ports=True)
    assert len(world.accepted) > 3
    assert late == []


@pytest.mark.nightly
def test_of_many_among_isolated_clusters_one_in_a_hundred_begins_late_at_most() -> None:
    worlds = [lived(seed, ports=True) for seed in range(80)]
    accepted = sum(len(world.accepted) for world, _ in worlds)
    assert accepted > 500
    assert sum(len(late) for _, late in worlds) * 100 <= accepted


@pytest.mark.slow
def test_where_nodes_fail_each_late_reservation_is_told() -> None:
    worlds = [lived(seed, failing=0.02) for seed in range(12)]
    told = [world.told.get(one, "") for world, late in worlds for one in late]
    assert len(told) > 5
    assert all(one.startswith(reasons.LATE) for one in told)
    assert sum("expected by" in one for one in told) * 2 > len(told)


@pytest.mark.slow
def test_a_check_that_forgets_the_grace_breaks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "earliest", lambda *asked: asked[-1])
    assert lived(6)[1]


def test_what_becomes_free_is_added_up_once() -> None:
    def calls(count: int) -> int:
        numbers = range(1, count + 1)
        seen = site(
            holders=[holder(n, 1, expires_at=NOW + 10.0 * n) for n in numbers],
            allocations=[Allocation(n, ONE, 1, 1) for n in numbers],
        )
        profile = cProfile.Profile()
        steps = profile.runcall(free_nodes.of_types, seen, RULES, NOW, math.inf)
        assert [nodes for _, nodes in steps[SMALL]] == [0, *numbers]
        return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]

    assert calls(900) < 5 * calls(300), "a calendar of many leases would take their square"
