"""A reader finds the new rows of a table whose rows appear in another order than their ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.policy.following import SETTLED, Following


def found(reader: Following, ids: list[int], begun: float = 0.0, took: float = 0.0) -> list[int]:
    new = reader.unseen(ids)
    reader.see(ids, begun, begun + took)
    return new


def test_a_row_comes_once_whatever_the_order() -> None:
    reader = Following(10)
    assert found(reader, [12, 14]) == [12, 14]
    assert found(reader, [11, 12, 14]) == [11]
    assert reader.floor == 12  # none is missing up to there
    assert found(reader, [13, 14]) == [13]
    assert reader.floor == 14
    assert found(reader, []) == []


def test_a_row_that_is_missing_is_waited_for_as_long_as_a_transaction_may_last() -> None:
    reader = Following(0)
    found(reader, [3, 6], 100.0, took=2.0)
    found(reader, [3, 6, 9], 101.9 + SETTLED)
    assert reader.floor == 0
    assert found(reader, [2, 3, 6, 9], 102.0 + SETTLED) == [2]
    assert reader.floor == 6
    assert found(reader, [9], 900.0) == []
    assert reader.floor == 9
    assert not reader.unseen([1, 4, 5])


def test_of_many_late_rows_none_is_lost_where_a_look_returns_the_lowest_alone() -> None:
    reader = Following(0)
    found(reader, [9])
    for ids in ([1, 2], [3, 4], [5]):  # two at most of those that came late
        assert reader.unseen(ids) == ids
        reader.see(ids, SETTLED, SETTLED, len(ids) == 2)
    assert reader.floor == 9


def test_what_another_reader_knows_to_be_over_is_over() -> None:
    reader = Following(0)
    found(reader, [3, 5, 8])
    reader.settle(4)
    assert reader.floor == 5
    reader.settle(2)
    assert reader.floor == 5
    assert [reader.knows(each) for each in (1, 5, 6, 8)] == [True, True, False, True]


@pytest.mark.parametrize("step", [1, 3])
@given(
    lasts=st.lists(st.floats(0.1, SETTLED - 1.0), min_size=1, max_size=12),
    rows=st.lists(st.integers(1, 5), min_size=12, max_size=12),
    apart=st.floats(0.1, 5.0),
)
def test_no_row_is_lost_and_none_comes_twice(
    step: int, lasts: list[float], rows: list[int], apart: float
) -> None:
    """Transactions begin half a second apart, and each lasts less than `SETTLED`."""
    commits: list[tuple[float, list[int]]] = []
    last = 0
    for number, (seconds, count) in enumerate(zip(lasts, rows, strict=False)):
        ids = [last + step * each for each in range(1, count + 1)]
        last = ids[-1]
        commits.append((number / 2 + seconds, ids))
    reader, heard, now = Following(0), list[int](), 0.0
    while now < 3 * SETTLED + apart:
        there = [each for at, ids in commits if at <= now for each in ids if each > reader.floor]
        heard += found(reader, there, now)
        now += apart
    assert sorted(heard) == [each for _, ids in sorted(commits, key=min_id) for each in ids]
    assert reader.floor == last


def min_id(commit: tuple[float, list[int]]) -> int:
    return commit[1][0]
