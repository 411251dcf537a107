"""Captures of nodes' disks into images: the newest one of each node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, delete, insert, select

from cod.model import Capture, Node
from cod.states import CaptureState
from cod.store import tables as t
from cod.store.engine import Prepared, Tx
from cod.store.nodes import nodes
from cod.store.rows import Rows, found_in, theirs

OPEN = (CaptureState.WANTED, CaptureState.RUNNING)
_c = t.captures.c
ROWS = Rows(Capture, t.captures)
_STATE = Prepared(select(_c.state).where(_c.node_id == bindparam("node")))
get = ROWS.get


def is_wanted(tx: Tx, node_id: int) -> bool:
    """Return whether the node waits to be captured in the trampoline."""
    return bool(_STATE.value(tx, {"node": node_id}) == CaptureState.WANTED)


def is_done(tx: Tx, node_id: int) -> bool:
    """Return whether the node's newest capture has become an image."""
    return bool(_STATE.value(tx, {"node": node_id}) == CaptureState.DONE)


def of_nodes(tx: Tx, node_ids: Sequence[int]) -> set[int]:
    """Return those of the nodes that were captured or wait for their capture."""
    return found_in(tx, _c.node_id, node_ids)


def every(tx: Tx, groups: frozenset[int] | None = None) -> list[tuple[Node, Capture]]:
    """Return the nodes that have been captured for `groups` (None: for any group or the site), by
    name, with their newest captures."""
    query = nodes.ROWS.select.add_columns(*ROWS.columns).join_from(t.nodes, t.captures)
    rows = tx.execute(query.where(*theirs(_c.group_id, groups)).order_by(t.nodes.c.name))
    return [(nodes.ROWS.read(row), ROWS.read(row, nodes.ROWS.width)) for row in rows]


def under_way(tx: Tx) -> set[int]:
    """Return the ids of the nodes whose captures have not ended."""
    return set(tx.scalars(select(_c.node_id).where(_c.state.in_(OPEN))))


def put(tx: Tx, node_id: int, **columns: Any) -> None:
    """Add a capture of the node, which replaces an older one; `columns` as in the table."""
    tx.execute(delete(t.captures).where(_c.node_id == node_id))
    tx.execute(insert(t.captures).values(node_id=node_id, **columns))


def change(tx: Tx, node_id: int, **columns: Any) -> None:
    """Set columns of the node's capture."""
    ROWS.set_where(tx, _c.node_id == node_id, **columns)


def end(tx: Tx, node_id: int, state: CaptureState, reason: str, now: float) -> None:
    """End a capture. Its secret is no longer valid, unless it ended with an image: the agent may
    have missed the answer, so the secret then stays valid until the node moves on."""
    secret = {} if state is CaptureState.DONE else {"secret": ""}
    change(tx, node_id, state=state, reason=reason, ended_at=now, **secret)
