"""Read marks of a person, for notices to the person's groups and, of an administrator's, to the
site's administrators."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cod.model import Who
from cod.policy.people import rights
from cod.store.engine import Tx
from cod.store.notices import notices

MOST = 100  # that are counted
newest = notices.newest  # who marks all means those up to it


@dataclass(frozen=True, slots=True)
class Unread:
    """The number of a person's unread notices, at most `MOST`."""

    unread: int


def count(tx: Tx, *, who: Who) -> Unread:
    """Return how many notices the one who asks has not read; of what is no person 0."""
    reader = _reader(who)
    return Unread(0 if reader is None else notices.unread_count(tx, reader, MOST))


def among(tx: Tx, who: Who, notice_ids: Collection[int]) -> set[int]:
    """Return which of these notices the one who asks has not read."""
    reader = _reader(who)
    return set() if reader is None else notices.unread_among(tx, reader, notice_ids)


def mark(tx: Tx, *, who: Who, ids: Sequence[int], until: int | None) -> Unread:
    """Note that the one who asks has read those notices, and all up to the one with the id `until`.
    Return what is left. Raises `Refused`."""
    user_id = rights.account(who)
    if until is not None:
        notices.mark_all_read(tx, user_id, min(until, notices.newest(tx)))
    notices.mark_read(tx, user_id, among(tx, who, set(ids)))
    return count(tx, who=who)


def _reader(who: Who) -> notices.Reader | None:
    """Return the one who asks as a reader; None: what is no person."""
    if who.user_id is None:
        return None
    return notices.Reader(who.user_id, sorted(who.roles), who.admin)
