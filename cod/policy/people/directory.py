"""Roles that a directory gives: the changes in COD, and when too many people would lose roles at
once. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from cod.model import SYSTEM_GROUPS, GivenRole, Role

SHELL = re.compile(r"(/[A-Za-z0-9._+-]+)+")
HOME = re.compile(r"/[!-9;-~]*")
"""Printable ASCII without colons, which separate fields of the password file."""
GROUP = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
LONGEST_SHELL, LONGEST_HOME = 100, 255
_RANK = {Role.VIEWER: 0, Role.MEMBER: 1, Role.OWNER: 2}


def shell(text: str) -> str:
    """Return `text` if it is a valid path of a login shell, else ''."""
    return text if SHELL.fullmatch(text) and len(text) <= LONGEST_SHELL else ""


def home(text: str) -> str:
    """Return `text` if it is a valid path of a home directory, else ''."""
    return text if HOME.fullmatch(text) and len(text) <= LONGEST_HOME else ""


def primary_group(name: str) -> str:
    """Return `name` if nodes may have a group of that name, else ''. Names of system groups are not
    allowed, because rules of the system, such as sudo's, would apply to the group."""
    return name if GROUP.fullmatch(name) and name not in SYSTEM_GROUPS else ""


def given(roles: Iterable[GivenRole]) -> tuple[bool, dict[str, Role]]:
    """Return whether the user is made an administrator, and the highest role in each group."""
    admin, best = False, dict[str, Role]()
    for one in roles:
        if not one.group:
            admin = True
        elif _RANK[one.role] >= _RANK[best.get(one.group, Role.VIEWER)]:
            best[one.group] = one.role
    return admin, best


def changes(
    held: Mapping[str, tuple[Role, bool]], wanted: Mapping[str, Role]
) -> dict[str, Role | None]:
    """Return the roles to set by group; None: the role ends.

    held    by group: (role of the user, whether the directory gave it). A role that was given in
            COD stays as it is
    wanted  by group: role that the directory gives
    """
    found: dict[str, Role | None] = {
        group: role
        for group, role in wanted.items()
        if group not in held or (held[group][1] and held[group][0] is not role)
    }
    return found | {
        group: None for group, (_, by_it) in held.items() if by_it and group not in wanted
    }


def losses(
    held: Mapping[str, tuple[Role, bool]], changed: Mapping[str, Role | None]
) -> frozenset[str]:
    """Return the groups in which the user loses the role, or gets a lower one. `changed`: as
    `changes` returns."""
    return frozenset(
        group
        for group, role in changed.items()
        if group in held and (role is None or _RANK[role] < _RANK[held[group][0]])
    )


def too_many(losers: int, people: int) -> bool:
    """Return whether more people lose roles at once than can plausibly leave a site: more than half
    of `people`, and at least two. A faulty answer of the directory has this effect."""
    return losers > max(1.0, people / 2)
