"""Password hashes: argon2id (RFC 9106), by libargon2. Each call takes 64 MiB and tens of
milliseconds, so it must not run in the reactor.

The parameters are RFC 9106's second recommended choice: 64 MiB, three passes, four lanes. A hash
contains its own parameters, so they can be changed here: a person's hash is then made anew at the
next sign-in.
"""

from __future__ import annotations

import unicodedata
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from argon2.profiles import RFC_9106_LOW_MEMORY

_HASHER = PasswordHasher.from_parameters(RFC_9106_LOW_MEMORY)


def hashed(password: str) -> str:
    """Return the hash of a password, for storing."""
    return _HASHER.hash(_normal(password))


def matches(kept: str, password: str) -> bool:
    """Return whether `kept` is the hash of this password. Without a hash ('') the check takes the
    same time."""
    try:
        return _HASHER.verify(kept or _nobodys(), _normal(password)) and bool(kept)
    except (Argon2Error, InvalidHashError):
        return False


def outdated(kept: str) -> bool:
    """Return whether the hash was made with other parameters than today's."""
    return _HASHER.check_needs_rehash(kept)


@cache
def _nobodys() -> str:
    return _HASHER.hash("nobody's")


def _normal(password: str) -> bytes:
    """Return a password as bytes that do not depend on how a keyboard composes accents."""
    return unicodedata.normalize("NFC", password).encode(errors="replace")
