"""Roles, keys and accounts that come from the LDAP directory, with a real slapd on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred

from cod.flows.people import people, sshkeys
from cod.model import Ldap, LdapGroup, Refused, Role, SignInRules, Who
from cod.store.notices import notices
from cod.store.people import audit, groups, signins
from cod.store.people import people as rows
from tests.net import slapd
from tests.net.test_departures import EVE, PASSWORDS, Here, directory, here, root, rules

ldap = pytest.importorskip(
    "ldap", reason="python-ldap, the extra `ldap`, is built from source: make ldap"
)
__all__ = ["directory", "here", "root", "rules"]  # fixtures

BOB, CAROL = (f"uid={name},ou=people,{slapd.BASE}" for name in ("bob", "carol"))
STAFF, ADMINS = (f"cn={name},ou=groups,{slapd.BASE}" for name in ("staff", "admins"))
KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f of carol"
OTHER_KEY = (
    b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB8eHRwbGhkYFxYVFBMSERAPDg0MCwoJCAcGBQQDAgEA another"
)
ACCOUNT = [
    ("objectClass", [b"inetOrgPerson", b"posixAccount", b"ldapPublicKey"]),
    ("uid", [b"carol"]),
    ("cn", [b"Carol Clark"]),
    ("sn", [b"Clark"]),
    ("mail", [b"carol@example.org"]),
    ("uidNumber", [b"31001"]),
    ("gidNumber", [b"31999"]),
    ("loginShell", [b"/usr/bin/zsh"]),
    ("homeDirectory", [b"/export/carol"]),
    ("sshPublicKey", [KEY, b"no key at all"]),
    ("userPassword", [b"two grey whales"]),
]


@pytest.fixture
def groups_there(root: Any) -> Iterator[Any]:
    """A connection that may change the directory, with Carol, and a group whose member she is."""
    _remove(root, CAROL, STAFF, ADMINS, f"cn=clerks,ou=groups,{slapd.BASE}")
    root.add_s(CAROL, ACCOUNT)
    root.add_s(
        f"cn=clerks,ou=groups,{slapd.BASE}",
        [("objectClass", [b"posixGroup"]), ("cn", [b"clerks"]), ("gidNumber", [b"31999"])],
    )
    root.add_s(
        STAFF,
        [
            ("objectClass", [b"groupOfNames"]),
            ("cn", [b"staff"]),
            ("member", [BOB.encode(), EVE.encode(), CAROL.encode()]),
        ],
    )
    root.add_s(
        ADMINS,
        [
            ("objectClass", [b"posixGroup"]),
            ("cn", [b"admins"]),
            ("gidNumber", [b"32000"]),
            ("memberUid", [b"carol"]),
        ],
    )
    yield root
    _remove(root, CAROL, STAFF, ADMINS, f"cn=clerks,ou=groups,{slapd.BASE}")


def _remove(root: Any, *names: str) -> None:
    for name in names:
        with suppress(ldap.NO_SUCH_OBJECT):
            root.delete_s(name)


class Ruled:
    """A site whose directory's groups give roles in the group `staff`."""

    def __init__(self, here: Here, rules: Ldap, in_reactor: Callable[..., Any]) -> None:
        self._here, self._in_reactor = here, in_reactor
        self.tx, self.look = here.tx, here.look
        given = (LdapGroup(STAFF, "member", "staff"), LdapGroup(ADMINS, "administrator"))
        self.rule(replace(rules, groups=given, group_base=f"ou=groups,{slapd.BASE}"))
        here.tx(groups.ensure, "staff", here.now)

    def rule(self, rules: Ldap) -> None:
        self.rules = rules
        object.__setattr__(self._here.site, "signin", SignInRules(ldap=rules))

    def sign_in(self, name: str, password: str) -> None:
        door = self._here.door
        self._in_reactor(lambda: ensureDeferred(door.sign_in(name, password, address="192.0.2.1")))
        self._here.now += 1.0

    def sync(self, who: Who, *names: str, trust: bool = False) -> Any:
        door = self._here.door
        self._here.now += 1.0
        return self._in_reactor(lambda: ensureDeferred(door.follow(who, names, trust=trust)))

    def roles(self) -> dict[str, tuple[Role, bool]]:
        return {one.user: (one.role, one.given) for one in self.tx(people.members, group="staff")}

    def told(self) -> list[str]:
        return [
            one.kind
            for one in self.tx(notices.of_site, ("directory-held", "directory-normal"), 0.0)
        ]


