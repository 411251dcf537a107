"""Opening the database: one URL, SQLite or MariaDB/MySQL, of one host or several; what each needs
to be safe."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakSet

from sqlalchemy import create_engine, event, exc, make_url

from cod.model import database_urls
from cod.store.engine import LOST, NO_WRITER, Engine, begin_sqlite, number
from cod.store.mariadb.connections import connection as mariadb_connection

LONGEST_TEXT = 1 << 26  # bytes: names of millions of nodes
# Seconds without a statement after which MariaDB ends a transaction: also one that has only read
# may have locked rows.
ABANDONED = 10
# The same of a transaction that has written, at one of several hosts: less than the three seconds
# for which a process may be sure of the writer (`policy.database_writer`). A process that is
# stopped between that look and its COMMIT, or whose COMMIT the network holds up, finds its
# transaction ended before another host can be the writer.
ABANDONED_BY_WRITER = 2
# Seconds without a statement after which the host ends a connection. The host is not told of one
# that was given up while it could not be reached, and would keep it for hours, as one of the few
# that it accepts.
IDLE = 120
_SQLITE_FILE = (  # SQLite's errors that are about its file
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOTADB,
)


class Writer(Protocol):
    """Watcher of the hosts of a database that knows which one is the writer. Threads ask it."""

    def where(self) -> tuple[str, int]:
        """Return the writer's HOST:PORT and its epoch, after waiting for it a while. Raises
        `NoWriter`."""

    def confirm(self, where: tuple[str, int]) -> None:
        """Raise `NoWriter` unless that host may be written to now."""

    def look(self) -> None:
        """Look at once whether the writer still is the writer."""

    def when_lost(self, cut: Callable[[], None]) -> None:
        """Have `cut` called when the writer is lost from sight."""

    def close(self) -> None:
        """Look no more."""


def connect(
    url: str,
    size: int = 8,
    *,
    patience: float | None = None,
    writer: Writer | None = None,
    autocommit: bool = False,
) -> Engine:
    """Return an engine for `url`, e.g. ``sqlite:////var/lib/cod/cod.db`` or
    ``mysql+pymysql://cod@localhost/cod``. A URL of several hosts needs a `writer`, which says
    which of them is used: `core.database.writer.connect`. `autocommit`: MariaDB commits each
    statement by itself, without waiting for a further word.

    SQLite: WAL, synchronous=FULL (a commit that was reported survives a power cut), foreign keys,
    BEGIN IMMEDIATE; a file that is not there yet is made for its owner alone. MariaDB: READ
    COMMITTED, at most `size` connections; a host that takes longer than `patience` seconds for an
    answer, or cannot be reached for `connections.SILENT` seconds, counts as lost; encrypted where
    the host can, with its certificate compared only where the URL says so (``?ssl_ca=``). Errors do
    not show a statement's values: they end in the log, and may be what proves a server to an agent.
    """
    if url.startswith("sqlite"):
        engine = create_engine(
            url, hide_parameters=True, connect_args={"timeout": 30, "check_same_thread": False}
        )
        event.listen(engine, "connect", _sqlite_connect)
        event.listen(engine, "begin", begin_sqlite)
        event.listen(engine, "handle_error", _sqlite_error)
        _make_private(engine.url.database or "")
        return engine
    urls = database_urls(url)
    abandoned = ABANDONED if writer is None else ABANDONED_BY_WRITER
    engine = create_engine(
        next(iter(urls.values())),
        hide_parameters=True,
        isolation_level="AUTOCOMMIT" if autocommit else "READ COMMITTED",
        pool_size=size,
        max_overflow=size,
        pool_recycle=IDLE * 2 // 3,  # one that is as old may be ended
        connect_args={
            "connect_timeout": patience or 5,
            "read_timeout": patience,
            "write_timeout": patience,
            "charset": "utf8mb4",
            # Names and addresses of a vcluster are read as one text: more than this is cut off.
            # A host that hangs, or whose link is cut, keeps its connection: others would wait for
            # the rows that it has locked as long as that lasts. MySQL has no such limit.
            "init_command": f"SET group_concat_max_len = {LONGEST_TEXT}, wait_timeout = {IDLE}"
            f" /*M!100300 , idle_transaction_timeout = {ABANDONED},"
            f" idle_write_transaction_timeout = {abandoned} */",
        },
    )
    event.listen(engine, "handle_error", _leave_reader)
    if writer is not None:
        _follow(engine, urls, writer)
    elif len(urls) > 1:
        raise ValueError("a database of several hosts is opened by core.database.writer.connect")
    else:
        event.listen(engine, "do_connect", _open)
    return engine


def _open(dialect: Any, _record: Any, args: Any, options: dict[str, Any]) -> Any:
    connection = mariadb_connection(dialect, args, options)
    connection.connect()
    return connection


def _leave_reader(context: Any) -> None:
    if number(context.original_exception) in NO_WRITER:
        context.is_disconnect = True


def _follow(engine: Engine, urls: dict[str, str], writer: Writer) -> None:
    """Have all connections of an engine lead to the writer, and no transaction commit at another
    host or after the writer was lost from sight."""
    hosts = {host: make_url(url) for host, url in urls.items()}
    open_: WeakSet[Any] = WeakSet()
    listing = threading.Lock()  # a set that grows while it is walked through raises an error

    def open_one(dialect: Any, record: Any, args: Any, options: dict[str, Any]) -> Any:
        where = writer.where()
        host = hosts[where[0]]
        options |= {"host": host.host, "port": host.port or 3306}
        connection = mariadb_connection(dialect, args, options)
        with listing:
            open_.add(connection)  # before it is made: also that can be cut
        connection.connect()
        record.info["writer"] = where
        return connection

    def leave_others(_connection: Any, record: Any, _proxy: Any) -> None:
        if record.info.get("writer") != writer.where():
            raise exc.DisconnectionError

    def cut() -> None:
        """End all connections: a thread would wait for a host that is gone as long as TCP does."""
        with listing:
            connections = list(open_)
        for connection in connections:
            with suppress(OSError, AttributeError):  # it is closed, or not open yet
                connection._sock.shutdown(socket.SHUT_RDWR)

    def look(context: Any) -> None:
        if number(context.original_exception) in (*LOST, *NO_WRITER):
            writer.look()

    event.listen(engine, "do_connect", open_one)
    event.listen(engine, "checkout", leave_others)
    event.listen(engine, "commit", lambda tx: writer.confirm(tx.info["writer"]))
    event.listen(engine, "handle_error", look)
    event.listen(engine, "engine_disposed", lambda _engine: writer.close())
    writer.when_lost(cut)


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


def clock(engine: Engine) -> float | None:
    """Ask the database server what time it is, in seconds since the epoch; None for SQLite, which
    has no clock."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("SELECT 1")
            return None
        return float(connection.exec_driver_sql("SELECT UNIX_TIMESTAMP(NOW(6))").scalar_one())


def _sqlite_error(context: Any) -> None:
    """Add the file to SQLite's error, and what is wrong with its disk: SQLite says neither."""
    error, path = context.original_exception, (context.engine and context.engine.url.database) or ""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _SQLITE_FILE or path in str(error):
        return
    folder = os.path.dirname(path)
    try:
        disk = os.statvfs(folder)
    except OSError as away:
        why = f"; {folder}: {away.strerror}"
    else:
        why = "" if disk.f_bavail else "; its disk is full"
        if disk.f_flag & os.ST_RDONLY:
            why = "; its file system is mounted read-only"
    error.args = (f"{error} ({path}{why})",)
