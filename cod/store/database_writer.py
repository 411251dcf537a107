"""The lease of the host that is the database's writer, as one host has it: `policy.database_writer`
says what it means."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import exc, insert, literal_column, select, update

from cod.model import DatabaseLease
from cod.store import tables as t
from cod.store.engine import Tx, code
from cod.store.rows import Rows

_l = t.database_lease.c
_ROWS = Rows(DatabaseLease, t.database_lease)
_NO_TABLE = 1146
DURABLE = ("innodb_flush_log_at_trx_commit", "sync_binlog")
"""Variables that have to be 1 for a commit to survive a power cut of the host."""
_SAID = (*DURABLE, "read_only", "wsrep_on")


def lease(tx: Tx, nobody: DatabaseLease) -> DatabaseLease | None:
    """Return the lease as this host has it; `nobody` where it was never taken; None where the
    database has no such table."""
    try:
        return _ROWS.get(tx, 1) or nobody
    except exc.ProgrammingError as error:
        if code(error) == _NO_TABLE:
            return None
        raise


def is_writable(tx: Tx) -> bool:
    """Return whether the host accepts writes: a replica does not."""
    return not tx.scalar(select(literal_column("@@global.read_only")))


def renew(tx: Tx, host: str, epoch: int) -> bool:
    """Renew the lease of this epoch at its host; return whether it still is the lease."""
    beat = update(t.database_lease).values(beat=_l.beat + 1)
    return bool(tx.execute(beat.where(_l.id == 1, _l.host == host, _l.epoch == epoch)).rowcount)


def take_over(tx: Tx, host: str, seen: DatabaseLease, seconds: float) -> bool:
    """Make `host` the writer; return False where the lease has changed since it was `seen`."""
    values = {"host": host, "epoch": seen.epoch + 1, "beat": 0, "seconds": seconds}
    if not seen.epoch:
        try:
            tx.execute(insert(t.database_lease).values(id=1, **values))
        except exc.IntegrityError:
            return False
        return True
    unchanged = (_l.id == 1, _l.epoch == seen.epoch, _l.beat == seen.beat)
    return bool(tx.execute(update(t.database_lease).values(values).where(*unchanged)).rowcount)


def variables(tx: Tx) -> Mapping[str, str]:
    """Return what the host says of its durability and, where it is a node of a Galera cluster, of
    that: its variables and states by name."""
    found = dict(_named(tx, "VARIABLES", _SAID))
    if found.get("wsrep_on") == "ON":
        asked = ("wsrep_ready", "wsrep_cluster_size", "wsrep_cluster_status")
        found |= dict(_named(tx, "STATUS", (*asked, "wsrep_local_state_comment")))
    return found


def _named(tx: Tx, kind: str, names: tuple[str, ...]) -> list[tuple[str, str]]:
    listed = ", ".join(f"'{name}'" for name in names)
    shown = tx.exec_driver_sql(f"SHOW GLOBAL {kind} WHERE Variable_name IN ({listed})")
    return [(str(name).lower(), str(value)) for name, value in shown.all()]
