"""When the clusters of a series start."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from cod.cli.scheduler.recurrence import DAY_NAMES, this_zone
from cod.model import Refused, Series
from cod.policy.reservations import series as policy

DAY = 86400.0


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def series(first: str, days: str, zone: str = "Europe/Berlin", **columns: Any) -> Series:
    named = () if days == "weekly" else policy.DAYS if days == "daily" else days.split(",")
    on = policy.on_days(named, at(first), policy.zone(zone))
    limits = {"count": None, "ends_at": None} | columns
    return Series(1, "course", 1, "{}", at(first), 36000.0, zone, on, created_at=0.0, **limits)


@pytest.mark.parametrize(
    ("first", "days", "starts"),
    [
        (
            "2026-10-19T08:00+02:00",
            "weekly",
            ["2026-10-19T08:00+02:00", "2026-10-26T08:00+01:00", "2026-11-02T08:00+01:00"],
        ),
        (
            "2026-03-28T08:00+01:00",
            "daily",
            ["2026-03-28T08:00+01:00", "2026-03-29T08:00+02:00", "2026-03-30T08:00+02:00"],
        ),
        (
            "2026-03-28T02:30+01:00",
            "daily",
            ["2026-03-28T02:30+01:00", "2026-03-29T03:30+02:00", "2026-03-30T02:30+02:00"],
        ),
    ],
)
def test_they_start_at_the_same_time_of_day_in_winter_and_summer(
    first: str, days: str, starts: list[str]
) -> None:
    """Where the clock skips the time of day, the start is as much later as it skips."""
    of = series(first, days)
    assert policy.starts(of, 0.0, at(starts[-1])) == [at(one) for one in starts]
    named = [policy.vcluster_name(of, at(one)) for one in starts]
    assert named == [f"course-{one[:10]}" for one in starts]


def test_days_of_the_week_a_count_and_an_end_say_which_starts_there_are() -> None:
    first = "2026-10-19T08:00+02:00"  # a Monday
    until = at(first) + 10 * DAY
    both = [at(first), at("2026-10-21T08:00+02:00"), at("2026-10-26T08:00+01:00")]
    assert policy.starts(series(first, "wed,mon"), 0.0, until) == [
        *both,
        at("2026-10-28T08:00+01:00"),
    ]
    assert policy.starts(series(first, "mon,wed", count=3), 0.0, until) == both
    assert policy.starts(series(first, "mon,wed", ends_at=both[1]), 0.0, until) == both[:2]
    assert policy.starts(series(first, "wed"), 0.0, until)[0] == both[1], "a later first start"


def test_starts_after_a_time_are_those_of_a_list_of_all() -> None:
    of = series("2026-10-19T23:30+02:00", "daily", count=20)
    every = policy.starts(of, 0.0, at("2027-01-01T00:00Z"))
    assert len(every) == 20
    for after in (every[4], every[4] - 1, every[4] + 1, every[19]):
        found = policy.starts(of, after, at("2027-01-01T00:00Z"))
        assert found == [one for one in every if one > after]
    assert policy.next_start(of, every[19]) is None
    assert policy.next_start(of, every[19] - 1) == every[19]
    assert policy.next_start(series("2027-10-19T08:00Z", "weekly"), every[0]), "it has not begun"


@pytest.mark.parametrize("name", ["Europe/Nowhere", "/etc/passwd", "../x", "Europe", "", "a\0b"])
def test_a_time_zone_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="no time zone"):
        policy.zone(name)


def test_the_command_line_reads_days_and_knows_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DAY_NAMES("weekly") == []
    assert DAY_NAMES("mon,wed") == ["mon", "wed"]
    with pytest.raises(Exception, match="days of the week"):
        DAY_NAMES("monthly")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    assert this_zone() == "Europe/Berlin"
