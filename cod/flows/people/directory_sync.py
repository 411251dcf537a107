"""Those whom their directory does not know any more: signed out, and as good as disabled until it
does again."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from cod.model import User
from cod.store.engine import Tx
from cod.store.people import audit, invitations, people, signins

DIRECTORY = "ldap"
"""The one that can be asked about people who are not there."""
DIFFER = 60.0
"""Seconds by which servers' clocks may differ; who signed in later than that did so by a clock that
was wrong."""


def asked(tx: Tx, *, now: float) -> list[User]:
    """Return the users about whom to ask the directory."""
    return people.of_directory(tx, DIRECTORY, now)


def put_down(
    tx: Tx, *, asked: Iterable[User], known: Collection[str], since: float, now: float
) -> tuple[list[str], list[str]]:
    """Return names of those who are gone, and of those who are back.

    asked, known  about whom the directory was asked, and the subjects that it knows
    since         when it was asked: who has signed in by it after that is there
    """
    gone, back = [], []
    for before in asked:
        user = people.get(tx, before.id)
        if (
            user is None
            or user.subject != before.subject
            or since <= (user.signed_in_at or 0.0) <= now + DIFFER
        ):
            continue
        there = user.subject in known
        if there and user.absent_at is not None:
            _move(tx, user, None, "user present", now)
            back.append(user.name)
        elif not there and user.absent_at is None:
            _move(tx, user, now, "user absent", now)
            signins.end(tx, user.id)
            invitations.remove_by(tx, user.name)
            gone.append(user.name)
    return gone, back


def _move(tx: Tx, user: User, absent_at: float | None, action: str, now: float) -> None:
    people.change(tx, user.id, absent_at=absent_at)
    audit.add(tx, actor=DIRECTORY, action=action, thing=user.name, now=now)
