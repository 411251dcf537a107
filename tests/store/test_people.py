"""Users, members, sign-in, sessions, links and tokens: what the flows write and refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cod.flows.people import access, invitations, people, signin, tokens
from cod.model import Group, Identity, Refused, Role, SignInRules, SlowDown, User, Who
from cod.policy.people import signin as signin_policy
from cod.store.engine import Tx
from cod.store.nodes import failures
from cod.store.people import audit, groups, signins
from cod.store.people import people as rows
from tests.store.manager_world import add_node

NOW = 1_000_000.0
HERE = "192.0.2.1"
RULES = SignInRules(idle=1000.0, life=5000.0, invitation=600.0)


@pytest.fixture
def physics(tx: Tx) -> Group:
    return groups.add(tx, "physics", NOW)


@pytest.fixture
def ann(tx: Tx) -> User:
    return people.create(tx, "ann", full_name="Ann Example", email="ann@example.org", now=NOW)


def refusal(call: Callable[..., Any], *args: Any, **named: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        call(*args, **named)
    return caught.value


def begin(tx: Tx, user: User, cookie: str = "c", now: float = NOW) -> None:
    signin.right(tx, user_id=user.id, name=user.name, address=HERE, now=now)
    signin.begin(
        tx, user_id=user.id, address=HERE, browser="Browser", cookie=cookie, rules=RULES, now=now
    )


def me(user: User) -> Who:
    return Who(f"user:{user.name}", user_id=user.id)


def asks(tx: Tx, cookie: str = "c", now: float = NOW) -> Who | None:
    found = access.session(tx, cookie=cookie, address=HERE, rules=RULES, now=now)
    return found.who if found else None


# ---------------------------------------------------------------- users and members


@pytest.mark.parametrize("written", ["ANN", "ann ", "\N{LATIN SMALL LETTER A WITH ACUTE}nn"])
def test_nobody_is_somebody_whose_name_is_like_theirs(tx: Tx, ann: User, written: str) -> None:
    rows.change(tx, ann.id, password="hash")
    assert signin.attempt(tx, name=written, address=HERE, now=NOW) == signin.Attempt(None, "")


def test_directories_tell_capitals_apart(tx: Tx) -> None:
    made = {
        signin.vouched(
            tx,
            identity=Identity(f"oidc:{subject}", "oidc", "eve"),
            create=True,
            address=HERE,
            now=NOW,
        ).name
        for subject in ("Ab", "aB", "x" * 255)
    }
    assert made == {"eve", "eve2", "eve3"}


def test_a_new_user_can_do_nothing_yet(tx: Tx, ann: User) -> None:
    assert (ann.admin, ann.disabled_at, ann.directory) == (False, None, "")
    assert people.one(tx, "ann") == (ann, [])
    tried = signin.attempt(tx, name="ann", address=HERE, now=NOW)
    assert tried.hash == ""
    assert refusal(people.create, tx, "ann", now=NOW).code == "conflict"
    assert refusal(people.create, tx, "Ann", now=NOW).code == "invalid"
    assert refusal(people.create, tx, "bob", email="no address", now=NOW).field == "email"


def test_an_administrator_stays(tx: Tx, ann: User) -> None:
    people.change(tx, "ann", {"admin": True}, now=NOW)
    assert (
        "last administrator"
        in refusal(people.change, tx, "ann", {"admin": False}, now=NOW).sentence
    )
    assert refusal(people.change, tx, "ann", {"disabled": True}, now=NOW).code == "conflict"
    people.create(tx, "bob", admin=True, now=NOW)
    assert people.change(tx, "ann", {"admin": False}, now=NOW)[0].admin is False


def test_a_group_keeps_an_owner(tx: Tx, physics: Group, ann: User) -> None:
    people.create(tx, "bob", now=NOW)
    people.set_role(tx, group="physics", user="ann", role="owner")
    assert (
        "last owner"
        in refusal(people.set_role, tx, group="physics", user="ann", role="member").sentence
    )
    assert refusal(people.remove, tx, group="physics", user="ann").code == "conflict"
    made = people.set_role(tx, group="physics", user="bob", role="owner")
    assert (made.user, made.role) == ("bob", Role.OWNER)
    people.set_role(tx, group="physics", user="ann", role="viewer")
    people.remove(tx, group="physics", user="ann")
    assert [each.user for each in people.members(tx, "physics")] == ["bob"]
    people.remove(tx, group="physics", user="bob", force=True)
    assert refusal(people.remove, tx, group="physics", user="bob").code == "not_found"


def test_an_owner_who_is_disabled_does_not_count(tx: Tx, physics: Group, ann: User) -> None:
    people.create(tx, "bob", now=NOW)
    for name in ("ann", "bob"):
        people.set_role(tx, group="physics", user=name, role="owner")
    people.change(tx, "ann", {"disabled": True}, now=NOW)
    assert refusal(people.remove, tx, group="physics", user="bob").code == "conflict"
    people.remove(tx, group="physics", user="ann")


def test_users_are_listed_to_whom_they_share_a_group_with(
    tx: Tx, physics: Group, ann: User
) -> None:
    people.create(tx, "bob", now=NOW)
    people.set_role(tx, group="physics", user="ann", role="viewer")
    assert [user.name for user in people.every(tx)] == ["ann", "bob"]
    assert [user.name for user in people.every(tx, frozenset({physics.id}))] == ["ann"]
    assert people.every(tx, frozenset()) == []


# ---------------------------------------------------------------- sessions


def test_a_session_says_who_asks_with_the_roles_of_now(tx: Tx, physics: Group, ann: User) -> None:
    begin(tx, ann)
    (session,) = signin.every(tx, who=me(ann), rules=RULES, now=NOW)
    assert asks(tx) == Who("user:ann", user_id=ann.id, address=HERE, session=session.id)
    people.set_role(tx, group="physics", user="ann", role="member")
    who = asks(tx)
    assert who is not None
    assert who.roles == {physics.id: Role.MEMBER}
    assert asks(tx, "other") is None


def test_a_session_ends_idle_or_old(tx: Tx, ann: User) -> None:
    begin(tx, ann)
    assert asks(tx, now=NOW + 999) is not None
    assert asks(tx, now=NOW + 1000) is None
    found = signin.every(tx, who=me(ann), rules=RULES, now=NOW)[0]
    for minute in range(1, 90):
        signin.seen(tx, found.id, NOW + 60 * minute)
    assert asks(tx, now=NOW + 4999) is not None
    assert asks(tx, now=NOW + 5000) is None


def test_use_is_noted_once_a_minute(tx: Tx, ann: User) -> None:
    begin(tx, ann)
    for later, stale in ((0, False), (59, False), (60, True)):
        found = access.session(tx, cookie="c", address=HERE, rules=RULES, now=NOW + later)
        assert found is not None
        assert found.stale == stale


def test_who_is_disabled_is_out_at_once(tx: Tx, ann: User) -> None:
    begin(tx, ann)
    tokens.make(tx, who=Who("user:ann", user_id=ann.id), name="laptop", token="cod_t", now=NOW)
    people.change(tx, "ann", {"disabled": True}, now=NOW)
    assert asks(tx) is None
    assert access.caller(tx, "cod_t", HERE, NOW) is None
    assert refusal(begin, tx, ann, "d").code == "unauthorised"
    people.change(tx, "ann", {"disabled": False}, now=NOW)
    assert asks(tx) is None  # and the session does not rise again
    assert access.caller(tx, "cod_t", HERE, NOW) is not None


def test_a_session_that_was_left_over_is_worth_nothing_to_who_is_disabled(
    tx: Tx, ann: User
) -> None:
    begin(tx, ann)
    rows.change(tx, ann.id, disabled_at=NOW)
    assert asks(tx) is None
    rows.change(tx, ann.id, disabled_at=None)
    assert asks(tx) is not None


def test_sessions_are_listed_and_ended_by_their_own_user(tx: Tx, ann: User) -> None:
    bob = people.create(tx, "bob", now=NOW)
    for cookie in ("c", "d"):
        begin(tx, ann, cookie)
    mine = signin.every(tx, who=me(ann), rules=RULES, now=NOW)
    assert [each.browser for each in mine] == ["Browser", "Browser"]
    assert refusal(signin.end, tx, who=me(bob), session_id=mine[0].id).code == "not_found"
    signin.end(tx, who=me(ann), session_id=mine[0].id)
    assert (asks(tx, "c") is None, asks(tx, "d") is None) == (False, True)
    signin.sign_out(tx, cookie="c", address=HERE, now=NOW)
    assert asks(tx, "c") is None
    begin(tx, ann, "e")
    assert people.end_sessions(tx, "ann") == 1


def test_what_is_over_is_swept_with_the_next_sign_in(tx: Tx, ann: User) -> None:
    begin(tx, ann)
    begin(tx, ann, "d", NOW + 5001)
    assert [each.created_at for each in signin.every(tx, who=me(ann), rules=RULES, now=NOW)] == [
        NOW + 5001
    ]


# ---------------------------------------------------------------- attempts


def test_attempts_are_counted_before_they_are_verified(tx: Tx, ann: User) -> None:
    signin.attempt(tx, name="ann", address=HERE, now=NOW)
    with pytest.raises(SlowDown) as slow:
        signin.attempt(tx, name="ann", address=HERE, now=NOW + 0.5)
    assert slow.value.seconds == 1
    signin.attempt(tx, name="ann", address=HERE, now=NOW + 1)
    begin(tx, ann, now=NOW + 1)
    signin.attempt(tx, name="ann", address=HERE, now=NOW + 1)


def test_unknown_names_are_slowed_alike(tx: Tx) -> None:
    assert signin.attempt(tx, name="nobody", address=HERE, now=NOW).user is None
    assert refusal(signin.attempt, tx, name="nobody", address=HERE, now=NOW).code == "slow_down"


def test_a_place_is_known_once_somebody_got_in_there(tx: Tx, ann: User) -> None:
    signin.attempt(tx, name="ann", address=HERE, now=NOW)
    begin(tx, ann)
    for number in range(8):
        signin.attempt(tx, name="ann", address=f"203.0.113.{number}", now=NOW + 2**number)
    now = NOW + 2**7
    assert (
        refusal(signin.attempt, tx, name="ann", address="203.0.113.99", now=now).code == "slow_down"
    )
    signin.attempt(tx, name="ann", address=HERE, now=now)


def test_failures_are_put_down_without_what_may_be_a_password(tx: Tx, ann: User) -> None:
    for name in ("ann", "hunter2 hunter2"):
        signin.failed(tx, name=name, address=HERE, now=NOW)
    assert [(row.actor, row.action, row.thing, row.address) for row in audit.every(tx)] == [
        ("nobody", "sign-in failed", "", HERE),
        ("user:ann", "sign-in failed", "ann", HERE),
    ]


# ---------------------------------------------------------------- links


def link(tx: Tx, **named: Any) -> None:
    invitations.invite(tx, digest="d", rules=RULES, who="user:root", now=NOW, **named)


def accept(tx: Tx, name: str = "bob", now: float = NOW) -> User:
    return invitations.accept(tx, digest="d", name=name, password="hash", address=HERE, now=now)


def test_a_link_makes_an_account_in_a_group_once(tx: Tx, physics: Group) -> None:
    link(tx, group="physics", role="member", email="bob@example.org")
    bob = accept(tx)
    assert bob.email == "bob@example.org"
    assert [(each.group, each.role) for each in people.one(tx, "bob")[1]] == [
        ("physics", Role.MEMBER)
    ]
    assert refusal(accept, tx, "eve").code == "not_found"
    assert audit.every(tx)[0].group == "physics"


def test_a_link_runs_out_and_can_be_taken_back(tx: Tx, physics: Group) -> None:
    link(tx, group="physics", role="owner")
    assert refusal(accept, tx, now=NOW + 600).code == "not_found"
    found = invitations.every(tx, frozenset({physics.id}), NOW)[0]
    assert invitations.every(tx, frozenset({physics.id + 1}), NOW) == []
    invitations.revoke(tx, found.id)
    assert refusal(accept, tx).code == "not_found"
    assert refusal(invitations.revoke, tx, found.id).code == "not_found"


def test_a_link_cannot_take_somebodys_name(tx: Tx, ann: User) -> None:
    link(tx)
    assert refusal(accept, tx, "ann").field == "name"


def test_who_has_an_account_joins_by_a_link_and_loses_no_rank(
    tx: Tx, physics: Group, ann: User
) -> None:
    people.set_role(tx, group="physics", user="ann", role="owner")
    link(tx, group="physics", role="viewer")
    invitations.join(tx, digest="d", who=Who("user:ann", user_id=ann.id), now=NOW)
    assert people.one(tx, "ann")[1][0].role is Role.OWNER


def test_a_new_password_signs_out_everywhere_and_spends_earlier_links(tx: Tx, ann: User) -> None:
    begin(tx, ann)
    for digest in ("old", "d"):
        invitations.renew(tx, digest=digest, user="ann", rules=RULES, who="user:root", now=NOW)
    assert refusal(invitations.look, tx, digest="old", now=NOW).code == "not_found"
    assert (
        refusal(invitations.join, tx, digest="d", who=Who("user:ann", user_id=ann.id), now=NOW).code
        == "conflict"
    )


def test_a_link_for_a_password_sets_it(tx: Tx, ann: User) -> None:
    begin(tx, ann)
    invitations.renew(tx, digest="d", user="ann", rules=RULES, who="user:root", now=NOW)
    assert accept(tx, "ignored").name == "ann"
    assert signin.attempt(tx, name="ann", address=HERE, now=NOW).hash == "hash"
    assert asks(tx) is None


# ---------------------------------------------------------------- directories


def vouched(
    tx: Tx, subject: str = "oidc:1", name: str = "Bob.Baker@example.org", create: bool = True
) -> int:
    identity = Identity(subject, "oidc", name, "Bob Baker", "bob@example.org")
    return signin.vouched(tx, identity=identity, create=create, address=HERE, now=NOW).id


def test_whom_a_directory_vouches_for_gets_an_account_once(tx: Tx) -> None:
    assert refusal(vouched, tx, create=False).code == "unauthorised"
    made = vouched(tx)
    assert vouched(tx, name="renamed", create=False) == made
    user, groups_ = people.one(tx, "bob.baker")
    assert (user.id, user.email, user.full_name, groups_) == (
        made,
        "bob@example.org",
        "Bob Baker",
        [],
    )
    # no password is theirs here
    assert signin.attempt(tx, name="bob.baker", address=HERE, now=NOW).hash == ""
    people.change(tx, "bob.baker", {"disabled": True}, now=NOW)
    assert refusal(vouched, tx).code == "unauthorised"


def test_nobody_gets_at_an_account_by_being_called_the_same_elsewhere(tx: Tx, ann: User) -> None:
    assert vouched(tx, name="ann") != ann.id
    assert vouched(tx, "oidc:2", "ann") != vouched(tx, "oidc:1", "ann")
    assert [user.name for user in people.every(tx)] == ["ann", "ann2", "ann3"]
    for number, name in enumerate(("", "***", "1st", "x" * 99, "Zo\u00eb M\u00fcller")):
        vouched(tx, f"oidc:odd{number}", name)
    assert all(signin_policy.name_like(user.name) == user.name for user in people.every(tx))


# ---------------------------------------------------------------- tokens of users


def test_a_token_may_what_its_user_may_in_its_group(tx: Tx, physics: Group, ann: User) -> None:
    other = groups.add(tx, "chemistry", NOW)
    for group in ("physics", "chemistry"):
        people.set_role(tx, group=group, user="ann", role="member")
    who = Who("user:ann", user_id=ann.id, roles={physics.id: Role.MEMBER, other.id: Role.MEMBER})
    tokens.make(tx, who=who, name="all", token="cod_all", now=NOW)
    tokens.make(
        tx,
        who=who,
        name="one",
        token="cod_one",
        scope="read",
        group="physics",
        lifetime=60,
        now=NOW,
    )
    one = access.caller(tx, "cod_one", HERE, NOW)
    assert one == Who(
        "token:one@ann", False, False, ann.id, {physics.id: Role.MEMBER}, HERE, only=physics.id
    )
    everything = access.caller(tx, "cod_all", HERE, NOW)
    assert everything is not None
    assert everything.writes
    assert everything.groups == {physics.id, other.id}
    people.remove(tx, group="physics", user="ann", force=True)
    shrunk = access.caller(tx, "cod_one", HERE, NOW)
    assert shrunk is not None
    assert shrunk.groups == frozenset()
    assert access.caller(tx, "cod_one", HERE, NOW + 60) is None


def test_an_administrators_token_for_one_group_is_no_administrator(tx: Tx, physics: Group) -> None:
    root = people.create(tx, "root", admin=True, now=NOW)
    tokens.make(
        tx,
        who=Who("user:root", admin=True, user_id=root.id),
        name="p",
        token="cod_p",
        group="physics",
        now=NOW,
    )
    who = access.caller(tx, "cod_p", HERE, NOW)
    assert who is not None
    assert (who.admin, who.roles) == (False, {physics.id: Role.OWNER})
    assert refusal(tokens.make, tx, who=who, name="q", token="cod_q", now=NOW).code == "forbidden"


def test_tokens_are_their_users_own(tx: Tx, physics: Group, ann: User) -> None:
    bob = people.create(tx, "bob", now=NOW)
    mine, his = Who("user:ann", user_id=ann.id), Who("user:bob", user_id=bob.id)
    tokens.make(tx, who=mine, name="laptop", token="cod_1", now=NOW)
    tokens.make(tx, who=his, name="laptop", token="cod_2", now=NOW)
    assert [each.name for each, _ in tokens.mine(tx, mine)] == ["laptop@ann"]
    assert refusal(tokens.drop, tx, who=mine, name="laptop@bob").code == "not_found"
    tokens.drop(tx, who=mine, name="laptop")
    assert [each.name for each, _ in tokens.mine(tx, his)] == ["laptop@bob"]
    assert (
        refusal(tokens.make, tx, who=mine, name="x", token="t", group="physics", now=NOW).code
        == "not_found"
    )
    assert refusal(tokens.make, tx, who=mine, name="a@b", token="t", now=NOW).code == "invalid"
    assert refusal(tokens.create, tx, "x@ann", "t", "admin", None, NOW).code == "invalid"
    assert (
        refusal(tokens.make, tx, who=Who("token:ci", admin=True), name="x", token="t", now=NOW).code
        == "conflict"
    )
    assert tokens.every(tx) == []


def test_a_group_takes_its_links_and_tokens_with_it(tx: Tx, physics: Group, ann: User) -> None:
    people.set_role(tx, group="physics", user="ann", role="owner")
    link(tx, group="physics", role="viewer")
    tokens.make(
        tx,
        who=Who("user:ann", user_id=ann.id, roles={physics.id: Role.OWNER}),
        name="p",
        token="cod_p",
        group="physics",
        now=NOW,
    )
    node = add_node(tx, 1)
    failures.add(
        tx,
        node_id=node.id,
        template_id=None,
        group_id=physics.id,
        set_aside=True,
        reason="lost",
        now=NOW,
    )
    groups.remove(tx, physics.id, groups.ensure(tx, groups.SITE, NOW).id)
    assert failures.set_aside_by(tx, physics.id, but=0) == 0
    assert access.caller(tx, "cod_p", HERE, NOW) is None
    assert invitations.every(tx, None, NOW) == []


# ---------------------------------------------------------------- links of those who may give none
# any more


LINKS = {
    "theirs": "user:ann",
    "their-token-s": "token:ci@ann",
    "another-s": "user:joann",
    "a-token-s": "token:ann",
}


def _open(tx: Tx, group: str | None = "physics") -> set[str]:
    for digest, who in LINKS.items():
        invitations.invite(
            tx,
            digest=f"{digest} {group}",
            group=group,
            role="owner" if group else "",
            rules=RULES,
            who=who,
            now=NOW,
        )
    return _left(tx)


def _left(tx: Tx) -> set[str]:
    return {each.invited_by for each in invitations.every(tx, None, NOW)}


@pytest.mark.parametrize(
    "leaves",
    [
        lambda tx: people.remove(tx, group="physics", user="ann", force=True),
        lambda tx: people.set_role(tx, group="physics", user="ann", role="member", force=True),
        lambda tx: people.change(tx, "ann", {"disabled": True}, now=NOW),
    ],
)
def test_who_is_no_owner_any_more_comes_back_by_no_link_of_their_own(
    tx: Tx, ann: User, physics: Group, leaves: Callable[[Tx], object]
) -> None:
    people.set_role(tx, group="physics", user="ann", role="owner")
    assert _open(tx) == set(LINKS.values())
    leaves(tx)
    assert _left(tx) == {"user:joann", "token:ann"}


def test_who_is_no_administrator_any_more_keeps_the_links_into_what_is_theirs(
    tx: Tx, ann: User, physics: Group
) -> None:
    people.create(tx, "bob", admin=True, now=NOW)
    people.change(tx, "ann", {"admin": True}, now=NOW)
    people.set_role(tx, group="physics", user="ann", role="owner")
    groups.add(tx, "chemistry", NOW)
    for group in ("physics", "chemistry", None):
        _open(tx, group)
    people.set_role(tx, group="physics", user="ann", role="owner")
    people.change(tx, "ann", {"admin": False}, now=NOW)
    kept = {
        each.group for each in invitations.every(tx, None, NOW) if each.invited_by == "user:ann"
    }
    assert kept == {"physics"}
    assert _left(tx) == set(LINKS.values())


def test_a_directory_s_password_is_changed_there(tx: Tx) -> None:
    user = signin.vouched(
        tx, identity=Identity("ldap:1", "ldap", "eve"), create=True, address=HERE, now=NOW
    )
    no = refusal(people.set_password, tx, who=me(user), password="hash", but=None, now=NOW)
    assert (no.code, rows.password(tx, user.id)) == ("conflict", "")


def test_a_place_is_known_for_its_time_whoever_signs_in_meanwhile(tx: Tx, ann: User) -> None:
    """Guesses elsewhere shall not keep a user out who has signed in here before."""
    begin(tx, ann)
    key, bob = signin_policy.keys("ann", HERE).known, people.create(tx, "bob", now=NOW)
    for passed, known in (
        (signin_policy.FORGOTTEN_AFTER + 1, True),
        (signin_policy.KNOWN_FOR - 1, True),
        (signin_policy.KNOWN_FOR + 1, False),
    ):
        begin(tx, bob, cookie=f"after {passed}", now=NOW + passed)
        assert signins.is_known(tx, key, 0.0) == known
