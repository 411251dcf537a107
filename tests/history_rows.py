"""What `cod.policy.histories` checks, read from a site's database while it changes."""

from __future__ import annotations

from sqlalchemy import update

from cod.flows.nodes import history as flow
from cod.model import Node
from cod.policy.histories import NodeRow, NodeTransition
from cod.store import histories
from cod.store import tables as t
from cod.store.engine import Tx


def history_after(tx: Tx, last: int) -> list[NodeTransition]:
    """Return all transitions of all nodes after the row `last`."""
    rows = (NodeTransition(*row) for row in histories.transitions(tx, after=last))
    return sorted(rows, key=lambda row: row.id)


def note_erased(tx: Tx, node: Node, document: str) -> None:
    """Have the node's last transition tell how its disks were erased."""
    h = t.node_history
    last = h.c.node_id == node.id, h.c.generation == node.generation
    tx.execute(update(h).where(*last).values(erased=document))


def node_rows(tx: Tx) -> list[NodeRow]:
    """Return all nodes with what follows their holders."""
    return flow.now(tx)[0]
