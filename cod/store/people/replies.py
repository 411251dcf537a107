"""Answers to requests that carried a key of their sender's: a repeated request gets the same
answer."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, exc, insert

from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Rows

_r = t.replies.c


@dataclass(frozen=True, slots=True)
class Kept:
    """A stored answer: HTTP status, body ('' if it has none, or none is kept), and its question."""

    question: str
    status: int
    body: str


_ROWS = Rows(Kept, t.replies)


def begin(tx: Tx, key: str, question: str, now: float) -> Kept | None:
    """Claim the key. None: the key is new, and the question needs an answer. The second of two
    simultaneous callers waits for the first one's transaction, and then gets its answer."""
    existing = _ROWS.get(tx, key)
    if existing is not None:
        return existing
    try:
        with tx.begin_nested():
            tx.execute(
                insert(t.replies).values(key=key, question=question, status=0, body="", at=now)
            )
    except exc.IntegrityError:
        existing = _ROWS.get(tx, key)
        if existing is None:
            raise
    return existing


def keep(tx: Tx, key: str, status: int, body: str) -> None:
    """Store the reply to a request that was begun in this transaction."""
    _ROWS.set(tx, key, status=status, body=body)


def forget(tx: Tx, before: float) -> None:
    """Delete what was answered before then."""
    tx.execute(delete(t.replies).where(_r.at < before))
