"""Opening the database: one URL, SQLite or MariaDB/MySQL; what each needs to be safe; which errors
merit a retry."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    CursorResult,
    Engine,
    NestedTransaction,
    create_engine,
    event,
    exc,
)

Key = TypeVar("Key", int, str)
Tx = Connection
"""A transaction in progress. Only `cod.pool` (and the tests) begins, commits and rolls back."""

# server away, connection cut, server shutting down
_LOST = (2002, 2003, 2006, 2013, 2055, 1053, 1077, 1927)
_RETRY = (1205, 1213)  # lock wait timeout, deadlock
_FULL = (1021, 1114)  # the disk, a table's file


def connect(url: str, size: int = 8) -> Engine:
    """Return an engine for `url`, e.g. ``sqlite:////var/lib/cod/cod.db`` or
    ``mysql+pymysql://cod@localhost/cod``.

    SQLite: WAL, synchronous=FULL (a commit that was reported survives a power cut), foreign keys,
    BEGIN IMMEDIATE; a file that is not there yet is made for its owner alone. MariaDB: READ
    COMMITTED, at most `size` connections. Errors do not show a statement's values: they end in the
    log, and may be what proves a server to an agent.
    """
    if url.startswith("sqlite"):
        engine = create_engine(
            url, hide_parameters=True, connect_args={"timeout": 30, "check_same_thread": False}
        )
        event.listen(engine, "connect", _sqlite_connect)
        event.listen(engine, "begin", _sqlite_begin)
        _make_private(engine.url.database or "")
        return engine
    return create_engine(
        url,
        hide_parameters=True,
        isolation_level="READ COMMITTED",
        pool_size=size,
        max_overflow=size,
        pool_recycle=3600,
        connect_args={"connect_timeout": 5, "charset": "utf8mb4"},
    )


def _make_private(path: str) -> None:
    if path and not path.startswith((":", "file:")):
        with suppress(OSError):  # it is there, or cannot be made, which connecting will say
            # SQLite's -wal and -shm follow it
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _sqlite_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's events send BEGIN; the driver must not
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=30000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _sqlite_begin(connection: Connection) -> None:
    # A deferred BEGIN that later wants to write can fail without waiting; IMMEDIATE queues up
    # front.
    reading = connection.get_execution_options().get("reading")
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


@contextmanager
def snapshot(engine: Engine) -> Iterator[Tx]:
    """Provide a transaction that only reads, and sees one moment of the database; nobody who writes
    waits for it."""
    options: dict[str, Any] = {"reading": True}
    # there, each statement of an ordinary transaction sees what is new
    if engine.dialect.name != "sqlite":
        options["isolation_level"] = "REPEATABLE READ"
    with engine.connect().execution_options(**options) as tx, tx.begin():
        yield tx


def clock(engine: Engine) -> float | None:
    """Ask the database server what time it is, in seconds since the epoch; None for SQLite, which
    has no clock."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("SELECT 1")
            return None
        return float(connection.exec_driver_sql("SELECT UNIX_TIMESTAMP(NOW(6))").scalar_one())


def new_id(inserted: CursorResult[Any]) -> int:
    """Return the id that the database gave to the one row just inserted."""
    key = inserted.inserted_primary_key
    assert key is not None
    return int(key[0])


def slices(ids: Sequence[Key], size: int = 500) -> Iterable[Sequence[Key]]:
    """Return a long list in parts: SQLite and MariaDB both limit the parameters of one
    statement."""
    return (ids[start : start + size] for start in range(0, len(ids), size))


def part(tx: Tx) -> NestedTransaction:
    """Return the context in which a part of a transaction runs: what it has written is undone, and
    nothing else, when it raises."""
    return tx.begin_nested()


def is_lost(error: BaseException) -> bool:
    """Return whether the connection broke, so that the outcome of a commit is unknown and a new
    connection may help."""
    if not isinstance(error, exc.DBAPIError):
        return False
    return bool(error.connection_invalidated) or _code(error) in _LOST


def is_retryable(error: BaseException) -> bool:
    """Return whether running the same flow again is likely to succeed: a deadlock, a lock wait, a
    busy or lost database."""
    if not isinstance(error, exc.DBAPIError):
        return False
    return is_lost(error) or _code(error) in _RETRY or "database is locked" in str(error.orig)


def is_full(error: BaseException) -> bool:
    """Return whether the database's disk has no room."""
    return isinstance(error, exc.DBAPIError) and (
        _code(error) in _FULL or "database or disk is full" in str(error.orig)
    )


def _code(error: exc.DBAPIError) -> int | None:
    args = getattr(error.orig, "args", ())
    return args[0] if args and isinstance(args[0], int) else None
