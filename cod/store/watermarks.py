"""Named marks of the progress of periodic work, each moved by one server at a time.

A mark is a time, the id of a history's row (see `store.notices.webhook_feed`), or a number of
changes.
"""

from __future__ import annotations

from sqlalchemy import bindparam, delete, insert, select, update

from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.prepared import Prepared
from cod.store.rows import upsert

ENERGY, POOL, RESERVED, HOLD = "energy", "pool", "reservations", "hold"
"""RESERVED counts changes of what reservations in advance leave to others: a grant planned before
one is stale. HOLD is there while the site is held: since when."""
DATABASE = "database"
"""Names the database, and counts its losses (`claims.Progress`)."""
OLDEST_SCHEMA = "oldest schema"
"""Programs that were written for this schema, and for later ones, work with the database."""

_m = t.marks.c
_AT = Prepared(select(_m.at).where(_m.name == bindparam("mark")))
_COUNT = upsert(t.marks, "at", add=True)


def at(tx: Tx, name: str) -> float | None:
    """Return where the mark is; None before the first time."""
    found: float | None = _AT.value(tx, {"mark": name})
    return found


def about(tx: Tx, name: str) -> str:
    """Return why the mark was set; '' where nothing tells."""
    return tx.scalar(select(_m.about).where(_m.name == name)) or ""


def move(tx: Tx, name: str, before: float | None, to: float) -> bool:
    """Move the mark from `before` to `to`; return False if it is not at `before`. Until the commit
    no other transaction can move it.

    IntegrityError when another server sets it for the first time at the same moment.
    """
    if before is None:
        if at(tx, name) is not None:
            return False
        tx.execute(insert(t.marks).values(name=name, at=to))
        return True
    return (
        tx.execute(update(t.marks).where(_m.name == name, _m.at == before).values(at=to)).rowcount
        == 1
    )


def forget(tx: Tx, name: str) -> bool:
    """Delete the mark; return whether it existed. Of two concurrent callers only one gets True."""
    return tx.execute(delete(t.marks).where(_m.name == name)).rowcount == 1


def version(tx: Tx, name: str, *, lock: bool = False) -> float:
    """Return how often the mark was raised. With `lock` no other transaction that locks it goes on
    until this one ends."""
    if lock:
        one_at_a_time(tx, f"{name}, in use")
    return at(tx, name) or 0.0


def raise_version(tx: Tx, name: str) -> None:
    """Count one more change of what the mark stands for; it is locked already."""
    _COUNT[tx.dialect.name].write(tx, {"name": name, "at": 1.0})


def one_at_a_time(tx: Tx, name: str) -> None:
    """Let no other transaction that calls this with the same name go on until this one ends.

    It writes a row. A lock of rows that are only read, `FOR UPDATE`, would do on one database host;
    of two that hold such locks at two hosts of a Galera cluster neither waits, but of two that have
    written the same row the second is run again.
    """
    _COUNT[tx.dialect.name].write(tx, {"name": name, "at": 1.0})