@pytest.fixture
def ruled(here: Here, rules: Ldap, groups_there: Any, in_reactor: Callable[..., Any]) -> Ruled:
    return Ruled(here, rules, in_reactor)


GIVEN = (Role.MEMBER, True)
ROOT = Who("user:root", admin=True, local=True)


def test_groups_give_roles_at_sign_in_and_take_them_at_the_next_look(
    ruled: Ruled, root: Any
) -> None:
    ruled.sign_in("carol", "two grey whales")
    carol = ruled.tx(rows.by_name, "carol")
    assert (carol.admin, carol.uid, carol.shell, carol.home) == (True, 31001, "/usr/bin/zsh", "")
    assert (carol.gid, carol.primary_group) == (31999, "clerks")
    assert [key.name for key in ruled.tx(sshkeys.of_user, "carol")] == ["of carol"]
    assert ruled.roles() == {"carol": GIVEN}
    ruled.look()  # and Bob and Eve, who have never signed in, are there
    assert ruled.roles() == {"bob": GIVEN, "carol": GIVEN, "eve": GIVEN}
    root.modify_s(STAFF, [(ldap.MOD_DELETE, "member", [CAROL.encode()])])
    root.modify_s(ADMINS, [(ldap.MOD_DELETE, "memberUid", None)])
    ruled.sign_in("carol", "two grey whales")
    assert ruled.roles()["carol"] == GIVEN, "a sign-in takes nothing"
    ruled.look()
    assert ruled.roles() == {"bob": GIVEN, "eve": GIVEN}
    assert not ruled.tx(rows.by_name, "carol").admin
    assert ("user change", "carol") in {
        (row.action, row.thing) for row in ruled.tx(audit.every) if row.actor == "ldap"
    }


def test_people_exist_before_they_sign_in(ruled: Ruled) -> None:
    ruled.look()
    before = ruled.tx(rows.by_name, "carol")
    assert before.signed_in_at is None
    assert "carol" in [name for name, _ in ruled.tx(sshkeys.of_group, group="staff")]
    ruled.sign_in("carol", "two grey whales")
    assert ruled.tx(rows.by_name, "carol").id == before.id


def test_an_administrator_takes_people_over_by_name(ruled: Ruled, rules: Ldap) -> None:
    ruled.rule(rules)  # no groups
    found = ruled.sync(ROOT, "carol", "nobody", "*")
    assert (found.added, found.missing) == (("carol",), ("nobody", "*"))
    assert ruled.sync(ROOT, "carol").added == ()
    with pytest.raises(Refused, match="only"):
        ruled.sync(Who("user:carol", user_id=1), "eve")


def test_roles_that_somebody_here_gave_stay(ruled: Ruled, root: Any) -> None:
    ruled.look()
    ruled.tx(people.set_role, group="staff", user="eve", role="owner")
    ruled.tx(people.set_role, group="staff", user="bob", role=None, shares=2.0)
    root.modify_s(STAFF, [(ldap.MOD_DELETE, "member", [EVE.encode(), BOB.encode()])])
    ruled.look()
    assert ruled.roles() == {"eve": (Role.OWNER, False), "carol": GIVEN}


def test_a_directory_that_takes_everything_from_everybody_is_not_believed(
    ruled: Ruled, root: Any
) -> None:
    ruled.look()
    before = ruled.roles()
    root.modify_s(STAFF, [(ldap.MOD_REPLACE, "member", [f"cn=x,{slapd.BASE}".encode()])])
    ruled.look()
    ruled.look()
    assert ruled.roles() == before
    assert ruled.told() == ["directory-held"], "it is told once"
    root.modify_s(STAFF, [(ldap.MOD_ADD, "member", [BOB.encode(), EVE.encode()])])
    ruled.look()
    assert ruled.roles() == {"bob": GIVEN, "eve": GIVEN}, "one of three may go"
    assert ruled.told() == ["directory-held", "directory-normal"]
    root.modify_s(STAFF, [(ldap.MOD_REPLACE, "member", [f"cn=x,{slapd.BASE}".encode()])])
    found = ruled.sync(ROOT)
    assert sorted(found.held) == ["bob", "eve"]
    assert ruled.sync(ROOT, trust=True).changed == ("bob", "eve")
    assert ruled.roles() == {}
    assert ruled.told()[-2:] == ["directory-held", "directory-normal"], "trust ends it at once"


