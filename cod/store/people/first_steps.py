"""Progress of users through the checklist for newcomers."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select

from cod.model import User
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.people import people

_u, _p, _v, _c = t.users.c, t.group_permissions.c, t.vclusters.c, t.config_templates.c


def dismissed(tx: Tx, user_id: int) -> bool:
    """Return whether the user has dismissed the checklist."""
    return tx.scalar(select(_u.checklist_over_at).where(_u.id == user_id)) is not None


def has_template(tx: Tx, groups: Collection[int]) -> bool:
    """Return whether there is a template for one of these groups, or for all."""
    query = select(_c.id).where(
        _c.retired_at.is_(None), _c.group_id.is_(None) | _c.group_id.in_(groups)
    )
    return tx.scalar(query.limit(1)) is not None


def has_cluster(tx: Tx, user_id: int, groups: Collection[int], *, ready: bool) -> bool:
    """Return whether the user ever requested a vcluster for one of these groups; with `ready`,
    whether such a vcluster ever had all its nodes."""
    query = select(_v.id).where(_v.group_id.in_(groups), _v.user_id == user_id)
    if ready:
        query = query.where(_v.ready_at.is_not(None))
    return tx.scalar(query.limit(1)) is not None


def administrators(tx: Tx, limit: int) -> list[User]:
    """Return administrators who may sign in, by name, those with an address first."""
    return people.ROWS.every(
        tx, _u.admin, *people.ABLE, order=(_u.email == "", _u.name), limit=limit
    )


def without_group(tx: Tx, limit: int) -> list[User]:
    """Return users who may sign in and are in no group, the newest first; administrators need
    none."""
    return people.ROWS.every(
        tx,
        ~_u.admin,
        *people.ABLE,
        _u.id.not_in(select(_p.user_id)),
        order=(_u.created_at.desc(), _u.id.desc()),
        limit=limit,
    )
