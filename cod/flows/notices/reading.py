"""Marks of the notices that a person has read: notices to the person's groups and, for an
administrator, notices to the site's administrators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cod.model import Who
from cod.policy.people import rights
from cod.store.engine import Tx
from cod.store.notices import notices

newest = notices.newest  # "mark all" means all up to this id
unread = notices.unread_count
among = notices.unread_among


@dataclass(frozen=True, slots=True)
class Unread:
    """The number of a person's unread notices, up to the highest number that is counted."""

    unread: int


def count(tx: Tx, *, who: Who) -> Unread:
    """Return how many notices the user `who` has not read."""
    return Unread(unread(tx, who))


def mark(tx: Tx, *, who: Who, ids: Sequence[int], until: int | None) -> Unread:
    """Record that the user `who` has read these notices, and all up to the one with the id `until`.
    Return how many are left unread. Raises `Refused`."""
    user_id = rights.account(who)
    if until is not None:
        notices.mark_all_read(tx, user_id, min(until, notices.newest(tx)))
    notices.mark_read(tx, user_id, among(tx, who, set(ids)))
    return count(tx, who=who)
