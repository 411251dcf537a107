"""Files on their way in."""

from __future__ import annotations

from sqlalchemy import func, select

from cod.model import SITE, Upload
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.people.access import theirs
from cod.store.rows import Rows

_c = t.uploads.c
ROWS = Rows(
    Upload,
    t.uploads,
    elsewhere={"group": func.coalesce(t.groups.c.name, SITE)},
    source=t.uploads.outerjoin(t.groups, _c.group_id == t.groups.c.id),
)
get, add, change, remove = ROWS.get, ROWS.add, ROWS.set, ROWS.remove


def every(tx: Tx, groups: frozenset[int] | None = None) -> list[Upload]:
    """Return uploads by name, of these groups (None: all, the site's too)."""
    return ROWS.every(tx, *theirs(_c.group_id, groups), order=_c.name)


def expired(tx: Tx, now: float) -> list[Upload]:
    """Return those that have waited too long for more."""
    return ROWS.every(tx, _c.expires_at <= now)


def taken(tx: Tx, group_id: int, *, lock: bool = False) -> tuple[int, int | None]:
    """Return (bytes that a group's images, in served form or while they are taken in as they came,
    and its uploads have; the group's own quota of them, None where it has none).

    lock  the group's row is locked, so that two who ask for room cannot both get the last of it
    """
    query = select(t.groups.c.image_quota).where(t.groups.c.id == group_id)
    own = tx.scalar(query.with_for_update() if lock else query)
    images = tx.scalar(select(func.sum(t.images.c.stored)).where(t.images.c.group_id == group_id))
    sent = tx.scalar(select(func.sum(_c.size)).where(_c.group_id == group_id))
    return int(images or 0) + int(sent or 0), own
