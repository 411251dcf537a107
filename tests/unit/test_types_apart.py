"""Guarantees and shares by type: nodes of a type that is apart are shared as a site of their
own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import event, given
from hypothesis import strategies as st

from cod.flows.scheduler import plan
from cod.model import Group, RequestTuple, TypeTerms
from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.snapshot import (
    OTHERS,
    Allocation,
    Entitlement,
    SiteSnapshot,
    TypeEntitlement,
)
from cod.policy.sharing import entitlements
from tests.unit.policy_sites import (
    BIG,
    BIG_ONLY,
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
    site,
)
from tests.unit.test_boot_policy import SITE

RULES = replace(POLICY, fair_half_life=1e6)
ONLY = {SMALL: '<requires><memory><mib max="2048"/></memory></requires>', BIG: BIG_ONLY}
GROUPS = (9, 10, 11)


@dataclass(frozen=True)
class Member:
    """A group: its priority, its shares and guarantees of small and big nodes."""

    priority: int
    shares: tuple[int, int]
    sure: tuple[int, int]


@dataclass(frozen=True)
class Held:
    """Nodes of a type that a vcluster of a group holds; `mobile` of them outside their inertia."""

    group: int
    type: int
    count: int
    mobile: int
    floor: int


@dataclass(frozen=True)
class Asked:
    """A request for nodes of a type."""

    group: int
    type: int
    count: int


MEMBER = st.builds(
    Member,
    st.integers(0, 1),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
HELD = st.builds(
    Held,
    st.sampled_from(GROUPS),
    st.sampled_from([SMALL, BIG]),
    st.integers(1, 6),
    st.integers(0, 6),
    st.integers(0, 3),
).map(lambda one: replace(one, mobile=min(one.mobile, one.count)))
ASKED = st.builds(Asked, st.sampled_from(GROUPS), st.sampled_from([SMALL, BIG]), st.integers(1, 4))


def world(
    members: Sequence[Member], held: Sequence[Held], asked: Sequence[Asked], left: Sequence[int]
) -> SiteSnapshot:
    """Return a site without entitlements, of the types that it has free nodes of."""
    types = [one for one in (SMALL, BIG) if left[one - 1] >= 0]
    priority = {group: one.priority for group, one in zip(GROUPS, members, strict=True)}
    return site(
        free_nodes=[free(left[one - 1], one) for one in types if left[one - 1]],
        allocations=[
            Allocation(number, kind(one.type), one.count, one.mobile)
            for number, one in enumerate(held, 1)
            if one.type in types
        ],
        holders=[
            holder(
                number,
                one.count,
                floor=min(one.floor, one.count),
                priority=priority[one.group],
                group_id=one.group,
            )
            for number, one in enumerate(held, 1)
            if one.type in types
        ],
        requests=[
            request(
                number,
                RequestTuple(one.count, ONLY[one.type], 1),
                group_id=one.group,
                priority=priority[one.group],
            )
            for number, one in enumerate(asked, 1)
            if one.type in types
        ],
    )


def groups(members: Sequence[Member], which: int) -> list[Group]:
    return [
        Group(
            group,
            f"g{group}",
            one.priority,
            None,
            None,
            0.0,
            shares=float(one.shares[which]),
            guarantee=one.sure[which],
        )
        for group, one in zip(GROUPS, members, strict=True)
    ]


def entitled(
    seen: SiteSnapshot, there: list[Group], by_type: entitlements.ByType | None = None
) -> SiteSnapshot:
    by_type = by_type or entitlements.NOTHING_BY_TYPE
    found = entitlements.of(there, RULES, sum(seen.site.values()), by_type=by_type)
    return entitlements.shared(replace(seen, entitlements=found))


@given(
    st.tuples(MEMBER, MEMBER, MEMBER),
    st.lists(HELD, max_size=6),
    st.lists(ASKED, max_size=6),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_a_type_that_is_apart_is_shared_as_a_site_of_its_own(
    members: tuple[Member, Member, Member],
    held: list[Held],
    asked: list[Asked],
    free: tuple[int, int],
) -> None:
    terms = {
        group: {BIG: TypeTerms(one.sure[1], float(one.shares[1]))}
        for group, one in zip(GROUPS, members, strict=True)
    }
    seen = world(members, held, asked, free)
    both = entitled(seen, groups(members, 0), entitlements.ByType(terms, seen.site))
    done = decide(both, RULES, NOW)
    takes, grants = set(done.preemptions), set(granted(done))
    for which, type_id in enumerate((SMALL, BIG)):
        alone = world(members, held, asked, (free[0], -1) if type_id == SMALL else (-1, free[1]))
        own = entitled(alone, groups(members, which))
        pool = OTHERS if type_id == SMALL else BIG
        for group in GROUPS:
            mine = own.entitlements.get(group, Entitlement())
            found = both.entitlements.get(group, Entitlement()).of(pool)
            assert (found.guarantee, found.share) == (mine.guarantee, mine.share)
        expected = decide(own, RULES, NOW)
        event(f"{len(expected.preemptions)} taken, {len(expected.grants)} granted")
        assert {one for one in takes if one.kind.type == type_id} == set(expected.preemptions)
        wished = {number for number, one in enumerate(asked, 1) if one.type == type_id}
        assert grants & wished == set(granted(expected))


def test_a_guarantee_of_a_type_calls_in_nodes_of_this_type_only() -> None:
    seen = site(
        allocations=[Allocation(1, kind(SMALL), 4, 4), Allocation(1, kind(BIG), 4, 4)],
        holders=[holder(1, 8, priority=5, group_id=10)],
        entitlements={9: Entitlement(apart={BIG: TypeEntitlement(guarantee=2)})},
        requests=[
            request(1, RequestTuple(2, ONLY[BIG], 1), group_id=9),
            request(2, RequestTuple(2, ONLY[SMALL], 1), group_id=9),
        ],
    )
    done = decide(entitlements.shared(seen), POLICY, NOW)
    assert [(one.request_id, one.kind.type, one.count) for one in done.preemptions] == [(1, BIG, 2)]
    assert codes(done)[2] == "busy"


def test_a_request_that_any_node_would_do_for_counts_for_the_general_guarantee() -> None:
    """Nodes of a type that is apart are not taken from equals or betters for that."""
    seen = site(
        allocations=[Allocation(1, kind(BIG), 4, 4), Allocation(2, kind(SMALL), 2, 2)],
        holders=[
            holder(1, 4, priority=5, group_id=10),
            holder(2, 2, priority=5, group_id=10),
        ],
        entitlements={9: Entitlement(guarantee=3, apart={BIG: TypeEntitlement(guarantee=1)})},
        requests=[request(1, 2, group_id=9), request(2, 1, group_id=9)],
    )
    shared = entitlements.shared(seen)
    assert [one.asked for one in shared.requests] == [((OTHERS, 2),), ((OTHERS, 1),)]
    done = decide(shared, POLICY, NOW)
    assert [(one.kind.type, one.count) for one in done.preemptions] == [(SMALL, 2)]
    assert carried_out(shared, done)


def test_shares_of_the_site_hold_for_a_type_without_shares_of_its_own() -> None:
    there = [
        Group(one, f"g{one}", 0, None, None, 0.0, shares=shares)
        for one, shares in ((9, 3.0), (10, 1.0))
    ]
    by_type = entitlements.ByType({9: {BIG: TypeTerms(guarantee=1)}}, {SMALL: 8, BIG: 4})
    found = entitlements.of(there, RULES, 12, by_type=by_type)
    assert [(found[one].share, found[one].apart[BIG].share) for one in (9, 10)] == [(6, 3), (2, 1)]


def test_acts_know_what_a_request_that_is_left_out_of_a_plan_asks_for() -> None:
    """Nodes that are overdue by a reclaim for it are seized in the meantime."""
    seen = site(
        free_nodes=[free(3, BIG), free(3)],
        requests=[request(1, RequestTuple(2, BIG_ONLY, 1))],
        entitlements={9: Entitlement(apart={BIG: TypeEntitlement(guarantee=2)})},
    )
    planned = plan.decide(entitlements.shared(seen), SITE, NOW, aside=[1])
    assert planned.grants == ()
    assert planned.sharing.parts == {1: ((BIG, 2),)}
