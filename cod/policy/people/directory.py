"""Roles that a directory gives: the changes, and the number of changes that is too much to believe.
Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from cod.model import SYSTEM_GROUPS, GivenRole, Role

SHELL = re.compile(r"(/[A-Za-z0-9._+-]+)+")
HOME = re.compile(r"/[!-9;-~]*")
"""Printable ASCII without colons, which end fields of the password file."""
GROUP = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
LONGEST_SHELL, LONGEST_HOME = 100, 255
_RANK = {Role.VIEWER: 0, Role.MEMBER: 1, Role.OWNER: 2}


def shell(text: str) -> str:
    """Return a login shell as nodes may have it; '': it is none."""
    return text if SHELL.fullmatch(text) and len(text) <= LONGEST_SHELL else ""


def home(text: str) -> str:
    """Return a home directory as nodes may have it; '': it is none."""
    return text if HOME.fullmatch(text) and len(text) <= LONGEST_HOME else ""


def primary_group(name: str) -> str:
    """Return the name of a group as nodes may have it; '': it is none. The rules of systems, such
    as sudo's, hold for groups called as theirs are."""
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

    held    the roles that the user has, and whether the directory gave them: one that somebody here
            gave stays as it is
    wanted  those that the directory gives
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
    """Return the groups in which `changes` takes something away: the role, or a part of it."""
    return frozenset(
        group
        for group, role in changed.items()
        if group in held and (role is None or _RANK[role] < _RANK[held[group][0]])
    )


def too_many(losers: int, people: int) -> bool:
    """Return whether more lose something at once than leave a site in an hour: more than half, and
    at least two. An empty answer of the directory looks like that."""
    return losers > max(1.0, people / 2)
