"""Sign-in by OpenID Connect, with a real provider on loopback; and what a provider may say that is
not believed."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
import requests
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from oidc_provider_mock import User, run_server_in_thread

from cod.flows.people import people
from cod.model import Identity, Oidc, Refused, SignInRules, Site
from cod.pool import Pool
from cod.web.signin.oidc import PATIENCE, Provider
from tests.net.apiserver import Served, serving
from tests.net.portalclient import Browser

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

SITE = "https://cod.example.org"
ANN = User(
    sub="1001",
    claims={"preferred_username": "Ann.Example", "name": "Ann Example", "email": "ann@example.org"},
)


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with run_server_in_thread(user_claims=[ANN, User(sub="1002", claims={})]) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.fixture
def rules(issuer: str, tmp_path: Path) -> Oidc:
    secret = tmp_path / "secret"
    secret.write_text("a client's secret\n")
    secret.chmod(0o600)
    return Oidc(issuer=issuer, client_id="cod", secret_file=str(secret))


class Clock:
    later = 0.0

    def __call__(self) -> float:
        return time.time() + self.later


@pytest.fixture
def provider(rules: Oidc) -> Provider:
    return Provider(rules, SITE, Clock())


def signs_in(url: str, sub: str = "1001") -> dict[str, str]:
    """What somebody's browser comes back with."""
    reply = requests.post(url, data={"sub": sub}, allow_redirects=False, timeout=60)
    location = reply.headers["Location"]
    assert location.startswith(f"{SITE}/sign-in/oidc?")
    return dict(parse_qsl(urlsplit(location).query))


def refused(call: Callable[..., Any], *args: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        call(*args)
    return caught.value


def test_somebody_signs_in_over_there(provider: Provider) -> None:
    url, cookie = provider.begin("/vclusters")
    asked = dict(parse_qsl(urlsplit(url).query))
    assert (asked["code_challenge_method"], asked["response_type"]) == ("S256", "code")
    assert asked["redirect_uri"] == f"{SITE}/sign-in/oidc"
    assert provider.finish(signs_in(url), cookie) == (
        Identity("oidc:1001", "oidc", "Ann.Example", "Ann Example", "ann@example.org"),
        "/vclusters",
    )


def test_who_says_little_of_themselves_comes_in_too(provider: Provider) -> None:
    url, cookie = provider.begin("/")
    assert provider.finish(signs_in(url, "1002"), cookie)[0] == Identity(
        "oidc:1002", "oidc", "1002"
    )


def test_an_answer_belongs_to_the_browser_that_asked(provider: Provider) -> None:
    (url, mine), (_, others) = provider.begin("/"), provider.begin("/")
    query = signs_in(url)
    late = dict.fromkeys(("state", "nonce", "verifier", "back"), "") | {"at": 10**400}
    forged = [
        urlsafe_b64encode(each.encode()).decode() for each in ("[" * 12_000, json.dumps(late))
    ]
    for cookie in (others, "", "e30", mine[:-9], "!", *forged):
        assert refused(provider.finish, query, cookie).code == "unauthorised"
    assert refused(provider.finish, query | {"state": "x"}, mine).code == "unauthorised"
    assert (
        refused(provider.finish, {"state": query["state"], "error": "access_denied"}, mine).code
        == "unauthorised"
    )
    assert refused(provider.finish, query | {"code": "x"}, mine).code == "unauthorised"
    provider.finish(query, mine)
    assert refused(provider.finish, query, mine).code == "unauthorised"  # a code works once


def test_a_sign_in_is_not_waited_for_for_ever(provider: Provider) -> None:
    url, cookie = provider.begin("/")
    query = signs_in(url)
    provider._clock.later = PATIENCE + 5  # type: ignore[attr-defined]
    assert "too long ago" in refused(provider.finish, query, cookie).sentence


@pytest.mark.parametrize(
    "change", [{"issuer": "http://127.0.0.1:1"}, {"secret_file": "/nowhere"}, {"issuer": "{}/"}]
)
def test_a_provider_that_does_not_answer_as_it_should_is_no_sign_in(
    rules: Oidc, change: dict[str, str]
) -> None:
    wrong = {key: value.format(rules.issuer) for key, value in change.items()}
    refusal = refused(Provider(replace(rules, **wrong), SITE, Clock()).begin, "/")
    assert refusal.code in ("unauthorised", "busy")
    assert "nowhere" not in refusal.sentence


# ---------------------------------------------------------------- tokens that are not believed


KEY = RSAKey.generate_key(2048, parameters={"kid": "k"})
ABOUT = {
    "issuer": "https://login.example.org",
    "authorization_endpoint": "https://login.example.org/a",
    "token_endpoint": "https://login.example.org/t",
    "jwks_uri": "https://login.example.org/k",
}


class FakeSession:
    """What the provider serves by GET."""

    def __init__(self, **about: str) -> None:
        self.served = {
            f"{ABOUT['issuer']}/.well-known/openid-configuration": ABOUT | about,
            ABOUT["jwks_uri"]: KeySet([KEY]).as_dict(private=False),
        }

    def get(self, url: str, **_more: Any) -> Any:
        reply = requests.Response()
        reply.status_code, value = 200, self.served[url]
        reply._content = __import__("json").dumps(value).encode()
        return reply


def token(key: Any = KEY, alg: str = "RS256", **claims: Any) -> str:
    now = int(time.time())
    usual = {
        "iss": ABOUT["issuer"],
        "sub": "1",
        "aud": "cod",
        "exp": now + 60,
        "iat": now,
        "nonce": "n",
    }
    told = {name: value for name, value in (usual | claims).items() if value is not None}
    return jwt.encode({"alg": alg, "kid": "k"}, told, key)


@pytest.fixture
def strict() -> Provider:
    return Provider(Oidc(issuer=ABOUT["issuer"], client_id="cod"), SITE, time.time)


def test_a_provider_that_is_away_says_so(rules: Oidc) -> None:
    away = Provider(replace(rules, issuer="http://127.0.0.1:1"), "https://cod.example.org", float)
    refusal = refused(away.begin, "/")
    assert refusal.code == "busy"
    assert "does not answer" in refusal.sentence


def test_a_token_as_it_should_be(strict: Provider) -> None:
    assert strict._checked(FakeSession(), token(), "n")["sub"] == "1"
    assert strict._checked(FakeSession(), token(aud=["other", "cod"], azp="cod"), "n")["sub"] == "1"


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example"},
        {"aud": "other"},
        {"exp": 1},
        {"exp": None},
        {"nonce": "other"},
        {"nonce": None},
        {"sub": None},
        {"azp": "other"},
        {"iat": None},
        {"key": RSAKey.generate_key(2048)},
    ],
)
def test_tokens_that_are_not_believed(strict: Provider, claims: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r".") as caught:
        strict._checked(FakeSession(), token(**claims), "n")
    assert not isinstance(caught.value, AssertionError | KeyError)


