"""Permissions: whether a caller may do something to a thing, for the portal, the REST API, the
command line, uploads and VCMs alike.

A site administrator may do everything. For other users, their role in one of the groups that own
the thing decides:

==========  ===  ===  ======
role        SEE  USE  MANAGE
==========  ===  ===  ======
viewer      yes  no   no
member      yes  yes  no
owner       yes  yes  yes
==========  ===  ===  ======

A user with any role may have single rights in addition, such as the right to read consoles. They
allow the actions that name the single right.

Everybody who is signed in may see things of the site that are shared. A thing that a user may not
see is reported as not found, so that names and numbers of other groups' things cannot be guessed.
An action that a user may not do on a visible thing is reported as forbidden.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cod.model import Owned, Refused, Right, Role, SingleRight, User, Who

_NEEDED = {
    Right.SEE: frozenset({Role.VIEWER, Role.MEMBER, Role.OWNER}),
    Right.USE: frozenset({Role.MEMBER, Role.OWNER}),
    Right.MANAGE: frozenset({Role.OWNER}),
}
_WHO_MAY = {
    Right.USE: "members of its group",
    Right.MANAGE: "owners of its group",
    Right.ADMIN: "the site's administrators",
}


def person(
    user: User,
    roles: Mapping[int, Role],
    singles: Mapping[int, frozenset[SingleRight]],
    *,
    name: str = "",
    address: str = "",
    writes: bool = True,
    only: int | None = None,
) -> Who:
    """Return the caller record of a user.

    roles    the user's roles, by group id
    singles  the user's single rights, by group id
    name     name of the caller, such as 'token:ci'; '': the user's name, for a session
    only     the one group that the token is for: roles in other groups do not count, and an
             administrator counts as an owner of this group
    """
    admin = user.admin and only is None
    if only is not None:
        own = Role.OWNER if user.admin else roles.get(only)
        roles = {} if own is None else {only: own}
        singles = {group: rights for group, rights in singles.items() if group == only}
    return Who(
        name or f"user:{user.name}",
        admin,
        writes,
        user.id,
        dict(roles),
        address,
        only=only,
        joined=user.created_at,
        singles=dict(singles),
    )


def user_of(who: Who) -> int:
    """Return the id of the calling user. Raises `Refused` if the caller is no person."""
    if who.user_id is None:
        raise Refused("conflict", "only people have an account")
    return who.user_id


def account(who: Who) -> int:
    """Return the id of the calling user, whose own account (keys, tokens, sessions) may be changed.
    Raises `Refused` if the caller is no person, or a token for one group: by the account it could
    gain access to other groups."""
    user_id = user_of(who)
    if who.only is not None:
        raise Refused("forbidden", "a token for one group does not change its user's account")
    return user_id


def creates_groups(who: Who, creators: Collection[str], names: Mapping[int | None, str]) -> bool:
    """Return whether `who` may create groups. Administrators may, and users who work in a group of
    the site's `creators` (see `model.GroupRules`). A token for one group may not. `names`: groups'
    names by id."""
    if who.admin:
        return True
    if who.user_id is None or who.only is not None or not who.writes:
        return False
    working = (names.get(group) for group, role in who.roles.items() if role is not Role.VIEWER)
    return "*" in creators or any(name in creators for name in working)


def may(who: Who, right: Right, owned: Owned, single: SingleRight | None = None) -> bool:
    """Return whether `who` has `right` on a thing with the owners `owned`, or the `single` right,
    which suffices instead."""
    if who.admin or right is Right.ANY:
        return True
    if right is Right.ADMIN:
        return False
    if right is Right.SEE and owned.shared:
        return True
    return any(
        who.roles.get(group) in _NEEDED[right]
        or (group in who.roles and single in who.singles.get(group, ()))
        for group in owned.groups
    )


def require(
    who: Who,
    right: Right,
    owned: Owned | None,
    missing: str,
    single: SingleRight | None = None,
    field: str = "name",
) -> None:
    """Raise `Refused` unless `who` has the right. The code is 'not_found', with the sentence
    `missing` about `field`, if the thing does not exist (`owned` is None) or `who` may not see it.
    Otherwise, and for `Right.ADMIN` on any thing that exists, the code is 'forbidden'. For
    administrators nothing is raised: the flow reports things that do not exist."""
    if who.admin or (owned is not None and may(who, right, owned, single)):
        return
    if owned is None or (right is not Right.ADMIN and not may(who, Right.SEE, owned)):
        raise Refused("not_found", missing, field)
    admins = right is Right.ADMIN  # single rights do not suffice for it
    others = f", and those who have the right {single!s}," if single and not admins else ""
    raise Refused("forbidden", f"only {_WHO_MAY.get(right, 'some')}{others} may do that")
