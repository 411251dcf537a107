"""Ranks by dominant shares: the paper's example, and the order of another implementation of
progressive filling."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from cod.model import RequestTuple
from cod.policy.scheduler import priority
from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.snapshot import Allocation, Entitlement, PendingRequest, SiteSnapshot
from cod.policy.sharing.shares import ShareStanding, dominant
from tests.unit.policy_sites import (
    BIG,
    BIG_ONLY,
    NOW,
    POLICY,
    SMALL,
    free,
    holder,
    kind,
    request,
    site,
)

RULES = replace(POLICY, fair="dominant", age_step=0.0, hold_after=0.0)
ONLY = {
    SMALL: '<requires><memory><mib max="2048"/></memory></requires>',
    BIG: BIG_ONLY,
}
A, B = 9, 10


def of_types(small: int, big: int) -> list[RequestTuple]:
    counts = {SMALL: small, BIG: big}
    return [RequestTuple(count, ONLY[one], 1) for one, count in counts.items() if count]


def test_the_types_of_the_tests_are_told_apart() -> None:
    feasibility = Feasibility(site(free_nodes=[free(2), free(3, BIG)]), NOW)
    found = [feasibility.fit(one, request(1, one)).kinds for one in of_types(1, 1)]
    assert [{one.type for one in kinds} for kinds in found] == [{SMALL}, {BIG}]


def test_the_papers_example() -> None:
    """9 CPUs and 18 GB; a task of A takes 1 and 4, one of B 3 and 1: A has three tasks, B two."""
    requests = [
        request(100 * group + number, *of_types(*needs), group_id=group, may_spread=True)
        for group, needs in ((A, (1, 4)), (B, (3, 1)))
        for number in range(5)
    ]
    seen = site(
        free_nodes=[free(9), free(18, BIG)],
        entitlements={one: Entitlement(share=0, part=0.5) for one in (A, B)},
        requests=requests,
    )
    groups = {one.id: one.group_id for one in requests}
    granted = Counter(groups[one.request_id] for one in decide(seen, RULES, NOW).grants)
    assert granted == {A: 3, B: 2}


NEEDS = st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(any)
GROUPS = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.tuples(st.integers(0, 5), st.integers(0, 5)),
        st.lists(NEEDS, max_size=5),
    ),
    min_size=1,
    max_size=4,
)


@given(GROUPS, st.integers(20, 40), st.integers(20, 40))
def test_requests_are_in_the_order_of_progressive_filling(
    groups: list[tuple[int, tuple[int, int], list[tuple[int, int]]]],
    small: int,
    big: int,
) -> None:
    """The other implementation knows weights and what groups hold, nothing of the planner."""
    seen, whole = world(groups, small, big), sum(weight for weight, _, _ in groups)
    found = priority.ordered(seen, RULES, Feasibility(seen, NOW), NOW)
    queues = {
        group: sorted((one for one in seen.requests if one.group_id == group), key=submitted)
        for group in range(1, 1 + len(groups))
    }
    held = {number: list(one[1]) for number, one in enumerate(groups, 1)}
    expected = []
    while any(queues.values()):

        def dominance(group: int) -> Fraction:
            small_part, big_part = Fraction(held[group][0], small), Fraction(held[group][1], big)
            return max(small_part, big_part) / Fraction(groups[group - 1][0] / whole)

        group = min(
            (one for one, queue in queues.items() if queue),
            key=lambda one: (dominance(one), queues[one][0].submitted_at),
        )
        first = queues[group].pop(0)
        expected.append(first.id)
        for one in first.tuples:
            held[group][one.attributes == ONLY[BIG]] += one.count
    assert [one.id for one in found] == expected


def submitted(one: PendingRequest) -> float:
    return one.submitted_at


def world(
    groups: list[tuple[int, tuple[int, int], list[tuple[int, int]]]], small: int, big: int
) -> SiteSnapshot:
    """Return a site of so many nodes; each group has a weight, nodes and requests."""
    whole = sum(weight for weight, _, _ in groups)
    requests, allocations, holders = [], [], []
    for group, (_, has, needs) in enumerate(groups, 1):
        holders.append(holder(group, sum(has), group_id=group))
        allocations += [
            Allocation(group, kind(one), count, 0)
            for one, count in zip((SMALL, BIG), has, strict=True)
            if count
        ]
        for place, one in enumerate(needs):
            number = 100 * place + group  # their requests came in turn
            requests.append(request(number, *of_types(*one), group_id=group))
    return site(
        free_nodes=[free(small), free(big, BIG)],
        site={SMALL: small, BIG: big},
        allocations=allocations,
        holders=holders,
        requests=requests,
        entitlements={
            group: Entitlement(share=0, part=weight / whole)
            for group, (weight, _, _) in enumerate(groups, 1)
        },
    )


def test_where_groups_stand() -> None:
    standings = {one: ShareStanding(one, 0.0, 0.0, 0, 0.25) for one in (1, 2, 3, 4)}
    held = {1: {SMALL: 5}, 2: {SMALL: 1, BIG: 2}, 3: {BIG: 2}}
    found = dominant(standings, held, {SMALL: 10, BIG: 4})
    assert [found[one].rank for one in (1, 2, 3, 4)] == [2, 2, 2, 1]
    assert [found[one].ratio for one in (1, 2, 3)] == [0.5] * 3
    assert found[4].ratio == float("inf")
    assert [found[one].factor for one in (1, 4)] == [0.75, 1.0]
