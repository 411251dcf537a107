"""What is kept of a password."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from argon2 import Parameters, PasswordHasher, extract_parameters
from argon2.exceptions import VerifyMismatchError

from cod.security import password_hash

pytestmark = pytest.mark.slow


def test_a_password_matches_its_own_hash_alone() -> None:
    kept = password_hash.hashed("correct horse battery")
    assert kept.startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    assert len(kept) <= 200  # users.password
    assert kept != password_hash.hashed("correct horse battery")
    assert password_hash.matches(kept, "correct horse battery")
    assert not password_hash.matches(kept, "correct horse batter")
    assert not password_hash.matches("rubbish", "correct horse battery")


def test_accents_are_the_same_however_they_are_typed() -> None:
    assert password_hash.matches(
        password_hash.hashed("caf\N{LATIN SMALL LETTER E WITH ACUTE} au lait"),
        "cafe\N{COMBINING ACUTE ACCENT} au lait",
    )


def test_where_there_is_no_password_nothing_matches_and_it_takes_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One hash of equal parameters is computed in both cases."""
    kept = password_hash.hashed("correct horse battery")
    assert not password_hash.matches("", "nobody's")
    worked: list[Parameters] = []

    def verify(hash: str, password: bytes) -> bool:
        worked.append(extract_parameters(hash))
        raise VerifyMismatchError

    monkeypatch.setattr(password_hash, "_HASHER", SimpleNamespace(verify=verify))
    for each in (kept, ""):
        assert not password_hash.matches(each, "wrong")
    assert worked[0] == worked[1]


def test_a_hash_of_other_parameters_is_told_and_still_good() -> None:
    weak = PasswordHasher(time_cost=1, memory_cost=8192, parallelism=1).hash(
        b"correct horse battery"
    )
    assert password_hash.matches(weak, "correct horse battery")
    assert password_hash.outdated(weak)
    assert not password_hash.outdated(password_hash.hashed("x"))
