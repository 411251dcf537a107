"""Rows of web sessions (signed-in browsers) and of failed sign-in attempts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import delete, insert, select

from cod.model import WebSession
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Rows

_w, _s = t.web_sessions.c, t.sign_ins.c
SESSIONS = Rows(WebSession, t.web_sessions)

# ---------------------------------------------------------------- failed attempts

_THERE = (
    insert(t.sign_ins)
    .prefix_with("OR IGNORE", dialect="sqlite")
    .prefix_with("IGNORE", dialect="mysql")
    .prefix_with("IGNORE", dialect="mariadb")
)


def counts(tx: Tx, keys: Iterable[str]) -> dict[str, tuple[int, float, float]]:
    """Return (failures, time of the last failure, time from which the next attempt is accepted) by
    key, times in seconds since the epoch. Each key's row is made if missing and locked until the
    commit, so that of two first attempts at once the second sees the first."""
    wanted = sorted(keys)
    tx.execute(
        _THERE, [{"key": key, "failures": 0, "last_at": 0.0, "open_at": 0.0} for key in wanted]
    )
    query = (
        select(_s.key, _s.failures, _s.last_at, _s.open_at)
        .where(_s.key.in_(wanted))
        .with_for_update()
    )
    return {key: (failures, last, opens) for key, failures, last, opens in tx.execute(query)}


def put(tx: Tx, counts: Mapping[str, tuple[int, float, float] | None]) -> None:
    """Replace the counts of the keys; None deletes a key's row."""
    tx.execute(delete(t.sign_ins).where(_s.key.in_(sorted(counts))))
    rows = [
        dict(key=key, failures=count[0], last_at=count[1], open_at=count[2])
        for key, count in sorted(counts.items())
        if count is not None
    ]
    if rows:
        tx.execute(insert(t.sign_ins), rows)


def is_known(tx: Tx, key: str, since: float) -> bool:
    """Return whether the key was recorded as known after `since`."""
    return tx.scalar(select(_s.key).where(_s.key == key, _s.last_at > since)) is not None


def forget(tx: Tx, failed_before: float, known_before: float) -> None:
    """Delete counts of failures that are older than `failed_before`, and records of known places
    that are older than `known_before`."""
    known = _s.key.startswith("known:")
    tx.execute(
        delete(t.sign_ins).where(_s.last_at < failed_before, ~known | (_s.last_at < known_before))
    )


# ---------------------------------------------------------------- sessions


def add(tx: Tx, digest: str, user_id: int, now: float, **columns: Any) -> WebSession:
    """Add a session and return it; `columns`: expires_at, address, browser."""
    return SESSIONS.add(
        tx, digest=digest, user_id=user_id, created_at=now, last_seen=now, **columns
    )


def of_user(tx: Tx, user_id: int, now: float, idle: float) -> list[WebSession]:
    """Return the user's sessions that are still valid, the newest first. A session unused for
    `idle` seconds is not."""
    goes_on = _w.user_id == user_id, _w.expires_at > now, _w.last_seen > now - idle
    return SESSIONS.every(tx, *goes_on, order=_w.id.desc())


def seen(tx: Tx, session_id: int, now: float) -> None:
    """Record that somebody used the session just now."""
    SESSIONS.set_where(tx, _w.id == session_id, _w.last_seen < now, last_seen=now)


def end(tx: Tx, user_id: int, session_id: int | None = None, *, but: int | None = None) -> int:
    """End one session of the user, or all (`but` one); return how many."""
    query = delete(t.web_sessions).where(_w.user_id == user_id)
    if session_id is not None:
        query = query.where(_w.id == session_id)
    if but is not None:
        query = query.where(_w.id != but)
    return tx.execute(query).rowcount


def purge(tx: Tx, now: float, idle: float) -> None:
    """Delete the sessions that are over, of all users."""
    tx.execute(delete(t.web_sessions).where(_w.expires_at <= now))
    tx.execute(delete(t.web_sessions).where(_w.last_seen <= now - idle))
