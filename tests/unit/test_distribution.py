"""Sharing out nodes among the tuples of one request: against every way that there is."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cod.policy.scheduler.distribution import Exhausted, KindDemand, fill, spread, whole

# Every way is tried: at most six seats of five, else some examples take seconds.
KINDS = ["a", "b", "c", "d"]
DEMANDS = st.lists(
    st.builds(
        KindDemand, st.integers(1, 2), st.lists(st.sampled_from(KINDS), unique=True).map(tuple)
    ),
    max_size=3,
)
CAPACITY = st.dictionaries(st.sampled_from(KINDS), st.integers(0, 4))


def test_others_are_moved_aside() -> None:
    shares = spread(
        [KindDemand(1, ("a", "b")), KindDemand(1, ("b", "c")), KindDemand(1, ("a", "b"))],
        {"a": 1, "b": 1, "c": 1},
    )
    assert shares is not None
    assert sorted(shares[0] + shares[2]) == ["a", "b"]
    assert +shares[1] == Counter(c=1)


def test_one_kind_is_enough_where_there_is_one() -> None:
    assert spread([KindDemand(2, ("a", "b"))], {"a": 1, "b": 2}) == [Counter(b=2)]
    assert spread([KindDemand(3, ("a", "b"))], {"a": 1, "b": 2}) == [Counter(a=1, b=2)]


@settings(max_examples=200, deadline=None)
@given(DEMANDS, CAPACITY)
def test_a_way_is_found_whenever_there_is_one(
    demands: list[KindDemand], capacity: dict[str, int]
) -> None:
    seats = [demand.kinds for demand in demands for _ in range(demand.count)]
    possible = any(not Counter(way) - Counter(capacity) for way in itertools.product(*seats))
    shares = spread(demands, capacity)
    assert (shares is not None) == possible
    for demand, share in zip(demands, shares or [], strict=True) if shares is not None else ():
        assert share.total() == demand.count
        assert set(+share) <= set(demand.kinds)
    assert not sum(fill(demands, capacity), Counter()) - Counter(capacity)


@settings(max_examples=200, deadline=None)
@given(DEMANDS, CAPACITY)
def test_as_many_as_can_be_had(demands: list[KindDemand], capacity: dict[str, int]) -> None:
    """Each seat may stay empty; the fullest way has as many as `fill`."""
    seats = [(*demand.kinds, None) for demand in demands for _ in range(demand.count)]
    most = max(
        sum(seat is not None for seat in way)
        for way in itertools.product(*seats)
        if not Counter(seat for seat in way if seat) - Counter(capacity)
    )
    assert sum(share.total() for share in fill(demands, capacity)) == most


@settings(max_examples=200, deadline=None)
@given(DEMANDS, CAPACITY, st.dictionaries(st.sampled_from(KINDS), st.integers(0, 2)))
def test_whole_finds_the_first_way_and_borrows_what_is_short(
    demands: list[KindDemand], capacity: dict[str, int], preempted: dict[str, int]
) -> None:
    left = Counter(preempted)

    def preempt(kind: str, count: int) -> bool:
        enough = left[kind] >= count
        left[kind] -= count if enough else 0
        return enough

    def restore(kind: str, count: int) -> None:
        left[kind] += count

    both = Counter(capacity) + Counter(preempted)
    possible = any(
        not _wanted(demands, way) - both
        for way in itertools.product(*(one.kinds for one in demands))
    )
    kinds = whole(demands, capacity, preempt, restore)
    assert (kinds is not None) == possible
    short = _wanted(demands, kinds) - Counter(capacity) if kinds is not None else Counter()
    assert Counter(preempted) - left == short
    assert all(count >= 0 for count in left.values())


def _wanted(demands: list[KindDemand], way: object) -> Counter[str]:
    sums: Counter[str] = Counter()
    for demand, kind in zip(demands, way, strict=True):  # type: ignore[call-overload]
        sums[kind] += demand.count
    return sums


def test_whole_gives_up_where_there_are_too_many_ways() -> None:
    with pytest.raises(Exhausted):
        whole([KindDemand(3, tuple(range(29)))] * 30, dict.fromkeys(range(29), 5))
