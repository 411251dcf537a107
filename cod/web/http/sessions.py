"""A browser's session or visit, by its cookies; and the checks that a request is meant for this
server and comes from one of its pages: tokens of forms, and the headers Host and Origin.

A browser that is signed in has the cookie `__Host-cod`. Any other browser gets `__Host-cod-visit`
with the first form. A form's token is an HMAC of the cookie, masked with fresh random bytes on each
page, so that the token never looks the same in what is compressed and encrypted (BREACH).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import quote, unquote

from cod.flows.people.access import SignedIn
from cod.model import Who
from cod.web.http.errors import HttpProblem

SESSION, VISIT, FLASH = "__Host-cod", "__Host-cod-visit", "__Host-cod-flash"
AWAY = "__Host-cod-away"  # during a sign-in at an OpenID Connect provider
_SIZE = 32
LONGEST_FLASH = 1000  # characters


@dataclass(frozen=True, slots=True)
class PortalSession:
    """A browser's cookies, and the session that they belong to.

    session  the session that the browser is signed in with
    cookie   that session's secret; '': not signed in
    token    the secret that the forms' tokens are made from: that of the session or of the visit
    fresh    the token is new: the browser must be sent it
    flash    the message that the last page left for this one
    """

    session: SignedIn | None
    cookie: str
    token: str
    fresh: bool = False
    flash: str = ""

    @property
    def who(self) -> Who | None:
        """Return the user who is signed in; None if nobody is."""
        return self.session.who if self.session else None

    def csrf(self) -> str:
        """Return a token for a form, different each time."""
        mask = secrets.token_bytes(_SIZE)
        return (mask + _xor(mask, _proof(self.token))).hex()

    def proves(self, shown: str) -> bool:
        """Return whether `shown` is one of this visit's tokens. In constant time."""
        try:
            raw = bytes.fromhex(shown)
        except ValueError:
            return False
        return len(raw) == 2 * _SIZE and hmac.compare_digest(
            _xor(raw[:_SIZE], raw[_SIZE:]), _proof(self.token)
        )


def cookies(header: str | None) -> dict[str, str]:
    """Return the cookies of a request; none if the header cannot be read."""
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(header or "").items()}
    except CookieError:
        return {}


def visit(session: SignedIn | None, header: str | None) -> PortalSession:
    """Return the session or visit that a request with this Cookie header belongs to."""
    found = cookies(header)
    secret = found.get(SESSION, "") if session else ""
    token = secret or found.get(VISIT, "")
    return PortalSession(
        session,
        secret,
        token or secrets.token_urlsafe(_SIZE),
        not token,
        unquote(found.get(FLASH, ""), errors="replace")[:LONGEST_FLASH],
    )


def cookie(name: str, value: str, age: int | None = None, *, strict: bool = True) -> str:
    """Return a Set-Cookie header. `age` is in seconds; None: until the browser ends; 0: the cookie
    is removed. A cookie that is not `strict` is also sent when a link of another site is followed.
    """
    line = f"{name}={value}; Path=/; Secure; HttpOnly; SameSite={'Strict' if strict else 'Lax'}"
    return line if age is None else f"{line}; Max-Age={age}"


def flash(text: str) -> str:
    """Return a Set-Cookie header with a message for the next page; '' removes the message."""
    return cookie(FLASH, quote(text[:LONGEST_FLASH], safe=""), 60 if text else 0)


def same_origin(header: Callable[[str], str | None]) -> bool:
    """Return whether the request comes from a page of this site by its headers, or has no headers
    that tell."""
    origin = header("origin")
    if origin is not None:
        return bool(origin.rpartition("://")[2] == header("host"))
    return header("sec-fetch-site") in (None, "same-origin", "none")


def check_host(host: str | None, names: frozenset[str]) -> None:
    """Raise `HttpProblem` (421) unless the Host header names this server: by one of its names, as
    localhost or by an address.

    Without this check a foreign page whose name was made to lead to this server by DNS could read
    this server's pages as its own (DNS rebinding).
    """
    name = (host or "").lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name == "localhost" or name in names:
        return
    try:
        ip_address(name)
    except ValueError:
        raise HttpProblem(
            421,
            "misdirected",
            "this server has no such name; its administrator can give it one ([api] names)",
        ) from None


def _proof(token: str) -> bytes:
    return hmac.new(token.encode(), b"a form of the portal", hashlib.sha256).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
