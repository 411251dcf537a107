"""The lease of the database's writer, as the host of this connection stores it.
`policy.database_writer` explains it."""

from __future__ import annotations

from sqlalchemy import exc, insert, literal_column, select, update

from cod.model import DatabaseLease
from cod.store import tables as t
from cod.store.engine import Tx, code
from cod.store.rows import Rows

_l = t.database_lease.c
_ROWS = Rows(DatabaseLease, t.database_lease)
_NO_TABLE = 1146


def lease(tx: Tx, nobody: DatabaseLease) -> DatabaseLease | None:
    """Return the lease as this host has it; `nobody` if it was never taken; None if the database
    has no such table."""
    try:
        return _ROWS.get(tx, 1) or nobody
    except exc.ProgrammingError as error:
        if code(error) == _NO_TABLE:
            return None
        raise


def host(tx: Tx) -> str:
    """Return the writer as HOST:PORT; '' if the database has one host."""
    return tx.scalar(select(_l.host).where(_l.id == 1)) or ""


def is_writable(tx: Tx) -> bool:
    """Return whether the host accepts writes: a replica does not."""
    return not tx.scalar(select(literal_column("@@global.read_only")))


def renew(tx: Tx, host: str, epoch: int) -> bool:
    """Renew the lease if it still has this host and epoch; return whether it has."""
    beat = update(t.database_lease).values(beat=_l.beat + 1)
    return bool(tx.execute(beat.where(_l.id == 1, _l.host == host, _l.epoch == epoch)).rowcount)


def take_over(tx: Tx, host: str, seen: DatabaseLease, seconds: float) -> bool:
    """Make `host` the writer; return False if the lease has changed since `seen` was read."""
    values = {"host": host, "epoch": seen.epoch + 1, "beat": 0, "seconds": seconds}
    if not seen.epoch:
        try:
            tx.execute(insert(t.database_lease).values(id=1, **values))
        except exc.IntegrityError:
            return False
        return True
    unchanged = (_l.id == 1, _l.epoch == seen.epoch, _l.beat == seen.beat)
    return bool(tx.execute(update(t.database_lease).values(values).where(*unchanged)).rowcount)
