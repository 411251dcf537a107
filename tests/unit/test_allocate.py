"""The manager's decisions: an example of each rule."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from cod.model import Energy, Policy, RequestTuple
from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.plan import plan
from cod.policy.scheduler.snapshot import (
    COLD,
    WARM,
    Allocation,
    Cache,
    Decision,
    FreeNodes,
    IncomingNodes,
    NodeKind,
    OpenReclaim,
    Preempt,
    PreemptLess,
    SiteSnapshot,
)
from tests.unit.policy_sites import (
    BIG,
    BIG_ONLY,
    LARGER_THAN_ANY,
    NOW,
    POLICY,
    SMALL,
    UEFI,
    carried_out,
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


def decided(**columns: object) -> Decision:
    """What becomes of a site."""
    return decide(site(**columns), POLICY, NOW)


def sentences(done: Decision) -> dict[int, str]:
    """Why not, by request."""
    return {refusal.request_id: refusal.sentence for refusal in done.refusals}


# ---------------------------------------------------------------- order


def test_a_request_gets_its_nodes_with_its_tuples_templates() -> None:
    done = decided(
        free_nodes=[free(3), free(1, BIG)], requests=[request(1, 2, RequestTuple(1, BIG_ONLY, 2))]
    )
    assert [
        (one.position, one.template_id, one.free_nodes.kind.type, one.count)
        for one in done.grants[0].shares
    ] == [(0, 1, SMALL, 2), (1, 2, BIG, 1)]
    assert not done.refusals


def test_higher_priority_first_then_older() -> None:
    requests = [
        request(1, 1, submitted_at=20.0),
        request(2, 1, priority=5, submitted_at=40.0),
        request(3, 1, submitted_at=5.0),
    ]
    done = decided(free_nodes=[free(2)], requests=requests, site={SMALL: 9})
    assert granted(done) == [2, 3]
    assert codes(done) == {1: "busy"}


def test_of_one_age_the_more_constraining_first() -> None:
    """Serve the request first that can have nothing else; the other finds its nodes elsewhere."""
    requests = [
        request(1, 1, submitted_at=1.0),
        request(2, RequestTuple(1, BIG_ONLY, 1), submitted_at=9.0),
    ]
    done = decided(free_nodes=[free(1, BIG)], requests=requests, site={SMALL: 4, BIG: 1})
    assert granted(done) == [2]
    older = [requests[0], replace(requests[1], submitted_at=11.0)]  # now it is in the next step
    assert granted(decided(free_nodes=[free(1, BIG)], requests=older, site={SMALL: 4, BIG: 1})) == [
        1
    ]


def test_without_steps_the_older_first() -> None:
    requests = [
        request(1, 1, submitted_at=1.0),
        request(2, RequestTuple(1, BIG_ONLY, 1), submitted_at=1.5),
    ]
    seen = site(free_nodes=[free(1, BIG)], requests=requests, holders=[], site={SMALL: 4, BIG: 2})
    assert granted(decide(seen, Policy(age_step=0.0), NOW)) == [1]


def test_of_those_that_ask_at_one_time_as_many_as_possible_are_satisfied() -> None:
    """The large one would be first, but then three would wait; one step later it goes first."""
    requests = [
        request(1, 3, submitted_at=1.0),
        *(request(number, 1, submitted_at=2.0) for number in (2, 3, 4)),
    ]
    assert granted(decided(free_nodes=[free(3)], requests=requests)) == [2, 3, 4]
    later = [requests[0], *(replace(one, submitted_at=12.0) for one in requests[1:])]
    assert granted(decided(free_nodes=[free(3)], requests=later)) == [1]


def test_all_or_nothing() -> None:
    done = decided(free_nodes=[free(2)], requests=[request(1, 3)], site={SMALL: 3})
    assert sentences(done) == {
        1: (
            "waits: 3 nodes wanted, too few of the 3 matching are free; the rest is held, kept for"
            " others, or out of service"
        )
    }


# ---------------------------------------------------------------- which nodes


def test_attributes_of_request_and_template_hold() -> None:
    free_nodes = [free(1), free(1, BIG), free(1, UEFI)]
    assert nodes_of(
        decided(free_nodes=free_nodes, requests=[request(1, RequestTuple(1, BIG_ONLY, 1))]), 1
    ) == {kind(BIG): 1}
    assert nodes_of(
        decided(free_nodes=free_nodes, requests=[request(1, RequestTuple(1, "", 2))]), 1
    ) == {kind(BIG): 1}
    assert UEFI not in {
        one.type
        for one in nodes_of(
            decided(free_nodes=free_nodes, requests=[request(1, RequestTuple(1, "", 3))]), 1
        )
    }


def test_the_cheaper_type_before_the_larger_block() -> None:
    done = decided(free_nodes=[free(9, BIG), free(2)], requests=[request(1, 2)])
    assert nodes_of(done, 1) == {kind(SMALL): 2}


def test_the_largest_block_of_the_cheapest_type() -> None:
    assert nodes_of(
        decided(free_nodes=[free(2, ONE), free(3, TWO)], requests=[request(1, 2)]), 1
    ) == {TWO: 2}


def test_a_tuple_stays_in_one_block_unless_it_may_be_spread() -> None:
    free_nodes = [free(2, ONE), free(2, TWO)]
    done = decided(free_nodes=free_nodes, requests=[request(1, 3)], site={SMALL: 5})
    assert (codes(done), sentences(done)[1]) == (
        {1: "busy"},
        (
            "waits: 3 nodes wanted, too few of the 5 matching are free in one block; "
            "the rest is held, kept for others, or out of service"
        ),
    )
    assert (
        nodes_of(
            decided(free_nodes=free_nodes, requests=[request(1, 3, may_spread=True)]), 1
        ).total()
        == 3
    )
    assert nodes_of(
        decided(free_nodes=free_nodes, requests=[request(1, 2, may_spread=True)]), 1
    ) in (
        {ONE: 2},
        {TWO: 2},
    )
    assert nodes_of(decided(free_nodes=free_nodes, requests=[request(1, 2, 2)]), 1) == {
        ONE: 2,
        TWO: 2,
    }


def test_tuples_move_aside_for_each_other() -> None:
    free_nodes = [free(2, ONE), free(2, kind(BIG, 1))]
    done = decided(free_nodes=free_nodes, requests=[request(1, 2, RequestTuple(2, BIG_ONLY, 1))])
    assert nodes_of(done, 1) == {ONE: 2, kind(BIG, 1): 2}


def test_cached_first_then_warm_then_cold_and_others_software_last() -> None:
    free_nodes = [
        free(1, readiness=COLD),
        free(1, cache=Cache(8, 8)),
        free(1),
        free(1, cache=Cache(1, 9)),
        free(1, readiness=COLD, cache=Cache(1, 9)),
        free(1, cache=Cache(1, 8)),
    ]
    order = []
    for count in range(1, 7):
        shares = decided(free_nodes=free_nodes, requests=[request(1, count)]).grants[0].shares
        order.append(next(share.free_nodes for share in shares if share.free_nodes not in order))
    assert order == [
        free_nodes[3],
        free_nodes[4],
        free_nodes[2],
        free_nodes[5],
        free_nodes[1],
        free_nodes[0],
    ]


def test_nodes_on_another_subnet_are_not_taken() -> None:
    free_nodes = [free(1, kind(subnet="far")), free(1, kind(subnet="lab"))]
    assert nodes_of(decided(free_nodes=free_nodes, requests=[request(1, 1)]), 1) == {
        kind(subnet="lab"): 1
    }
    done = decided(free_nodes=free_nodes, requests=[request(1, 2)])
    assert sentences(done) == {1: "2 nodes wanted, the site has 1 matching"}


# ---------------------------------------------------------------- waiting for what is on its way


def test_whoever_waits_for_nodes_on_their_way_keeps_the_free_ones() -> None:
    done = decided(
        free_nodes=[free(1)],
        coming=[IncomingNodes(kind(), 2)],
        requests=[request(1, 3), request(2, 1, submitted_at=50.0)],
    )
    assert codes(done) == {1: "coming", 2: "busy"}
    assert sentences(done)[1] == "waits for 2 nodes on their way back"
    assert done.kept == {free(1): 1}


def test_what_cannot_come_keeps_nothing() -> None:
    done = decided(
        free_nodes=[free(1)],
        requests=[request(1, 2), request(2, 1, submitted_at=50.0)],
        site={SMALL: 2},
    )
    assert granted(done) == [2]


def test_warm_and_waking_nodes_are_kept_before_cold_ones() -> None:
    """Else the next plan would have another one woken."""
    free_nodes, coming = (
        [free(1), free(3, readiness=COLD)],
        [IncomingNodes(kind(), 1, waking=True), IncomingNodes(kind(), 3)],
    )
    done = decided(free_nodes=free_nodes, coming=coming, requests=[request(1, 6)])
    assert done.kept == {free_nodes[0]: 1, free_nodes[1]: 3}
    assert decided(free_nodes=free_nodes, coming=coming, requests=[request(1, 5)]).kept == {
        free_nodes[0]: 1,
        free_nodes[1]: 3,
    }
    fewer = decide(
        site(
            free_nodes=[free(1), free(1, readiness=COLD)],
            coming=[IncomingNodes(kind(), 2, waking=True)],
            requests=[request(1, 3)],
        ),
        POLICY,
        NOW,
    )
    assert fewer.kept == {free(1): 1}


def test_the_nodes_of_vclusters_whose_lease_is_over_are_on_their_way() -> None:
    for ends in ({"drain_until": NOW + 9}, {"expires_at": NOW}):
        done = decided(
            holders=[holder(1, 2, **ends)],
            allocations=[Allocation(1, kind(), 2, 2)],
            requests=[request(1, 2, priority=5)],
        )
        assert (codes(done), done.preemptions) == ({1: "coming"}, ())


def test_a_vcluster_whose_lease_is_over_gets_nothing() -> None:
    done = decided(
        free_nodes=[free(2)],
        holders=[holder(1001, 0, drain_until=NOW + 9)],
        requests=[request(1, 1)],
    )
    assert sentences(done) == {1: "waits: the lease of its vcluster has run out"}


def test_reserved_nodes_are_for_their_request_only() -> None:
    free_nodes = [free(2, reserved=7)]
    assert granted(decided(free_nodes=free_nodes, requests=[request(7, 2)])) == [7]
    assert codes(decided(free_nodes=free_nodes, requests=[request(1, 2)])) == {1: "busy"}
    assert codes(
        decided(coming=[IncomingNodes(kind(), 2, reserved=7)], requests=[request(1, 2)])
    ) == {1: "busy"}
    assert codes(
        decided(coming=[IncomingNodes(kind(), 2, reserved=7)], requests=[request(7, 2)])
    ) == {7: "coming"}


# ---------------------------------------------------------------- taking


def test_just_what_is_short_is_taken_from_the_lowest_priority() -> None:
    done = decided(
        free_nodes=[free(1)],
        coming=[IncomingNodes(kind(), 1)],
        holders=[holder(1, 4, 1, priority=1), holder(2, 4, 2, priority=0)],
        allocations=[Allocation(1, kind(), 4, 4), Allocation(2, kind(), 4, 4)],
        requests=[request(1, 4, priority=2)],
    )
    assert done.preemptions == (Preempt(1, 2, kind(), 2),)
    assert sentences(done) == {
        1: "waits for 2 nodes that other vclusters give back and 1 node on its way back"
    }


def test_higher_levels_are_added_when_lower_ones_are_not_enough() -> None:
    done = decided(
        holders=[holder(1, 4, 1, priority=1), holder(2, 4, 2, priority=0)],
        allocations=[Allocation(1, kind(), 4, 4), Allocation(2, kind(), 4, 4)],
        requests=[request(1, 4, priority=2)],
    )
    assert Counter(done.preemptions) == Counter(
        [Preempt(1, 2, kind(), 2), Preempt(1, 1, kind(), 2)]
    )


def test_a_lower_priority_before_a_cheaper_type() -> None:
    done = decided(
        holders=[holder(1, 2, priority=1), holder(2, 2, priority=0)],
        allocations=[Allocation(1, kind(), 2, 2), Allocation(2, kind(BIG), 2, 2)],
        requests=[request(1, 2, priority=2)],
    )
    assert done.preemptions == (Preempt(1, 2, kind(BIG), 2),)


@pytest.mark.parametrize(
    ("columns", "mobile"),
    [({"priority": 2}, 4), ({"priority": 3}, 4), ({"floor": 3}, 4), ({"leaving": 3}, 1), ({}, 1)],
)
def test_what_may_not_be_taken(columns: dict[str, int], mobile: int) -> None:
    own = replace(holder(1, 4), **columns)
    done = decided(
        holders=[own],
        allocations=[Allocation(1, kind(), 4, mobile)],
        requests=[request(1, 2, priority=2)],
    )
    assert (codes(done), done.preemptions) == ({1: "busy"}, ())


@pytest.mark.parametrize("columns", [{"drain_until": NOW + 50}, {"expires_at": NOW - 1}])
def test_nothing_is_taken_whose_lease_is_over(columns: dict[str, float]) -> None:
    """Wait for what comes anyway; do not count it twice, as coming and as what can be taken."""
    own = replace(holder(1, 4), **columns)
    seen = {"holders": [own], "allocations": [Allocation(1, kind(), 4, 4)], "site": {SMALL: 9}}
    for count, code in ((4, "coming"), (6, "busy")):
        done = decided(**seen, requests=[request(1, count, priority=2)])
        assert (codes(done), done.preemptions) == ({1: code}, ())


def test_nothing_is_taken_from_the_vcluster_itself() -> None:
    seen = {
        "holders": [holder(1, 4, priority=0)],
        "allocations": [Allocation(1, kind(), 4, 4)],
        "site": {SMALL: 9},
    }
    assert (
        decided(
            **seen, requests=[request(1, 2, priority=2, vcluster_id=1, own={SMALL: 4})]
        ).preemptions
        == ()
    )
    assert decided(**seen, requests=[request(1, 2, priority=2)]).preemptions != ()


def test_a_floor_holds_for_all_kinds_together() -> None:
    allocations = [Allocation(1, ONE, 3, 3), Allocation(1, TWO, 3, 3)]
    requests = [request(1, 2, priority=2), request(2, 2, priority=2, submitted_at=50.0)]
    done = decided(holders=[holder(1, 6, 3)], allocations=allocations, requests=requests)
    assert (len(done.preemptions), codes(done)) == (1, {1: "taking", 2: "busy"})
    both = decided(
        holders=[holder(1, 6, 3)], allocations=allocations, requests=[request(1, 2, 2, priority=2)]
    )
    assert codes(both) == {1: "busy"}


def test_where_several_blocks_are_needed_each_lends_its_part() -> None:
    done = decided(
        free_nodes=[free(1, ONE)],
        holders=[holder(1, 2), holder(2, 2)],
        allocations=[Allocation(1, ONE, 2, 2), Allocation(2, TWO, 2, 2)],
        requests=[request(1, 5, priority=1, may_spread=True)],
    )
    assert Counter(done.preemptions) == Counter([Preempt(1, 1, ONE, 2), Preempt(1, 2, TWO, 2)])


def test_who_may_be_spread_takes_no_more_than_is_short_everywhere() -> None:
    done = decided(
        coming=[IncomingNodes(ONE, 1, reserved=1)],
        holders=[holder(1, 3)],
        allocations=[Allocation(1, TWO, 3, 3)],
        requests=[request(1, 2, priority=1, may_spread=True)],
    )
    # though two of that block would do for it alone
    assert done.preemptions == (Preempt(1, 1, TWO, 1),)


def test_what_is_still_to_be_given_back_is_counted() -> None:
    seen = site(
        holders=[holder(1, 4)],
        allocations=[Allocation(1, kind(), 4, 4)],
        requests=[request(1, 2, priority=1)],
    )
    first = decide(seen, POLICY, NOW)
    after = carried_out(seen, first)
    again = decide(after, POLICY, NOW)
    assert (first.preemptions, again.preemptions, codes(again)) == (
        (Preempt(1, 1, kind(), 2),),
        (),
        {1: "taking"},
    )


def test_it_stays_where_it_has_something_but_goes_where_it_is_granted_now() -> None:
    seen: dict[str, object] = {
        "holders": [holder(1, 4, leaving=1)],
        "allocations": [Allocation(1, TWO, 4, 3)],
        "reclaims": [OpenReclaim(1, 1, 1, TWO, 1, NOW + 9)],
        "requests": [request(1, 2, priority=1)],
    }
    waits = decided(**seen, coming=[IncomingNodes(ONE, 1)])
    assert (waits.preemptions, waits.reductions) == ((Preempt(1, 1, TWO, 1),), ())
    assert granted(decided(**seen, free_nodes=[free(2, ONE)])) == [1]


def eased(open_: int = 3, **columns: Any) -> tuple[PreemptLess, ...]:
    """What is eased of a reclaim of `open_` nodes in block TWO, for the only request: it wants
    4."""
    columns = {
        "requests": [request(1, 4, priority=1)],
        "holders": [holder(1, 4, 1, leaving=open_)],
    } | columns
    reclaim = OpenReclaim(1, 1, 1, TWO, open_, NOW + 9)
    done = decided(allocations=[Allocation(1, TWO, 4, 4 - open_)], reclaims=[reclaim], **columns)
    assert done.preemptions == ()
    return done.reductions


def test_what_is_not_short_any_more_may_stay() -> None:
    there, coming = free(1, TWO), IncomingNodes(TWO, 1)
    assert eased(free_nodes=[there]) == ()
    assert eased(free_nodes=[there], coming=[coming]) == (PreemptLess(1, 1, 2),)
    assert eased(free_nodes=[free(2, TWO)], coming=[coming]) == (PreemptLess(1, 2, 1),)
    assert eased(coming=[IncomingNodes(TWO, 4)]) == (PreemptLess(1, 3, 0),)
    assert eased(free_nodes=[free(4, TWO)]) == (), "it is granted: its reclaims end with it"


def test_it_is_not_taken_where_enough_is_on_its_way_elsewhere() -> None:
    assert eased(coming=[IncomingNodes(ONE, 4)], free_nodes=[free(1, TWO)]) == (
        PreemptLess(1, 3, 0),
    )
    spread = [request(1, 4, priority=1, may_spread=True)]
    assert eased(coming=[IncomingNodes(ONE, 2)], free_nodes=[free(1, TWO)], requests=spread) == (
        PreemptLess(1, 2, 1),
    )


def test_what_would_be_taken_in_vain_may_stay() -> None:
    assert eased(site={SMALL: 9}) == (PreemptLess(1, 3, 0),), "the fourth is nowhere"
    two = [request(1, 2, 2, priority=1)]
    assert eased(site={SMALL: 9}, requests=two) == (), "perhaps the search was only given up"
    over = [holder(1, 4, 1, leaving=3), holder(1001, 1, drain_until=NOW + 5)]
    assert eased(free_nodes=[free(1, TWO)], holders=over) == (PreemptLess(1, 3, 0),), (
        "it gets nothing: its lease has run out"
    )
    assert (
        eased(free_nodes=[free(1, TWO)], requests=[request(1, 4, priority=1, may_wait=False)]) == ()
    ), "it is rejected"


def test_the_highest_priority_is_spared_first_then_what_was_taken_last() -> None:
    holders = [holder(1, 3, priority=0, leaving=3), holder(2, 1, priority=1, leaving=1)]
    reclaims = [
        OpenReclaim(1, 1, 1, ONE, 2, NOW + 9),
        OpenReclaim(2, 2, 1, ONE, 1, NOW + 5),
        OpenReclaim(3, 1, 1, ONE, 1, NOW + 20),
    ]
    allocations = [Allocation(1, ONE, 3, 0), Allocation(2, ONE, 1, 0)]
    for count, expected in (
        (1, (PreemptLess(2, 1, 0),)),
        (2, (PreemptLess(2, 1, 0), PreemptLess(3, 1, 0))),
        (3, (PreemptLess(2, 1, 0), PreemptLess(3, 1, 0), PreemptLess(1, 1, 1))),
    ):
        done = decided(
            free_nodes=[free(count, ONE)],
            holders=holders,
            allocations=allocations,
            reclaims=reclaims,
            requests=[request(1, 4, priority=2)],
        )
        assert done.reductions == expected


# ---------------------------------------------------------------- rejected


def test_the_impossible_is_rejected_with_the_reason() -> None:
    done = decided(free_nodes=[free(1)], requests=[request(1, RequestTuple(1, LARGER_THAN_ANY, 1))])
    assert done.refusals[0].final
    assert done.refusals[0].sentence.startswith(
        "1 node wanted, the site has 0 matching. small lacks memory/mib: at least 8GiB wanted"
    )
    assert sentences(
        decided(free_nodes=[free(1, UEFI)], requests=[request(1, RequestTuple(1, "", 3))])
    ) == {
        1: (
            "1 node wanted, the site has 0 matching. uefi lacks image: one for target disk that"
            " fits the hardware wanted, none found"
        )
    }


def test_what_expected_nodes_may_meet_waits() -> None:
    asked = [
        request(1, 4, may_spread=True),
        request(2, 6, may_spread=True),
        request(3, 5, may_wait=False),
    ]
    done = decided(free_nodes=[free(3, ONE)], requests=asked, expected=2)
    assert {one.request_id: one.code for one in done.refusals} == {
        1: "busy",
        2: "impossible",
        3: "now",
    }
    assert sentences(done)[1] == (
        "waits: 4 nodes wanted, the site has 3 matching. 2 nodes of the site have not reported yet"
        " or wait for approval"
    )


def test_no_block_is_large_enough() -> None:
    done = decided(free_nodes=[free(2, ONE), free(3, TWO)], requests=[request(1, 4)])
    assert done.refusals[0].final
    assert (
        done.refusals[0].sentence
        == "4 nodes wanted in one block, the largest that matches has 3; all blocks together have"
        " 5: the request would have to be spread"
    )
    aside = decided(
        free_nodes=[free(2, ONE), free(3, TWO)], requests=[request(1, 4)], site={SMALL: 6}
    )
    assert codes(aside) == {1: "busy"}  # the sixth is set aside, and may be of the larger block


def test_a_vclusters_own_nodes_cannot_be_had_again() -> None:
    done = decided(
        holders=[holder(1, 1)],
        allocations=[Allocation(1, kind(), 1, 1)],
        free_nodes=[free(1)],
        requests=[request(1, 2, vcluster_id=1, own={SMALL: 1})],
    )
    assert sentences(done) == {1: "2 nodes wanted, the site has 1 matching besides its own"}


def test_tuples_that_are_too_many_together() -> None:
    done = decided(free_nodes=[free(2)], requests=[request(1, 1, 2)])
    assert sentences(done) == {
        1: "its 2 tuples together want more matching nodes than the site has"
    }
    done = decided(free_nodes=[free(3, ONE), free(1, TWO)], requests=[request(1, 2, 2)])
    assert sentences(done) == {
        1: (
            "its 2 tuples do not fit into the site's blocks, each in one: the request would have to"
            " be spread"
        )
    }


def test_who_does_not_wait_is_told_now_and_nothing_is_taken_for_it() -> None:
    done = decided(
        coming=[IncomingNodes(kind(), 2)],
        holders=[holder(1, 2)],
        allocations=[Allocation(1, kind(), 2, 2)],
        requests=[request(1, 2, priority=5, may_wait=False)],
    )
    assert (codes(done), done.preemptions, done.refusals[0].final) == ({1: "now"}, (), True)
    assert (
        done.refusals[0].sentence
        == "2 nodes wanted, too few of the 4 matching are free, and it does not wait"
    )


# ---------------------------------------------------------------- the whole plan


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert not plan(site(free_nodes=[free(1)]), POLICY, Energy(), NOW)


def test_a_wait_is_told_once() -> None:
    seen = site(requests=[request(1, 1)], site={SMALL: 1})
    told = plan(seen, POLICY, Energy(), NOW).refusals[0].sentence
    assert not plan(replace(seen, requests=[request(1, 1, reason=told)]), POLICY, Energy(), NOW)


def test_kept_cold_nodes_are_woken_and_granted_ones_are_not_spare() -> None:
    seen = site(
        free_nodes=[free(2, readiness=COLD)],
        coming=[IncomingNodes(kind(), 1)],
        requests=[request(1, 3)],
    )
    assert [(one.count, one.sleep) for one in plan(seen, POLICY, Energy(), NOW).power_changes] == [
        (2, False)
    ]
    seen = site(free_nodes=[free(2, idle=2)], requests=[request(1, 2)])
    assert plan(seen, POLICY, Energy(manage=True, warm_low=0, warm_high=0), NOW).power_changes == ()


def test_what_is_due() -> None:
    holders = [
        holder(1, 1, expires_at=NOW + 3000),
        holder(2, 1, expires_at=NOW + 90000),
        holder(3, 1, expires_at=NOW),
        holder(4, 1, expires_at=NOW - 400, drain_until=NOW),
        holder(5, 1, drain_until=NOW + 1, expires_at=NOW),
        holder(6, 1, expires_at=NOW + 50000),
        holder(7, 1, expires_at=NOW + 3000),
        holder(8, 0),
    ]
    seen = site(
        holders=holders,
        warned={6: 86400.0, 7: 86400.0},
        deserted=[12, 11],
        reclaims=[
            OpenReclaim(2, 1, 9, kind(), 1, NOW),
            OpenReclaim(1, 1, 9, kind(), 0, NOW),
            OpenReclaim(3, 1, 9, kind(), 1, NOW + 1),
        ],
    )
    done = plan(seen, POLICY, Energy(), NOW)
    assert done.warnings == ((1, 3600.0), (7, 3600.0))
    assert (done.drains, done.expired, done.deserted, done.overdue) == ((3,), (4,), (11, 12), (2,))


@pytest.mark.parametrize("count", [1, 50, 100])
def test_there_is_room_for_many_tuples(count: int) -> None:
    done = decided(
        free_nodes=[free(100, kind(SMALL, block)) for block in range(1, 5)],
        requests=[request(1, *[2] * count)],
    )
    assert nodes_of(done, 1).total() == 2 * count


def test_a_puzzle_without_a_short_answer_is_given_up() -> None:
    """30 tuples of 3 into 29 blocks of 5: there are more ways than anybody can try, and none that
    works."""
    free_nodes = [FreeNodes(NodeKind(SMALL, block, ""), WARM, 5) for block in range(1, 30)]
    seen: SiteSnapshot = site(free_nodes=free_nodes, requests=[request(1, *[3] * 30)])
    assert codes(decide(seen, POLICY, NOW)) == {1: "busy"}


def test_the_example_of_the_documentation() -> None:
    small, large, small_only = (
        "",
        BIG_ONLY,
        '<requires><memory><mib max="2048"/></memory></requires>',
    )
    done = decided(
        free_nodes=[free(2, TWO), free(3, kind(BIG, 3))],
        holders=[holder(1, 4, 2, priority=1)],
        allocations=[Allocation(1, ONE, 4, 4)],
        requests=[
            request(1, RequestTuple(2, small, 1), priority=5),
            request(2, RequestTuple(3, large, 1), priority=5),
            request(3, 2, priority=3),
            request(4, 1, priority=1),
            request(5, RequestTuple(5, small_only, 1), priority=1),
        ],
    )
    assert (nodes_of(done, 1), nodes_of(done, 2)) == ({TWO: 2}, {kind(BIG, 3): 3})
    assert done.preemptions == (Preempt(3, 1, ONE, 2),)
    assert codes(done) == {3: "taking", 4: "busy", 5: "impossible"}


def test_a_node_that_is_set_aside_may_come_back_where_none_of_its_type_are_now() -> None:
    done = decided(
        free_nodes=[free(1, kind(SMALL, 4, "far"))], site={SMALL: 2}, requests=[request(1, 1)]
    )
    assert codes(done) == {1: "busy"}
