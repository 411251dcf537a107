"""Settings of one host of the database and the state of its cluster, as the host itself reports
them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text

from cod.store.engine import Tx


@dataclass(frozen=True, slots=True)
class HostState:
    """The settings of a MariaDB host, and the state of its Galera cluster.

    lossy         settings with which a power cut may lose a reported commit
    cluster_size  nodes of its Galera cluster; 0: it is in none
    node_state    of a Galera node, e.g. Synced
    """

    lossy: tuple[str, ...]
    cluster_size: int
    node_state: str


def state(tx: Tx) -> HostState:
    """Return the settings and the state of the connection's host. No table is read, so that a
    Galera node that is not ready answers, too."""
    wanted = "'innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin'"
    rows = tx.execute(text(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({wanted})"))
    found = {str(name): str(value) for name, value in rows}
    if found.pop("log_bin", "OFF") != "ON":
        found.pop("sync_binlog", None)  # it has no binary log
    wanted = "'wsrep_cluster_size', 'wsrep_local_state_comment'"
    rows = tx.execute(text(f"SHOW STATUS WHERE Variable_name IN ({wanted})"))
    node = {str(name): str(value) for name, value in rows}
    return HostState(
        tuple(f"{name}={value}" for name, value in sorted(found.items()) if value != "1"),
        int(node.get("wsrep_cluster_size") or 0),
        node.get("wsrep_local_state_comment", ""),
    )
