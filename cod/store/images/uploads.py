"""Files on their way in."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import Select, delete, func, insert, select, update

from cod.model import SITE, Upload
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.people.access import theirs

_c = t.uploads.c
_COLUMNS = [_c[f.name] for f in fields(Upload) if f.name != "group"]


def _uploads(tx: Tx, query: Select[Any]) -> list[Upload]:
    return [Upload(*row) for row in tx.execute(query)]


def _query() -> Select[Any]:
    owner = func.coalesce(t.groups.c.name, SITE)
    return select(*_COLUMNS, owner).outerjoin_from(
        t.uploads, t.groups, _c.group_id == t.groups.c.id
    )


def get(tx: Tx, upload_id: str, *, lock: bool = False) -> Upload | None:
    """Return the upload with that id. `lock`: it stays as it is until the transaction ends."""
    query = _query().where(_c.id == upload_id)
    return next(iter(_uploads(tx, query.with_for_update(of=t.uploads) if lock else query)), None)


def every(tx: Tx, groups: frozenset[int] | None = None) -> list[Upload]:
    """Return uploads by name, of these groups (None: all, the site's too)."""
    return _uploads(tx, _query().where(*theirs(_c.group_id, groups)).order_by(_c.name))


def expired(tx: Tx, now: float) -> list[Upload]:
    """Return those that have waited too long for more."""
    return _uploads(tx, _query().where(_c.expires_at <= now))


def add(tx: Tx, **columns: Any) -> None:
    """A new row; `columns` as in the table. The unique name settles a race."""
    tx.execute(insert(t.uploads).values(**columns))


def change(tx: Tx, upload_id: str, **columns: Any) -> None:
    """Set columns."""
    tx.execute(update(t.uploads).where(_c.id == upload_id).values(**columns))


def remove(tx: Tx, upload_id: str) -> None:
    """Delete the row."""
    tx.execute(delete(t.uploads).where(_c.id == upload_id))


def taken(tx: Tx, group_id: int, *, lock: bool = False) -> tuple[int, int | None]:
    """(bytes that a group's images, in served form or while they are taken in as they came, and its
    uploads have; the group's own quota of them, None where it has none).

    lock  the group's row is locked, so that two who ask for room cannot both get the last of it
    """
    query = select(t.groups.c.image_quota).where(t.groups.c.id == group_id)
    own = tx.scalar(query.with_for_update() if lock else query)
    images = tx.scalar(select(func.sum(t.images.c.stored)).where(t.images.c.group_id == group_id))
    sent = tx.scalar(select(func.sum(_c.size)).where(_c.group_id == group_id))
    return int(images or 0) + int(sent or 0), own
