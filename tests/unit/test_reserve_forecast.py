"""Reserve marks by forecast: rises of the same hour in the last weeks, between the constants."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.model import Energy
from cod.policy.energy.reserve_forecast import HOUR, WEEK, bounded, forecast, hours
from cod.policy.scheduler.reserve_pool import power_changes
from cod.policy.scheduler.snapshot import COLD
from cod.sim.run import simulate
from cod.sim.scenario.tables import load, read
from cod.sim.timeline import HeldTimeline
from tests.unit.policy_sites import SMALL, TYPES, free, site

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
RULES = Energy(
    manage=True, warm_low=1, warm_high=9, forecast_weeks=4, forecast_quantile=0.75, wake_time=600.0
)
NOW = 10 * WEEK * HOUR + 8 * HOUR  # the eighth hour of a week
DAY = {8: 10.0, 9: 14.0, 10: 14.0, 11: 6.0}  # nodes held, by hour of the week; else 10


def history(weeks: int = 10, **more: float) -> dict[int, float]:
    return {hour: DAY.get(hour % WEEK, 10.0) for hour in range((10 - weeks) * WEEK, 10 * WEEK)}


def test_it_is_the_rise_of_the_same_hour_of_the_week() -> None:
    """From 10 nodes in the eighth hour to 14 in the ninth; nothing rises in the tenth, and in the
    twelfth from 6 to 10."""
    held = history()
    assert forecast(held, 0.0, RULES, NOW) == (4, 4)
    assert forecast(held, 0.0, RULES, NOW - HOUR) == (0, 4), "soon, and in the next hours"
    assert forecast(held, 0.0, RULES, NOW + 2 * HOUR) == (0, 4)
    assert forecast(held, 0.0, RULES, NOW + 20 * HOUR) == (0, 0)
    late = replace(RULES, wake_time=7200.0)
    assert forecast(held, 0.0, late, NOW - 3 * HOUR) == (0, 4), "it looks ahead by the way"


def test_a_quantile_of_the_weeks_is_taken() -> None:
    held = history()
    for week, nodes in ((1, 30.0), (2, 12.0), (3, 11.0)):
        held[10 * WEEK + 9 - week * WEEK] = nodes
    # the rises of the hour are 20, 4, 4 and 4: the tenth hour still has 14
    assert forecast(held, 0.0, RULES, NOW) == (4, 4)
    assert forecast(held, 0.0, replace(RULES, forecast_quantile=1.0), NOW) == (20, 20)


def test_without_two_weeks_there_is_none() -> None:
    assert forecast(history(), 8.5 * WEEK * HOUR, RULES, NOW) is None
    assert forecast(history(), 7.9 * WEEK * HOUR, RULES, NOW) == (4, 4)


@given(
    st.dictionaries(st.integers(9 * WEEK, 10 * WEEK + 10), st.floats(0, 1000)),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_marks_are_between_the_constants(held: dict[int, float], one: int, other: int) -> None:
    low, high = sorted((one, other))
    found = bounded(low, high, forecast(held, 0.0, RULES, NOW))
    assert low <= found[0] <= found[1] <= high
    assert bounded(low, high, None) == (low, high)


def test_nothing_else_is_asked_of_the_timeline_than_what_is_used() -> None:
    """A forecast from the hours that it asks for is the forecast from all."""
    wanted = hours(NOW, RULES)
    held = {hour: float(hour * 7919 % 23) for hour in range(11 * WEEK)}
    assert len(wanted) == 4 * 5
    assert forecast({hour: held[hour] for hour in wanted}, 0.0, RULES, NOW) == forecast(
        held, 0.0, RULES, NOW
    )


def test_nodes_are_woken_and_put_to_sleep_by_it() -> None:
    cold = site(free_nodes=[free(8, SMALL, COLD), free(2)], spare={SMALL: (5, 6)})
    [wake] = power_changes(cold, {}, RULES)
    assert (wake.count, wake.sleep) == (3, False)
    name = TYPES[SMALL].name
    assert wake.why == f"2 of {name} awake and spare, by forecast the low mark is 5"
    warm = site(free_nodes=[replace(free(9), idle=9)], spare={SMALL: (1, 3)})
    [sleep] = power_changes(warm, {}, RULES)
    assert (sleep.count, sleep.sleep) == (6, True)
    assert power_changes(replace(warm, spare={}), {}, RULES) == ()


def test_the_simulators_timeline_has_the_average_of_each_hour() -> None:
    timeline = HeldTimeline(RULES, [SMALL])
    for week in range(4):
        start = week * WEEK * HOUR
        timeline.count(Counter({SMALL: 4}), start + 9 * HOUR + 1800.0)
        timeline.count(Counter(), start + 10 * HOUR)
    # half of the ninth hour 4 were held: 2 on the average
    assert timeline.spare(4.0 * WEEK * HOUR + 8 * HOUR + 3000) == {SMALL: (2, 2)}
    assert timeline.spare(4.0 * WEEK * HOUR + 30 * HOUR) == {SMALL: (0, 0)}
    assert HeldTimeline(RULES, [SMALL]).spare(0.0) == {}


@pytest.mark.nightly
def test_courses_at_fixed_hours_find_their_nodes_awake_for_less_energy() -> None:
    """The table of docs/energy, in four weeks: the waits are those of a reserve that is always
    awake, and a reserve that mostly sleeps lets people wait."""
    waits, kwh = {}, {}
    for name, high, weeks in (("awake", 14, 0), ("asleep", 4, 0), ("forecast", 14, 4)):
        made = read({**load(str(EXAMPLES / "courses.toml")), "days": 28}, EXAMPLES)
        rules = replace(made.energy, warm_high=high, forecast_weeks=weeks)
        report = simulate(replace(made, energy=rules))
        waits[name] = report["waiting"]["ready"]["all"]["mean"]
        kwh[name] = report["power"]["kwh"]
    assert waits["forecast"] < waits["awake"] + 15 < waits["asleep"] - 60
    assert kwh["forecast"] < 0.9 * kwh["awake"]
