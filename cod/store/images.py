"""Images in their served form."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

from sqlalchemy import select

from cod.model import Image
from cod.store import tables as t
from cod.store.engine import Tx

_c = t.images.c
COLUMNS = [_c[f.name] for f in fields(Image)]


def named(tx: Tx, names: Collection[str]) -> dict[str, Image]:
    """The images that have one of these names, by name."""
    return {image.name: image for image in (
        Image(*row) for row in tx.execute(select(*COLUMNS).where(_c.name.in_(names))))}
