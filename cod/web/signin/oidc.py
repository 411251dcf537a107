"""Sign-in by an OpenID Connect provider: the authorization code flow with PKCE (OpenID Connect Core
1.0; RFC 7636).

Authlib speaks OAuth, and joserfc checks the provider's signatures; the extra `oidc` brings both.
All functions here block.

The values that must be the same when the browser comes back (state, nonce, PKCE verifier, the page
to go on to) are in a cookie whose name begins with `__Host-`, so that no other site can set it. The
provider's answer is believed if its ID token is signed by one of the provider's keys, is for this
site and this sign-in, and has not expired.
"""

from __future__ import annotations

import json
import logging
import secrets
import ssl
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any

from cod.model import Identity, Oidc, Refused
from cod.security import secretfile

PAGE = "/sign-in/oidc"
PATIENCE = 600.0  # seconds that a sign-in at the provider may take
KEEP = 3600.0  # seconds for which a provider's description and keys are kept
SILENCE = 10.0  # seconds after which an unanswered request to the provider fails
SIGNED_BY = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
LARGEST = 2**20  # bytes of an answer

log = logging.getLogger("cod.oidc")


class Provider:
    """The provider in the site file's `[oidc]`. `site` is the portal's URL; `clock` returns seconds
    since the epoch."""

    def __init__(self, rules: Oidc, site: str, clock: Callable[[], float]) -> None:
        self.rules = rules
        self._redirect, self._clock = site + PAGE, clock
        self._known: dict[str, tuple[float, Any]] = {}

    def begin(self, back: str) -> tuple[str, str]:
        """Return the address to send the browser to, and the value of the cookie to set. Raises
        `Refused`."""
        visit = {
            "state": secrets.token_urlsafe(32),
            "nonce": secrets.token_urlsafe(32),
            "verifier": secrets.token_urlsafe(48),
            "back": back,
            "at": self._clock(),
        }
        with self._speaking() as session:
            url, _ = session.create_authorization_url(
                self._about(session)["authorization_endpoint"],
                state=visit["state"],
                nonce=visit["nonce"],
                code_verifier=visit["verifier"],
            )
        return str(url), urlsafe_b64encode(json.dumps(visit).encode()).decode().rstrip("=")

    def finish(self, query: Mapping[str, str], cookie: str) -> tuple[Identity, str]:
        """Return the user that the provider vouches for, and the page to go on to. `query` is the
        query string with which the browser came back. Raises `Refused`."""
        visit = _visit(cookie)
        fresh = 0 <= self._clock() - visit["at"] <= PATIENCE
        if not fresh or not secrets.compare_digest(
            visit["state"].encode(), query.get("state", "").encode()
        ):
            raise Refused(
                "unauthorised", "this sign-in was begun elsewhere, or too long ago: begin again"
            )
        if "code" not in query:
            log.info("the provider let nobody in: %s", ascii(query.get("error", "no code"))[:100])
            raise Refused("unauthorised", f"{self.rules.label} did not let you in")
        with self._speaking() as session:
            claims = self._claims(session, query["code"], visit)
        name = claims.get(self.rules.name_claim) or claims.get("email") or claims["sub"]
        return (
            Identity(
                f"oidc:{claims['sub']}",
                "oidc",
                str(name),
                str(claims.get("name", "")),
                str(claims.get("email", "")),
            ),
            visit["back"],
        )

    def _claims(self, session: Any, code: str, visit: Mapping[str, Any]) -> Mapping[str, Any]:
        about = self._about(session)
        answer = session.fetch_token(
            about["token_endpoint"], code=code, code_verifier=visit["verifier"]
        )
        signed = self._checked(session, str(answer["id_token"]), visit["nonce"])
        if "userinfo_endpoint" not in about:
            return signed
        claims = session.get(about["userinfo_endpoint"]).json()
        if claims.get("sub") != signed["sub"]:  # OpenID Connect Core, 5.3.2
            raise ValueError("the user info is somebody else's")
        return {**claims, **signed}

    def _checked(self, session: Any, token: str, nonce: str) -> Mapping[str, Any]:
        """Return the claims of an ID token (OpenID Connect Core, 3.1.3.7). Raises ValueError or
        joserfc's JoseError."""
        from joserfc import jwt
        from joserfc.jwk import KeySet

        keys = KeySet.import_key_set(self._fetched(session, self._about(session)["jwks_uri"]))
        claims = jwt.decode(token, keys, algorithms=list(SIGNED_BY)).claims
        wanted = {"iss": self.rules.issuer, "aud": self.rules.client_id, "nonce": nonce}
        rules: dict[str, Any] = {name: {"essential": True} for name in ("sub", "exp", "iat")}
        rules |= {name: {"essential": True, "value": value} for name, value in wanted.items()}
        jwt.JWTClaimsRegistry(now=int(self._clock()), leeway=60, **rules).validate(claims)
        if claims.get("azp", self.rules.client_id) != self.rules.client_id:
            raise ValueError("the token is for another client")
        # OpenID Connect Core, 2
        if not isinstance(claims["sub"], str) or not 1 <= len(claims["sub"]) <= 255:
            raise ValueError("it names nobody")
        return claims

    def _about(self, session: Any) -> Mapping[str, Any]:
        """Return the provider's description of itself (OpenID Connect Discovery)."""
        issuer = self.rules.issuer
        about: Mapping[str, Any] = self._fetched(
            session, f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        )
        if about.get("issuer") != issuer:
            raise ValueError(f"it calls itself {about.get('issuer')!r}")
        if issuer.startswith("https:") and not all(
            str(url).startswith("https:")
            for key, url in about.items()
            if key.endswith(("_endpoint", "_uri"))
        ):
            raise ValueError("it wants to be asked without TLS")
        return about

    def _fetched(self, session: Any, url: str) -> Any:
        at, value = self._known.get(url, (float("-inf"), None))
        if self._clock() - at > KEEP:
            reply = session.get(url, withhold_token=True)
            reply.raise_for_status()
            if len(reply.content) > LARGEST:
                raise ValueError("its answer is too long")
            value = reply.json()
            self._known[url] = self._clock(), value
        return value

    def _speaking(self) -> Speaking:
        return Speaking(self.rules, self._redirect, self._known)


