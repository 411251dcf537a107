"""People: users, their roles in groups."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, delete, func, insert, or_, select, update

from cod.model import POSIX, Member, PosixRules, Refused, Role, SingleRight, User
from cod.store import tables as t
from cod.store import watermarks
from cod.store.engine import Tx
from cod.store.people import posix_ids
from cod.store.rows import Rows

_u, _p, _g = t.users.c, t.group_permissions.c, t.groups.c
ROWS = Rows(User, t.users, noun="user")
get, known = ROWS.get, ROWS.known
ABLE = (_u.disabled_at.is_(None), _u.absent_at.is_(None))
"""Conditions for users who may do anything at all (`User.able`)."""

# ---------------------------------------------------------------- users


def every(tx: Tx, groups: Collection[int] | None = None) -> list[User]:
    """Return all users by name, or those with a role in one of `groups`."""
    where = []
    if groups is not None:
        where = [_u.id.in_(select(_p.user_id).where(_p.group_id.in_(groups)))]
    return ROWS.every(tx, *where, order=_u.name)


def by_name(tx: Tx, name: str) -> User | None:
    """Return the user with exactly that sign-in name: for MariaDB, 'ANN' and 'ann ' equal 'ann'."""
    user = ROWS.by_name(tx, name)
    return user if user and user.name == name else None


def named(tx: Tx, name: str) -> User:
    """Return the user with exactly that sign-in name. Raises `Refused` ('not_found') if there is
    none."""
    user = by_name(tx, name)
    if user is None:
        raise Refused("not_found", f"there is no user {name!r}", "name")
    return user


def by_subject(tx: Tx, subject: str) -> User | None:
    """Return the user whom the site's directory or OpenID Connect provider calls `subject`; None if
    there is none."""
    return ROWS.by(tx, subject=subject)


def of_directory(tx: Tx, directory: str, now: float) -> list[User]:
    """Return the users of that directory whose presence in it has to be checked, by id. These are
    users who are not disabled here and who are administrators, have a session, a token, a key or a
    role, or were missing in the directory at the last check."""
    held = [
        select(each.user_id).where(*live)
        for each, live in (
            (t.web_sessions.c, [t.web_sessions.c.expires_at > now]),
            (t.api_tokens.c, [t.api_tokens.c.user_id.is_not(None)]),
            (t.ssh_keys.c, []),
            (t.group_permissions.c, []),
        )
    ]
    return ROWS.every(
        tx,
        _u.directory == directory,
        _u.disabled_at.is_(None),
        _u.absent_at.is_not(None) | _u.admin | or_(*(_u.id.in_(each) for each in held)),
        order=_u.id,
    )


def add(tx: Tx, name: str, now: float, *, posix: PosixRules = POSIX, **columns: Any) -> User:
    """Add a user with POSIX numbers from the site's range, and return the user. The name is unique;
    the caller checks that first. Raises `Refused` if the range is used up."""
    uid = posix_ids.give(tx, ("uid", "gid"), posix.first_uid, posix.last_uid, f"user:{name}", now)
    return ROWS.add(tx, name=name, created_at=now, uid=uid, gid=uid, **columns)


def change(tx: Tx, user_id: int, **columns: Any) -> None:
    """Change columns of the user. If a column decides who has home directories, have file servers
    update them."""
    on_nodes = [_u[name] for name in _ON_NODES & columns.keys()]
    before = (
        tx.execute(select(_u.admin, *on_nodes).where(_u.id == user_id)).one_or_none()
        if on_nodes
        else None
    )
    ROWS.set(tx, user_id, **columns)
    if before is not None and any(
        getattr(before, column.name) != columns[column.name] for column in on_nodes
    ):
        of_user = t.volumes.c.group_id.in_(select(_p.group_id).where(_p.user_id == user_id))
        _make_homes(tx, *([] if before.admin or columns.get("admin") else [of_user]))


_ON_NODES = frozenset({"uid", "gid", "admin", "disabled_at", "absent_at"})
"""Columns that decide about a user's account on nodes, and so about the home directories."""


def _make_homes(tx: Tx, *conditions: ColumnElement[bool]) -> None:
    """Have file servers update the directories in home volumes."""
    v = t.volumes.c
    tx.execute(
        update(t.volumes)
        .where(v.kind == "home", *conditions)
        .values(
            sequence=v.sequence + 1, next_at=0.0, attempts=0, claimed_by=None, claim_expires=None
        )
    )


