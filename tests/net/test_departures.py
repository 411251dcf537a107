"""Who is removed or locked in the LDAP directory is out here, too, with a real slapd on
loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from twisted.internet.task import Clock

from cod.flows.people import access, directory_sync, invitations, people, signin, sshkeys, tokens
from cod.model import Ldap, Refused, Role, SignInRules, Site, SiteRef, User, Who
from cod.pool import Pool, in_transaction
from cod.store.people import audit, groups, signins
from cod.store.people import people as rows
from cod.web.signin import directory_sync as edge
from cod.web.signin.directory import LONGEST_LOOK, _DirectoryReader, _stays, read, verify
from cod.web.signin.service import SignIn
from tests.net import slapd
from tests.ports import free_port

ldap = pytest.importorskip(
    "ldap", reason="python-ldap, the extra `ldap`, is built from source: make ldap"
)
NOW = 1_000_000.0
HERE = "192.0.2.1"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f bob@host"
PASSWORDS = {"bob": "three calm herons", "eve": "six loud geese"}
EVE = f"uid=eve,ou=people,{slapd.BASE}"
ENTRY = [
    ("objectClass", [b"inetOrgPerson"]),
    ("uid", [b"eve"]),
    ("cn", [b"Eve"]),
    ("sn", [b"E"]),
    ("userPassword", [PASSWORDS["eve"].encode()]),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slapd.Slapd]:
    with slapd.running(tmp_path_factory.mktemp("slapd")) as server:
        yield server


@pytest.fixture
def root(directory: slapd.Slapd) -> Iterator[Any]:
    """A connection that may change the directory, with Eve in it."""
    line = slapd.bound(directory)
    with suppress(ldap.NO_SUCH_OBJECT):
        line.delete_s(EVE)
    line.add_s(EVE, ENTRY)
    yield line
    line.unbind_s()


@pytest.fixture
def rules(directory: slapd.Slapd) -> Ldap:
    return Ldap(
        directory.plain,
        "none",
        None,
        directory.people,
        user=directory.reader,
        password_file=str(directory.password),
        filter="(&(uid={name})(!(title=locked)))",
    )


def known(rules: Ldap, subjects: Iterable[str]) -> frozenset[str]:
    return frozenset(read(rules, subjects).known)


def subjects(rules: Ldap) -> dict[str, str]:
    found = {name: verify(rules, name, password) for name, password in PASSWORDS.items()}
    return {name: each.subject for name, each in found.items() if each is not None}


# ---------------------------------------------------------------- what the directory says


@pytest.mark.parametrize(
    "filter_",
    [
        "(uid={name})",
        "(|(uid={name})(mail={name}@example.org))",
        "(&(objectClass=person)(uid:caseIgnoreMatch:={name}))",
    ],
)
def test_whoever_is_there_is_known(rules: Ldap, root: Any, filter_: str) -> None:
    there = frozenset(subjects(rules).values())
    missing = "ldap:00000000-0000-4000-8000-000000000000"
    assert len(there) == 2
    assert known(replace(rules, filter=filter_), [*there, missing]) == there


def test_who_was_renamed_is_still_known_and_who_is_locked_is_not(rules: Ldap, root: Any) -> None:
    eve = subjects(rules)["eve"]
    root.rename_s(EVE, "uid=eva")
    assert known(rules, [eve]) == {eve}
    root.rename_s(EVE.replace("eve", "eva"), "uid=eve")
    root.modify_s(EVE, [(ldap.MOD_ADD, "title", [b"locked"])])
    assert known(rules, [eve]) == frozenset()


def test_who_has_no_number_there_is_asked_for_by_name(rules: Ldap, root: Any) -> None:
    named = f"ldap:{EVE.lower()}"
    gone = named.replace("eve", "nobody")
    cut = f"ldap:{'x' * 300}"[:255]
    assert known(rules, [named, gone, cut]) == {
        named,
        cut,
    }, "a name that was cut off cannot be asked for"


class Asked:
    """A directory that has numbers as Active Directory has them, which slapd has not."""

    def __init__(self, there: bytes) -> None:
        self.there = there

    def search_ext_s(
        self, base: str, scope: int, wanted: str, attributes: list[str], sizelimit: int
    ) -> list[Any]:
        escaped = (
            pytest.importorskip("ldap.filter")
            .escape_filter_chars(self.there.decode("latin-1"), 2)
            .lower()
        )
        return [("cn=eve", {})] if wanted.lower() == f"(&(objectguid={escaped})(uid=*))" else []


def test_who_has_a_number_of_active_directory_is_asked_for_by_its_octets(rules: Ldap) -> None:
    number = bytes(range(0, 256, 17))
    subject = f"ldap:{_stays('cn=eve', {'objectGUID': [number]})}"
    rules = replace(rules, filter="(uid={name})")
    assert _DirectoryReader(ldap, rules, Asked(number)).of_subject(subject) == ("cn=eve", {})
    assert _DirectoryReader(ldap, rules, Asked(number[::-1])).of_subject(subject) is None


@pytest.mark.parametrize(
    "change",
    [
        {"base": f"ou=elsewhere,{slapd.BASE}"},
        {"url": f"ldap://127.0.0.1:{free_port()}"},
        {"user": f"cn=other,{slapd.BASE}"},
        {"filter": "(title={name})"},
        {"password_file": "/nowhere"},
    ],
)
def test_a_directory_that_is_away_or_shows_nobody_says_nothing(
    rules: Ldap, root: Any, change: dict[str, Any]
) -> None:
    with pytest.raises(Refused) as caught:
        known(replace(rules, **change), list(subjects(rules).values()))
    assert caught.value.code == "busy"


# ---------------------------------------------------------------- what comes of it


class Here:
    """A site whose people come from the directory, with a clock that the test moves."""

    def __init__(
        self, engine: Engine, pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site
    ) -> None:
        self.engine, self.site, self.clock, self.now = engine, site, Clock(), NOW
        self._in_reactor = in_reactor
        self.door = SignIn(reactor, pool, SiteRef(site), lambda: self.now)
        self.edge = edge.DirectorySync(reactor, pool, SiteRef(site), lambda: self.now)

    def tx(self, flow: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return in_transaction(self.engine, flow, *args, **named)

    def come(self, name: str) -> User:
        """Somebody signs in; they have a token and a key, too, and may do something in a group."""
        from twisted.internet.defer import ensureDeferred

        self._in_reactor(
            lambda: ensureDeferred(self.door.sign_in(name, PASSWORDS[name], address=HERE))
        )
        user: User = self.tx(rows.by_name, name)
        who = Who(f"user:{name}", user_id=user.id)
        self.tx(groups.ensure, "physics", NOW)
        self.tx(people.set_role, group="physics", user=name, role=Role.OWNER)
        self.tx(tokens.make, who=who, name="ci", token=f"cod_{name}", now=self.now)
        self.tx(sshkeys.add, who=who, line=KEY, now=self.now)
        self.tx(
            invitations.invite,
            digest=f"by {name}",
            rules=self.site.signin,
            who=f"user:{name}",
            now=self.now,
        )
        self.now += 1.0
        return user

    def look(self, later: float = 3600.0) -> None:
        from twisted.internet.defer import ensureDeferred

        self.now += later
        self._in_reactor(lambda: ensureDeferred(self.edge.look()))

    def sessions(self, user: User) -> int:
        return len(self.tx(signins.of_user, user.id, self.now, 1e9))

    def by_token(self, name: str) -> Who | None:
        who: Who | None = self.tx(access.caller, f"cod_{name}", HERE, self.now)
        return who

    def keys(self) -> list[str]:
        return [name for name, _ in self.tx(sshkeys.of_group, group="physics")]


@pytest.fixture
def here(
    engine: Engine,
    pool: Pool,
    reactor: Any,
    in_reactor: Callable[..., Any],
    site: Site,
    rules: Ldap,
    root: Any,
    quick_passwords: None,
) -> Here:
    return Here(engine, pool, reactor, in_reactor, replace(site, signin=SignInRules(ldap=rules)))


def test_who_is_removed_there_is_out_here_and_nobody_else(here: Here, root: Any) -> None:
    bob, eve = here.come("bob"), here.come("eve")
    here.look()
    assert (here.sessions(bob), here.sessions(eve)) == (1, 1)
    root.delete_s(EVE)
    here.look()
    assert (here.sessions(bob), here.sessions(eve)) == (1, 0)
    assert here.by_token("bob") is not None
    assert here.by_token("eve") is None
    assert here.keys() == ["bob"], "nodes that are primed now let her in no more"
    assert [each.invited_by for each in here.tx(invitations.every, None, here.now)] == ["user:bob"]
    assert {(row.action, row.thing) for row in here.tx(audit.every) if row.actor == "ldap"} == {
        ("user absent", "eve")
    }
    assert here.tx(people.one, "eve")[0].disabled_at is None


def test_who_is_locked_there_is_out_until_they_are_let_in_again(here: Here, root: Any) -> None:
    eve = here.come("eve")
    root.modify_s(EVE, [(ldap.MOD_ADD, "title", [b"locked"])])
    here.look()
    assert (here.sessions(eve), here.by_token("eve")) == (0, None)
    root.modify_s(EVE, [(ldap.MOD_DELETE, "title", None)])
    here.look()
    assert here.by_token("eve") is not None, "tokens and keys wait for their user"
    assert here.keys() == ["eve"]
    assert [row.action for row in here.tx(audit.every) if row.actor == "ldap"] == [
        "user present",
        "user absent",
    ]


def test_who_is_not_there_begins_no_session(here: Here, root: Any) -> None:
    here.come("eve")
    root.delete_s(EVE)
    here.look()
    root.add_s(EVE, ENTRY)  # with another number: somebody else, as far as anybody can tell
    with pytest.raises(Refused, match="wrong"):
        in_transaction(
            here.engine,
            lambda tx: signin.begin(
                tx,
                user_id=rows.by_name(tx, "eve").id,
                address=HERE,
                browser="",
                cookie="c",
                rules=here.site.signin,
                now=here.now,
            ),
        )
    assert here.by_token("eve") is None


def test_a_directory_that_is_away_ends_nothing(here: Here, root: Any, rules: Ldap) -> None:
    eve = here.come("eve")
    root.delete_s(EVE)
    away = replace(rules, url=f"ldap://127.0.0.1:{free_port()}")
    object.__setattr__(here.site, "signin", SignInRules(ldap=away))
    here.look()
    assert (here.sessions(eve), here.by_token("eve") is None) == (1, False)
    object.__setattr__(here.site, "signin", SignInRules(ldap=rules))
    here.look(edge.AGAIN)  # it is asked again sooner than after an hour
    assert here.sessions(eve) == 0


def test_a_directory_that_was_late_is_left_alone_for_a_while(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.come("eve")
    began = []

    def late(*_: object, **_named: object) -> None:
        began.append(here.now)
        here.now += LONGEST_LOOK
        raise Refused("busy", "it does not answer")

    monkeypatch.setattr("cod.web.signin.directory.read", late)
    here.look()
    here.look(edge.PERIOD)
    assert len(began) == 1
    here.look(edge.AGAIN)
    assert len(began) == 2


def test_it_is_asked_once_an_hour_or_as_the_site_says(here: Here, root: Any, rules: Ldap) -> None:
    eve = here.come("eve")
    here.look()
    root.delete_s(EVE)
    here.look(3599.0)
    assert here.sessions(eve) == 1
    object.__setattr__(here.site, "signin", SignInRules(ldap=replace(rules, check=0.0)))
    here.look(1e5)
    assert here.sessions(eve) == 1
    object.__setattr__(here.site, "signin", SignInRules(ldap=replace(rules, check=60.0)))
    here.look(60.0)
    assert here.sessions(eve) == 0


def test_a_clock_that_was_set_back_puts_nothing_off(here: Here, root: Any) -> None:
    """Neither the asking nor that it counts: Eve came in when it was a thousand years ahead."""
    right, here.now = here.now, here.now + 3e10
    eve = here.come("eve")
    here.look()
    here.now = right
    root.delete_s(EVE)
    here.look(60.0)
    assert here.sessions(eve) == 0


def test_who_signs_in_while_it_is_asked_is_there(here: Here) -> None:
    eve = here.come("eve")
    asked = here.tx(directory_sync.asked, now=here.now)
    assert [user.name for user in asked] == ["eve"]
    told = here.tx(directory_sync.record, asked=asked, known={}, since=here.now - 2.0, now=here.now)
    assert (told, here.sessions(eve)) == (([], [], []), 1)


def test_only_who_can_do_something_here_is_asked_about(here: Here) -> None:
    here.come("eve")
    here.tx(rows.add, "ann", NOW)
    here.tx(rows.add, "dan", NOW, directory="ldap", subject="ldap:1")
    assert [user.name for user in here.tx(directory_sync.asked, now=here.now)] == ["eve"]
    here.tx(people.change, "eve", {"disabled": True}, now=here.now)
    assert here.tx(directory_sync.asked, now=here.now) == []


def test_the_service_begins_and_ends(
    engine: Engine, pool: Pool, site: Site, tmp_path: Path
) -> None:
    clock = Clock()
    service = edge.DirectorySync(clock, pool, SiteRef(site), clock.seconds)
    service.startService()
    clock.advance(edge.PERIOD)  # the site has no directory: nobody is asked
    assert service.stopService() is not None
    assert not clock.getDelayedCalls()
