"""A user who is deleted: what goes with them, what stays, who has to stay."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select

from cod.choices import NoticeMail
from cod.core import notices as core_notices
from cod.flows.people import access, invitations, people, signin, sshkeys, tokens
from cod.model import Identity, Oidc, Refused, Right, Role, SignInRules, User, Who
from cod.policy.people import rights
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.notices import mail_choices, notices
from cod.store.people import audit, groups
from cod.store.people import people as rows

NOW = 1_000_000.0
HERE = "192.0.2.1"
RULES = SignInRules()
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f ann@host"


@pytest.fixture
def ann(tx: Tx) -> User:
    """An owner of a group, with one of everything that somebody can have."""
    user = people.create(tx, "ann", full_name="Ann Example", email="ann@example.org", now=NOW)
    groups.add(tx, "physics", NOW)
    people.set_role(tx, group="physics", user="ann", role=Role.OWNER)
    who = me(user)
    signin.begin(
        tx, user_id=user.id, address=HERE, browser="Browser", cookie="c", rules=RULES, now=NOW
    )
    tokens.make(tx, who=who, name="ci", token="cod_ann", now=NOW)
    sshkeys.add(tx, who=who, line=KEY, now=NOW)
    invitations.renew(tx, digest="reset", user="ann", rules=RULES, who="user:root", now=NOW)
    invitations.invite(
        tx, digest="given", group="physics", role="member", rules=RULES, who="token:ci@ann", now=NOW
    )
    people.create(tx, "bob", now=NOW)
    told = {"kind": "test", "subject": "s", "about": "a", "group_id": None, "now": NOW}
    notice_id = core_notices.add(tx, **told).id
    notices.mark_read(tx, user.id, [notice_id])
    mail_choices.put(tx, user.id, {"test": NoticeMail.DAILY}, NOW)
    mail_choices.collect(tx, notice_id, [user.id])
    return user


def me(user: User) -> Who:
    return Who(f"user:{user.name}", user_id=user.id)


def second_owner(tx: Tx) -> None:
    people.set_role(tx, group="physics", user="bob", role=Role.OWNER)


def left(tx: Tx, user_id: int) -> dict[str, int]:
    """How many rows of each table refer to the user: of all tables that can, so that a new one is
    not forgotten."""
    columns = [
        key.parent
        for table in t.metadata.sorted_tables
        for key in table.foreign_keys
        if key.column is t.users.c.id
    ]
    assert len(columns) >= 5
    return {
        column.table.name: tx.scalar(select(func.count()).where(column == user_id)) or 0
        for column in columns
    }


def test_all_that_is_theirs_goes(tx: Tx, ann: User) -> None:
    assert all(left(tx, ann.id).values()), "they have something of everything"
    second_owner(tx)
    people.delete(tx, "ann")
    assert set(left(tx, ann.id).values()) == {0}
    assert rows.by_name(tx, "ann") is None
    assert access.session(tx, cookie="c", address=HERE, rules=RULES, now=NOW) is None
    assert access.caller(tx, "cod_ann", HERE, NOW) is None
    assert invitations.every(tx, None, NOW) == [], "links that they gave away work no more"
    with pytest.raises(Refused, match="no more"):
        access.current(tx, me(ann))
    with pytest.raises(Refused, match="no user 'ann'"):
        people.delete(tx, "ann")


def test_of_others_nothing_goes(tx: Tx, ann: User) -> None:
    second_owner(tx)
    bob = people.one(tx, "bob")[0]
    tokens.make(tx, who=me(bob), name="ci", token="cod_bob", now=NOW)
    invitations.invite(
        tx, digest="bobs", group="physics", role="member", rules=RULES, who="user:bob", now=NOW
    )
    people.delete(tx, "ann")
    assert access.caller(tx, "cod_bob", HERE, NOW) is not None
    assert [each.invited_by for each in invitations.every(tx, None, NOW)] == ["user:bob"]
    assert people.members(tx, "physics")[0].user == "bob"


def test_a_groups_last_owner_stays(tx: Tx, ann: User) -> None:
    with pytest.raises(
        Refused, match="last owner of physics: make somebody else an owner first"
    ) as refused:
        people.delete(tx, "ann")
    assert (refused.value.code, rows.by_name(tx, "ann") is None) == ("conflict", False)
    people.set_role(tx, group="physics", user="bob", role=Role.MEMBER)
    with pytest.raises(Refused, match="last owner"):
        people.delete(tx, "ann")
    second_owner(tx)
    people.delete(tx, "ann")


def test_an_owner_who_may_not_sign_in_is_no_loss(tx: Tx, ann: User) -> None:
    people.change(tx, "ann", {"disabled": True}, now=NOW)
    people.delete(tx, "ann")


def test_the_last_administrator_stays(tx: Tx, ann: User) -> None:
    second_owner(tx)
    people.change(tx, "ann", {"admin": True}, now=NOW)
    with pytest.raises(Refused, match="last administrator"):
        people.delete(tx, "ann")
    people.change(tx, "bob", {"admin": True}, now=NOW)
    people.delete(tx, "ann")
    with pytest.raises(Refused, match="last administrator"):
        people.delete(tx, "bob")


# ---------------------------------------------------------------- who is absent from their
# directory


def test_who_is_absent_counts_as_little_as_who_is_disabled(tx: Tx, ann: User) -> None:
    second_owner(tx)
    for name in ("ann", "bob"):
        people.change(tx, name, {"admin": True}, now=NOW)
    rows.change(tx, ann.id, absent_at=NOW)
    assert access.caller(tx, "cod_ann", HERE, NOW) is None
    assert access.session(tx, cookie="c", address=HERE, rules=RULES, now=NOW) is None
    assert sshkeys.of_group(tx, group="physics") == []
    with pytest.raises(Refused, match="last administrator"):
        people.change(tx, "bob", {"admin": False}, now=NOW)
    with pytest.raises(Refused, match="last owner"):
        people.remove(tx, group="physics", user="bob")
    people.delete(tx, "ann")


def test_whom_the_directory_vouches_for_is_there_again(tx: Tx) -> None:
    identity = Identity("ldap:1", "ldap", "eve")
    eve = signin.vouched(tx, identity=identity, create=True, address=HERE, now=NOW)
    rows.change(tx, eve.id, absent_at=NOW)
    assert signin.vouched(tx, identity=identity, create=True, address=HERE, now=NOW).able
    assert people.one(tx, "eve")[0].absent_at is None


# ---------------------------------------------------------------- who comes in by OpenID Connect,
# which cannot be asked


@pytest.fixture
def eve(tx: Tx) -> User:
    user = signin.vouched(
        tx, identity=Identity("oidc:1", "oidc", "eve"), create=True, address=HERE, now=NOW
    )
    tokens.make(tx, who=me(user), name="ci", token="cod_eve", now=NOW)
    return user


def come(tx: Tx, user: User, rules: SignInRules, now: float) -> float:
    cookie = f"{user.name} {now}"
    return signin.begin(
        tx, user_id=user.id, address=HERE, browser="", cookie=cookie, rules=rules, now=now
    ).expires_at


def test_their_sessions_are_shorter(tx: Tx, eve: User, ann: User) -> None:
    rules = SignInRules(life=5000.0, oidc=Oidc(life=300.0))
    assert (come(tx, eve, rules, NOW), come(tx, ann, rules, NOW)) == (NOW + 300.0, NOW + 5000.0)
    assert come(tx, eve, SignInRules(life=100.0, oidc=Oidc(life=300.0)), NOW + 1.0) == NOW + 101.0


def test_their_tokens_wait_for_the_next_sign_in(tx: Tx, eve: User) -> None:
    rules = SignInRules(oidc=Oidc(tokens=1000.0))

    def works(now: float, rules: SignInRules = rules) -> bool:
        return access.caller(tx, "cod_eve", HERE, now, rules) is not None

    assert (works(NOW + 1000.0), works(NOW + 1001.0)) == (
        True,
        False,
    ), "from when the account was made"
    come(tx, eve, rules, NOW + 5000.0)
    assert (works(NOW + 6000.0), works(NOW + 6001.0)) == (True, False)
    assert works(NOW + 1e9, SignInRules(oidc=Oidc(tokens=0.0))), "the site may want that"


def test_other_peoples_tokens_do_not_wait(tx: Tx, ann: User) -> None:
    assert access.caller(tx, "cod_ann", HERE, NOW + 1e9, RULES) is not None


def test_a_question_that_is_under_way_is_not_the_next_users(tx: Tx) -> None:
    """An upload takes hours; SQLite gives the id of the newest user to the next one when that is
    deleted."""
    eve = people.create(tx, "eve", now=NOW)
    who = rights.person(eve, {}, {})
    assert access.current(tx, who) == who
    people.delete(tx, "eve")
    people.create(tx, "dan", admin=True, now=NOW + 1)
    if tx.dialect.name == "sqlite":
        assert people.one(tx, "dan")[0].id == eve.id
    with pytest.raises(Refused, match="no more"):
        access.current(tx, who)


# ---------------------------------------------------------------- the name


def deleted(tx: Tx) -> None:
    second_owner(tx)
    audit.add(tx, actor="user:root", action="user delete", thing="ann", now=NOW)
    people.delete(tx, "ann")


def test_nobody_takes_the_name_of_somebody_who_is_gone(tx: Tx, ann: User) -> None:
    """What the audit says of ann was not done by whoever comes by a link, or from a directory, and
    is called so."""
    deleted(tx)
    invitations.invite(tx, digest="link", rules=RULES, who="user:bob", now=NOW)
    with pytest.raises(Refused, match="is or was a user 'ann'"):
        invitations.accept(tx, digest="link", name="ann", password="hash", address=HERE, now=NOW)
    came = signin.vouched(
        tx, identity=Identity("ldap:1", "ldap", "ann"), create=True, address=HERE, now=NOW
    )
    assert came.name == "ann2"


def test_an_administrator_may_give_it_again(tx: Tx, ann: User) -> None:
    deleted(tx)
    again = people.create(tx, "ann", now=NOW)
    assert people.one(tx, "ann") == (again, [])
    assert (
        access.allows(tx, me(again), access.RequiredRight(Right.SEE, "group", "physics")) is False
    )
