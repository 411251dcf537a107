"""Users and the members of groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cod.core.people import posix as numbers
from cod.model import POSIX, Group, Member, PosixRules, Refused, Role, SingleRight, User, Who
from cod.policy import notice_delivery
from cod.policy.people import rights, signin
from cod.store.engine import Tx
from cod.store.people import audit, groups, invitations, ldap_rows, people, signins

every = people.every


# ---------------------------------------------------------------- users


def one(tx: Tx, name: str, groups: frozenset[int] | None = None) -> tuple[User, list[Member]]:
    """Return a user with their memberships of `groups` (None: of all). Raises `Refused`."""
    user = people.named(tx, name)
    return user, people.members(tx, user_id=user.id, groups=groups)


def me(tx: Tx, who: Who) -> tuple[User | None, list[Member]]:
    """Return the user `who` with their memberships; (None, []) if no person asks."""
    user = None if who.user_id is None else people.get(tx, who.user_id)
    return user, [] if user is None else people.members(tx, user_id=user.id, groups=who.groups)


def set_profile(tx: Tx, who: Who, changes: Mapping[str, Any]) -> tuple[User | None, list[Member]]:
    """Change full_name and email of the user `who`. Raises `Refused`."""
    user_id, columns = rights.account(who), dict(changes)
    if "email" in columns:
        columns["email"] = notice_delivery.check_address(columns["email"])
    people.change(tx, user_id, **columns)
    return me(tx, who)


def create(
    tx: Tx,
    name: str,
    *,
    full_name: str = "",
    email: str = "",
    admin: bool = False,
    uid: int | None = None,
    posix: PosixRules = POSIX,
    now: float,
) -> User:
    """Create a user, who has no password yet, and return the user. `uid` None: the next of the
    site's range. Raises `Refused`."""
    signin.check_name(name)
    if people.by_name(tx, name):
        raise Refused("conflict", f"there is a user {name!r} already", "name")
    user = people.add(
        tx,
        name,
        now,
        full_name=full_name,
        email=notice_delivery.check_address(email),
        admin=admin,
        posix=posix,
    )
    if uid is not None:
        numbers.set_uid(tx, user, uid, now)
    return people.named(tx, name)


def change(
    tx: Tx, name: str, changes: Mapping[str, Any], *, now: float
) -> tuple[User, list[Member]]:
    """Change full_name, email, admin, disabled, uid or gid of a user. A user who is disabled is
    signed out everywhere, and their invitation links become invalid. A user who is no longer an
    administrator keeps only links to groups that they own. Raises `Refused`."""
    user = people.named(tx, name)
    columns = dict(changes)
    if "email" in columns:
        columns["email"] = notice_delivery.check_address(columns["email"])
    for number, put in (("uid", numbers.set_uid), ("gid", numbers.set_primary_gid)):
        if number in columns:
            put(tx, people.named(tx, name), columns.pop(number), now)
    if "disabled" in columns:
        off = columns.pop("disabled")
        columns["disabled_at"] = (user.disabled_at or now) if off else None
    if columns.get("admin", user.admin) != user.admin:  # an unchanged one stays the directory's
        columns["admin_given"] = False
    if columns.get("admin") is False or columns.get("disabled_at") is not None:
        _keeps_an_administrator(tx, user)
    people.change(tx, user.id, **columns)
    if columns.get("disabled_at") is not None:
        signins.end(tx, user.id)
        invitations.remove_of_user(tx, user.id)
        invitations.remove_by(tx, name)
    elif columns.get("admin") is False:
        owned = [group for group, role in people.roles(tx, user.id).items() if role is Role.OWNER]
        invitations.remove_by(tx, name, but=owned)
    return one(tx, name)


def _keeps_an_administrator(tx: Tx, user: User) -> None:
    if user.admin and user.able and people.admins(tx) == 1:
        raise Refused(
            "conflict",
            f"{user.name} is the last administrator who may sign in: make another one first",
            "name",
        )


def delete(tx: Tx, name: str) -> None:
    """Delete a user, with their sessions, tokens, keys and roles. Invitation links that they
    created or that were for them become invalid. Histories and the audit keep their name. Raises
    `Refused` for the last administrator and for the last owner of a group."""
    user = people.named(tx, name)
    _keeps_an_administrator(tx, user)
    owned = [group for group, role in people.roles(tx, user.id).items() if role is Role.OWNER]
    alone = [
        groups.get(tx, group).name
        for group in sorted(owned)
        if user.able and people.owners(tx, group) == 1
    ]
    if alone:
        raise Refused(
            "conflict",
            f"{name} is the last owner of {', '.join(alone)}: make somebody else an owner first",
            "name",
        )
    invitations.remove_by(tx, name)
    people.remove(tx, user.id)


