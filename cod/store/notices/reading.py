"""Notices that a person has read: all up to one, and single ones after it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import ColumnElement, delete, exists, func, insert, or_, select, update

from cod.store import tables as t
from cod.store.engine import Tx

_n, _r, _u = t.notices.c, t.notice_reads.c, t.users.c


class Reader(NamedTuple):
    """A user who reads notices to these groups and, if `site`, to administrators."""

    user_id: int
    groups: Collection[int]
    site: bool


def _unread(reader: Reader) -> list[ColumnElement[bool]]:
    """Return the conditions of notices since the user was made that the user has not read."""
    own = _n.group_id.in_(reader.groups)
    user = select(_u.notices_read).where(_u.id == reader.user_id).scalar_subquery()
    since = select(_u.created_at).where(_u.id == reader.user_id).scalar_subquery()
    return [
        _n.events.is_(None),
        or_(own, _n.group_id.is_(None)) if reader.site else own,
        _n.id > user,
        _n.at >= since,
        ~exists().where(_r.user_id == reader.user_id, _r.notice_id == _n.id),
    ]


def count(tx: Tx, reader: Reader, most: int) -> int:
    """Return how many notices the user has not read, `most` at most."""
    found = select(_n.id).where(*_unread(reader)).limit(most).subquery()
    return tx.scalar(select(func.count()).select_from(found)) or 0


def unread(tx: Tx, reader: Reader, among: Collection[int]) -> set[int]:
    """Return which of these notices the user has not read."""
    own = select(_n.id).where(*_unread(reader), _n.id.in_(among))
    return set(tx.scalars(own)) if among else set()


def put(tx: Tx, user_id: int, notice_ids: Collection[int]) -> None:
    """Note that the user has read these unread notices."""
    rows = [{"user_id": user_id, "notice_id": one} for one in sorted(notice_ids)]
    if rows:
        tx.execute(insert(t.notice_reads), rows)


def put_all(tx: Tx, user_id: int, until: int) -> None:
    """Note that the user has read all notices up to the one with that id."""
    tx.execute(
        update(t.users).where(_u.id == user_id, _u.notices_read < until).values(notices_read=until)
    )
    tx.execute(delete(t.notice_reads).where(_r.user_id == user_id, _r.notice_id <= until))
