"""The visitor of a page, and the check that a request is meant for this server and comes from a
page of it: cookies, tokens of forms, and the headers Host and Origin.

A browser that is signed in has the cookie `__Host-cod`; one that is not gets `__Host-cod-visit`
with the first form. A form's token is an HMAC of the cookie, masked with fresh random bytes on each
page, so that it never looks the same in what is compressed and encrypted (BREACH).
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
AWAY = "__Host-cod-away"  # while somebody signs in elsewhere
_SIZE = 32
LONGEST_FLASH = 1000  # characters


@dataclass(frozen=True, slots=True)
class PortalSession:
    """A browser's cookies and whom they stand for.

    session  the session that it is signed in with
    cookie   that session's secret; '': not signed in
    token    the secret that its forms' tokens belong to: the session's or the visit's
    fresh    the token is new: the browser has to be given it
    flash    the message that the last page left for this one
    """

    session: SignedIn | None
    cookie: str
    token: str
    fresh: bool = False
    flash: str = ""

    @property
    def who(self) -> Who | None:
        """Return the user who is signed in; None where nobody is."""
        return self.session.who if self.session else None

    def csrf(self) -> str:
        """Return a token for a form, different each time."""
        mask = secrets.token_bytes(_SIZE)
        return (mask + _xor(mask, _proof(self.token))).hex()

    def proves(self, shown: str) -> bool:
        """Return whether that is one of this visit's tokens. In constant time."""
        try:
            raw = bytes.fromhex(shown)
        except ValueError:
            return False
        return len(raw) == 2 * _SIZE and hmac.compare_digest(
            _xor(raw[:_SIZE], raw[_SIZE:]), _proof(self.token)
        )


def cookies(header: str | None) -> dict[str, str]:
    """Return the cookies that a request carries; what cannot be read is none."""
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(header or "").items()}
    except CookieError:
        return {}


def visit(session: SignedIn | None, header: str | None) -> PortalSession:
    """Return the visit that a request with that Cookie header belongs to."""
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
    """Return a Set-Cookie header. `age` in seconds; None: as long as the browser runs; 0: away with
    it. Not `strict`: it comes along with a link from another site."""
    line = f"{name}={value}; Path=/; Secure; HttpOnly; SameSite={'Strict' if strict else 'Lax'}"
    return line if age is None else f"{line}; Max-Age={age}"


def flash(text: str) -> str:
    """Return a Set-Cookie header with a message for the next page; '' takes it away."""
    return cookie(FLASH, quote(text[:LONGEST_FLASH], safe=""), 60 if text else 0)


def same_origin(header: Callable[[str], str | None]) -> bool:
    """Return whether a browser says that the request comes from a page of this site (or nothing at
    all about that)."""
    origin = header("origin")
    if origin is not None:
        return bool(origin.rpartition("://")[2] == header("host"))
    return header("sec-fetch-site") in (None, "same-origin", "none")


def check_host(host: str | None, names: frozenset[str]) -> None:
    """Raise `HttpProblem` (421) unless the Host header names this server: one of its names,
    localhost or an address.

    A page of somebody else's whose name is made to lead here by DNS could else read ours as if they
    were its own.
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
