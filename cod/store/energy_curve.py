"""The curve of price or carbon by the hour, as it was last read from its source."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import delete, insert, update

from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Rows

_c = t.energy_curve.c


class Stored(NamedTuple):
    """A row of `energy_curve`."""

    source: str
    content: str
    read_at: float
    good_until: float
    fault: str


_ROWS = Rows(Stored, t.energy_curve)


def find(tx: Tx, source: str | None = None) -> Stored | None:
    """Return the curve of that source (None: of any source); None if there is none."""
    return _ROWS.find(tx, *([] if source is None else [_c.source == source]))


def put(tx: Tx, stored: Stored) -> None:
    """Replace the curve, whatever its source."""
    tx.execute(delete(t.energy_curve).where(_c.source != stored.source))
    values = stored._asdict()
    own = update(t.energy_curve).where(_c.source == stored.source)
    if not tx.execute(own.values(values)).rowcount:
        tx.execute(insert(t.energy_curve).values(values))


def forget(tx: Tx) -> None:
    """Delete the curve."""
    tx.execute(delete(t.energy_curve))
