"""Deletion of old rows that are done with, as `[server] keep_history` says."""

from __future__ import annotations

from cod.store import pruning
from cod.store.engine import Tx
from cod.store.nodes import nodes

BATCH = 500
"""Rows deleted in one transaction at most."""

TABLES = tuple(pruning.EVERY)


def prune(tx: Tx, table: str, before: float, limit: int = BATCH) -> int:
    """Delete at most `limit` rows of one of `TABLES` that were done before `before`; return how
    many were deleted."""
    return pruning.EVERY[table](tx, before, limit)


def forget_machines(tx: Tx, before: float, limit: int = BATCH) -> int:
    """Forget at most `limit` machines that were first seen before `before`, have never reported and
    have had no address since; return how many."""
    forgotten = nodes.never_reported(tx, before, limit, quiet=True)
    nodes.forget(tx, forgotten)
    return len(forgotten)
