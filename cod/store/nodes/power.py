"""Power actions that are requested of nodes, their claims, and measured watts.

A claim is the pair (`claimed_by`, `attempts`): each claim counts one attempt. A server whose claim
ran out and was taken over therefore cannot overwrite the result of the other server.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Integer, bindparam, delete, exists, func, select

from cod.model import Node, PowerAction
from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import nodes

_a = t.power_actions.c
ROWS = nodes.POWER_ACTIONS
_other = t.power_actions.alias().c
_BUSY = exists().where(
    _other.node_id == _a.node_id, _other.done_at.is_(None), _other.claim_expires > bindparam("now")
)
# made once: each server asks twice a second
_DUE = (
    ROWS.select.join(t.nodes, t.nodes.c.id == _a.node_id)
    .where(_a.done_at.is_(None), _a.next_at <= bindparam("now"), ~_BUSY)
    .where(t.nodes.c.power_driver.not_in(bindparam("drivers", expanding=True)))
    .where(_a.node_id.not_in(bindparam("but", expanding=True)))
    .order_by(_a.next_at, _a.id)
    .limit(bindparam("limit", type_=Integer))
)


def due(
    tx: Tx,
    now: float,
    limit: int,
    passing_over: Collection[str] = (),
    *,
    only: Collection[int] | None = None,
    but: Collection[int] = (),
) -> list[PowerAction]:
    """Return open actions that are due, the longest due first. Left out are actions of nodes whose
    driver is in `passing_over`, of the nodes `but` and, with `only`, of nodes other than these.

    A node waits while one of its actions is carried out: two simultaneous commands to one switch
    could take effect in either order.
    """
    values = {"now": now, "limit": limit, "drivers": list(passing_over), "but": list(but)}
    if only is None:
        return ROWS.all(tx, _DUE, values)
    return ROWS.all(tx, _DUE.where(_a.node_id.in_(list(only))), values)


def of_node(tx: Tx, node_id: int, limit: int) -> list[PowerAction]:
    """Return the node's newest actions, the newest first."""
    return ROWS.every(tx, _a.node_id == node_id, order=_a.id.desc(), limit=limit)


def newest(tx: Tx, node_id: int) -> int | None:
    """Return the id of the node's newest open action; None if there is none."""
    found: int | None = tx.scalar(
        select(func.max(_a.id)).where(_a.node_id == node_id, _a.done_at.is_(None))
    )
    return found


def claim(tx: Tx, action: PowerAction, server: str, now: float, until: float) -> PowerAction | None:
    """Claim one attempt at the action until `until`; None if another server has claimed it
    first."""
    as_seen = _a.done_at.is_(None), _a.attempts == action.attempts
    return ROWS.claim(tx, action.id, server, now, until, *as_seen)


def shorten(tx: Tx, server: str, until: float) -> None:
    """Let claims of `server` that last longer end at `until`."""
    ROWS.shorten(tx, server, until, _a.done_at.is_(None))


def close(tx: Tx, action: PowerAction, now: float, error: str = "") -> bool:
    """Close an action that is finished, dropped or given up (`error` says why); return False when
    `action`'s claim is no longer valid."""
    return ROWS.settle(tx, action, _a.done_at.is_(None), done_at=now, error=error)


def again(tx: Tx, action: PowerAction, next_at: float, error: str, stage: int) -> bool:
    """Record that the attempt failed, and that the next one is due at `next_at` in `stage`; return
    False when `action`'s claim is no longer valid."""
    return ROWS.settle(tx, action, _a.done_at.is_(None), next_at=next_at, error=error, stage=stage)


def trouble(tx: Tx, node: Node) -> str:
    """Return the error of the newest action of the node's generation; '' if there is none."""
    query = (
        select(_a.error)
        .where(_a.node_id == node.id, _a.generation == node.generation)
        .order_by(_a.id.desc())
    )
    return tx.scalar(query.limit(1)) or ""


def prune(tx: Tx, before: float, limit: int) -> int:
    """Delete at most `limit` actions that were finished before `before`; return how many."""
    old = list(
        tx.scalars(select(_a.id).where(_a.done_at < before).order_by(_a.done_at).limit(limit))
    )
    tx.execute(delete(t.power_actions).where(_a.id.in_(old)))
    return len(old)


def measured(tx: Tx, drivers: Collection[str], after: int, limit: int) -> list[Node]:
    """Return the nodes with those drivers that are not retired and have ids above `after`, by
    id."""
    n = t.nodes.c
    of_site = n.power_driver.in_(list(drivers)), n.state != NodeState.RETIRED
    return nodes.ROWS.every(tx, n.id > after, *of_site, order=n.id, limit=limit)


def count_measured(tx: Tx, drivers: Collection[str]) -> int:
    """Return how many nodes with those drivers are not retired."""
    n = t.nodes.c
    return nodes.ROWS.count(tx, n.power_driver.in_(list(drivers)), n.state != NodeState.RETIRED)


def set_watts(tx: Tx, node_id: int, driver: str, watts: float | None) -> None:
    """Record the watts that the node was measured to draw (None: the measurement failed), unless
    the node has another driver now."""
    n = t.nodes.c
    nodes.ROWS.set_where(tx, n.id == node_id, n.power_driver == driver, watts=watts)
