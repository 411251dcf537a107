"""What groups may hold and are sure of: the planner keeps limits, guarantees and shares on random
sites."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cod.model import Group, Policy
from cod.policy.scheduler import explain
from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.preemption import Candidates, GroupHoldings, Level
from cod.policy.scheduler.snapshot import (
    ANYTHING,
    PREEMPTIBLE,
    Allocation,
    Decision,
    Entitlement,
    IncomingNodes,
    SiteSnapshot,
)
from cod.policy.sharing import entitlements
from tests.unit.policy_sites import (
    BIG,
    NOW,
    POLICY,
    SMALL,
    carried_out,
    codes,
    free,
    granted,
    holder,
    kind,
    request,
    shuffled,
    site,
    snapshots,
)

ENTITLEMENTS = st.dictionaries(
    st.integers(9, 12),
    st.builds(
        Entitlement,
        limit=st.none() | st.integers(0, 6),
        type_limits=st.dictionaries(st.sampled_from([SMALL, BIG]), st.integers(0, 4), max_size=1),
        guarantee=st.integers(0, 6),
        share=st.none() | st.integers(0, 8),
        rank=st.integers(0, 3),
        used_up=st.booleans(),
    ),
)


def owned(seen: SiteSnapshot, entitled: dict[int, Entitlement]) -> SiteSnapshot:
    """Return the site with its vclusters in groups 9 to 12 in turn, all of one priority; preemptible
    ones count for no group, as `preemption.holder` has it."""
    holders = {
        one: each if each.preemptible else replace(each, group_id=9 + one % 4)
        for one, each in seen.holders.items()
    }
    requests = [
        (
            replace(one, group_id=holders[one.vcluster_id].group_id)
            if one.vcluster_id in holders
            else one
        )
        for one in seen.requests
    ]
    return replace(seen, holders=holders, requests=requests, entitlements=entitled)


def taken_of(seen: SiteSnapshot, done: Decision) -> Counter[int]:
    """Return the nodes that each group is to lose to others by what was decided."""
    lost: Counter[int] = Counter()
    groups = {one.id: one.group_id for one in seen.requests}
    for preempt in done.preemptions:
        if seen.holders[preempt.vcluster_id].group_id != groups[preempt.request_id]:
            lost[seen.holders[preempt.vcluster_id].group_id] += preempt.count
    return lost


@pytest.mark.slow
@given(snapshots(contended=True), ENTITLEMENTS)
def test_no_group_falls_below_its_guarantee(
    drawn: SiteSnapshot, entitled: dict[int, Entitlement]
) -> None:
    seen = owned(drawn, entitled)
    lost, before = taken_of(seen, decide(seen, POLICY, NOW)), GroupHoldings(seen, NOW)
    for group_id, count in lost.items():
        assert count <= before.beyond(group_id).guarantee


@pytest.mark.slow
@given(snapshots(contended=True), ENTITLEMENTS)
def test_no_group_gets_more_than_its_limits(
    drawn: SiteSnapshot, entitled: dict[int, Entitlement]
) -> None:
    seen = owned(drawn, entitled)
    held: Counter[int] = Counter()
    types: Counter[tuple[int, int]] = Counter()
    for one in seen.allocations:
        group_id = seen.holders[one.vcluster_id].group_id
        held[group_id] += one.count
        types[group_id, one.kind.type] += one.count
    requests = {one.id: one for one in seen.requests}
    got: Counter[int] = Counter()
    for grant in decide(seen, POLICY, NOW).grants:
        group_id = requests[grant.request_id].group_id
        entitlement = entitled.get(group_id, ANYTHING)
        assert not entitlement.used_up
        if requests[grant.request_id].preemptible:
            continue  # lent until somebody needs them: limits of nodes do not bind these
        for share in grant.shares:
            got[group_id] += share.count
            types[group_id, share.free_nodes.kind.type] += share.count
            assert types[group_id, share.free_nodes.kind.type] <= entitlement.type_limits.get(
                share.free_nodes.kind.type, 10**9
            )
        assert entitlement.limit is None or held[group_id] + got[group_id] <= entitlement.limit


WEIGHTS = st.dictionaries(
    st.integers(9, 12),
    st.builds(
        Entitlement,
        limit=st.none() | st.integers(0, 6),
        guarantee=st.integers(0, 4),
        share=st.just(0),
        rank=st.integers(1, 3),
        weight=st.sampled_from([0.0, 1.0, 3.0]),
        parent=st.sampled_from([0, 0, 9]),
    ).filter(lambda one: one.guarantee <= (6 if one.limit is None else one.limit)),
)


@given(snapshots(contended=True, settled=True), WEIGHTS)
@pytest.mark.slow
def test_what_was_taken_by_a_share_is_not_taken_back(
    drawn: SiteSnapshot, entitled: dict[int, Entitlement]
) -> None:
    """Shares depend on what groups hold and want: giving nodes to those that want them changes
    nobody's."""
    entitled = {
        one: replace(each, parent=0 if one == 9 else each.parent) for one, each in entitled.items()
    }
    seen = entitlements.shared(owned(drawn, entitled))
    done = decide(seen, POLICY, NOW)
    assume(not any(refusal.final for refusal in done.refusals))
    after = entitlements.shared(carried_out(seen, done))
    assert not decide(after, POLICY, NOW).preemptions


