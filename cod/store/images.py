"""Images in their served form."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from sqlalchemy import Select, delete, insert, select, update

from cod.model import Image
from cod.store import tables as t
from cod.store.access import theirs_or_shared
from cod.store.engine import Tx

_c = t.images.c
COLUMNS = [_c[f.name] for f in fields(Image)]


def _images(tx: Tx, query: Select[Any]) -> list[Image]:
    return [Image(*row) for row in tx.execute(query)]


def get(tx: Tx, image_id: int) -> Image | None:
    """The image with that id."""
    return next(iter(_images(tx, select(*COLUMNS).where(_c.id == image_id))), None)


def named(tx: Tx, names: Collection[str], *, lock: bool = False) -> dict[str, Image]:
    """The images that have one of these names, by name. `lock`: they stay as they are until the transaction ends."""
    query = select(*COLUMNS).where(_c.name.in_(names))
    return {image.name: image for image in _images(tx, query.with_for_update() if lock else query)}


def every(tx: Tx, groups: frozenset[int] | None = None) -> list[Image]:
    """Images by name, of these groups and the site's (None: all)."""
    return _images(tx, select(*COLUMNS).where(*theirs_or_shared(_c.group_id, groups)).order_by(_c.name))


def oldest_waiting(tx: Tx) -> Image | None:
    """The image that has been waiting longest to be taken in."""
    query = select(*COLUMNS).where(_c.state == "ingesting").order_by(_c.created_at, _c.id).limit(1)
    return next(iter(_images(tx, query)), None)


def digests(tx: Tx) -> set[str]:
    """The digests of all images that are ready: the folders that are needed."""
    return set(tx.scalars(select(_c.digest).where(_c.state == "ready")))


def add(tx: Tx, **columns: Any) -> Image:
    """A new row; `columns` as in the table."""
    added = tx.execute(insert(t.images).values(**columns)).inserted_primary_key
    image = get(tx, added[0]) if added else None
    assert image is not None
    return image


def change(tx: Tx, image_id: int, **columns: Any) -> None:
    """Set columns."""
    tx.execute(update(t.images).where(_c.id == image_id).values(**columns))


def remove(tx: Tx, image_id: int) -> None:
    """Delete the row."""
    tx.execute(delete(t.images).where(_c.id == image_id))
