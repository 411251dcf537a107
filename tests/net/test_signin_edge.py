"""The door for people at its edge: what is verified where, how many at once, and what attackers
see."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from argon2 import PasswordHasher

from cod.flows.people import access
from cod.flows.people import people as flows
from cod.model import Ldap, Refused, SignInRules, SlowDown
from cod.security import password_hash
from cod.store.people import access as rows
from cod.store.people import audit, people
from cod.web.http.sessions import SESSION
from cod.web.signin import directory
from cod.web.signin import service as edge
from cod.web.signin.service import SignIn
from tests.net.apiserver import NOW, Served
from tests.waiting import until

PASSWORD = "correct horse battery"
pytestmark = pytest.mark.usefixtures("quick_passwords")
Call = Callable[..., Any]
RULES = SignInRules()


@pytest.fixture
def door(served: Served, in_reactor: Call) -> Call:
    """Calls a method of the server's own door in the reactor and waits."""
    own = served.server._apis[1].context.signin

    def call(name: str, *args: Any, **named: Any) -> Any:
        from twisted.internet.defer import ensureDeferred

        return in_reactor(lambda: ensureDeferred(getattr(own, name)(*args, **named)))

    call.own = own  # type: ignore[attr-defined]
    return call


def add(served: Served, name: str, kept: str | None = None) -> None:
    served.tx(people.add, name, NOW, password=kept or password_hash.hashed(PASSWORD))


def test_a_cookie_is_worth_a_session_until_it_is_ended(served: Served, door: Call) -> None:
    add(served, "ann")
    cookie = door("sign_in", "ann", PASSWORD, address="192.0.2.1", browser="B")
    assert len(cookie) >= 43  # 256 bits
    known = {"cookie": access.digest(cookie), "address": "192.0.2.2", "rules": RULES, "now": NOW}
    found = served.tx(access.session, **known)
    assert (found.who.name, found.who.address, found.session.address) == (
        "user:ann",
        "192.0.2.2",
        "192.0.2.1",
    )
    assert cookie not in served.folder.joinpath("api.sock").name
    door("sign_out", cookie, address="192.0.2.1")
    assert served.tx(access.session, **known) is None


def test_use_is_written_once_a_minute(served: Served, door: Call) -> None:
    add(served, "ann")
    cookie = door("sign_in", "ann", PASSWORD, address="192.0.2.1")
    for later, seen in ((30, NOW), (70, NOW + 70), (80, NOW + 70)):
        served.clock.now = NOW + later
        line = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
        line.request("GET", "/api/v1/me", headers={"Cookie": f"{SESSION}={cookie}"})
        assert line.getresponse().status == 200
        line.close()
        assert served.tx(rows.by_cookie, access.digest(cookie)).last_seen == seen


def test_a_hash_of_old_parameters_is_made_anew(served: Served, door: Call) -> None:
    add(
        served,
        "ann",
        PasswordHasher(time_cost=1, memory_cost=8192, parallelism=1).hash(PASSWORD.encode()),
    )
    door("sign_in", "ann", PASSWORD, address="192.0.2.1")
    user = served.tx(people.by_name, "ann")
    assert not password_hash.outdated(served.tx(people.password, user.id))
    served.clock.now += 1
    door("sign_in", "ann", PASSWORD, address="192.0.2.1")