@pytest.mark.slow
@given(snapshots(contended=True), ENTITLEMENTS)
def test_no_group_gets_free_nodes_and_loses_running_ones_of_a_kind(
    drawn: SiteSnapshot, entitled: dict[int, Entitlement]
) -> None:
    seen = owned(drawn, entitled)
    done = decide(seen, POLICY, NOW)
    requests = {one.id: one for one in seen.requests}
    got = {
        (requests[grant.request_id].group_id, share.free_nodes.kind)
        for grant in done.grants
        for share in grant.shares
        if not (requests[grant.request_id].preemptible or share.free_nodes.reserved)
    }
    assert not got & {
        (seen.holders[preempt.vcluster_id].group_id, preempt.kind) for preempt in done.preemptions
    }


def one_free_beside_ten(**columns: Any) -> SiteSnapshot:
    """Group 10 has used less than its share, but holds all nodes except for one: that is wanted by
    it and by group 9, which holds nothing."""
    return site(
        free_nodes=[free(1)],
        holders=[holder(1, 10, 1, group_id=10)],
        allocations=[Allocation(1, kind(), 10, 10)],
        requests=[request(1, 1, group_id=10), request(2, 1, group_id=9)],
        entitlements={9: Entitlement(share=5, rank=2), 10: Entitlement(share=6, rank=1)},
        **columns,
    )


def test_free_nodes_go_to_those_that_would_take_running_ones() -> None:
    done = decide(one_free_beside_ten(), POLICY, NOW)
    assert (granted(done), done.preemptions) == ([2], ())


def test_a_guarantee_goes_before_every_priority_and_takes_from_all() -> None:
    seen = eight_of_ten(8)
    higher = replace(
        seen,
        holders={1: replace(seen.holders[1], priority=5)},
        entitlements={**seen.entitlements, 10: Entitlement(guarantee=2)},
    )
    (preempt,) = decide(higher, POLICY, NOW).preemptions
    assert preempt.count == 8
    assert not decide(
        replace(higher, requests=[request(1, 9, group_id=9)]), POLICY, NOW
    ).preemptions
    (held,) = explain.explain(higher, POLICY, NOW, 1).holders
    assert (held.takeable, held.protected) == (8, "guarantee")
    spare = site(
        free_nodes=[free(2)],
        entitlements={9: Entitlement(guarantee=2)},
        requests=[request(1, 2, group_id=9), request(2, 2, group_id=10, priority=5)],
    )
    assert granted(decide(spare, POLICY, NOW)) == [1]


@pytest.mark.slow
@given(snapshots(contended=True), ENTITLEMENTS, st.randoms(use_true_random=False))
def test_the_order_of_rows_means_nothing(
    drawn: SiteSnapshot, entitled: dict[int, Entitlement], random: Any
) -> None:
    seen = owned(drawn, entitled)
    assert decide(shuffled(seen, random.shuffle), POLICY, NOW) == decide(seen, POLICY, NOW)


@pytest.mark.slow
@given(snapshots())
def test_groups_that_may_have_anything_change_nothing(seen: SiteSnapshot) -> None:
    anything = owned(seen, {one: Entitlement() for one in range(9, 13)})
    assert decide(anything, POLICY, NOW) == decide(owned(seen, {}), POLICY, NOW)


