"""How far work that goes on in time has come: a mark each, which one server moves at a time.

A mark is a time, or the id of a history's row (see `store.notices.webhook_feed`).
"""

from __future__ import annotations

from sqlalchemy import delete, insert, select, update

from cod.store import tables as t
from cod.store.engine import Tx

ENERGY, POOL = "energy", "pool"

_m = t.marks.c


def at(tx: Tx, name: str) -> float | None:
    """Return where the mark is; None before the first time."""
    found: float | None = tx.scalar(select(_m.at).where(_m.name == name))
    return found


def move(tx: Tx, name: str, before: float | None, to: float) -> bool:
    """Move the mark to `to`; return False when it was not at `before` (any more). Until the commit nobody else can move
    it.

    IntegrityError when another server sets it for the first time at the same moment.
    """
    if before is None:
        if at(tx, name) is not None:
            return False
        tx.execute(insert(t.marks).values(name=name, at=to))
        return True
    return tx.execute(update(t.marks).where(_m.name == name, _m.at == before).values(at=to)).rowcount == 1


def forget(tx: Tx, name: str) -> None:
    """Forget the mark."""
    tx.execute(delete(t.marks).where(_m.name == name))


def one_at_a_time(tx: Tx, name: str, now: float) -> None:
    """Let no other transaction that calls this go on until this one ends: MariaDB would let two read the same thing,
    both find it unchanged, and change it one after the other."""
    moved = tx.execute(update(t.marks).where(_m.name == name).values(at=now))
    if moved.rowcount == 0 and at(tx, name) is None:
        tx.execute(insert(t.marks).values(name=name, at=now))