def test_a_group_that_is_not_there_takes_nothing(ruled: Ruled, root: Any) -> None:
    ruled.look()
    before = ruled.roles()
    root.delete_s(STAFF)
    ruled.look()
    assert ruled.roles() == before
    ruled.sign_in("eve", PASSWORDS["eve"])
    assert ruled.roles() == before


def test_a_group_whose_name_is_none_keeps_nobody_out(ruled: Ruled) -> None:
    ruled.rule(replace(ruled.rules, groups=(LdapGroup("physics", "member", "staff"),)))
    ruled.sign_in("eve", PASSWORDS["eve"])
    ruled.look()
    assert ruled.roles() == {}


def test_who_has_nothing_here_yet_gets_a_role_at_the_look(ruled: Ruled) -> None:
    rules = ruled.rules
    ruled.rule(replace(rules, groups=()))
    ruled.sign_in("eve", PASSWORDS["eve"])
    ruled.tx(signins.end, ruled.tx(rows.by_name, "eve").id)
    ruled.rule(rules)
    ruled.look()
    assert ruled.roles()["eve"] == GIVEN


def test_members_who_cannot_sign_in_become_no_users(ruled: Ruled, root: Any) -> None:
    """Neither people elsewhere in the directory, who would be absent at the next look, nor groups
    inside the group that have a name as people have it."""
    elsewhere, inner = (f"{one},ou=groups,{slapd.BASE}" for one in ("uid=mallory", "cn=inner"))
    root.add_s(
        elsewhere,
        [("objectClass", [b"inetOrgPerson"]), ("uid", [b"mallory"])]
        + [(name, [b"Mallory"]) for name in ("cn", "sn")],
    )
    root.add_s(
        inner,
        [("objectClass", [b"groupOfNames"]), ("cn", [b"inner"]), ("member", [BOB.encode()])],
    )
    try:
        root.modify_s(STAFF, [(ldap.MOD_ADD, "member", [elsewhere.encode(), inner.encode()])])
        ruled.look()
        assert set(ruled.roles()) == {"bob", "carol", "eve"}
        ruled.rule(replace(ruled.rules, base=slapd.BASE, filter="(cn={name})"))
        ruled.look()
        assert set(ruled.roles()) == {"bob", "carol", "eve", "mallory"}
    finally:
        _remove(root, elsewhere, inner)


def test_a_directory_that_is_named_no_more_has_no_fault(ruled: Ruled, root: Any) -> None:
    ruled.look()
    root.modify_s(STAFF, [(ldap.MOD_REPLACE, "member", [f"cn=x,{slapd.BASE}".encode()])])
    ruled.look()
    assert ruled.told() == ["directory-held"]
    ruled.rule(Ldap())
    ruled.look()
    ruled.look()
    assert ruled.told() == ["directory-held", "directory-normal"]


def test_keys_that_are_not_taken_over_any_more_go(ruled: Ruled) -> None:
    ruled.look()
    ruled.rule(replace(ruled.rules, take=()))
    ruled.look()
    assert ruled.tx(sshkeys.of_user, "carol") == []


def test_keys_follow_the_directory_and_own_ones_stay(ruled: Ruled, root: Any) -> None:
    ruled.look()
    own = ruled.tx(
        sshkeys.add_for_user, user="carol", line=OTHER_KEY.decode(), name="laptop", now=1.0
    )
    [given] = [key for key in ruled.tx(sshkeys.of_user, "carol") if key.given]
    with pytest.raises(Refused, match="directory"):
        ruled.tx(sshkeys.remove_of_user, user="carol", key_id=given.id)
    root.modify_s(CAROL, [(ldap.MOD_DELETE, "sshPublicKey", None)])
    ruled.look()
    assert [key.id for key in ruled.tx(sshkeys.of_user, "carol")] == [own.id]
    ruled.tx(sshkeys.remove_of_user, user="carol", key_id=own.id)


@pytest.mark.slow
def test_who_leaves_the_directory_has_no_rights_at_the_next_look(ruled: Ruled, root: Any) -> None:
    ruled.sign_in("carol", "two grey whales")
    ruled.look()
    root.delete_s(CAROL)
    ruled.look()
    carol = ruled.tx(rows.by_name, "carol")
    assert not carol.able
    assert ruled.tx(signins.of_user, carol.id, 0.0, 1e9) == []
    assert "carol" not in [name for name, _ in ruled.tx(sshkeys.of_group, group="staff")]
