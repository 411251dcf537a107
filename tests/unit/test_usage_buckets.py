"""Spans of time: every second is in one of each length, and none is lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.policy.usage_buckets import DAYS, HOURS, MINUTES, SPANS, UNKNOWN, pieces, span_for, starts

NOW = 20_000.0 * DAYS


@given(st.floats(0, 1e9), st.floats(0.001, UNKNOWN))
def test_no_second_is_lost_or_counted_twice(since: float, seconds: float) -> None:
    until = since + seconds
    found = list(pieces(since, until))
    for span in SPANS:
        own = [piece for piece in found if piece[0] == span]
        assert sum(piece[2] for piece in own) == pytest.approx(until - since, abs=1e-6)
        assert all(start % span == 0 and 0 <= length <= span for _, start, length in own)
        assert [start for _, start, _ in own] == sorted({start for _, start, _ in own})


def test_a_minute_across_midnight() -> None:
    assert list(pieces(DAYS - 20.0, DAYS + 40.0)) == [
        (MINUTES, DAYS - 300, 20.0),
        (MINUTES, DAYS, 40.0),
        (HOURS, DAYS - 3600, 20.0),
        (HOURS, DAYS, 40.0),
        (DAYS, 0, 20.0),
        (DAYS, DAYS, 40.0),
    ]


@pytest.mark.parametrize(("since", "until"), [(5.0, 5.0), (6.0, 5.0), (0.0, UNKNOWN + 1)])
def test_what_nobody_knows_is_not_put_down(since: float, until: float) -> None:
    assert list(pieces(since, until)) == []


@pytest.mark.parametrize(
    ("hours", "ago", "span"),
    [
        (1, 0, MINUTES),
        (4, 0, MINUTES),
        (4.1, 0, HOURS),
        (48, 0, HOURS),
        (49, 0, DAYS),
        (1, 30, HOURS),
        (1, 24 * 40, DAYS),
        (24 * 365, 0, DAYS),
    ],
)
def test_the_span_is_fine_where_that_is_kept(hours: float, ago: float, span: int) -> None:
    until = NOW - ago * HOURS
    assert span_for(until - hours * HOURS, until, NOW) == span


@given(st.integers(0, 10**9), st.integers(0, 10**6), st.sampled_from(SPANS))
def test_spans_cover_the_time(since: int, seconds: int, span: int) -> None:
    found = starts(since, since + seconds, span)
    assert found[0] <= since < found[0] + span
    assert found[-1] + span >= since + seconds
    assert len(found) <= seconds / span + 2
    assert [later - earlier for earlier, later in pairwise(found)] == [span] * (len(found) - 1)
