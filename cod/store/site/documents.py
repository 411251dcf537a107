"""Things that the site's documents have named, as (kind, name)."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, insert, select

from cod.store import tables as t
from cod.store.engine import Tx

Thing = tuple[str, str]
_d = t.site_documents.c


def every(tx: Tx) -> set[Thing]:
    """Return all things that documents have named."""
    return {(kind, name) for kind, name in tx.execute(select(_d.kind, _d.name))}


def add(tx: Tx, things: Collection[Thing]) -> None:
    """Record things that a document names."""
    if things:
        rows = [{"kind": kind, "name": name} for kind, name in sorted(things)]
        tx.execute(insert(t.site_documents), rows)


def remove(tx: Tx, things: Collection[Thing]) -> None:
    """Forget that documents named these things."""
    for kind, name in sorted(things):
        tx.execute(delete(t.site_documents).where(_d.kind == kind, _d.name == name))