def remove(tx: Tx, user_id: int) -> None:
    """Delete the user, and everything of theirs. Groups that the user created stay."""
    name = select(_u.name).where(_u.id == user_id).scalar_subquery()
    tx.execute(update(t.groups).where(_g.created_by == name).values(created_by=None))
    tx.execute(update(t.vclusters).where(t.vclusters.c.user_id == user_id).values(user_id=None))
    for table in (
        t.web_sessions,
        t.api_tokens,
        t.ssh_keys,
        t.invitations,
        t.group_permissions,
        t.user_usage,
        t.request_watchers,
        t.notice_reads,
        t.notice_choices,
        t.notice_digests,
    ):
        tx.execute(delete(table).where(table.c.user_id == user_id))
    tx.execute(delete(t.users).where(_u.id == user_id))


def password(tx: Tx, user_id: int) -> str:
    """Return the hash of the user's password; '' if the user has none."""
    return tx.scalar(select(_u.password).where(_u.id == user_id)) or ""


def admins(tx: Tx) -> int:
    """Return how many administrators may sign in. Other transactions that ask the same wait until
    this one ends, and then see its changes."""
    watermarks.one_at_a_time(tx, "administrators")
    return tx.scalar(select(func.count()).select_from(t.users).where(_u.admin, *ABLE)) or 0


# ---------------------------------------------------------------- members


def roles(tx: Tx, user_id: int) -> dict[int, Role]:
    """Return the user's roles by group id."""
    rows = tx.execute(select(_p.group_id, _p.role).where(_p.user_id == user_id))
    return {row.group_id: Role(row.role) for row in rows}


def given_roles(tx: Tx, user_id: int) -> dict[str, tuple[Role, bool]]:
    """Return the user's role in each group, by the group's name, and whether the user's directory
    gave the role."""
    query = select(_g.name, _p.role, _p.given).join_from(
        t.group_permissions, t.groups, _p.group_id == _g.id
    )
    rows = tx.execute(query.where(_p.user_id == user_id))
    return {name: (Role(role), given) for name, role, given in rows}


def members(
    tx: Tx,
    *,
    group_id: int | None = None,
    user_id: int | None = None,
    groups: Collection[int] | None = None,
) -> list[Member]:
    """Return members of a group, or memberships of a user in `groups` (None: all), by names."""
    query = (
        select(_g.name, _u.name, _u.full_name, _u.email, _p.role, _p.rights, _p.shares, _p.given)
        .join_from(t.group_permissions, t.groups, _p.group_id == _g.id)
        .join(t.users, _p.user_id == _u.id)
        .order_by(_g.name, _u.name)
    )
    if group_id is not None:
        query = query.where(_p.group_id == group_id)
    if user_id is not None:
        query = query.where(_p.user_id == user_id)
    if groups is not None:
        query = query.where(_p.group_id.in_(groups))
    return [
        Member(*row[:4], Role(row[4]), tuple(map(SingleRight, row[5].split())), *row[6:])
        for row in tx.execute(query)
    ]


def owners(tx: Tx, group_id: int) -> int:
    """Return how many owners of the group may sign in. Other transactions that ask the same wait
    until this one ends, and then see its changes."""
    watermarks.one_at_a_time(tx, "owners")
    query = (
        select(func.count())
        .select_from(t.group_permissions)
        .join(t.users, _p.user_id == _u.id)
        .where(_p.group_id == group_id, _p.role == Role.OWNER, *ABLE)
    )
    return tx.scalar(query) or 0


def set_role(
    tx: Tx,
    group_id: int,
    user_id: int,
    role: Role | None,
    rights: Collection[SingleRight] | None = None,
    shares: float | None = None,
    given: bool | None = False,
) -> None:
    """Give the user the role in the group; None removes the user from it. For `rights` (the single
    rights), `shares` (among the group's users) and `given` (whether the user's directory gives the
    role), None keeps the former value. An owner has all rights, so no single ones are stored.

    The file server of the group's home volume becomes due, to make a directory for each member.
    """
    _make_homes(tx, t.volumes.c.group_id == group_id)
    own = (_p.group_id == group_id, _p.user_id == user_id)
    row = tx.execute(select(_p.rights, _p.shares, _p.given).where(*own)).one_or_none()
    before = row or ("", 1.0, False)
    tx.execute(delete(t.group_permissions).where(*own))
    if role is not None:
        kept = before[0] if rights is None else " ".join(r for r in SingleRight if r in rights)
        kept = "" if role is Role.OWNER else kept  # nor after another role follows
        tx.execute(
            insert(t.group_permissions).values(
                group_id=group_id,
                user_id=user_id,
                role=role.value,
                rights=kept,
                shares=before[1] if shares is None else shares,
                given=before[2] if given is None else given,
            )
        )
