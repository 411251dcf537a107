"""Node-hours of a month bound leases, and are told at 80 and 100 %."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.policy.nodes import energy_accounting
from cod.policy.sharing.node_hours import Use, bound, reached, sentence

HOUR, DAY = 3600.0, 86400.0
NOW = datetime(2026, 11, 20, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 1, tzinfo=UTC).timestamp()


def test_a_lease_within_what_is_left_is_not_bound() -> None:
    assert bound(100.0, 60.0, [], 10, NOW + 4 * HOUR, NOW) is None


def test_a_lease_beyond_what_is_left_is_bound_by_it() -> None:
    found = bound(100.0, 60.0, [], 10, NOW + 5 * HOUR, NOW)
    assert found is not None
    assert found.end == NOW + 4 * HOUR
    said = sentence(100.0, found, 10, NOW + 5 * HOUR, NOW)
    assert "of 2026-11, 60.0 are used" in said
    assert said.endswith("a lease of 4 h from now fits")


def test_leases_that_run_bind_node_hours_until_they_end() -> None:
    found = bound(100.0, 60.0, [Use(2, NOW, NOW + 10 * HOUR)], 10, NOW + 5 * HOUR, NOW)
    assert found is not None
    assert (found.end, found.spoken_for) == (NOW + 2 * HOUR, 20.0)


def test_each_month_has_its_own_node_hours() -> None:
    late = DECEMBER - 2 * HOUR
    assert bound(30.0, 10.0, [], 10, DECEMBER + 3 * HOUR, late) is None
    found = bound(30.0, 10.0, [], 10, DECEMBER + 4 * HOUR, late)
    assert found is not None
    assert found.end == DECEMBER + 3 * HOUR
    assert bound(30.0, 30.0, [], 10, DECEMBER + HOUR, late) is not None


@pytest.mark.parametrize(
    ("limit", "used", "part"),
    [(None, 1e9, 0), (100.0, 79.9, 0), (100.0, 80.0, 80), (100.0, 100.0, 100), (0.0, 0.0, 100)],
)
def test_what_is_told(limit: float | None, used: float, part: int) -> None:
    assert reached(limit, used) == part


USES = st.lists(
    st.builds(
        lambda nodes, start, hours: Use(nodes, NOW + start * HOUR, NOW + (start + hours) * HOUR),
        st.integers(1, 5),
        st.integers(0, 500),
        st.integers(1, 900),
    ),
    max_size=4,
)


@given(USES, st.integers(0, 5000), st.integers(0, 1000), st.integers(1, 9), st.integers(1, 2000))
def test_no_month_has_more_than_its_node_hours(
    others: list[Use], limit: int, used: int, nodes: int, hours: int
) -> None:
    until = NOW + hours * HOUR
    found = bound(float(limit), float(used), others, nodes, until, NOW)
    end = until if found is None else found.end
    own = spent([Use(nodes, NOW, end)])
    for month, spoken_for in spent(others).items():
        before = used if month == energy_accounting.month(NOW) else 0
        if own.get(month):
            assert before + spoken_for + own[month] <= limit + 0.01
    if found is not None:  # and it is the longest
        more = spent([Use(nodes, NOW, end + 60.0)])[found.month]
        before = used if found.month == energy_accounting.month(NOW) else 0
        assert before + spent(others).get(found.month, 0.0) + more > limit


def spent(uses: list[Use]) -> dict[Any, float]:
    """Return the node-hours of each month, day by day."""
    months = {energy_accounting.month(NOW): 0.0}
    for one in uses:
        for day, seconds in energy_accounting.days(one.start, one.end):
            month = energy_accounting.month(day * DAY)
            months[month] = months.get(month, 0.0) + one.nodes * seconds / HOUR
    return months
