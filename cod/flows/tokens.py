"""Tokens of the REST API: who calls, and the administrator's care of them."""

from __future__ import annotations

import hashlib

from cod.model import ApiToken, Refused
from cod.store import tokens
from cod.store.engine import Tx


def digest(token: str) -> str:
    """What is kept of a token: BLAKE2b-256, hex. Tokens are random, so no salt and no slow hash are needed."""
    return hashlib.blake2b(token.encode(), digest_size=32).hexdigest()


def caller(tx: Tx, token: str, now: float) -> ApiToken | None:
    """The record of a valid token; None for an unknown or expired one."""
    return tokens.valid(tx, digest(token), now)


def create(tx: Tx, name: str, token: str, scope: str, lifetime: float | None, now: float) -> ApiToken:
    """Keep the digest of a new `token` (random, from the caller); `lifetime` in seconds, None for ever."""
    if tokens.by_name(tx, name):
        raise Refused("conflict", f"there is a token {name!r} already: revoke it first, or choose another name", "name")
    return tokens.add(tx, name, scope, digest(token), now, None if lifetime is None else now + lifetime)


def every(tx: Tx) -> list[ApiToken]:
    """All tokens, by name."""
    return tokens.every(tx)


def revoke(tx: Tx, name: str) -> None:
    """From now on the token is worth nothing."""
    if not tokens.remove(tx, name):
        raise Refused("not_found", f"there is no token {name!r}", "name")
