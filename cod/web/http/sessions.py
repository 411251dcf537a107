"""Who looks at a page: cookies, and the tokens that prove that a form comes from a page of ours.

A browser that is signed in has the cookie `__Host-cod`; one that is not gets `__Host-cod-visit`
with the first form. A form's token is an HMAC of the cookie, masked with fresh random bytes on each
page, so that it never looks the same in what is compressed and encrypted (BREACH).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, unquote

from cod.flows.people.signin import SignedIn
from cod.model import Who

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


def _proof(token: str) -> bytes:
    return hmac.new(token.encode(), b"a form of the portal", hashlib.sha256).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
