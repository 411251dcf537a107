"""Named marks of the progress of periodic work, each moved by one server at a time.

A mark is a time, the id of a history's row (see `store.notices.webhook_feed`), or a number of
changes.
"""

from __future__ import annotations

from sqlalchemy import bindparam, delete, insert, select, update

from cod.store import tables as t
from cod.store.engine import Prepared, Tx
from cod.store.rows import upsert

ENERGY, POOL, RESERVED = "energy", "pool", "reservations"
HOLD, LAST_HOLD = "hold", "last hold"
"""RESERVED counts the changes of what reservations in advance leave to other requests: a grant that
was planned before such a change is stale. HOLD exists while the site is held, and is the time when
the hold began. LAST_HOLD stays: the newest transition of a node when the site was held last. By
times, a node that was out of service then could not be told where servers' clocks differ."""
DATABASE = "database"
"""Names the database, and counts its losses (`claims.Progress`)."""
FENCE = "one at a time: "
"""Begins the names of marks that stand for nothing: transactions write them to wait for each
other."""
OLDEST_SCHEMA = "oldest schema"
"""Programs that were written for this schema, and for later ones, work with the database."""

_m = t.marks.c
_AT = Prepared(select(_m.at).where(_m.name == bindparam("mark")))
_COUNT = upsert(t.marks, "at", add=True)
_PUT = upsert(t.marks, "at", "about")


def at(tx: Tx, name: str) -> float | None:
    """Return the value of the mark; None if it does not exist."""
    found: float | None = _AT.value(tx, {"mark": name})
    return found


def about(tx: Tx, name: str) -> str:
    """Return why the mark was set; '' if no reason is recorded."""
    return tx.scalar(select(_m.about).where(_m.name == name)) or ""


def move(tx: Tx, name: str, before: float | None, to: float) -> bool:
    """Move the mark from `before` to `to`; return False if it is not at `before`. Until this
    transaction commits, no other transaction can move the mark.

    Raises IntegrityError if another server creates the mark at the same moment.
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


def put(tx: Tx, name: str, to: float, about: str) -> None:
    """Set the mark, wherever it was, and why."""
    _PUT[tx.dialect.name].write(tx, {"name": name, "at": to, "about": about})


def forget(tx: Tx, name: str) -> bool:
    """Delete the mark; return whether it existed. Of two concurrent callers only one gets True."""
    return tx.execute(delete(t.marks).where(_m.name == name)).rowcount == 1


def version(tx: Tx, name: str, *, lock: bool = False) -> float:
    """Return how often the mark was raised. With `lock`, other transactions that lock the mark wait
    until this transaction ends."""
    if lock:
        one_at_a_time(tx, name)
    return at(tx, name) or 0.0


def raise_version(tx: Tx, name: str) -> None:
    """Add one to a mark that counts changes. The caller has locked the mark."""
    _COUNT[tx.dialect.name].write(tx, {"name": name, "at": 1.0})


def one_at_a_time(tx: Tx, name: str) -> None:
    """Make other transactions that call this function with the same name wait until this one ends.

    The function writes a row. On a single database host, a lock on a row that is only read (`FOR
    UPDATE`) would be enough. At two hosts of a Galera cluster, transactions with such locks do not
    wait for each other; but of two that have written the same row, the second is run again.
    """
    raise_version(tx, FENCE + name)
