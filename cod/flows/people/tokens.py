"""Tokens of the REST API: the site's, which act as its administrator, and those of users. Who asks
by one is said in `flows.people.access`.

A user's token is called `TOKEN@USER`, so that names of tokens tell whose they are and nobody's are
in another's way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cod.model import ApiToken, Refused, Who
from cod.policy.people import rights
from cod.store.engine import Tx
from cod.store.people import access, audit, groups, people, tokens

every = tokens.every
MOST = 100  # tokens of one user
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,29}")


# ---------------------------------------------------------------- the site's


def create(
    tx: Tx, name: str, token: str, scope: str, lifetime: float | None, now: float, actor: str = ""
) -> ApiToken:
    """Keep the digest of a new `token` (random, from the caller); `lifetime` in seconds, None for
    ever.

    actor  for the audit, of one who comes past the API
    """
    _check_free(tx, name)
    if "@" in name or not name or len(name) > 63:
        raise Refused("invalid", "a token's name has 1 to 63 characters and no '@'", "name")
    if actor:
        audit.add(
            tx, actor=actor, action="token create", thing=name, after={"scope": scope}, now=now
        )
    expires_at = None if lifetime is None else now + lifetime
    return tokens.add(tx, name, scope, access.digest(token), now, expires_at)


def _check_free(tx: Tx, name: str) -> None:
    if tokens.by_name(tx, name):
        raise Refused(
            "conflict",
            f"there is a token {name!r} already: revoke it first, or choose another name",
            "name",
        )


def revoke(tx: Tx, name: str, now: float = 0.0, actor: str = "") -> None:
    """Revoke a token, a user's or the site's."""
    if not tokens.remove(tx, name):
        raise Refused("not_found", f"there is no token {name!r}", "name")
    if actor:
        audit.add(tx, actor=actor, action="token revoke", thing=name, now=now)


# ---------------------------------------------------------------- a user's


def mine(tx: Tx, who: Who) -> list[tuple[ApiToken, str | None]]:
    """Return the tokens of the one who asks, by name, each with the name of its group."""
    names = {group.id: group.name for group in groups.every(tx)}
    found = [] if who.user_id is None else tokens.every(tx, who.user_id)
    return [(each, names.get(each.group_id or 0)) for each in found]


def make(
    tx: Tx,
    *,
    who: Who,
    name: str,
    token: str,
    scope: str = "write",
    group: str = "",
    lifetime: float | None = None,
    now: float,
) -> tuple[ApiToken, str | None]:
    """Return a token that may do what its user may, then and later: `scope` 'write', or look only:
    'read', or read the calendar feed: 'calendar'; in one `group`. Raises `Refused`."""
    user = people.known(tx, rights.account(who))
    if not _NAME.fullmatch(name):
        raise Refused(
            "invalid",
            f"{name[:64]!r} is no name of a token: letters, digits, '.', '_', '-'; at most 30 of "
            "them",
            "name",
        )
    full = f"{name}@{user.name}"
    _check_free(tx, full)
    if len(tokens.every(tx, user.id)) >= MOST:
        raise Refused("conflict", f"you have {MOST} tokens: revoke some first", "name")
    into = groups.by_name(tx, group) if group else None
    if group and (into is None or (not who.admin and into.id not in who.roles)):
        raise Refused("not_found", f"there is no group {group!r}", "group")
    made = tokens.add(
        tx,
        full,
        scope,
        access.digest(token),
        now,
        None if lifetime is None else now + lifetime,
        user_id=user.id,
        group_id=into.id if into else None,
    )
    return made, into.name if into else None


def of_password(
    tx: Tx,
    *,
    user_id: int,
    address: str,
    wanted: Mapping[str, Any],
    now: float,
    run: str | None = None,
) -> str:
    """Return a token for a user who has just shown their password, as `make` wants it; its full
    name. Raises `Refused`."""
    known = access.able_user(tx, user_id)
    if known is None:
        raise Refused("unauthorised", "name or password is wrong")
    who = rights.person(*known, address=address)
    people.change(tx, user_id, signed_in_at=now)
    made, group = make(tx, who=who, now=now, **wanted)
    details = {"scope": made.scope, "group": group}
    audit.by(tx, who, "token create", made.name, after=details, run=run, now=now)
    return made.name


def drop(tx: Tx, *, who: Who, name: str) -> None:
    """Revoke a token of the one who asks, by its name or that before its '@'. Raises `Refused`."""
    names = {each.name for each in tokens.every(tx, rights.account(who))}
    found = next((each for each in names if name in (each, each.partition("@")[0])), None)
    if found is None or not tokens.remove(tx, found):
        raise Refused("not_found", f"you have no token {name!r}", "name")