def test_unknown_users_cost_as_much_as_known_ones(
    served: Served, door: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(served, "ann")
    verified: list[str] = []
    monkeypatch.setattr(
        password_hash, "matches", lambda kept, given: verified.append(kept) or False
    )
    for name in ("ann", "nobody"):
        with pytest.raises(Refused, match="wrong"):
            door("sign_in", name, "x", address="192.0.2.1")
    assert len(verified) == 2


def test_guesses_at_once_are_not_all_listened_to(
    served: Served, door: Call, in_reactor: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is counted before it is verified: twenty at once are one guess."""
    from twisted.internet.defer import DeferredList, ensureDeferred

    verified: list[str] = []
    monkeypatch.setattr(
        password_hash, "matches", lambda kept, given: verified.append(given) or False
    )
    own: SignIn = door.own  # type: ignore[attr-defined]
    results = in_reactor(
        lambda: DeferredList(
            [ensureDeferred(own.sign_in("ann", str(n), address="192.0.2.1")) for n in range(20)],
            consumeErrors=True,
        )
    )
    assert len(verified) == 1
    assert sum(isinstance(failure.value, SlowDown) for _, failure in results) == 19


def test_behind_a_proxy_the_proxy_says_where_people_are(served: Served) -> None:
    """Else all would be in one place, and each slow down all."""
    add(served, "ann")
    api = served.server._apis[1]
    for proxied, told, seen in (
        (True, "203.0.113.9, 192.0.2.7", "192.0.2.7"),
        (True, "rubbish", "127.0.0.1"),
        (True, "", "127.0.0.1"),
        (False, "192.0.2.7", "127.0.0.1"),
    ):
        api.context = replace(api.context, proxied=proxied)
        line = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
        body = json.dumps(
            {"name": "ann", "password": PASSWORD, "token": f"t{served.clock.now:.0f}"}
        )
        line.request(
            "POST",
            "/api/v1/sign-in",
            body,
            {"Content-Type": "application/json", "X-Forwarded-For": told},
        )
        assert line.getresponse().status == 201
        line.close()
        assert served.tx(audit.every)[0].address == seen
        served.clock.now += 1


def test_few_are_verified_at_once_and_too_many_are_turned_away(
    served: Served, door: Call, in_reactor: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from twisted.internet.defer import DeferredList, ensureDeferred

    running, most, go = [0], [0], threading.Event()

    def matches(kept: str, given: str) -> bool:
        running[0] += 1
        most[0] = max(most[0], running[0])
        go.wait(120)
        running[0] -= 1
        return False

    monkeypatch.setattr(password_hash, "matches", matches)
    monkeypatch.setattr(edge, "WAITING", 3)
    own: SignIn = door.own  # type: ignore[attr-defined]
    started: list[Any] = in_reactor(
        lambda: [
            ensureDeferred(own.sign_in(f"user{n}", "x", address=f"192.0.2.{n}")) for n in range(9)
        ]
    )
    until(lambda: sum(bool(each.called) for each in started) == 4, "four are turned away")
    until(lambda: running[0] == edge.AT_ONCE, "the first are being verified")
    go.set()
    results = in_reactor(lambda: DeferredList(started, consumeErrors=True))
    codes = sorted(failure.value.code for _, failure in results)
    assert codes == ["busy"] * 4 + ["unauthorised"] * 5
    assert most[0] == edge.AT_ONCE


def test_a_directory_that_is_away_locks_nobody_out(
    served: Served, door: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise Refused("busy", directory.AWAY)

    monkeypatch.setattr(directory, "verify", away)
    own: SignIn = door.own  # type: ignore[attr-defined]
    rules = SignInRules(ldap=Ldap(url="ldaps://192.0.2.1"))
    own._site.current = replace(own._site.current, signin=rules)
    for _ in range(20):
        with pytest.raises(Refused, match="does not answer") as refused:
            door("sign_in", "bob", PASSWORD, address="192.0.2.7")
        assert refused.value.code == "busy"
    assert served.tx(audit.every) == []


def test_who_is_disabled_while_the_password_is_verified_does_not_come_in(
    served: Served, door: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(served, "ann")

    def matches(kept: str, given: str) -> bool:
        served.tx(flows.change, "ann", {"disabled": True}, now=NOW)
        return True

    monkeypatch.setattr(password_hash, "matches", matches)
    with pytest.raises(Refused, match="wrong"):
        door("sign_in", "ann", PASSWORD, address="192.0.2.1")
