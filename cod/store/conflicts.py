"""Address and identity trouble, recorded for the API and the administrator."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, select

from cod.store import tables as t
from cod.store.engine import Tx

_c = t.conflicts.c


def add(
    tx: Tx, kind: str, about: str, now: float, *,
    subnet: str | None = None, address: int | None = None, mac: str | None = None,
) -> None:
    """Record a conflict: `kind` is 'declined', 'exhausted' or 'identity'; `about` one sentence for people."""
    tx.execute(insert(t.conflicts).values(at=now, kind=kind, about=about, subnet=subnet, address=address, mac=mac))


def seen_since(tx: Tx, kind: str, since: float, *, subnet: str | None = None, mac: str | None = None) -> bool:
    """Was such a conflict recorded after `since`? Keeps a storm of the same trouble to one row."""
    query = select(_c.id).where(_c.kind == kind, _c.at > since).limit(1)
    if subnet:
        query = query.where(_c.subnet == subnet)
    if mac:
        query = query.where(_c.mac == mac)
    return tx.scalar(query) is not None


def every(tx: Tx, limit: int = 200) -> list[dict[str, Any]]:
    """The newest conflicts first, as dictionaries of the table's columns."""
    return [dict(row._mapping) for row in tx.execute(select(t.conflicts).order_by(_c.id.desc()).limit(limit))]
