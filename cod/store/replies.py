"""Stored replies to requests with an idempotency key: a repeated request gets the same reply."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, exc, insert

from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Rows

_r = t.replies.c


@dataclass(frozen=True, slots=True)
class Kept:
    """A stored reply.

    question  identifies the request that it answers
    status    HTTP status
    body      '' if the reply has none, or none was stored
    """

    question: str
    status: int
    body: str


_ROWS = Rows(Kept, t.replies)


def begin(tx: Tx, key: str, question: str, now: float) -> Kept | None:
    """Claim the key. Return None if the key is new, so that the request has to be carried out, and
    else the stored reply. The second of two simultaneous callers waits for the first one's
    transaction, and then gets its reply."""
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
    """Store the reply to a request whose key this transaction has claimed."""
    _ROWS.set(tx, key, status=status, body=body)


def forget(tx: Tx, before: float) -> None:
    """Delete the replies of requests that came before `before`."""
    tx.execute(delete(t.replies).where(_r.at < before))