@pytest.mark.slow
@given(snapshots(contended=True), ENTITLEMENTS, st.randoms(use_true_random=False))
def test_what_can_be_taken_is_known_after_each_change(
    drawn: SiteSnapshot, entitled: dict[int, Entitlement], random: Any
) -> None:
    seen = owned(drawn, entitled)
    candidates = Candidates(seen, NOW)
    changes: list[Callable[[Candidates], object]] = []
    levels = [
        Level(one, equals)
        for one in (PREEMPTIBLE, 0, 1, 2)
        for equals in ("", "share", "guarantee")
    ]
    kinds = sorted({one.kind for one in seen.allocations})
    for _ in range(6 if kinds else 0):
        victims = candidates.preempt(
            random.choice(kinds), random.randint(1, 2), random.choice(levels), 0
        )
        gained = random.randint(9, 12), random.choice(kinds), random.randint(1, 3)
        changes.append(partial(Candidates.remove, victims=victims))
        candidates.add(*gained)
        changes.append(partial(Candidates.add, group_id=gained[0], kind=gained[1], nodes=gained[2]))
        if random.random() < 0.3:
            candidates.restore(victims)
            changes.append(partial(Candidates.restore, victims=victims))
        anew = Candidates(seen, NOW)
        for change in changes:
            change(anew)
        for one, level, but in itertools.product(kinds, levels, (0, *seen.holders)):
            assert candidates.most(one, level, but) == anew.most(one, level, but)


@pytest.mark.parametrize(
    ("size", "group_id", "guarantees", "floors", "expected"),
    [
        (10, 1, {}, {}, 10),
        (10, 1, {1: 4}, {2: 10}, 10),
        (10, 1, {2: 4}, {}, 6),
        (10, 1, {2: 4}, {2: 3}, 6),
        (10, 1, {2: 4}, {2: 7}, 3),
        (10, 1, {1: 3, 2: 4}, {}, 6),
        (3, 1, {1: 3, 2: 4}, {1: 3, 3: 1}, 2),
        (3, 1, {2: 4}, {3: 6}, 0),
        (3, 1, {2: 40}, {}, 0),
    ],
)
def test_creation_sizes_leave_others_what_they_are_guaranteed(
    size: int, group_id: int, guarantees: dict[int, int], floors: dict[int, int], expected: int
) -> None:
    assert entitlements.creation_size(size, group_id, guarantees, floors, 10) == expected


@pytest.mark.parametrize(
    ("guarantees", "floors", "expected"),
    [
        ({1: 4}, [], NOW),
        ({1: 4}, [(1, 9, 5000.0)], NOW),
        ({1: 4}, [(2, 6, 5000.0)], NOW),
        ({1: 4}, [(2, 7, 5000.0)], 5000.0),
        ({1: 4}, [(2, 3, 6000.0), (3, 4, 5000.0)], 5000.0),
        ({1: 4}, [(2, 7, 6000.0), (3, 1, 5000.0)], 6000.0),
        ({1: 4, 2: 5}, [(2, 7, 5000.0)], 5000.0),
        ({1: 4, 2: 7}, [(2, 7, 5000.0)], None),
        ({1: 11}, [], None),
    ],
)
def test_a_guarantee_is_sure_when_others_leases_have_ended(
    guarantees: dict[int, int], floors: list[tuple[int, int, float]], expected: float | None
) -> None:
    assert entitlements.guaranteed_from(1, guarantees, floors, 10, NOW) == expected


def test_nobody_has_an_entitlement_where_all_is_off() -> None:
    groups = [
        Group(one, f"g{one}", one, None, None, 0.0, faded_usage=one * 100.0) for one in range(1, 5)
    ]
    assert entitlements.of(groups, Policy(), 100) == {}


@pytest.mark.parametrize("turn", range(28))
def test_a_reclaim_leaves_shares_as_they_were(turn: int) -> None:
    """Else a reclaim that a share allows would be given up at its deadline, and made again."""
    groups = range(1, 9)
    seen = site(
        holders=[holder(one, 3 if one < 5 else 2, 1, group_id=one) for one in groups],
        requests=[request(one, 1, group_id=one) for one in groups if one > 4],
        entitlements={one: Entitlement(share=0, rank=1, weight=1.0) for one in groups},
        turn=turn,
    )
    seen = replace(seen, site={SMALL: 20})
    before = entitlements.shared(seen).entitlements
    for one in range(1, 5):
        leaving = replace(seen.holders[one], leaving=1)
        after = entitlements.shared(replace(seen, holders={**seen.holders, one: leaving}))
        assert after.entitlements == before


def test_ranks_are_among_groups_of_one_priority() -> None:
    groups = [
        Group(1, "a", 0, None, None, 0.0, shares=40, faded_usage=600.0),
        Group(2, "b", 0, None, None, 0.0, shares=30, faded_usage=300.0),
        Group(3, "c", 5, None, None, 0.0, shares=30, faded_usage=100.0),
    ]
    found = entitlements.of(groups, Policy(fair_half_life=1.0), 10)
    assert [(one, found[one].rank, found[one].share) for one in (1, 2, 3)] == [
        (1, 2, 4),
        (2, 1, 3),
        (3, 1, 3),
    ]


