"""Failures of nodes on their way to a holder, as long as they count against a template revision or
against a group."""

from __future__ import annotations

from sqlalchemy import delete, func, insert, select, update

from cod.model import FailedNode
from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx

_f = t.node_failures.c


def add(
    tx: Tx,
    *,
    node_id: int,
    template_id: int | None,
    group_id: int,
    set_aside: bool,
    reason: str,
    now: float,
) -> None:
    """Add a failure. `set_aside`: the failure has put the node into quarantine."""
    tx.execute(
        insert(t.node_failures).values(
            node_id=node_id,
            template_id=template_id,
            group_id=group_id,
            set_aside=set_aside,
            reason=reason,
            at=now,
        )
    )


def failed(tx: Tx, without: str) -> list[FailedNode]:
    """Return the nodes that are out of service, by name, except those whose reason begins with
    `without`."""
    n, b, c, f = t.nodes.c, t.node_blocks.c, t.config_templates.c, t.node_failures.alias().c
    last = select(func.max(f.id)).where(f.node_id == n.id, f.template_id.is_not(None))
    query = (
        select(
            n.name,
            n.reason,
            n.since,
            func.coalesce(b.name, ""),
            func.coalesce(c.name, ""),
            n.power_driver,
            n.power_address,
        )
        .select_from(t.nodes)
        .outerjoin(t.node_blocks, n.block_id == b.id)
        .outerjoin(t.node_failures, _f.id == last.scalar_subquery())
        .outerjoin(t.config_templates, _f.template_id == c.id)
        .where(n.state == NodeState.QUARANTINED, ~n.reason.startswith(without))
        .order_by(n.name)
    )
    return [FailedNode(*row) for row in tx.execute(query).all()]


def with_template(tx: Tx, template_id: int, but: int) -> int:
    """Return how many nodes other than `but` have failed with the revision since its last
    success."""
    query = select(func.count(_f.node_id.distinct()))
    return tx.scalar(query.where(_f.template_id == template_id, _f.node_id != but)) or 0


def set_aside_by(tx: Tx, group_id: int, but: int) -> int:
    """Return how many nodes other than `but` are in quarantine because of the group's requests."""
    query = select(func.count(_f.node_id.distinct()))
    return (
        tx.scalar(query.where(_f.group_id == group_id, _f.set_aside.is_(True), _f.node_id != but))
        or 0
    )


def succeeded(tx: Tx, template_id: int) -> None:
    """Record that a node has become ready with the revision: its earlier failures no longer
    count."""
    tx.execute(
        update(t.node_failures).where(_f.template_id == template_id).values(template_id=None)
    )
    _drop_spent(tx)


def looked_at(tx: Tx, node_id: int) -> None:
    """Record that an administrator has examined the node: its failures no longer count against
    groups."""
    tx.execute(update(t.node_failures).where(_f.node_id == node_id).values(set_aside=False))
    _drop_spent(tx)


def _drop_spent(tx: Tx) -> None:
    tx.execute(delete(t.node_failures).where(_f.template_id.is_(None), _f.set_aside.is_(False)))
