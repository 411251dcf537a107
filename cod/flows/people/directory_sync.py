"""Comparison of users with the directory. A user whom the directory does not know any more is
signed out, and cannot sign in until the directory knows them again. Of all other users, roles and
facts are taken over from the directory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cod import notice_texts
from cod.core import notices
from cod.core.people import directory
from cod.model import Identity, Owned, PosixRules, Right, User, Who
from cod.policy.people import directory as policy
from cod.policy.people import rights
from cod.store import watermarks
from cod.store.engine import Tx
from cod.store.notices import notices as notice_rows
from cod.store.people import audit, invitations, people, signins

DIRECTORY = "ldap"
"""The directory that can be asked about people without their signing in."""
DIFFER = 60.0
"""Seconds by which servers' clocks may differ. A sign-in further in the future was recorded by a
wrong clock."""
HELD, NORMAL = "directory-held", "directory-normal"


def note(tx: Tx, *, who: Who, asked: Mapping[str, Any], now: float, run: str | None = None) -> None:
    """Record that an administrator has the users compared with the directory. Raises `Refused`."""
    rights.require(who, Right.ADMIN, Owned(), "")
    audit.by(tx, who, "user sync", "", now=now, after=asked, run=run)


def asked(tx: Tx, *, now: float) -> list[User]:
    """Return the users about whom to ask the directory."""
    return people.of_directory(tx, DIRECTORY, now)


def losers(tx: Tx, *, asked: Iterable[User], known: Mapping[str, Identity | None]) -> list[str]:
    """Return the names of the users who would lose their access, a role or all keys by the
    directory's answers `known`. Reads only."""
    return [
        user.name
        for user in asked
        if user.absent_at is None
        and (
            user.subject not in known
            or ((identity := known[user.subject or ""]) and directory.loses(tx, user, identity))
        )
    ]


def too_many(tx: Tx, *, losers: Sequence[str], asked: Iterable[User], now: float) -> bool:
    """Return whether so many users would lose something at once that the directory is not believed.
    Administrators are told when this begins and when it ends."""
    watermarks.one_at_a_time(tx, HELD)  # otherwise two servers might tell it
    present = sum(user.absent_at is None for user in asked)
    held = policy.too_many(len(losers), present)
    sent = notice_rows.of_site(tx, (HELD, NORMAL), 0.0)
    if held != bool(sent and sent[-1].kind == HELD):
        text = (
            notice_texts.directory_held(sorted(losers), present)
            if held
            else notice_texts.directory_normal()
        )
        notices.add(tx, **text, group_id=None, now=now)
    return held


def admit(
    tx: Tx, *, identities: Iterable[Identity], actor: str, posix: PosixRules, now: float
) -> list[str]:
    """Create users for people who have not signed in yet; return the new users' names. Existing
    users get the roles that the directory gives them: `asked` leaves out users who have nothing
    here."""
    found = []
    for each in identities:
        user = people.by_subject(tx, each.subject)
        if user is None:
            user = directory.create(tx, each, actor=actor, posix=posix, now=now)
        elif user.disabled_at is None:
            directory.follow(tx, user, each, now)
        if user.created_at == now:  # also by a run whose commit seemed to fail
            found.append(user.name)
    return found


def record(
    tx: Tx,
    *,
    asked: Iterable[User],
    known: Mapping[str, Identity | None],
    held: Collection[str] = (),
    since: float,
    now: float,
) -> tuple[list[str], list[str], list[str]]:
    """Record the directory's answers. Return the names of users who are gone, of users who are
    back, and of users whose roles have changed.

    asked  the users about whom the directory was asked
    known  the directory's answers, by subject, about the users whom it knows
    held   names of users who are not to be changed
    since  when the directory was asked: a user who has signed in after that is known to it
    """
    gone, back, changed = [], [], []
    for before in asked:
        user = people.get(tx, before.id)
        if (
            user is None
            or user.name in held
            or user.subject != before.subject
            or since <= (user.signed_in_at or 0.0) <= now + DIFFER
        ):
            continue
        present = user.subject in known
        if present and user.absent_at is not None:
            _move(tx, user, None, "user present", now)
            back.append(user.name)
        elif not present and user.absent_at is None:
            _move(tx, user, now, "user absent", now)
            signins.end(tx, user.id)
            invitations.remove_by(tx, user.name)
            gone.append(user.name)
        identity = known.get(user.subject or "")
        if identity is not None:
            standing = people.given_roles(tx, user.id), user.admin
            directory.follow(tx, people.get(tx, user.id) or user, identity, now, take=True)
            after = people.get(tx, user.id) or user
            if standing != (people.given_roles(tx, user.id), after.admin):
                changed.append(user.name)
    return gone, back, changed


def _move(tx: Tx, user: User, absent_at: float | None, action: str, now: float) -> None:
    people.change(tx, user.id, absent_at=absent_at)
    audit.add(tx, actor=DIRECTORY, action=action, thing=user.name, now=now)
