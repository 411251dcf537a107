"""Address and identity trouble, recorded for the API and the administrator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, insert, select

from cod.store import tables as t
from cod.store.engine import Tx

_c = t.conflicts.c


def add(
    tx: Tx, kind: str, about: str, now: float, *,
    subnet: str | None = None, address: int | None = None, mac: str | None = None,
) -> None:
    """Record a conflict; `about` is a sentence for people.

    `kind` is 'declined', 'exhausted', 'limited', 'identity', 'hardware', 'architecture' or 'switch'.
    """
    tx.execute(insert(t.conflicts).values(at=now, kind=kind, about=about, subnet=subnet, address=address, mac=mac))


def seen_since(
    tx: Tx, kind: str, since: float, *, subnet: str | None = None, mac: str | None = None, about: str | None = None
) -> bool:
    """Return whether such a conflict was recorded after `since`. Keeps a storm of the same trouble to one row."""
    query = select(_c.id).where(_c.kind == kind, _c.at > since).limit(1)
    wanted = {_c.subnet: subnet, _c.mac: mac, _c.about: about}
    return tx.scalar(query.where(*(column == value for column, value in wanted.items() if value))) is not None


def count_since(tx: Tx, kind: str, since: float) -> int:
    """Return how many such conflicts were recorded after `since`."""
    return tx.scalar(select(func.count()).where(_c.kind == kind, _c.at > since)) or 0


def every(tx: Tx, limit: int = 200, *, macs: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the newest conflicts first, as dictionaries of the table's columns; with `macs`, those about them."""
    query = select(t.conflicts).order_by(_c.id.desc()).limit(limit)
    if macs is not None:
        query = query.where(_c.mac.in_(macs))
    return [dict(row._mapping) for row in tx.execute(query)]
