"""Sign-in by LDAP, with a real slapd on loopback."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cod.client import ApiError
from cod.flows.people import people
from cod.model import Identity, Ldap, Refused, SignInRules, Site
from cod.pool import Pool
from cod.security import password_hash
from cod.store.people import audit
from cod.store.people import people as rows
from cod.web.signin.directory import LONGEST_LOOK, read, verify
from tests.net import slapd
from tests.net.apiserver import NOW, Served, serving

pytest.importorskip("ldap", reason="python-ldap, the extra `ldap`, is built from source: make ldap")
BOB = "three calm herons"
pytestmark = pytest.mark.usefixtures("quick_passwords")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slapd.Slapd]:
    with slapd.running(tmp_path_factory.mktemp("slapd")) as server:
        yield server


@pytest.fixture
def rules(directory: slapd.Slapd) -> Ldap:
    return Ldap(
        directory.tls,
        "tls",
        str(directory.ca),
        directory.people,
        user=directory.reader,
        password_file=str(directory.password),
    )


def test_who_binds_as_what_was_found_is_they(rules: Ldap) -> None:
    found = verify(rules, "bob", BOB)
    assert found is not None
    assert replace(found, subject="") == Identity(
        "", "ldap", "bob", "Bob Baker", "bob@example.org", keys=(), roles=()
    )
    assert found.subject.startswith("ldap:")
    assert found.subject == verify(rules, "bob", BOB).subject
    assert "uid=" not in found.subject  # an entry may be renamed


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("bob", "wrong"),
        ("bob", ""),
        ("nobody", BOB),
        ("", BOB),
        ("twin", "the same words"),
        ("*", BOB),
        ("bob)(uid=*", BOB),
        ("bo*", BOB),
        ("bob\0", BOB),
        ("b\\6fb", BOB),
    ],
)
def test_others_are_nobody(rules: Ldap, name: str, password: str) -> None:
    assert verify(rules, name, password) is None


def test_starttls_and_plain_work_where_the_site_says_so(
    rules: Ldap, directory: slapd.Slapd
) -> None:
    for tls in ("starttls", "none"):
        assert verify(replace(rules, url=directory.plain, tls=tls), "bob", BOB) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"ca_file": None},
        {"url": "ldaps://127.0.0.1:1"},
        {"user": "cn=other,dc=example,dc=org"},
        {"password_file": "/nowhere"},
        {"filter": "(uid={name}"},
    ],
)
def test_a_directory_that_cannot_be_asked_lets_nobody_in(
    rules: Ldap, change: dict[str, Any]
) -> None:
    with pytest.raises(Refused) as caught:
        verify(replace(rules, **change), "bob", BOB)
    assert caught.value.code == "busy"
    assert "127.0.0.1" not in caught.value.sentence


# ---------------------------------------------------------------- at the door


@pytest.fixture
def door(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site, rules: Ldap
) -> Iterator[Served]:
    with serving(
        pool, reactor, in_reactor, replace(site, signin=SignInRules(ldap=rules))
    ) as served:
        yield served


def sign_in(served: Served, name: str, password: str) -> Any:
    return served.remote(None).post("/sign-in", {"name": name, "password": password, "token": "t"})


def test_a_directory_that_answers_each_question_late_is_not_asked_for_ever(rules: Ldap) -> None:
    names = [f"nobody{number}" for number in range(10)]
    late = map(float, itertools.count(step=LONGEST_LOOK // 5))
    with pytest.raises(Refused, match="does not answer"):
        read(rules, (), names, monotonic=lambda: next(late))
    quick = map(float, itertools.count())
    assert read(rules, (), names, monotonic=lambda: next(quick)).missing == tuple(names)


def test_a_prompt_directory_may_tell_of_any_number_of_people(
    rules: Ldap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand people in twenty groups that give roles are 200,000 questions."""
    monkeypatch.setattr("cod.web.signin.directory.LONGEST_LOOK", 0.5)
    names = [f"nobody{number}" for number in range(20)]
    prompt = itertools.count(step=0.04)
    assert read(rules, (), names, monotonic=lambda: next(prompt)).missing == tuple(names)


def test_people_of_the_directory_come_in_and_those_of_the_site_still_do(door: Served) -> None:
    door.tx(rows.add, "ann", NOW, password=password_hash.hashed("correct horse battery"))
    assert sign_in(door, "bob", BOB)["name"] == "t@bob"
    assert sign_in(door, "ann", "correct horse battery")["name"] == "t@ann"
    user, _ = door.tx(people.one, "bob")
    assert (user.directory, user.email) == ("ldap", "bob@example.org")
    with pytest.raises(ApiError) as caught:
        sign_in(door, "bob", "wrong")
    assert caught.value.status == 401
    with pytest.raises(ApiError) as caught:
        sign_in(door, "bob", BOB)
    assert caught.value.status == 429  # guesses are slowed here, whoever verifies them


def test_a_directory_that_is_away_says_so_and_locks_nobody_out(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site, rules: Ldap
) -> None:
    away = SignInRules(ldap=replace(rules, url="ldaps://127.0.0.1:1"))
    with serving(pool, reactor, in_reactor, replace(site, signin=away)) as served:
        for _ in range(5):
            with pytest.raises(ApiError, match="does not answer") as caught:
                served.remote(None).sign_in(name="bob", password=BOB, token="t")
            assert (caught.value.status, caught.value.code) == (503, "busy")
        assert served.tx(audit.every) == []  # nobody has failed


def test_a_name_that_the_site_has_is_not_asked_for_elsewhere(door: Served) -> None:
    door.tx(rows.add, "bob", NOW, password=password_hash.hashed("correct horse battery"))
    with pytest.raises(ApiError) as caught:
        sign_in(door, "bob", BOB)
    assert caught.value.status == 401


def test_who_is_disabled_here_does_not_come_in_by_the_directory(door: Served) -> None:
    sign_in(door, "bob", BOB)
    door.tx(people.change, "bob", {"disabled": True}, now=NOW)
    with pytest.raises(ApiError) as caught:
        sign_in(door, "bob", BOB)
    assert caught.value.status == 401
