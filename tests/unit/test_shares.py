"""Fair shares: the worked examples of Slurm's documentation and of others, and properties of the
two rules."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.policy.sharing.shares import ShareAccount, classic, faded, fair_tree
from tests.fair_tree import ranks, sets

HOUR, DAY = 3600.0, 86400.0
WORKED = [ShareAccount(1, 40, 600), ShareAccount(2, 30, 300), ShareAccount(3, 30, 100)]


def test_usage_fades_by_its_half_life() -> None:
    week_ago = 700 * HOUR
    assert faded(week_ago, 7 * DAY, 7 * DAY) + 100 * HOUR == pytest.approx(450 * HOUR)


def test_what_is_used_meanwhile_fades_likewise() -> None:
    at_once = faded(0.0, 2 * DAY, DAY, rate=4.0)
    in_steps = 0.0
    for _ in range(48):
        in_steps = faded(in_steps, HOUR, DAY, rate=4.0)
    assert in_steps == pytest.approx(at_once)
    assert faded(0.0, 1e9, DAY, rate=4.0) == pytest.approx(4.0 * DAY / math.log(2))


def test_a_clock_that_is_set_back_adds_nothing() -> None:
    assert faded(10.0, -100.0, DAY, rate=5.0) == 10.0


def test_the_worked_example_by_fair_tree() -> None:
    found = fair_tree(WORKED)
    assert [found[one].ratio for one in (1, 2, 3)] == pytest.approx([0.6667, 1.0, 3.0], rel=1e-3)
    assert [found[one].rank for one in (1, 2, 3)] == [3, 2, 1]
    assert [found[one].factor for one in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert [found[one].share for one in (1, 2, 3)] == pytest.approx([0.4, 0.3, 0.3])


def test_the_worked_example_by_the_classic_formula() -> None:
    found = classic(WORKED)
    assert [found[one].factor for one in (1, 2, 3)] == pytest.approx([0.354, 0.5, 0.794], abs=5e-4)
    assert [found[one].rank for one in (1, 2, 3)] == [3, 2, 1]


def test_groups_that_used_nothing_are_equals() -> None:
    found = fair_tree([ShareAccount(1, 10, 0), ShareAccount(2, 90, 0)])
    assert {one.rank for one in found.values()} == {1}
    assert {one.ratio for one in found.values()} == {math.inf}


def test_who_has_no_shares_comes_last() -> None:
    found = fair_tree([ShareAccount(1, 0, 0), ShareAccount(2, 1, 1000)])
    assert (found[2].rank, found[1].rank) == (1, 2)


def test_subgroups_come_in_the_place_of_their_group() -> None:
    # a (1) has used little, and its subgroups 11 and 12 go before b (2), in the order of their own
    # ratios
    found = fair_tree(
        [
            ShareAccount(1, 50, 0),
            ShareAccount(11, 1, 30, 1),
            ShareAccount(12, 1, 10, 1),
            ShareAccount(2, 50, 160),
        ]
    )
    assert sorted(found, key=lambda one: found[one].rank) == [1, 12, 11, 2]
    assert found[2].rank == 4


def test_subgroups_of_groups_with_equal_ratios_are_one_family() -> None:
    tree = [
        ShareAccount(1, 50, 0),
        ShareAccount(11, 1, 30, 1),
        ShareAccount(12, 1, 10, 1),
        ShareAccount(2, 50, 0),
        ShareAccount(21, 1, 25, 2),
        ShareAccount(22, 1, 15, 2),
    ]
    found = fair_tree(tree)
    order = [one for one in sorted(found, key=lambda one: (found[one].rank, one)) if one > 2]
    assert order == [12, 22, 21, 11]
    assert found[1].rank == found[2].rank == 1


def test_a_subgroups_effective_usage_has_part_of_its_siblings() -> None:
    found = classic(
        [
            ShareAccount(1, 50, 0),
            ShareAccount(11, 1, 60, parent=1),
            ShareAccount(12, 1, 0, 1),
            ShareAccount(2, 50, 40),
        ]
    )
    assert 0 < found[11].factor < found[12].factor < 1


rows_ = st.tuples(st.integers(0, 100), st.integers(0, 1000), st.integers(0, 3))
accounts = st.lists(rows_, min_size=1, max_size=8).map(
    lambda rows: [
        ShareAccount(
            place, shares, usage, parent if 0 < parent < place and rows[parent - 1][2] == 0 else 0
        )
        for place, (shares, usage, parent) in enumerate(rows, start=1)
    ]
)


@given(accounts, st.randoms(use_true_random=False))
def test_the_order_of_rows_means_nothing(tree: list[ShareAccount], random: object) -> None:
    other = list(tree)
    random.shuffle(other)  # type: ignore[attr-defined]
    assert fair_tree(tree) == fair_tree(other)
    assert classic(tree) == classic(other)


@given(accounts)
def test_whoever_uses_more_is_never_ranked_better(tree: list[ShareAccount]) -> None:
    first = tree[0]
    more = [ShareAccount(first.id, first.shares, first.usage + 100, first.parent), *tree[1:]]
    for rule in (fair_tree, classic):
        before, after = rule(tree), rule(more)
        ahead = {
            one
            for one in before
            if before[one].rank < before[first.id].rank and tree[one - 1].parent == 0
        }
        if first.parent == 0 and not any(one.parent for one in tree):
            assert all(after[one].rank < after[first.id].rank for one in ahead)


@given(accounts)
def test_every_group_has_a_place_and_the_shares_are_the_site(tree: list[ShareAccount]) -> None:
    found = fair_tree(tree)
    assert set(found) == {one.id for one in tree}
    assert min(one.rank for one in found.values()) == 1
    if sum(one.shares for one in tree if one.parent == 0) and all(one.shares for one in tree):
        assert sum(one.share for one in found.values()) == pytest.approx(1.0)


def test_a_group_alone_ties_with_the_best_of_a_family() -> None:
    """Two groups on a new site, one of which has a subgroup."""
    found = fair_tree([ShareAccount(1, 1, 0), ShareAccount(2, 1, 0), ShareAccount(21, 1, 0, 2)])
    assert [one.rank for one in found.values()] == [1, 1, 1]
    assert [one.factor for one in found.values()] == [1.0, 1.0, 1.0]


def test_a_group_that_ties_goes_before_the_rest_of_the_family() -> None:
    found = fair_tree(
        [
            ShareAccount(1, 1, 4),
            ShareAccount(2, 1, 0),
            ShareAccount(21, 1, 3, 2),
            ShareAccount(22, 1, 1, 2),
        ]
    )
    assert {one: found[one].rank for one in found} == {1: 1, 2: 1, 22: 3, 21: 4}


def test_no_rounding_breaks_a_tie() -> None:
    found = fair_tree([ShareAccount(one, one, one * 7) for one in range(1, 50)])
    assert {one.rank for one in found.values()} == {1}
    assert {one.ratio for one in found.values()} == {1.0}


def test_usage_that_has_faded_to_nearly_nothing_is_some() -> None:
    found = fair_tree([ShareAccount(1, 1, 5e-324), ShareAccount(2, 1, 0), ShareAccount(3, 1, 1e9)])
    assert [found[one].rank for one in (2, 1, 3)] == [1, 2, 3]
    assert math.isfinite(found[1].ratio)


@pytest.mark.parametrize("count", [600, pytest.param(6000, marks=pytest.mark.nightly)])
def test_ranks_are_those_of_another_fair_tree(count: int) -> None:
    for tree in sets(count):
        assert {one.id: one.rank for one in fair_tree(tree).values()} == ranks(tree), tree
