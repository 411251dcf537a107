"""Passwords: argon2id (RFC 9106), by libargon2. Each call takes 64 MiB and tens of milliseconds:
not for the reactor.

RFC 9106's second recommended choice: 64 MiB, three passes, four lanes. A hash names its own
parameters, so that they can be changed here: whoever signs in next has theirs made anew.
"""

from __future__ import annotations

import unicodedata
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from argon2.profiles import RFC_9106_LOW_MEMORY

_HASHER = PasswordHasher.from_parameters(RFC_9106_LOW_MEMORY)


def hashed(password: str) -> str:
    """Return what is kept of a password."""
    return _HASHER.hash(_normal(password))


def matches(kept: str, password: str) -> bool:
    """Return whether it is the password that `kept` was made of. Takes as long where there is none
    ('')."""
    try:
        return _HASHER.verify(kept or _nobodys(), _normal(password)) and bool(kept)
    except (Argon2Error, InvalidHashError):
        return False


def outdated(kept: str) -> bool:
    """Return whether it was made with other parameters than today's."""
    return _HASHER.check_needs_rehash(kept)


@cache
def _nobodys() -> str:
    return _HASHER.hash("nobody's")


def _normal(password: str) -> bytes:
    """Return the same bytes however a keyboard composes its accents."""
    return unicodedata.normalize("NFC", password).encode(errors="replace")
