"""Settings of one host of the database and the state of its cluster, as the host itself reports
them."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from cod.model import DatabaseHost, HostPart
from cod.store import servers
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.mariadb import writer


def ask(name: str, url: str, patience: float) -> tuple[DatabaseHost, list[HostPart] | None]:
    """Return what the host at `url`, called `name`, says of itself within `patience` seconds an
    answer, and the server's parts in its tables; None if it has no tables yet, or is not ready."""
    engine = connect(url, size=1, patience=patience)
    parts: list[HostPart] | None = None
    try:
        with engine.connect() as tx:
            found = state(tx, name)
            with suppress(DBAPIError):
                parts = servers.every(tx)
    except Exception as error:  # its driver reads what a stranger sends, and fails in any way
        found = DatabaseHost(name, reason=str(getattr(error, "orig", error)))
    finally:
        engine.dispose()
    return found, parts


def state(tx: Tx, name: str) -> DatabaseHost:
    """Return what the connection's host, called `name`, says of itself. No table is read, so that a
    Galera node that is not ready answers, too."""
    wanted = "'innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin'"
    rows = tx.execute(text(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({wanted})"))
    found = {str(name): str(value) for name, value in rows}
    if found.pop("log_bin", "OFF") != "ON":
        found.pop("sync_binlog", None)  # it has no binary log
    wanted = "'wsrep_cluster_size', 'wsrep_local_state_comment'"
    rows = tx.execute(text(f"SHOW STATUS WHERE Variable_name IN ({wanted})"))
    node = {str(name): str(value) for name, value in rows}
    return DatabaseHost(
        name,
        is_writable=writer.is_writable(tx),
        cluster_size=int(node.get("wsrep_cluster_size") or 0),
        node_state=node.get("wsrep_local_state_comment", ""),
        lossy=tuple(f"{name}={value}" for name, value in sorted(found.items()) if value != "1"),
    )
