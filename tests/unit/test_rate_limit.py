"""How often something may be done in a span of time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.policy.rate_limit import done_once

HOUR = 3600.0


def test_so_many_at_once_and_then_one_by_one() -> None:
    mark, now = None, 1000.0
    for _ in range(20):
        mark, wait = done_once(mark, now, 20, HOUR)
        assert wait == 0.0
    assert done_once(mark, now, 20, HOUR)[1] == pytest.approx(180.0)
    assert done_once(mark, now + 180.0, 20, HOUR)[1] == 0.0
    assert done_once(mark, now + 100.0, 20, HOUR)[1] == pytest.approx(80.0)


def test_what_was_long_ago_is_forgotten() -> None:
    mark, _ = done_once(None, 0.0, 2, 60.0)
    assert mark == 30.0
    assert done_once(mark, 1e9, 2, 60.0) == (1e9 + 30.0, 0.0)


def test_a_clock_that_was_set_back_keeps_nobody_waiting_for_long() -> None:
    mark, _ = done_once(None, 1e9, 20, HOUR)
    assert done_once(mark, 1e6, 20, HOUR) == (1e6 + 180.0, 0.0)
    assert done_once(1e6 + HOUR, 1e6 - HOUR + 1, 20, HOUR)[1] <= HOUR + 180.0


@given(st.integers(1, 50), st.lists(st.floats(0.0, 200.0), max_size=200))
def test_never_more_than_twice_as_many_in_any_span(most: int, pauses: list[float]) -> None:
    """All at once, and in the same span what is forgotten meanwhile."""
    mark, now, span, done = None, 0.0, 600.0, []
    for pause in pauses:
        now += pause
        after, wait = done_once(mark, now, most, span)
        assert wait <= span + 1e-6
        if not wait:
            mark = after
            done.append(now)
    for start in done:
        assert sum(start <= at < start + span for at in done) <= 2 * most


@given(st.integers(1, 50), st.floats(0.0, 1e9))
def test_whoever_has_waited_may(most: int, now: float) -> None:
    mark = None
    for _ in range(most):
        mark, _ = done_once(mark, now, most, HOUR)
    _, wait = done_once(mark, now, most, HOUR)
    assert wait > 0
    assert done_once(mark, now + wait + 1e-3, most, HOUR)[1] == 0.0