def eight_of_ten(wanted: int, **columns: Any) -> SiteSnapshot:
    """Ten nodes held by a group of the same priority, created with one; the group that asks is
    guaranteed eight."""
    return site(
        holders=[holder(1, 10, 1, group_id=10)],
        allocations=[Allocation(1, kind(), 10, 10)],
        requests=[request(1, wanted, group_id=9)],
        entitlements={9: Entitlement(guarantee=8)},
        **columns,
    )


def test_a_request_within_its_guarantee_takes_from_equals() -> None:
    (preempt,) = decide(eight_of_ten(8), POLICY, NOW).preemptions
    assert (preempt.vcluster_id, preempt.count) == (1, 8)


def test_a_request_beyond_its_guarantee_waits() -> None:
    done = decide(eight_of_ten(9), POLICY, NOW)
    assert not done.preemptions
    assert [refusal.code for refusal in done.refusals] == ["busy"]


def test_nodes_within_their_inertia_are_not_taken_by_a_guarantee() -> None:
    seen = eight_of_ten(8)
    young = replace(seen, allocations=[Allocation(1, kind(), 10, 7, NOW + 50)])
    assert not decide(young, POLICY, NOW).preemptions


def test_equals_keep_their_share() -> None:
    seen = replace(
        eight_of_ten(5),
        entitlements={9: Entitlement(share=5, rank=1), 10: Entitlement(share=5, rank=2)},
    )
    (preempt,) = decide(seen, POLICY, NOW).preemptions
    assert preempt.count == 5
    more = replace(seen, requests=[request(1, 6, group_id=9)])
    assert not decide(more, POLICY, NOW).preemptions


def test_nodes_that_a_group_waits_for_cost_it_none_that_it_holds() -> None:
    """The act that takes nodes counts what the group holds now, and would refuse to."""
    seen = site(
        coming=[IncomingNodes(kind(), 2)],
        holders=[holder(1, 5, 1, group_id=10)],
        allocations=[Allocation(1, kind(), 5, 5)],
        requests=[request(1, 2, group_id=10), request(2, 2, group_id=9, submitted_at=NOW)],
        entitlements={9: Entitlement(share=5, rank=1), 10: Entitlement(share=5, rank=1)},
    )
    done = decide(seen, replace(POLICY, hold_after=1.0), NOW)
    assert not done.preemptions
    assert {refusal.request_id: refusal.code for refusal in done.refusals} == {
        1: "coming",
        2: "busy",
    }


def test_two_requests_do_not_have_one_guarantee_twice() -> None:
    seen = replace(eight_of_ten(5), requests=[request(1, 5, group_id=9), request(2, 4, group_id=9)])
    assert sum(preempt.count for preempt in decide(seen, POLICY, NOW).preemptions) == 5


def test_who_has_used_less_of_its_share_goes_first() -> None:
    entitled = {9: Entitlement(share=5, rank=2), 10: Entitlement(share=5, rank=1)}
    seen = site(
        free_nodes=[free(2)],
        entitlements=entitled,
        requests=[
            request(1, 2, group_id=9, submitted_at=0.0),
            request(2, 2, group_id=10, submitted_at=900.0),
        ],
    )
    (grant,) = decide(seen, POLICY, NOW).grants
    assert grant.request_id == 2


@pytest.mark.parametrize(("hold_after", "first"), [(899.0, 1), (900.0, 1), (901.0, 2), (0.0, 2)])
def test_a_request_that_has_waited_long_goes_before_ranks_and_shares(
    hold_after: float, first: int
) -> None:
    seen = site(
        free_nodes=[free(2)],
        entitlements={9: Entitlement(share=1, rank=2), 10: Entitlement(share=5, rank=1)},
        requests=[
            request(1, 2, group_id=9, submitted_at=NOW - 900.0),
            request(2, 2, group_id=10, submitted_at=NOW - 10.0),
        ],
    )
    done = decide(seen, replace(POLICY, hold_after=hold_after), NOW)
    assert granted(done) == [first]
    sure = replace(seen, entitlements={**seen.entitlements, 10: Entitlement(share=5, guarantee=2)})
    assert granted(decide(sure, replace(POLICY, hold_after=hold_after), NOW)) == [2]


