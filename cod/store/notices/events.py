"""Transitions of nodes in order, and the progress of nodes whose disks are being written or
read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Table, select

from cod.store import tables as t
from cod.store import watermarks
from cod.store.engine import Tx

AT_ONCE = 500  # rows of one query
RECENT = 1000  # rows: more than are written while an earlier transaction may still commit
TRANSITIONS, NOTICES = t.node_history, t.notices
_TRANSITIONS_KEPT = "kept transitions"
_KEPT = {_TRANSITIONS_KEPT: TRANSITIONS, "kept notices": NOTICES}
"""Marks of the last rows that the database kept when it lost its last commits."""
_h = TRANSITIONS.c


def after(tx: Tx, row: int) -> list[Mapping[str, Any]]:
    """Return the transitions with ids above `row`, as `_events` does."""
    return _events(tx, _h.id > row)


def among(tx: Tx, ids: Collection[int]) -> list[Mapping[str, Any]]:
    """Return the transitions with these ids, as `_events` does."""
    return _events(tx, _h.id.in_(ids)) if ids else []


def ids_after(tx: Tx, table: Table, row: int) -> list[int]:
    """Return all ids above `row` in a table, in ascending order."""
    return list(tx.scalars(select(table.c.id).where(table.c.id > row).order_by(table.c.id)))


def recent(tx: Tx, table: Table) -> tuple[int, list[int]]:
    """Return the id before the last `RECENT` rows of a table (0 if it has fewer rows), and the ids
    of these rows in ascending order."""
    query = select(table.c.id).order_by(table.c.id.desc()).limit(RECENT)
    ids = list(tx.scalars(query))[::-1]
    return ids[0] - 1 if len(ids) == RECENT else 0, ids


def note_loss(tx: Tx, epoch: str, before: float | None = None) -> None:
    """Record the last transition and notice that both the database and readers of it as it was in
    `epoch` ('': any) know: the newest from before the time `before`; None: the newest."""
    for name, table in _KEPT.items():
        query = select(table.c.id).order_by(table.c.id.desc()).limit(1)
        found = tx.scalar(query if before is None else query.where(table.c.at < before))
        watermarks.put(tx, name, float(found or 0), epoch)


def kept(tx: Tx, epoch: str) -> tuple[int, int] | None:
    """Return the transition and the notice up to which a reader's rows of that former epoch are
    still those of the database; None if that is not known."""
    found = [watermarks.at(tx, name) for name in _KEPT]
    if None in found or watermarks.about(tx, _TRANSITIONS_KEPT) not in ("", epoch):
        return None
    transition, notice = (int(each or 0) for each in found)
    return transition, notice


def _events(tx: Tx, where: ColumnElement[bool]) -> list[Mapping[str, Any]]:
    """Return at most `AT_ONCE` transitions, oldest first. Each has the history's columns, the names
    `node` and `vcluster`, the `group_id` of the node's holder, and the `left_group_id` of the
    holder before this transition."""
    h, before, held = t.node_history, t.node_history.alias(), t.vclusters.alias()
    left = (
        select(held.c.group_id)
        .select_from(before)
        .outerjoin(held, before.c.vcluster_id == held.c.id)
        .where(before.c.node_id == h.c.node_id, before.c.id < h.c.id)
        .order_by(before.c.id.desc())
        .limit(1)
    )
    query = (
        select(
            h,
            t.nodes.c.name.label("node"),
            t.vclusters.c.name.label("vcluster"),
            t.vclusters.c.group_id,
            left.scalar_subquery().label("left_group_id"),
        )
        .join_from(h, t.nodes, h.c.node_id == t.nodes.c.id)
        .outerjoin(t.vclusters, h.c.vcluster_id == t.vclusters.c.id)
        .where(where)
        .order_by(h.c.id)
        .limit(AT_ONCE)
    )
    return [dict(row._mapping) for row in tx.execute(query)]


def progress(tx: Tx) -> list[Mapping[str, Any]]:
    """Return the progress of the nodes whose disks are being written or read now, with their
    holders' `group_id`."""
    n = t.nodes
    query = select(
        n.c.name.label("node"),
        n.c.state,
        n.c.progress_done.label("done"),
        n.c.progress_total.label("total"),
        n.c.progress_rate.label("rate"),
        n.c.progress_phase.label("phase"),
        t.vclusters.c.group_id,
    )
    query = query.outerjoin_from(n, t.vclusters, n.c.vcluster_id == t.vclusters.c.id)
    return [
        dict(row._mapping)
        for row in tx.execute(query.where(n.c.progress_total > 0).order_by(n.c.name))
    ]
