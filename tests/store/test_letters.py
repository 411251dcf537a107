"""Letters to addresses of somebody's choice: how many, and whose count."""

from __future__ import annotations

import pytest

from cod.flows.people import invitation_mail
from cod.model import SignInRules, SlowDown, Who
from cod.store.engine import Tx

NOW = 1_000_000.0
RULES = SignInRules(letters=2, letters_in_all=5)
ANN, BOB = Who("user:ann", user_id=1), Who("user:bob", user_id=2)


def wait(tx: Tx, who: Who, now: float = NOW) -> str:
    """'' if one letter more may be sent, else why not."""
    try:
        invitation_mail.count(tx, who=who, rules=RULES, now=now)
    except SlowDown as slow:
        return slow.sentence
    return ""


def test_one_person_has_so_many_by_whatever_they_ask(tx: Tx) -> None:
    by_token = Who("token:ci@ann", user_id=1)
    assert (wait(tx, ANN), wait(tx, by_token)) == ("", "")
    assert (
        wait(tx, ANN)
        == wait(tx, by_token)
        == "2 letters in an hour are all that one person may have sent: try again in 1800 s"
    )
    assert wait(tx, BOB) == ""
    assert wait(tx, ANN, NOW + 1800.0) == ""


def test_all_together_have_so_many(tx: Tx) -> None:
    for number in range(5):
        assert wait(tx, Who(f"user:u{number}", user_id=10 + number)) == ""
    assert "the whole site" in wait(tx, ANN)


def test_who_is_refused_by_the_site_has_lost_nothing(tx: Tx) -> None:
    for number in range(5):
        wait(tx, Who(f"user:u{number}", user_id=10 + number))
    for _ in range(3):
        with pytest.raises(SlowDown), tx.begin_nested():
            invitation_mail.count(tx, who=ANN, rules=RULES, now=NOW)
    later = NOW + invitation_mail.HOUR
    assert (wait(tx, ANN, later), wait(tx, ANN, later)) == ("", "")


def test_administrators_are_bound_by_the_sites_number_alone(tx: Tx) -> None:
    root = Who("user:root", admin=True)
    assert [wait(tx, root) for _ in range(5)] == [""] * 5
    assert "the whole site" in wait(tx, root)
