"""Invitations: links that work once, by the digest of their secret."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import delete

from cod.model import Invitation
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Rows, theirs

_i = t.invitations.c
ROWS = Rows(
    Invitation,
    t.invitations,
    elsewhere={"group": t.groups.c.name, "user": t.users.c.name},
    source=t.invitations.outerjoin(t.groups, t.groups.c.id == _i.group_id).outerjoin(
        t.users, t.users.c.id == _i.user_id
    ),
)


def add(tx: Tx, digest: str, now: float, **columns: Any) -> Invitation:
    """Add an invitation and return it; `columns`: group_id, role, user_id, email, invited_by,
    expires_at."""
    return ROWS.add(tx, digest=digest, created_at=now, **columns)


def by_digest(tx: Tx, digest: str, now: float) -> Invitation | None:
    """Return the invitation whose secret has that digest, if it can still be used."""
    return ROWS.find(tx, _i.digest == digest, _i.used_at.is_(None), _i.expires_at > now)


def open_ones(tx: Tx, now: float, groups: frozenset[int] | None = None) -> list[Invitation]:
    """Return the invitations into one of `groups` (None: all invitations) that can still be used,
    the newest first."""
    usable = _i.used_at.is_(None), _i.expires_at > now
    return ROWS.every(tx, *usable, *theirs(_i.group_id, groups), order=_i.id.desc())


def spend(tx: Tx, invitation_id: int, now: float) -> bool:
    """Mark an invitation used; return False if it was used before."""
    return ROWS.set_where(tx, _i.id == invitation_id, _i.used_at.is_(None), used_at=now) == 1


def remove(tx: Tx, invitation_id: int) -> bool:
    """Delete an invitation; return False if it does not exist or was used."""
    return (
        tx.execute(
            delete(t.invitations).where(_i.id == invitation_id, _i.used_at.is_(None))
        ).rowcount
        == 1
    )


def remove_by(tx: Tx, name: str, group_id: int | None = None, but: Collection[int] = ()) -> None:
    """Delete the unused invitations that the user of that name, or a token of the user, has made:
    those into the group `group_id`, or without it all except those into the groups `but`."""
    given = (_i.invited_by == f"user:{name}") | _i.invited_by.endswith(f"@{name}", autoescape=True)
    where = (
        [_i.group_id == group_id]
        if group_id is not None
        else [_i.group_id.is_(None) | _i.group_id.not_in(but)]
    )
    tx.execute(delete(t.invitations).where(given, _i.used_at.is_(None), *where))


def remove_of_user(tx: Tx, user_id: int) -> None:
    """Delete the links with which that user could set a new password."""
    tx.execute(delete(t.invitations).where(_i.user_id == user_id, _i.used_at.is_(None)))
