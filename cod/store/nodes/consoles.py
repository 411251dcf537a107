"""Nodes whose power driver can have a console, and text that waits to be typed on consoles."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import delete, func, insert, select

from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx

_n, _i = t.nodes.c, t.console_input.c


def of_drivers(tx: Tx, drivers: Collection[str]) -> Sequence[Any]:
    """Return (id, name, driver, address, account, vcluster, assigned at) of the nodes with a power
    driver among `drivers`, in the order of their ids, without retired nodes."""
    return tx.execute(
        select(
            _n.id,
            _n.name,
            _n.power_driver,
            _n.power_address,
            _n.power_account,
            _n.vcluster_id,
            _n.assigned_at,
        )
        .where(_n.power_driver.in_(list(drivers)), _n.state != NodeState.RETIRED)
        .order_by(_n.id)
    ).all()


def type_(
    tx: Tx, node_id: int, tenure: str, typed: str, now: float, *, administrator: bool
) -> None:
    """Store text to type on the console of a node while the node has that tenure."""
    tx.execute(
        insert(t.console_input).values(
            node_id=node_id, tenure=tenure, administrator=administrator, typed=typed, at=now
        )
    )


def waiting(tx: Tx, node_id: int | None = None) -> int:
    """Return how many texts wait to be typed, on one console or on all."""
    query = select(func.count()).select_from(t.console_input)
    if node_id is not None:
        query = query.where(_i.node_id == node_id)
    return int(tx.execute(query).scalar_one())


def take(tx: Tx, limit: int) -> Sequence[Any]:
    """Remove the oldest texts and return them with node_id, tenure, administrator, typed, at, and
    with their nodes' present vcluster_id, assigned_at, state."""
    rows = tx.execute(
        select(
            *(_i.id, _i.node_id, _i.tenure, _i.administrator, _i.typed, _i.at),
            *(_n.vcluster_id, _n.assigned_at, _n.state),
        )
        .join_from(t.console_input, t.nodes, _i.node_id == _n.id)
        .order_by(_i.id)
        .limit(limit)
        .with_for_update()
    ).all()
    tx.execute(delete(t.console_input).where(_i.id.in_([row.id for row in rows])))
    return rows


def forget_before(tx: Tx, before: float) -> None:
    """Delete the texts that were typed before a time."""
    tx.execute(delete(t.console_input).where(_i.at < before))
