"""Transitions of nodes in order, and the progress of nodes whose disks are being written or
read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from cod.store import tables as t
from cod.store.engine import Tx


def events(tx: Tx, after: int) -> list[Mapping[str, Any]]:
    """Return transitions with ids after `after`, oldest first: the history's columns, with `node`
    and `vcluster` by name, the `group_id` of the holder, and the `left_group_id` of the holder
    before the transition."""
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
        .where(h.c.id > after)
        .order_by(h.c.id)
        .limit(500)
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
