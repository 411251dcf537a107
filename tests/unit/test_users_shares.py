"""Users' shares inside groups: their ranks, and what these make of the order of requests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.model import GroupUser
from cod.policy.scheduler import priority
from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.snapshot import Entitlement, PendingRequest
from cod.policy.sharing import users
from tests.unit.policy_sites import NOW, POLICY, free, request, site

WEEK = 7 * 86400.0
RULES = replace(POLICY, hold_after=900.0)
USERS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=6)


@given(USERS)
def test_ranks_are_those_of_another_implementation(there: list[tuple[int, int]]) -> None:
    """By cross products of shares and usage, of which one is better where none is infinite."""

    def better(one: tuple[int, int], other: tuple[int, int]) -> bool:
        if not one[0] or not other[0]:
            return bool(one[0]) and not other[0]
        if not one[1] or not other[1]:
            return not one[1] and bool(other[1])
        return one[0] * other[1] > other[0] * one[1]

    rows = [
        GroupUser(7, number, float(shares), float(usage), NOW)
        for number, (shares, usage) in enumerate(there)
    ]
    found = users.standings(rows, WEEK, NOW)[7]
    for number, one in enumerate(there):
        wanted = 1 + sum(better(other, one) for other in there)
        assert found[number].rank == wanted


def test_usage_of_users_fades_from_when_it_was_put_down() -> None:
    rows = [GroupUser(7, 1, 1.0, 700.0, NOW - WEEK), GroupUser(7, 2, 1.0, 349.0, NOW)]
    assert users.standings(rows, WEEK, NOW)[7][2].rank == 1
    assert users.standings(rows, WEEK, NOW)[7][1].ratio == pytest.approx(0.5 / (350 / 699))
    assert users.standings(rows, 0.0, NOW) == {}


REQUESTS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 999), st.integers(1, 3)),
    max_size=12,
)


@given(REQUESTS, st.tuples(*[st.integers(1, 2)] * 3))
def test_requests_of_a_group_change_places_with_each_other_alone(
    drawn: list[tuple[int, int, int, int]], ranks: tuple[int, int, int]
) -> None:
    """Group 3 has no users' shares; requests that wait for 900 seconds go by their age."""
    requests = [
        request(
            number,
            count,
            group_id=group,
            submitted_at=float(at),
            user_rank=0 if group == 3 else rank,
        )
        for number, (group, rank, at, count) in enumerate(drawn, 1)
    ]
    entitled = {one: Entitlement(rank=rank) for one, rank in enumerate(ranks, 1)}
    seen = site(free_nodes=[free(3)], requests=requests, entitlements=entitled)
    without = replace(seen, requests=[replace(one, user_rank=0) for one in requests])
    before = priority.ordered(without, RULES, Feasibility(without, NOW), NOW)
    parts = priority.peers(seen, RULES, Feasibility(seen, NOW), NOW)
    after = [one for part in parts for one in part]
    assert [one.group_id for one in after] == [one.group_id for one in before]

    def rank(one: PendingRequest) -> int:
        return one.user_rank if NOW - one.submitted_at < 900.0 else 0

    own = {one.id: one for one in requests}
    for group in entitled:
        mine = [own[one.id] for one in before if one.group_id == group]
        assert [one for one in after if one.group_id == group] == sorted(mine, key=rank)
    for part in parts:
        for group in entitled:
            assert len({rank(one) for one in part if one.group_id == group}) <= 1


def test_more_requests_of_a_heavy_user_do_not_outweigh_a_colleagues() -> None:
    """Packing grants as many requests of one age as it can, but the best user's first."""
    requests = [request(one, 2, group_id=7, submitted_at=990.0, user_rank=2) for one in (1, 2)]
    requests.append(request(3, 4, group_id=7, submitted_at=990.0, user_rank=1))
    seen = site(free_nodes=[free(4)], requests=requests)
    assert {one.request_id for one in decide(seen, RULES, NOW).grants} == {3}
    equal = replace(seen, requests=[replace(one, user_rank=0) for one in requests])
    assert {one.request_id for one in decide(equal, RULES, NOW).grants} == {1, 2}


def test_the_share_of_a_group_goes_to_its_best_user_first() -> None:
    requests = [
        request(1, 2, group_id=7, submitted_at=900.0, user_rank=2),
        request(2, 2, group_id=7, submitted_at=950.0, user_rank=1),
        request(3, 2, group_id=8, submitted_at=800.0),
    ]
    seen = site(
        free_nodes=[free(4)],
        requests=requests,
        entitlements={7: Entitlement(share=2, rank=2), 8: Entitlement(share=2, rank=1)},
    )
    found = priority.ordered(seen, RULES, Feasibility(seen, NOW), NOW)
    assert [one.id for one in found] == [3, 2, 1]
