"""Users' shares of their groups' nodes, in groups that have shares, and what the users have
used."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, func, insert, select

from cod.model import GroupUser
from cod.store import tables as t
from cod.store.engine import Tx

_u, _p, _v = t.user_usage.c, t.group_permissions.c, t.vclusters.c


def of_groups(tx: Tx, groups: Collection[int]) -> list[GroupUser]:
    """Return the users of groups, ordered by group and user: members, and other users whose usage
    in them is recorded."""
    shares = {
        (group_id, user_id): number
        for group_id, user_id, number in tx.execute(
            select(_p.group_id, _p.user_id, _p.shares).where(_p.group_id.in_(groups))
        )
    }
    used = {
        (group_id, user_id): (usage, at)
        for group_id, user_id, usage, at in tx.execute(
            select(_u.group_id, _u.user_id, _u.faded_usage, _u.faded_at).where(
                _u.group_id.in_(groups)
            )
        )
    }
    return [
        GroupUser(*one, shares.get(one, 1.0), *used.get(one, (0.0, 0.0)))
        for one in sorted(shares.keys() | used.keys())
    ]


def names(tx: Tx, ids: Collection[int]) -> dict[int, str]:
    """Return users' names by their ids."""
    c = t.users.c
    return {row[0]: row[1] for row in tx.execute(select(c.id, c.name).where(c.id.in_(ids)))}


def creators(tx: Tx, groups: Collection[int]) -> dict[int, tuple[int, int]]:
    """Return (group, creator or 0 if not known) of each live vcluster of these groups, by the
    vcluster's id."""
    query = select(_v.id, _v.group_id, func.coalesce(_v.user_id, 0)).where(
        _v.group_id.in_(groups), _v.live_name.is_not(None)
    )
    return {row[0]: (row[1], row[2]) for row in tx.execute(query)}


def put(tx: Tx, one: GroupUser) -> None:
    """Replace the recorded usage of a user in a group."""
    tx.execute(delete(t.user_usage).where(_u.group_id == one.group_id, _u.user_id == one.user_id))
    tx.execute(
        insert(t.user_usage).values(
            group_id=one.group_id,
            user_id=one.user_id,
            faded_usage=one.faded_usage,
            faded_at=one.faded_at,
        )
    )


def forget(tx: Tx, group_id: int) -> None:
    """Delete the recorded usage of all users in a group."""
    tx.execute(delete(t.user_usage).where(_u.group_id == group_id))
