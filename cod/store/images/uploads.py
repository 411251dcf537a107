"""Uploads: files that clients are still sending."""

from __future__ import annotations

from sqlalchemy import func, select

from cod.model import SITE, Upload
from cod.store import tables as t
from cod.store import watermarks
from cod.store.engine import Tx
from cod.store.rows import Rows, theirs

_c = t.uploads.c
ROWS = Rows(
    Upload,
    t.uploads,
    elsewhere={"group": func.coalesce(t.groups.c.name, SITE)},
    source=t.uploads.outerjoin(t.groups, _c.group_id == t.groups.c.id),
)
get, add, change, remove = ROWS.get, ROWS.add, ROWS.set, ROWS.remove


def every(tx: Tx, groups: frozenset[int] | None = None) -> list[Upload]:
    """Return the uploads of these groups by name (None: all uploads, also the site's)."""
    return ROWS.every(tx, *theirs(_c.group_id, groups), order=_c.name)


def expired(tx: Tx, now: float) -> list[Upload]:
    """Return the uploads that have waited too long for more data."""
    return ROWS.every(tx, _c.expires_at <= now)


def taken(tx: Tx, group_id: int, *, lock: bool = False) -> tuple[int, int | None]:
    """Return (bytes used by the group, the group's own quota or None). Used bytes are the stored
    sizes of its images and the full sizes of its uploads.

    lock  other transactions that lock these sums wait for this one, and then see what it adds
    """
    if lock:
        watermarks.one_at_a_time(tx, "images")
    own = tx.scalar(select(t.groups.c.image_quota).where(t.groups.c.id == group_id))
    images = tx.scalar(select(func.sum(t.images.c.stored)).where(t.images.c.group_id == group_id))
    sent = tx.scalar(select(func.sum(_c.size)).where(_c.group_id == group_id))
    return int(images or 0) + int(sent or 0), own
