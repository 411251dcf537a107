"""What is kept of a password."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from argon2 import Parameters, PasswordHasher, extract_parameters
from argon2.exceptions import VerifyMismatchError

from cod.security import passwords

pytestmark = pytest.mark.slow


def test_a_password_matches_its_own_hash_alone() -> None:
    kept = passwords.hashed("correct horse battery")
    assert kept.startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    assert len(kept) <= 200  # users.password
    assert kept != passwords.hashed("correct horse battery")
    assert passwords.matches(kept, "correct horse battery")
    assert not passwords.matches(kept, "correct horse batter")
    assert not passwords.matches("rubbish", "correct horse battery")


def test_accents_are_the_same_however_they_are_typed() -> None:
    assert passwords.matches(
        passwords.hashed("caf\N{LATIN SMALL LETTER E WITH ACUTE} au lait"),
        "cafe\N{COMBINING ACUTE ACCENT} au lait",
    )


def test_where_there_is_no_password_nothing_matches_and_it_takes_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One hash of equal parameters is computed in both cases."""
    kept = passwords.hashed("correct horse battery")
    assert not passwords.matches("", "nobody's")
    worked: list[Parameters] = []

    def verify(hash: str, password: bytes) -> bool:
        worked.append(extract_parameters(hash))
        raise VerifyMismatchError

    monkeypatch.setattr(passwords, "_HASHER", SimpleNamespace(verify=verify))
    for each in (kept, ""):
        assert not passwords.matches(each, "wrong")
    assert worked[0] == worked[1]


def test_a_hash_of_other_parameters_is_told_and_still_good() -> None:
    weak = PasswordHasher(time_cost=1, memory_cost=8192, parallelism=1).hash(
        b"correct horse battery"
    )
    assert passwords.matches(weak, "correct horse battery")
    assert passwords.outdated(weak)
    assert not passwords.outdated(passwords.hashed("x"))
