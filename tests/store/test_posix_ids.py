"""POSIX numbers: given once, never to somebody else, set by administrators, taken from the site's
directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import delete, insert

from cod.flows.people import groups, invitations, people, signin
from cod.model import OVERFLOW, Identity, PosixRules, Refused, User
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.people import groups as group_rows
from cod.store.people import people as rows
from cod.store.people import posix_ids
from tests.conftest import in_memory

NOW = 1_000_000.0
SMALL = PosixRules(first_uid=3000, last_uid=3002, first_gid=4000, last_gid=4001)


@pytest.fixture
def tx() -> Iterator[Tx]:
    engine = in_memory()
    with engine.begin() as tx:
        yield tx
    engine.dispose()


def user(tx: Tx, name: str, **told: object) -> User:
    return people.create(tx, name, now=NOW, **told)


def change(tx: Tx, name: str, **changes: int) -> User:
    return people.change(tx, name, changes, now=NOW)[0]


def test_users_get_the_next_number_and_a_group_of_their_own(tx: Tx) -> None:
    ann, bob = user(tx, "ann"), user(tx, "bob")
    assert (ann.uid, ann.gid, bob.uid, bob.gid) == (20_000, 20_000, 20_001, 20_001)
    assert groups.create(tx, "physics", now=NOW).gid == 50_000
    assert group_rows.ensure(tx, "site", NOW).gid == 50_001


def test_a_deleted_users_number_is_nobody_elses(tx: Tx) -> None:
    user(tx, "ann"), user(tx, "bob")
    people.delete(tx, "bob")
    assert user(tx, "carl").uid == 20_002
    assert user(tx, "bob").uid == 20_003  # it may be another Bob
    with pytest.raises(Refused, match="20001 is or was given to user bob"):
        change(tx, "carl", uid=20_001)
    # an administrator says that it is the same one
    assert change(tx, "bob", uid=20_001).gid == 20_001


def test_a_deleted_groups_number_is_nobody_elses(tx: Tx) -> None:
    groups.create(tx, "physics", now=NOW)
    groups.delete(tx, "physics")
    assert groups.create(tx, "chemistry", now=NOW).gid != 50_000
    with pytest.raises(Refused, match="50000 is or was given to group physics"):
        groups.create(tx, "biology", gid=50_000, now=NOW)


def test_administrators_set_numbers_that_are_free(tx: Tx) -> None:
    ann = user(tx, "ann", uid=1500)
    assert (ann.uid, ann.gid) == (1500, 1500)
    user(tx, "bob")
    with pytest.raises(Refused, match="1500 is or was given to user ann") as taken:
        change(tx, "bob", uid=1500)
    assert (taken.value.code, taken.value.field) == ("conflict", "uid")
    with pytest.raises(Refused, match="choose one from 1000"):
        change(tx, "bob", uid=0)
    for number in OVERFLOW:
        with pytest.raises(Refused, match="but not 65534 or 65535"):
            change(tx, "bob", uid=number)
    with pytest.raises(Refused, match="primary group of ann"):
        change(tx, "bob", gid=1500)
    physics = groups.create(tx, "physics", gid=7000, now=NOW)
    assert change(tx, "bob", gid=7000).gid == physics.gid == 7000
    assert change(tx, "bob", uid=1600).gid == 7000  # not a group of its own: it stays
    with pytest.raises(Refused, match="given to user ann"):
        groups.change(tx, "physics", {"gid": 1500}, now=NOW)
    assert groups.change(tx, "physics", {"gid": 7001}, now=NOW).value.gid == 7001


def test_a_range_that_is_used_up_is_refused_and_gaps_are_used_before(tx: Tx) -> None:
    user(tx, "last", uid=3002)
    names = [user(tx, name, posix=SMALL).uid for name in ("ann", "bob")]
    assert names == [3000, 3001]
    with pytest.raises(Refused, match="all numbers from 3000 to 3002 are given"):
        user(tx, "carl", posix=SMALL)


def test_numbers_of_nobody_are_left_out(tx: Tx) -> None:
    over = PosixRules(first_uid=65_533, last_uid=65_537)
    assert [user(tx, name, posix=over).uid for name in ("a", "b", "c")] == [65_533, 65_536, 65_537]
    with pytest.raises(Refused, match="are given"):
        user(tx, "d", posix=over)


def test_invited_people_get_numbers_of_the_sites_range(tx: Tx) -> None:
    tx.execute(
        insert(t.invitations).values(digest="d", invited_by="x", created_at=NOW, expires_at=NOW + 9)
    )
    made = invitations.accept(
        tx, digest="d", name="ann", password="h", address="", posix=SMALL, now=NOW
    )
    assert made.uid == 3000


def from_directory(tx: Tx, name: str, uid: int | None, gid: int | None = None) -> User:
    identity = Identity(f"ldap:{name}", "ldap", name, uid=uid, gid=gid)
    return signin.vouched(tx, identity=identity, create=True, address="", now=NOW)


def test_the_directorys_numbers_are_taken_and_followed(tx: Tx) -> None:
    ann = from_directory(tx, "ann", 5001, 5000)
    bob = from_directory(tx, "bob", 5002, 5000)
    assert (ann.uid, ann.gid, bob.uid, bob.gid) == (5001, 5000, 5002, 5000)
    assert from_directory(tx, "ann", 5003, 5000).uid == 5003
    none = from_directory(tx, "carl", None)
    assert none.uid == none.gid == 20_002
    # the site gives the shared group a name
    assert groups.create(tx, "staff", gid=5000, now=NOW).gid == 5000


def test_a_number_of_somebody_else_or_of_the_system_is_not_taken_from_the_directory(tx: Tx) -> None:
    ann = user(tx, "ann")
    other = from_directory(tx, "eve", ann.uid)
    assert other.uid not in (ann.uid, None)
    assert from_directory(tx, "root2", 0, 0).uid not in (0, None)
    assert rows.named(tx, "ann").uid == ann.uid
    assert tx.execute(t.audit.select().where(t.audit.c.action == "number kept")).all()


def test_a_number_is_unique_in_the_database_too(tx: Tx) -> None:
    assert posix_ids.holder(tx, "uid", 20_000) is None
    user(tx, "ann")
    tx.execute(delete(t.users))
    assert posix_ids.holder(tx, "uid", 20_000) == posix_ids.holder(tx, "gid", 20_000) == "user:ann"