def test_a_request_within_its_guarantee_goes_before_better_ranks() -> None:
    entitled = {9: Entitlement(share=0, rank=2, guarantee=2), 10: Entitlement(share=5, rank=1)}
    seen = site(
        free_nodes=[free(2)],
        entitlements=entitled,
        requests=[request(1, 2, group_id=9), request(2, 2, group_id=10)],
    )
    (grant,) = decide(seen, POLICY, NOW).grants
    assert grant.request_id == 1


@pytest.mark.parametrize(
    ("entitled", "count", "code", "words"),
    [
        (
            Entitlement(limit=3),
            4,
            "impossible",
            "its group may hold 3 nodes at once, and 4 were asked for",
        ),
        (Entitlement(limit=3), 2, "limit", "waits: its group may hold 3 nodes at once"),
        (
            Entitlement(type_limits={SMALL: 3}),
            4,
            "impossible",
            "its group may hold 3 of type small at once, and 4 were asked for",
        ),
        (
            Entitlement(type_limits={SMALL: 3}),
            2,
            "limit",
            "waits: its group may hold 3 nodes of type small at once",
        ),
        (
            Entitlement(used_up=True),
            1,
            "limit",
            "waits: its group has used its node-hours of this month",
        ),
    ],
)
def test_a_request_beyond_a_limit_is_told_which(
    entitled: Entitlement, count: int, code: str, words: str
) -> None:
    seen = site(
        free_nodes=[free(9)],
        holders=[holder(1, 2, group_id=9)],
        allocations=[Allocation(1, kind(), 2, 0)],
        requests=[request(1, count, group_id=9)],
        entitlements={9: entitled},
    )
    (refusal,) = decide(seen, POLICY, NOW).refusals
    assert (refusal.code, refusal.sentence) == (code, words)


def test_a_type_without_room_is_left_out_where_another_does() -> None:
    seen = site(
        free_nodes=[free(2), free(2, BIG)],
        requests=[request(1, 2, group_id=9)],
        entitlements={9: Entitlement(type_limits={SMALL: 1})},
    )
    (grant,) = decide(seen, POLICY, NOW).grants
    assert {share.free_nodes.kind.type for share in grant.shares} == {BIG}


def test_room_that_a_request_does_not_use_is_for_the_next() -> None:
    seen = site(
        free_nodes=[free(3)],
        entitlements={9: Entitlement(limit=5)},
        requests=[request(1, 4, group_id=9), request(2, 3, group_id=9)],
    )
    done = decide(seen, POLICY, NOW)
    assert [grant.request_id for grant in done.grants] == [2]


def test_explanations_name_guarantees_and_shares() -> None:
    seen = replace(
        eight_of_ten(8), entitlements={9: Entitlement(guarantee=8), 10: Entitlement(guarantee=6)}
    )
    found = explain.explain(seen, POLICY, NOW, 1)
    assert found.code == "busy"
    (held,) = found.holders
    assert (held.takeable, held.protected) == (4, "guarantee")
    higher = replace(seen, requests=[request(1, 8, group_id=11, priority=5)])
    (held,) = explain.explain(higher, POLICY, NOW, 1).holders
    assert (held.takeable, held.protected) == (4, "guarantee")


def test_two_requests_that_are_met_together_stay_within_their_groups_limit() -> None:
    seen = site(
        free_nodes=[free(4)],
        requests=[request(1, 2), request(2, 2)],
        entitlements={9: Entitlement(limit=3)},
    )
    done = decide(seen, POLICY, NOW)
    assert granted(done) == [1]
    assert codes(done)[2] == "limit"


def test_what_a_move_has_yet_to_bring_takes_nothing_of_a_guarantee() -> None:
    """The act that takes nodes counts what the group holds: it would refuse more in each pass."""
    move = request(2, 2, vcluster_id=1, group_id=9, source_id=3)
    seen = site(
        holders=[holder(1, 4, group_id=9), holder(3, 3, group_id=10)],
        allocations=[Allocation(1, kind(), 4, 4), Allocation(3, kind(), 3, 0)],
        coming=[IncomingNodes(kind(), 2, reserved=2)],
        requests=[move, request(5, 3, priority=5, group_id=10)],
        entitlements={9: Entitlement(guarantee=2)},
    )
    assert decide(seen, POLICY, NOW).preemptions == ()
    held = replace(seen, requests=[move, request(5, 2, priority=5, group_id=10)])
    assert sum(one.count for one in decide(held, POLICY, NOW).preemptions) == 2