class Speaking:
    """A client for a few requests to the provider. An exception within the `with` block is logged,
    and raised as `Refused`."""

    def __init__(self, rules: Oidc, redirect: str, known: dict[str, Any]) -> None:
        self._rules, self._redirect, self._known = rules, redirect, known

    def __enter__(self) -> Any:
        try:
            from authlib.integrations.requests_client import OAuth2Session
        except ImportError:
            raise Refused(
                "busy", "this server lacks what it needs for that: pip install 'cod[oidc]'"
            ) from None
        try:
            secret = secretfile.first_line(self._rules.secret_file or "")
        except secretfile.Unreadable as error:
            log.error("%s", error)
            raise Refused(
                "busy", "this site's administrator has to look at its settings for that"
            ) from None
        self._session = OAuth2Session(
            self._rules.client_id,
            secret,
            scope=self._rules.scope,
            redirect_uri=self._redirect,
            code_challenge_method="S256",
            default_timeout=SILENCE,
        )
        self._session.trust_env = False  # no proxies, no netrc
        self._session.verify = ssl.get_default_verify_paths().cafile or True
        return self._session

    def __exit__(self, kind: Any, error: BaseException | None, at: Any) -> None:
        self._session.close()
        if error is None or isinstance(error, Refused):
            return
        if not isinstance(error, Exception):
            raise error
        self._known.clear()  # the provider may have new keys, or new addresses
        log.warning(
            "sign-in by %s failed: %s: %s",
            self._rules.issuer,
            type(error).__name__,
            ascii(str(error))[:300],
        )
        if isinstance(error, OSError) and getattr(error, "response", None) is None:
            raise Refused("busy", f"{self._rules.label} does not answer: try again later") from None
        raise Refused(
            "unauthorised",
            f"{self._rules.label} does not work at this moment, or did not let you in",
        ) from None


def _visit(cookie: str) -> dict[str, Any]:
    """Return the values of the cookie. Raises `Refused`."""
    try:
        visit = json.loads(urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4)))
        return {
            key: kind(visit[key])
            for key, kind in (
                ("state", str),
                ("nonce", str),
                ("verifier", str),
                ("back", str),
                ("at", float),
            )
        }
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise Refused(
            "unauthorised",
            "the browser does not remember this sign-in: are cookies allowed? Begin again",
        ) from None
