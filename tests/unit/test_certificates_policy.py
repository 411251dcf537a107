"""When somebody is told that a certificate ends; and which are worth renewing."""

from __future__ import annotations

import pytest

from cod.policy.people import certificates as policy
from cod.policy.people.certificates import DAY

END = 1000 * DAY


@pytest.mark.parametrize(
    ("now", "warned_at", "due"),
    [
        (END - 31 * DAY, None, False),
        (END - 30 * DAY, None, True),
        (END - 1, None, True),
        (END, None, True),
        (END - 29 * DAY, END - 30 * DAY, False),
        (END - 1, END - 30 * DAY, False),  # told once before
        (END, END - 30 * DAY, True),
        (END + 1, END - 1, True),  # and once after
        (END + 9 * DAY, END, False),
        (END + 9 * DAY, END + DAY, False),
    ],
)
def test_a_group_is_told_once_before_and_once_after(
    now: float, warned_at: float | None, due: bool
) -> None:
    assert policy.is_due(END, warned_at, now) == due


def test_of_no_certificate_nothing_is_told() -> None:
    assert not policy.is_due(None, None, END)


@pytest.mark.parametrize(
    ("now", "warned_at", "due"),
    [
        (END - 801 * DAY, None, False),
        (END - 800 * DAY, None, True),
        (END - 780 * DAY, END - 800 * DAY, False),
        (END - 770 * DAY, END - 800 * DAY, True),
        (END + DAY, END - DAY, False),
        (END + 40 * DAY, END, True),
    ],
)
def test_the_administrators_are_told_again_every_month(
    now: float, warned_at: float | None, due: bool
) -> None:
    assert policy.authority_is_due(END, warned_at, now) == due


def test_what_lasts_a_day_longer_is_worth_it() -> None:
    assert policy.is_worth(END, None)
    assert policy.is_worth(END + DAY, END)
    assert not policy.is_worth(END + DAY - 1, END)
    assert not policy.is_worth(END, END)