def test_tokens_that_nobody_signed_are_not_believed(strict: Provider) -> None:
    head, body, _ = token().split(".")
    import base64

    for alg in ("none", "HS256"):
        forged = (
            base64.urlsafe_b64encode(f'{{"alg":"{alg}","kid":"k"}}'.encode()).decode().rstrip("=")
        )
        for signature in ("", "AAAA"):
            with pytest.raises(Exception, match=r"."):
                strict._checked(FakeSession(), f"{forged}.{body}.{signature}", "n")
    assert head


def test_a_provider_with_tls_is_not_asked_without(strict: Provider) -> None:
    with pytest.raises(ValueError, match="without TLS"):
        strict._about(FakeSession(token_endpoint="http://login.example.org/t"))
    with pytest.raises(ValueError, match="calls itself"):
        Provider(strict.rules, SITE, time.time)._about(FakeSession(issuer="https://evil.example"))


# ---------------------------------------------------------------- through the portal


@pytest.fixture
def door(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site, rules: Oidc
) -> Iterator[Served]:
    """A portal whose people may sign in over there."""
    there = replace(site, signin=SignInRules(url=SITE, oidc=rules))
    with serving(pool, reactor, in_reactor, there) as served:
        served.clock.now = time.time()  # the provider's clock cannot be moved
        yield served


def test_a_browser_goes_there_and_comes_back_signed_in(door: Served) -> None:
    browser = Browser(door.server.ports[0])
    assert "Single sign-on" in browser.get("/sign-in", back="/account").words
    away = browser.ask("GET", "/sign-in/oidc/begin?back=/account")
    kept = next(line for line in away.headers.get_all("Set-Cookie") if "__Host-cod-away" in line)
    assert "SameSite=Lax" in kept
    back = browser.ask("GET", "/sign-in/oidc?" + urlencode(signs_in(away.headers["Location"])))
    # a page, whose refresh sends the strict cookie along; a redirect would not
    assert back.status == 200
    assert back.tree.find(".//meta[@http-equiv]").get("content") == "0; url=/account"
    assert "__Host-cod-away" not in browser.cookies
    assert "ann.example" in browser.get("/account").words
    ((user, _),) = [door.tx(people.one, "ann.example")]
    assert (user.directory, user.subject, user.email) == ("oidc", "oidc:1001", "ann@example.org")


def test_nobody_is_signed_in_by_another_browsers_answer(door: Served) -> None:
    """Else somebody could sign others in as themselves, and read what they upload."""
    mine, others = Browser(door.server.ports[0]), Browser(door.server.ports[0])
    away = mine.ask("GET", "/sign-in/oidc/begin")
    others.ask("GET", "/sign-in/oidc/begin")
    page = others.get("/sign-in/oidc", **signs_in(away.headers["Location"]))
    assert page.status == 401
    assert "__Host-cod" not in others.cookies


def test_a_site_without_a_provider_has_no_such_door(served: Served) -> None:
    browser = Browser(served.server.ports[0])
    assert "Single sign-on" not in browser.get("/sign-in").words
    assert browser.get("/sign-in/oidc/begin").status == 404
