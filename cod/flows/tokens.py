"""Tokens of the REST API: who calls by them; the site's, which act as its administrator, and those of users.

A user's token is called `TOKEN@USER`, so that names of tokens tell whose they are and nobody's are in another's way.
"""

from __future__ import annotations

import hashlib
import re

from cod.model import ApiToken, Refused, Who
from cod.policy import rights
from cod.store import audit, groups, people, tokens
from cod.store.engine import Tx

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,29}")


def digest(token: str) -> str:
    """What is kept of a token: BLAKE2b-256, hex. Tokens are random, so no salt and no slow hash are needed."""
    return hashlib.blake2b(token.encode(), digest_size=32).hexdigest()


def caller(tx: Tx, token: str, address: str, now: float) -> Who | None:
    """Who asks by a token; None for an unknown or expired one, or one of a user who is disabled."""
    found = tokens.valid(tx, digest(token), now)
    if found is None:
        return None
    name = f"token:{found.name}"
    if found.user_id is None:
        return Who(name, admin=True, writes=found.scope == "admin", address=address)
    user = people.get(tx, found.user_id)
    if user is None or user.disabled_at is not None:
        return None
    return rights.person(user, people.roles(tx, user.id), name=name, address=address, writes=found.scope == "write",
                         only=found.group_id)


# ---------------------------------------------------------------- the site's


def create(
    tx: Tx, name: str, token: str, scope: str, lifetime: float | None, now: float, actor: str = "user:root"
) -> ApiToken:
    """Keep the digest of a new `token` (random, from the caller); `lifetime` in seconds, None for ever."""
    if tokens.by_name(tx, name):
        raise Refused("conflict", f"there is a token {name!r} already: revoke it first, or choose another name", "name")
    if "@" in name or not name or len(name) > 63:
        raise Refused("invalid", "a token's name has 1 to 63 characters and no '@'", "name")
    audit.add(tx, actor=actor, action="token create", thing=name, after={"scope": scope}, now=now)
    return tokens.add(tx, name, scope, digest(token), now, None if lifetime is None else now + lifetime)


def every(tx: Tx) -> list[ApiToken]:
    """All tokens of the site, by name."""
    return tokens.every(tx)


def revoke(tx: Tx, name: str, now: float = 0.0, actor: str = "user:root") -> None:
    """From now on the token is worth nothing; any token, a user's too."""
    if not tokens.remove(tx, name):
        raise Refused("not_found", f"there is no token {name!r}", "name")
    audit.add(tx, actor=actor, action="token revoke", thing=name, now=now)


# ---------------------------------------------------------------- a user's


def mine(tx: Tx, who: Who) -> list[ApiToken]:
    """The tokens of the one who asks, by name."""
    return [] if who.user_id is None else tokens.every(tx, who.user_id)


def make(
    tx: Tx, *, who: Who, name: str, token: str, scope: str = "write", group: str = "", lifetime: float | None = None,
    now: float,
) -> ApiToken:
    """A token that may do what its user may, then and later: `scope` 'write', or look only: 'read'; in one `group`.

    A token cannot make one that may more than itself. Raises `Refused`.
    """
    user = people.get(tx, who.user_id) if who.user_id is not None else None
    if user is None:
        raise Refused("conflict", "only people have tokens of their own")
    if not _NAME.fullmatch(name):
        raise Refused("invalid", f"{name[:64]!r} is no name of a token: letters, digits, '.', '_', '-'; at most 30 of "
                                 "them", "name")
    full = f"{name}@{user.name}"
    if tokens.by_name(tx, full):
        raise Refused("conflict", f"there is a token {full!r} already: revoke it first, or choose another name", "name")
    into = groups.by_name(tx, group) if group else None
    if group and (into is None or (not who.admin and into.id not in who.roles)):
        raise Refused("not_found", f"there is no group {group!r}", "group")
    if who.only is not None and (into is None or into.id != who.only):
        raise Refused("forbidden", "a token for one group makes no tokens for others", "group")
    return tokens.add(tx, full, scope, digest(token), now, None if lifetime is None else now + lifetime,
                      user_id=user.id, group_id=into.id if into else None)


def drop(tx: Tx, *, who: Who, name: str) -> None:
    """Revoke a token of the one who asks, by its name or that before its '@'. Raises `Refused`."""
    names = {each.name for each in mine(tx, who)}
    found = next((each for each in names if name in (each, each.partition("@")[0])), None)
    if found is None or not tokens.remove(tx, found):
        raise Refused("not_found", f"you have no token {name!r}", "name")
