"""POSIX numbers of users and groups, which nobody else ever gets: set by administrators, or taken
from the site's directory."""

from __future__ import annotations

from cod.model import HIGHEST, LOWEST, OVERFLOW, Refused, User
from cod.store.engine import Tx
from cod.store.people import people, posix_ids

SHARED = "shared"
"""The holder of a gid that several users may have as primary group, and that no group of COD
has."""


def set_uid(tx: Tx, user: User, uid: int, now: float) -> None:
    """Give the user the number `uid`. If the user has a primary group of their own, its gid becomes
    the same number. Raises `Refused` if somebody else has or had one of the two numbers."""
    own = user.gid is None or user.gid == user.uid
    _take(tx, "uid", uid, f"user:{user.name}", "uid", now)
    if own:
        _take(tx, "gid", uid, f"user:{user.name}", "uid", now)
    people.change(tx, user.id, uid=uid, **({"gid": uid} if own else {}))


def set_primary_gid(tx: Tx, user: User, gid: int, now: float) -> None:
    """Make the group with the number `gid` the user's primary group. Raises `Refused` if the number
    is or was another user's."""
    held = posix_ids.holder(tx, "gid", gid)
    if held is None or held == f"user:{user.name}":
        _take(
            tx, "gid", gid, f"user:{user.name}" if gid == user.uid else held or SHARED, "gid", now
        )
    elif held.startswith("user:"):
        raise Refused(
            "conflict",
            f"{gid} is or was the primary group of {held[5:]}: choose another number",
            "gid",
        )
    people.change(tx, user.id, gid=gid)


def take_gid(tx: Tx, group: str, gid: int, now: float) -> None:
    """Give the group the number `gid`. Raises `Refused` if another group or user has or had it."""
    if posix_ids.holder(tx, "gid", gid) != SHARED:
        _take(tx, "gid", gid, f"group:{group}", "gid", now)


def follow_directory(tx: Tx, user: User, uid: int | None, gid: int | None, now: float) -> list[str]:
    """Give the user the numbers that the site's directory has; return sentences why a number is not
    given."""
    kept = []
    for number, have, take in ((uid, user.uid, set_uid), (gid, user.gid, set_primary_gid)):
        if number is not None and number != have:
            try:
                take(tx, people.get(tx, user.id) or user, number, now)
            except Refused as refused:
                kept.append(refused.sentence)
    return kept


def _take(tx: Tx, kind: str, number: int, holder: str, field: str, now: float) -> None:
    if not LOWEST <= number <= HIGHEST or number in OVERFLOW:
        raise Refused(
            "invalid",
            f"{number} is no {kind} for people: choose one from {LOWEST} to {HIGHEST}, "
            f"but not {' or '.join(map(str, sorted(OVERFLOW)))}",
            field,
        )
    held = posix_ids.holder(tx, kind, number)
    if held is None:
        posix_ids.claim(tx, kind, number, holder, now)
    elif held != holder:
        raise Refused(
            "conflict",
            f"the {kind} {number} is or was given to {held.replace(':', ' ')}: choose another "
            "number",
            field,
        )
