"""Power wishes that are due, and their claims.

A claim is the pair (`claimed_by`, `attempts`): each claim counts one attempt, so a server that comes back after its
claim ran out and was taken over cannot write over what the other did.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from sqlalchemy import and_, exists, func, or_, select, update

from cod.model import PowerAction
from cod.store import tables as t
from cod.store.engine import Tx

_a = t.power_actions.c
_COLUMNS = [_a[field.name] for field in fields(PowerAction)]


def due(tx: Tx, now: float, limit: int, passing_over: Collection[str] = ()) -> list[PowerAction]:
    """Open wishes that may be tried now, the longest due first; none of nodes whose driver is among `passing_over`.

    A node of which any wish is being carried out has to wait: two commands to one switch at once would end in
    whichever order they like.
    """
    other = t.power_actions.alias()
    busy = exists().where(and_(other.c.node_id == _a.node_id, other.c.done_at.is_(None), other.c.claim_expires > now))
    query = (
        select(*_COLUMNS).join(t.nodes, t.nodes.c.id == _a.node_id)
        .where(_a.done_at.is_(None), _a.next_at <= now, ~busy, t.nodes.c.power_driver.not_in(list(passing_over)))
        .order_by(_a.next_at, _a.id).limit(limit))
    return [PowerAction(*row) for row in tx.execute(query)]


def newest(tx: Tx, node_id: int) -> int | None:
    """Id of the node's newest open wish."""
    found: int | None = tx.scalar(select(func.max(_a.id)).where(_a.node_id == node_id, _a.done_at.is_(None)))
    return found


def claim(tx: Tx, action: PowerAction, server: str, now: float, until: float) -> PowerAction | None:
    """Take the wish, and one attempt of it, until `until`; None when somebody else has been quicker."""
    free = or_(_a.claim_expires.is_(None), _a.claim_expires <= now)
    won = tx.execute(
        update(t.power_actions)
        .where(_a.id == action.id, _a.done_at.is_(None), _a.attempts == action.attempts, free)
        .values(claimed_by=server, claim_expires=until, attempts=action.attempts + 1))
    if won.rowcount != 1:
        return None
    return PowerAction(*tx.execute(select(*_COLUMNS).where(_a.id == action.id)).one())


def close(tx: Tx, action: PowerAction, now: float, error: str = "") -> bool:
    """The wish is finished, dropped or given up (`error` says why); False when `action`'s claim is no longer valid."""
    return _set(tx, action, done_at=now, error=error)


def again(tx: Tx, action: PowerAction, next_at: float, error: str) -> bool:
    """The attempt failed: try again at `next_at`; False when `action`'s claim is no longer valid."""
    return _set(tx, action, next_at=next_at, error=error)


def _set(tx: Tx, action: PowerAction, **columns: Any) -> bool:
    owner = _a.claimed_by.is_(None) if action.claimed_by is None else _a.claimed_by == action.claimed_by
    done = tx.execute(
        update(t.power_actions).where(_a.id == action.id, _a.attempts == action.attempts, owner, _a.done_at.is_(None))
        .values(claimed_by=None, claim_expires=None, **columns))
    return done.rowcount == 1
