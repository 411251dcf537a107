"""Nodes that are to be reinstalled in place, or are being reinstalled."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from cod.model import Node, Reinstall
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.rows import Rows, remove_all

_r, _n = t.reinstalls.c, t.nodes.c
ROWS = Rows(Reinstall, t.reinstalls)
change = ROWS.set
_EVERY = select(*nodes.ROWS.columns, *ROWS.columns).join_from(t.reinstalls, t.nodes).order_by(_n.id)


def put(tx: Tx, rows: Sequence[Reinstall]) -> None:
    """Write rows, which replace older ones of the same nodes."""
    remove(tx, [one.node_id for one in rows])
    ROWS.insert(tx, rows)


def remove(tx: Tx, node_ids: Sequence[int]) -> None:
    """Delete the rows of those nodes."""
    remove_all(tx, _r.node_id, list(node_ids))


def every(tx: Tx, vcluster_id: int | None = None) -> list[tuple[Node, Reinstall]]:
    """Return each row, of one vcluster or of all, with its node, by the node's id."""
    query = _EVERY if vcluster_id is None else _EVERY.where(_r.vcluster_id == vcluster_id)
    width = nodes.ROWS.width
    rows = tx.execute(query)
    return [(nodes.ROWS.read(row), ROWS.read(row, width)) for row in rows]
