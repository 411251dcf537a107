"""May X do Y to Z? The one answer, for every door: portal, REST API, command line, uploads, VCMs.

A site administrator may everything. For others their role in one of the thing's groups decides:

==========  ===  ===  ======
role        SEE  USE  MANAGE
==========  ===  ===  ======
viewer      yes  no   no
member      yes  yes  no
owner       yes  yes  yes
==========  ===  ===  ======

A member of any role may have single rights beside it, such as that to read consoles: a question
that names the single right is answered to those who have it, too.

What belongs to the site and is shared, everybody may see who is signed in. What somebody may not
even see is not found, so that names and numbers of other groups' things cannot be guessed; what
somebody may see and not do is forbidden.
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
    """Return a user as one who asks, with their `roles` and single rights by group id.

    name  of what they ask by, where that is not their session; `only` the one group that it is for:
          then there are no others, and no administrator, who is that group's owner instead
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
    """Return the id of the user who asks. Raises `Refused` for what is no person."""
    if who.user_id is None:
        raise Refused("conflict", "only people have an account")
    return who.user_id


def account(who: Who) -> int:
    """Return the id of the user whose own account it may change: keys, tokens, sessions. Raises
    `Refused` for what is no person, and for a token for one group, which would get at others by
    them."""
    user_id = user_of(who)
    if who.only is not None:
        raise Refused("forbidden", "a token for one group does not change its user's account")
    return user_id


def creates_groups(who: Who, creators: Collection[str], names: Mapping[int | None, str]) -> bool:
    """Return whether `who` may create groups: administrators, and people of the site's `creators`
    (see `model.GroupRules`). A token for one group creates none. `names`: groups' names by id."""
    if who.admin:
        return True
    if who.user_id is None or who.only is not None or not who.writes:
        return False
    working = (names.get(group) for group, role in who.roles.items() if role is not Role.VIEWER)
    return "*" in creators or any(name in creators for name in working)


def may(who: Who, right: Right, owned: Owned, single: SingleRight | None = None) -> bool:
    """Return whether `who` has that right on a thing that is so `owned`; or the `single` one, which
    is enough for what is asked."""
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
) -> None:
    """Raise `Refused`: 'not_found', with the sentence `missing`, where the thing is not there or
    not to be seen by `who`; 'forbidden' where the right is not theirs. For an administrator what is
    not there is left to the flow."""
    if who.admin or (owned is not None and may(who, right, owned, single)):
        return
    if owned is None or (right is not Right.ADMIN and not may(who, Right.SEE, owned)):
        raise Refused("not_found", missing, "name")
    admins = right is Right.ADMIN  # a single right is of no use for it
    others = f", and those who have the right {single!s}," if single and not admins else ""
    raise Refused("forbidden", f"only {_WHO_MAY.get(right, 'some')}{others} may do that")
