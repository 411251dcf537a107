"""Tokens of the REST API: the site's tokens, which act as its administrator, and users' tokens.
`flows.people.access` finds the caller that a token belongs to.

A user's token has the full name `TOKEN@USER`: the name tells whose token it is, and tokens of two
users can have the same first part.
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
    """Store the digest of a new `token`, which the caller chose at random; `lifetime` in seconds,
    None for ever.

    actor  the author for the audit, of a caller other than the API; '': add no row to the audit
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
    """Return the tokens of the user `who`, by name, each with the name of its group."""
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
    """Create a token of the user `who`; return it with the name of its group. A call with the token
    has the rights that the user has at that time. Raises `Refused`.

    scope  'write': all rights of the user; 'read': reading; 'calendar': the calendar feed
    group  the only group in which the token has rights; '': all of the user's groups
    """
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
    """Create a token for a user whose password has just been verified; return its full name.
    `wanted` are arguments of `make`. Raises `Refused`."""
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
    """Revoke a token of the user `who`, by its full name or the part before the '@'. Raises
    `Refused`."""
    names = {each.name for each in tokens.every(tx, rights.account(who))}
    found = next((each for each in names if name in (each, each.partition("@")[0])), None)
    if found is None or not tokens.remove(tx, found):
        raise Refused("not_found", f"you have no token {name!r}", "name")
