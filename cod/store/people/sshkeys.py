"""Public SSH keys of users."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import bindparam, delete, select

from cod.model import Role, SshKey
from cod.store import tables as t
from cod.store.engine import Prepared, Tx
from cod.store.people import people
from cod.store.rows import Rows

_k, _p, _u = t.ssh_keys.c, t.group_permissions.c, t.users.c
ROWS = Rows(SshKey, t.ssh_keys)
_OF_GROUP = Prepared(
    select(_u.name, *ROWS.columns)
    .join_from(t.ssh_keys, t.users, _k.user_id == _u.id)
    .join(t.group_permissions, _p.user_id == _u.id)
    .where(_p.group_id == bindparam("group"), _p.role.in_([Role.OWNER, Role.MEMBER]), *people.ABLE)
    .order_by(_u.name, _k.id)
)


def of_user(tx: Tx, user_id: int) -> list[SshKey]:
    """Return the user's keys, the oldest first."""
    return ROWS.every(tx, _k.user_id == user_id, order=_k.id)


def of_group(tx: Tx, group_id: int) -> list[tuple[str, SshKey]]:
    """Return (user's name, key) of the group's owners and members who may sign in, by name; a
    user's oldest key first."""
    return [(row[0], ROWS.read(row, 1)) for row in _OF_GROUP.rows(tx, {"group": group_id})]


def add(tx: Tx, key: SshKey) -> SshKey:
    """Store a key of a user and return it with its new id. A user has no two keys with the same
    fingerprint; the caller checks that first."""
    columns = asdict(key)
    del columns["id"]
    return ROWS.add(tx, **columns)


def remove(tx: Tx, user_id: int, key_id: int) -> bool:
    """Delete a key of the user. Return False if the user has no such key."""
    return (
        tx.execute(delete(t.ssh_keys).where(_k.user_id == user_id, _k.id == key_id)).rowcount == 1
    )
