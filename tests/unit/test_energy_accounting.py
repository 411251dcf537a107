"""Energy accounts: watts times seconds, put down to the right day, group and type."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.model import Energy, EnergyUse, NodeType
from cod.policy.nodes.energy_accounting import (
    DAY,
    LONGEST,
    Draw,
    Measured,
    Nodes,
    days,
    draws,
    is_clock_reset,
    month,
    months,
    uses,
    vcluster_uses,
)
from cod.states import NodeState

SITE = Energy(watts_off=5.0, watts_idle=80.0, watts_busy=200.0)
TYPES = {
    1: NodeType(1, "one", "", "<node/>", 1.0, 0.0),
    2: NodeType(
        2, "two", "", "<node/>", 1.0, 0.0, watts_off=10.0, watts_idle=100.0, watts_busy=400.0
    ),
}


def drawn(nodes: list[Nodes], measured: list[Measured] | None = None) -> list[tuple[float, float]]:
    return [(each.watts, each.always_on) for each in draws(nodes, TYPES, measured or [], SITE)]


def test_what_is_awake_draws_the_same_always_on() -> None:
    assert drawn([Nodes("active", 1, 7, 3), Nodes("inactive", 2, 0, 2)]) == [
        (600.0, 600.0),
        (200.0, 200.0),
    ]


def test_what_sleeps_would_be_idle() -> None:
    assert drawn([Nodes("off", 1, 0, 4), Nodes("off", 2, 0, 1)]) == [(20.0, 320.0), (10.0, 100.0)]


def test_machines_that_are_not_the_sites_are_left_out() -> None:
    assert drawn([Nodes("new", 1, 0, 4), Nodes("retired", 1, 0, 4)]) == []


def test_what_is_measured_is_the_mean_of_a_type_and_class() -> None:
    measured = [
        Measured(1, "active", 700.0, 2),
        Measured(1, "prime", 200.0, 1),
        Measured(1, "off", 9.0, 3),
    ]
    nodes = [
        Nodes("active", 1, 7, 10),
        Nodes("boot", 1, 7, 1),
        Nodes("active", 2, 7, 1),
        Nodes("off", 1, 0, 1),
    ]
    assert drawn(nodes, measured) == [(3000.0, 3000.0), (300.0, 300.0), (400.0, 400.0), (3.0, 80.0)]
    assert drawn([Nodes("off", 1, 0, 2)], [Measured(1, "inactive", 60.0, 1)]) == [(10.0, 120.0)], (
        "idle as measured"
    )
    assert drawn([Nodes("off", 1, 0, 1)], [Measured(1, "new", 60.0, 1)]) == [(5.0, 80.0)]


def test_sleep_never_costs() -> None:
    """A BMC that measures more in a node asleep than in one awake saves nothing, and owes
    nothing."""
    measured = [Measured(1, "off", 90.0, 1), Measured(1, "inactive", 60.0, 1)]
    assert drawn([Nodes("off", 1, 0, 1)], measured) == [(90.0, 90.0)]


def test_an_hour_of_a_kilowatt_is_a_kilowatt_hour() -> None:
    [use] = uses([Draw(Nodes("active", 1, 7, 5), 1000.0, 1000.0)], 0.0, 3600.0)
    assert use == EnergyUse(0, 7, 1, 18000.0, 3.6e6, 3.6e6)


def test_states_of_one_type_and_group_are_added_up() -> None:
    found = uses(
        [
            Draw(Nodes("active", 1, 7, 2), 400.0, 400.0),
            Draw(Nodes("boot", 1, 7, 1), 200.0, 200.0),
            Draw(Nodes("off", 1, 0, 1), 5.0, 80.0),
            Draw(Nodes("active", 2, 7, 1), 1.0, 1.0),
        ],
        10.0,
        20.0,
    )
    assert found == [
        EnergyUse(0, 0, 1, 10.0, 50.0, 800.0),
        EnergyUse(0, 7, 1, 30.0, 6000.0, 6000.0),
        EnergyUse(0, 7, 2, 10.0, 10.0, 10.0),
    ]


def test_midnight_divides() -> None:
    found = uses([Draw(Nodes("active", 1, 7, 1), 2.0, 2.0)], 3 * DAY - 10.0, 5 * DAY + 30.0)
    assert [(use.day, use.seconds, use.joules) for use in found] == [
        (2, 10.0, 20.0),
        (3, DAY, 2 * DAY),
        (4, DAY, 2 * DAY),
        (5, 30.0, 60.0),
    ]
    assert list(days(DAY, DAY)) == []
    assert list(days(DAY, DAY + 1)) == [(1, 1.0)]
    assert list(days(DAY - 1, DAY)) == [(0, 1.0)]


@pytest.mark.parametrize(
    ("passed", "wrong"),
    [
        (60.0, False),
        (LONGEST, False),
        (LONGEST + 1, True),
        (0.0, False),
        (-DAY, False),
        (-DAY - 1, True),
    ],
)
def test_a_clock_that_is_far_off_begins_anew(passed: float, wrong: bool) -> None:
    assert is_clock_reset(1e9, 1e9 + passed) is wrong


moments = st.floats(0, 4e9, allow_nan=False)
nodes = st.lists(
    st.builds(
        Nodes,
        st.sampled_from(list(NodeState)),
        st.integers(1, 2),
        st.integers(0, 3),
        st.integers(1, 1000),
    ),
    max_size=12,
    unique_by=lambda each: each[:3],
)
readings = st.lists(
    st.builds(
        Measured,
        st.integers(1, 2),
        st.sampled_from(list(NodeState)),
        st.floats(0, 1e4),
        st.integers(1, 50),
    ),
    max_size=5,
)


@given(nodes, readings, moments, st.floats(0, 40 * DAY), st.floats(0, 1))
def test_nothing_is_lost_nor_counted_twice(
    nodes: list[Nodes], measured: list[Measured], since: float, length: float, share: float
) -> None:
    """However a time is divided, the sums are the same; every second of every node of the site is
    in one of them."""
    drawn = list(draws(nodes, TYPES, measured, SITE))
    middle, until = since + share * length, since + length
    whole, parts = (
        uses(drawn, since, until),
        [*uses(drawn, since, middle), *uses(drawn, middle, until)],
    )
    for name in ("seconds", "joules", "always_on"):
        total = sum(getattr(use, name) for use in whole)
        assert sum(getattr(use, name) for use in parts) == pytest.approx(total, rel=1e-6, abs=1e-2)
    ours = sum(each.number for each in nodes if each.state not in ("expected", "new", "retired"))
    assert sum(use.seconds for use in whole) == pytest.approx(
        ours * (until - since), rel=1e-6, abs=1e-2
    )
    assert all(use.joules <= use.always_on for use in whole)
    assert len({(use.day, use.group_id, use.type_id) for use in whole}) == len(whole)


def test_a_vcluster_uses_what_its_own_nodes_measure() -> None:
    """Nodes of one type in two vclusters: those that measure count as measured, the others as the
    mean of the type."""
    measured = [
        Measured(1, "active", 600.0, 2, vcluster_id=5),
        Measured(1, "active", 100.0, 1, vcluster_id=6),
    ]
    mean = 700.0 / 3
    nodes = [Nodes("active", 1, 7, 2, 5), Nodes("active", 1, 7, 3, 6), Nodes("boot", 1, 7, 1, 6)]
    assert drawn(nodes, measured) == [
        (600.0, 600.0),
        (pytest.approx(100 + 2 * mean), pytest.approx(100 + 2 * mean)),
        (pytest.approx(mean), pytest.approx(mean)),
    ]


def test_vclusters_have_accounts_of_their_own() -> None:
    each = [
        Draw(Nodes("active", 1, 7, 2, 5), 1000.0, 1000.0),
        Draw(Nodes("boot", 2, 7, 1, 5), 200.0, 200.0),
        Draw(Nodes("active", 1, 7, 1, 6), 500.0, 500.0),
        Draw(Nodes("inactive", 1, 0, 9), 720.0, 720.0),
    ]
    found = vcluster_uses(each, DAY - 3600.0, DAY + 3600.0, carbon=400.0)
    assert [(one.day, one.vcluster_id, one.seconds, one.joules) for one in found] == [
        (0, 5, 3 * 3600.0, 1200 * 3600.0),
        (0, 6, 3600.0, 500 * 3600.0),
        (1, 5, 3 * 3600.0, 1200 * 3600.0),
        (1, 6, 3600.0, 500 * 3600.0),
    ]
    assert [one.grams for one in found] == pytest.approx([480.0, 200.0, 480.0, 200.0])
    groups = uses(each, DAY - 3600.0, DAY + 3600.0, carbon=400.0)
    assert sum(one.grams for one in groups if one.group_id) == pytest.approx(1360.0), "the same"


@given(st.floats(0, 4e9), st.floats(0, 5e7))
def test_months_are_those_of_the_days(since: float, length: float) -> None:
    by_month: defaultdict[int, float] = defaultdict(float)
    for day, seconds in days(since, since + length):
        by_month[month(day * DAY)] += seconds
    found = dict(months(since, since + length))
    assert found == pytest.approx(dict(by_month), abs=1e-3)
    assert list(found) == sorted(found)