def end_sessions(tx: Tx, name: str) -> int:
    """Sign the user out everywhere; return from how many browsers. Raises `Refused`."""
    return signins.end(tx, people.named(tx, name).id)


def set_password(
    tx: Tx, *, who: Who, password: str, but: int | None, now: float, run: str | None = None
) -> int:
    """Set the password of the user `who` to the one with the hash `password`, and end all their
    sessions except the session `but`; return how many were ended. Raises `Refused`."""
    user_id = rights.account(who)
    user = people.get(tx, user_id)
    if user is None or user.directory:
        raise Refused("conflict", "your password is where you sign in: change it there", "new")
    people.change(tx, user_id, password=password)
    audit.by(tx, who, "password set", who.person, run=run, now=now)
    return signins.end(tx, user_id, but=but)


# ---------------------------------------------------------------- members


def members(tx: Tx, group: str) -> list[Member]:
    """Return a group's members, by name. Raises `Refused`."""
    return people.members(tx, group_id=groups.named(tx, group).id)


memberships = people.members


def member(tx: Tx, *, group: str, user: str) -> Member:
    """Return a user's membership of a group. Raises `Refused`."""
    into, person = _in_group(tx, group, user)
    return people.members(tx, group_id=into.id, user_id=person.id)[0]


def _in_group(tx: Tx, group: str, user: str) -> tuple[Group, User]:
    """Return the group and its member `user`. Raises `Refused`, with the same sentence whether the
    user exists or not: members of a group are not told who has an account."""
    into, person = groups.named(tx, group), people.by_name(tx, user)
    if person is None or into.id not in people.roles(tx, person.id):
        raise Refused("not_found", f"{user} is not in group {group}", "user")
    return into, person


def set_role(
    tx: Tx,
    *,
    group: str,
    user: str,
    role: str | None,
    rights: Collection[str] | None = None,
    shares: float | None = None,
    enlist: bool = True,
    force: bool = False,
) -> Member:
    """Give `user` the role `role` in the group; None: the present role. Raises `Refused`.

    rights  the single rights beside the role; None: the present ones
    shares  in proportion to the shares of the group's other users; None: the present ones
    enlist  add the user to the group if need be, as administrators may. Owners send invitations:
            nobody's name and address are shown to a group that they did not choose to join
    force   leave the group without an owner if need be, as administrators may
    """
    into, person = groups.named(tx, group), people.by_name(tx, user)
    if not enlist and (person is None or into.id not in people.roles(tx, person.id)):
        raise Refused(
            "forbidden",
            f"{user} is not in group {group}. Invite them: an invitation's link takes in "
            "somebody who has an account, too",
            "user",
        )
    person = person or people.named(tx, user)
    before = people.roles(tx, person.id).get(into.id)
    wanted = before if role is None else Role(role)
    if wanted is None:
        raise Refused("invalid", f"{user} is not in group {group}: say the role", "role")
    if role is not None and wanted != Role.OWNER:
        _keeps_an_owner(tx, into, person, force)
        _take_back_links(tx, into, person)
    people.set_role(
        tx,
        into.id,
        person.id,
        wanted,
        None if rights is None else set(map(SingleRight, rights)),
        shares,
        given=None if wanted is before else False,  # an unchanged role stays the directory's
    )
    return next(each for each in people.members(tx, group_id=into.id, user_id=person.id))


def remove(tx: Tx, *, group: str, user: str, force: bool = False) -> tuple[str, str, list[str]]:
    """Take `user` out of the group; return both, and the nodes on which sessions of the user may
    still be open. Raises `Refused`."""
    into, person = _in_group(tx, group, user)
    _keeps_an_owner(tx, into, person, force)
    _take_back_links(tx, into, person)
    people.set_role(tx, into.id, person.id, None)
    return group, user, ldap_rows.running(tx, into.id)


def _take_back_links(tx: Tx, group: Group, user: User) -> None:
    """Remove the invitations to the group that the user created: by one of them, the user could
    come back with the former role."""
    if not user.admin:
        invitations.remove_by(tx, user.name, group.id)


def _keeps_an_owner(tx: Tx, group: Group, user: User, force: bool) -> None:
    is_owner = people.roles(tx, user.id).get(group.id) is Role.OWNER and user.able
    if is_owner and not force and people.owners(tx, group.id) == 1:
        raise Refused(
            "conflict",
            f"{user.name} is the last owner of {group.name}: make another one first",
            "user",
        )
