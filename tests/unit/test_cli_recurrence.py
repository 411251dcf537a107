"""When clusters start that are reserved for each day or week."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from cod.cli.scheduler.recurrence import occurrences

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("first", "repeat", "starts"),
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
    first: str, repeat: str, starts: list[str]
) -> None:
    """Where the clock skips the time of day, the start is as much later as it skips."""
    found = list(islice(occurrences("course", at(first), repeat, BERLIN, 0.0), 3))
    assert [one.starts_at for one in found] == [at(one) for one in starts]
    assert [one.name for one in found] == [f"course-{one[:10]}" for one in starts]


def test_those_whose_start_is_over_are_left_out() -> None:
    first, now = at("2026-10-19T08:00+02:00"), at("2026-11-02T08:00+01:00")
    (one,) = islice(occurrences("course", first, "weekly", BERLIN, now), 1)
    assert one == ("course-2026-11-09", at("2026-11-09T08:00+01:00"))
