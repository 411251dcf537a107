"""Signing in and out of the portal, invitations, and the cookies that go with them."""

from __future__ import annotations

from typing import Any

import pytest

from cod.flows.people import invitations
from cod.flows.people.access import digest
from cod.model import Role, SignInRules
from cod.security import password_hash
from cod.store.engine import Tx
from cod.store.people import groups, people
from tests.net.apiserver import NOW, Served
from tests.net.portalclient import ANN, Browser, signed_in

pytestmark = [pytest.mark.usefixtures("quick_passwords"), pytest.mark.slow]
PASSWORD = "seven quiet otters"


def _bob(tx: Tx) -> None:
    people.add(tx, "bob", NOW, password=password_hash.hashed(PASSWORD))


@pytest.fixture
def bob(served: Served) -> Browser:
    """A browser that is not signed in, of somebody with an account."""
    served.tx(_bob)
    return Browser(served.server.ports[0])


def test_sign_in_leads_to_where_one_wanted_to_go(bob: Browser) -> None:
    asked = bob.ask("GET", "/?x=1")
    assert (asked.status, asked.headers["Location"]) == (303, "/sign-in?back=%2F%3Fx%3D1")
    page = bob.get("/sign-in", back="/account")
    reply = bob.ask(
        "POST",
        "/sign-in",
        bob.body(page.filled("/sign-in", name="bob", password=PASSWORD)),
        bob.form,
    )
    assert (reply.status, reply.headers["Location"]) == (303, "/account")
    cookie = next(
        line for line in reply.headers.get_all("Set-Cookie") if line.startswith("__Host-cod=")
    )
    assert {each.strip() for each in cookie.split(";")[1:]} == {
        "Path=/",
        "Secure",
        "HttpOnly",
        "SameSite=Strict",
    }
    assert bob.get("/").status == 200


@pytest.mark.parametrize(
    "back", ["//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"]
)
def test_sign_in_leads_to_no_other_site(bob: Browser, back: str) -> None:
    page = bob.get("/sign-in", back=back)
    form = page.filled("/sign-in", name="bob", password=PASSWORD)
    assert dict(form)["back"] == "/"
    reply = bob.ask("POST", "/sign-in", bob.body([*form, ("back", back)][::-1]), bob.form)
    assert reply.headers["Location"] == "/"


def test_a_wrong_password(bob: Browser) -> None:
    page = bob.get("/sign-in").send("/sign-in", name="bob", password="not this one")
    assert page.status == 401
    assert "name or password is wrong" in page.words
    assert dict(page.fields("/sign-in"))["name"] == "bob"
    assert "not this one" not in page.text
    assert "__Host-cod" not in bob.cookies


def test_guessing_is_slowed(bob: Browser) -> None:
    statuses = [
        bob.get("/sign-in").send("/sign-in", name="bob", password=f"guess {n}").status
        for n in range(12)
    ]
    assert statuses[0] == 401
    assert statuses[-1] == 429


def test_sign_out_ends_the_session(bob: Browser) -> None:
    bob.get("/sign-in").send("/sign-in", name="bob", password=PASSWORD)
    kept = dict(bob.cookies)
    page = bob.get("/").send("/sign-out")
    assert "You are signed out" in page.words
    assert "__Host-cod" not in bob.cookies
    bob.cookies = kept
    assert bob.ask("GET", "/").status == 303


def test_a_session_is_never_one_that_the_browser_brought(bob: Browser) -> None:
    bob.cookies["__Host-cod"] = "chosen-by-somebody-else"
    bob.get("/sign-in").send("/sign-in", name="bob", password=PASSWORD)
    assert bob.cookies["__Host-cod"] != "chosen-by-somebody-else"


# ---------------------------------------------------------------- links


def _invited(tx: Tx, secret: str, **named: Any) -> None:
    groups.ensure(tx, "physics", NOW)
    invitations.invite(
        tx, digest=digest(secret), rules=SignInRules(), who="user:ann", now=NOW, **named
    )


def test_an_invitation_makes_an_account_in_a_group(served: Served) -> None:
    served.tx(_invited, "the-code", group="physics", role="owner", email="eve@example.org")
    browser = Browser(served.server.ports[0])
    page = browser.get("/invitation").send("/invitation", code="the-code")
    assert "as owner of the group physics" in page.words
    page = page.send("/invitation/accept", name="Eve!", password="short")
    assert page.status == 422
    assert dict(page.fields("/invitation/accept"))["name"] == "Eve!"
    page = page.send("/invitation/accept", name="eve", password=PASSWORD)
    assert (page.status, page.path) == (200, "/")
    assert "Welcome" in page.words
    assert all("the-code" not in path for _, path, _ in browser.seen)
    made = served.tx(people.by_name, "eve")
    assert list(served.tx(people.roles, made.id).values()) == [Role.OWNER]
    again = Browser(served.server.ports[0]).get("/invitation").send("/invitation", code="the-code")
    assert again.status == 404
    assert "does not work" in again.words


def test_who_has_an_account_joins_with_it(served: Served) -> None:
    served.tx(_invited, "the-code", group="physics", role="viewer")
    page = signed_in(served, ANN).get("/invitation").send("/invitation", code="the-code")
    page = page.send("/invitation/join")
    assert "You are now viewer of physics" in page.words
