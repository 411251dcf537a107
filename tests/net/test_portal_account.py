"""One's own account on the portal: profile, password, keys, sessions, tokens."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cod.cli import show
from cod.policy.people import signin
from tests.net.apiserver import Served
from tests.net.portalclient import Browser, signed_in
from tests.net.test_portal_signing import PASSWORD, _bob

pytestmark = [pytest.mark.usefixtures("quick_passwords"), pytest.mark.slow]
KEY = (
    Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    .decode()
    + " bob@laptop"
)


@pytest.fixture
def bob(served: Served) -> Browser:
    """A browser that is signed in with a password."""
    served.tx(_bob)
    browser = Browser(served.server.ports[0])
    browser.get("/sign-in").send("/sign-in", name="bob", password=PASSWORD)
    return browser


def test_name_and_address(bob: Browser) -> None:
    page = bob.get("/account").send(
        "/account/profile", full_name="Bob <b>Builder</b>", email="bob@example.org"
    )
    assert "Your account is changed" in page.words
    assert "Bob <b>Builder</b>" in page.words
    assert "<b>Builder" not in page.text
    page = page.send("/account/profile", full_name="Bob", email="not an address")
    assert page.status == 422
    assert dict(page.fields("/account/profile")) | {"csrf": "", "once": ""} == {
        "csrf": "",
        "once": "",
        "full_name": "Bob",
        "email": "not an address",
    }


def test_a_new_password_needs_the_old_one_and_ends_other_sessions(
    served: Served, bob: Browser
) -> None:
    other = Browser(served.server.ports[0])
    other.get("/sign-in").send("/sign-in", name="bob", password=PASSWORD)
    page = bob.get("/account").send("/account/password", old="wrong", new="five loud badgers")
    assert page.status == 401
    [wrong] = page.tree.xpath("//p[label='Present password']/*[@role='alert']/text()")
    assert wrong == "the present password is wrong"
    assert "five loud badgers" not in page.text
    served.clock.now += 10
    page = bob.get("/account").send("/account/password", old=PASSWORD, new="five loud badgers")
    assert "1 other browser" in page.words
    assert bob.ask("GET", "/account").status == 200
    assert other.ask("GET", "/account").status == 303


def test_the_rule_of_a_password_is_told_before_it_is_broken(bob: Browser) -> None:
    assert signin.PASSWORD_RULE in bob.get("/account").words
    assert signin.SHORTEST == show.SHORTEST_PASSWORD


def test_keys(bob: Browser) -> None:
    page = bob.get("/account").send("/account/keys", key="no key at all")
    assert page.status == 422
    assert "no key at all" in dict(page.fields("/account/keys"))["key"]
    page = page.send("/account/keys", key=KEY)
    assert page.status == 200, [each.text for each in page.tree.find_class("wrong")]
    assert "bob@laptop" in page.words
    assert "SHA256:" in page.words
    page = page.send("/account/keys/1/remove")
    assert "bob@laptop" not in page.words


def test_sessions_are_listed_and_ended(served: Served, bob: Browser) -> None:
    other = Browser(served.server.ports[0])
    other.get("/sign-in").send("/sign-in", name="bob", password=PASSWORD)
    page = bob.get("/account")
    assert page.words.count("this one") == 1
    end = next(
        each.get("action")
        for each in page.tree.forms
        if "/sessions/" in each.get("action") and each.get("action") != "/account/sessions/end"
    )
    assert "signed out" in page.send(end).words
    assert other.ask("GET", "/").status == 303
    assert bob.get("/account").send("/account/sessions/end").path.startswith("/sign-in")
    assert bob.ask("GET", "/").status == 303


def test_a_token_is_shown_once_and_never_in_an_address(served: Served, bob: Browser) -> None:
    filled = bob.get("/account").filled(
        "/account/tokens", name="laptop", scope="read", lifetime="90d"
    )
    page = bob.post("/account/tokens", filled)
    assert page.headers["Content-Encoding"] is None
    token = page.tree.findtext(".//pre")
    assert token.startswith("cod_")
    assert served.remote(token).get("/me")["user"]["name"] == "bob"
    again = bob.post("/account/tokens", filled)
    assert token not in again.text
    page = bob.get("/account")
    assert token not in page.text
    assert all(token not in path for _, path, _ in bob.seen)
    remove = next(
        each.get("action") for each in page.tree.forms if "/tokens/" in each.get("action")
    )
    assert "token is revoked" in page.send(remove).words
    assert "/tokens/bob" not in bob.get("/account").text


def test_nobody_changes_the_account_of_another(served: Served, bob: Browser) -> None:
    bob.get("/account").send("/account/keys", key=KEY)
    ann = signed_in(served)
    page = ann.get("/account")
    fields = [
        (name, value) for name, value in page.fields("/account/profile") if name in ("csrf", "once")
    ]
    assert ann.post("/account/keys/1/remove", fields).status == 404
    assert ann.post("/account/sessions/1/end", fields).status == 404
    assert "bob@laptop" in bob.get("/account").words
