"""Odd nodes of shares go round in turns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.model import Group, Policy
from cod.policy.scheduler.snapshot import Entitlement
from cod.policy.sharing import entitlements
from cod.policy.sharing.portions import GroupDemand, portions
from cod.policy.sharing.turns import DAY, ROUND, ends, evenness, length, number, whole

POLICY = Policy()


def sums(shares: dict[int, float], turns: range) -> dict[int, int]:
    found = dict.fromkeys(shares, 0)
    for turn in turns:
        for one, nodes in whole(shares, turn).items():
            found[one] += nodes
    return found


@pytest.mark.parametrize(("groups", "nodes"), [(7, 20), (30, 20), (49, 49), (3, 2)])
def test_equal_groups_have_the_same_over_fourteen_days(groups: int, nodes: int) -> None:
    shares = dict.fromkeys(range(1, groups + 1), nodes / groups)
    had = sums(shares, range(20_580, 20_594))
    assert sum(had.values()) == 14 * nodes
    assert max(had.values()) - min(had.values()) <= 1
    even = evenness({one: float(count) for one, count in had.items()})
    assert even is not None
    assert even >= 0.99


def test_the_largest_remainder_has_the_first_turn() -> None:
    found = whole({1: 1.2, 2: 1.7, 3: 2.1}, 0)
    assert found == {1: 1, 2: 2, 3: 2}


def test_a_turn_lasts_a_day_or_ten_times_the_inertia() -> None:
    assert length(POLICY) == DAY
    assert length(Policy(inertia=20_000.0)) == 200_000.0
    assert ends(POLICY, 1.5 * DAY) == 2 * DAY
    assert number(POLICY, DAY) == number(POLICY, 2 * DAY - 1) == 1
    shares = dict.fromkeys(range(7), 20 / 7)
    assert whole(shares, 1) != whole(shares, 2)


PARTS = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)


@given(PARTS, st.integers(1, 60), st.integers(0, 400))
def test_all_nodes_are_someones_and_none_is_far_from_its_share(
    parts: list[int], nodes: int, first: int
) -> None:
    """In every turn, and from a round's begin to each of its turns."""
    shares = {one: nodes * part / sum(parts) for one, part in enumerate(parts)}
    for turn in range(first, first + 3):
        found = whole(shares, turn)
        assert sum(found.values()) == nodes
        assert all(abs(found[one] - share) < 1 + 1e-9 for one, share in shares.items())
    begin = first // ROUND * ROUND
    had = sums(shares, range(begin, first + 1))
    count = first + 1 - begin
    assert all(abs(had[one] - count * share) < len(parts) for one, share in shares.items())
    if count == ROUND:
        assert all(abs(had[one] - count * share) <= 1.5 for one, share in shares.items())


def test_a_group_without_shares_has_no_turn() -> None:
    groups = [
        Group(1, "a", 0, None, None, 0.0, shares=0.0),
        Group(2, "b", 0, None, None, 0.0, shares=1.0),
        Group(3, "c", 0, None, None, 0.0, shares=1.0),
    ]
    for turn in range(4):
        found = entitlements.of(groups, Policy(fair_half_life=1.0), 5, now=turn * DAY)
        assert [found[one].share for one in (1, 2, 3)] in ([0, 2, 3], [0, 3, 2])


def test_jains_index() -> None:
    assert evenness({1: 2.0, 2: 2.0}) == 1.0
    assert evenness({1: 4.0, 2: 0.0}) == 0.5
    assert evenness({1: 0.0}) is None
    assert evenness({}) is None


WANTED = st.lists(st.integers(0, 9), min_size=5, max_size=5)


@given(WANTED, WANTED, st.integers(3, 20), st.integers(0, 100))
def test_within_a_turn_an_odd_node_stays_where_it_is_wanted(
    first: list[int], then: list[int], nodes: int, turn: int
) -> None:
    """Whatever others want meanwhile; unless fewer nodes are odd."""
    rules = Policy(fair_half_life=1.0)
    groups = [
        Group(one, f"g{one}", 0, None, None, 0.0, shares=1.0 + one % 2) for one in range(1, 6)
    ]

    def shared(wanted: list[int]) -> dict[int, Entitlement]:
        entitled = entitlements.of(groups, rules, nodes, now=turn * DAY)
        return entitlements.among(entitled, nodes, {}, dict(enumerate(wanted, 1)), turn)

    before = shared(first)
    assert shared(first) == before
    groups = [replace(one, odd_turn=turn if before[one.id].odd else None) for one in groups]
    again = shared(first)
    assert all(again[one].odd == again[one].had_odd == each.odd for one, each in before.items())
    after = shared(then)
    parts = portions(
        [GroupDemand(one.id, one.shares, wanted) for one, wanted in zip(groups, then, strict=True)],
        nodes,
    )
    able = {one for one, part in parts.items() if abs(part - round(part)) > 1e-5}
    kept = {one for one, each in before.items() if each.odd} & able
    odd = {one for one, each in after.items() if each.odd}
    assert odd <= able
    assert kept <= odd if len(kept) <= len(odd) else odd <= kept
