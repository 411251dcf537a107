"""The curve of price or carbon by the hour, as it was read last."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import delete, insert, select, update

from cod.store import tables as t
from cod.store.engine import Tx

_c = t.energy_curve.c


class Stored(NamedTuple):
    """A row of `energy_curve`."""

    source: str
    content: str
    read_at: float
    good_until: float
    fault: str


def find(tx: Tx, source: str | None = None) -> Stored | None:
    """Return the curve of that source (None: of whichever); None where there is none."""
    query = select(_c.source, _c.content, _c.read_at, _c.good_until, _c.fault)
    if source is not None:
        query = query.where(_c.source == source)
    row = tx.execute(query).first()
    return Stored(*row) if row else None


def put(tx: Tx, stored: Stored) -> None:
    """Replace what there is of whichever source."""
    tx.execute(delete(t.energy_curve).where(_c.source != stored.source))
    values = stored._asdict()
    own = update(t.energy_curve).where(_c.source == stored.source)
    if not tx.execute(own.values(values)).rowcount:
        tx.execute(insert(t.energy_curve).values(values))


def forget(tx: Tx) -> None:
    """Delete what there is: the site has no curve any more."""
    tx.execute(delete(t.energy_curve))
