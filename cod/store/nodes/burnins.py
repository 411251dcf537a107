"""Burn-ins, which test nodes: at most one open burn-in for each node, and ended ones."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import bindparam, exists, insert, select

from cod.model import Burnin
from cod.states import BurninState, CaptureState, NodeState
from cod.store import tables as t
from cod.store import watermarks
from cod.store.engine import Prepared, Tx
from cod.store.nodes import nodes
from cod.store.rows import Rows

OPEN = (BurninState.WANTED, BurninState.RUNNING)
_b = t.burnins.c
ROWS = Rows(Burnin, t.burnins)
change = ROWS.set
_OPEN_OF = (
    ROWS.select.where(_b.node_id == bindparam("node"), _b.state.in_(OPEN))
    .order_by(_b.id.desc())
    .limit(1)
)
_CAPTURE = select(t.captures.c.state).where(t.captures.c.node_id == bindparam("node"))
_WHAT_WAITS = Prepared(
    select(
        _CAPTURE.scalar_subquery(),
        exists().where(_b.node_id == bindparam("node"), _b.state.in_(OPEN)),
        nodes.HELD,
        exists().where(t.marks.c.name == watermarks.HOLD),
    ).where(t.nodes.c.id == bindparam("node"))
)


class WhatWaits(NamedTuple):
    """Facts that decide, beside a node's row, what becomes of the node in the trampoline.

    has_work   the node has a capture, also one that is over, or an open burn-in
    capture    the node waits for its capture
    burnin     the burn-in that `wanted` returns
    held       the node is held by itself (`nodes.HELD`)
    site_held  the site is held
    """

    has_work: bool
    capture: bool
    burnin: Burnin | None
    held: bool
    site_held: bool


def open_of(tx: Tx, node_id: int) -> Burnin | None:
    """Return the node's burn-in that is not over; None if there is none."""
    return next(iter(ROWS.all(tx, _OPEN_OF, {"node": node_id})), None)


def wanted(tx: Tx, node_id: int) -> Burnin | None:
    """Return the node's burn-in that begins as soon as the node is in the trampoline, clean and
    free; None if there is none."""
    found = open_of(tx, node_id)
    return found if found is not None and found.state == BurninState.WANTED else None


def what_waits(tx: Tx, node_id: int) -> WhatWaits:
    """Return what decides, beside the node's row, what becomes of it in the trampoline."""
    [(capture, tested, held, site_held)] = _WHAT_WAITS.rows(tx, {"node": node_id})
    burnin = wanted(tx, node_id) if tested else None
    known = capture is not None or bool(tested)
    return WhatWaits(known, capture == CaptureState.WANTED, burnin, bool(held), bool(site_held))


def of_node(tx: Tx, node_id: int, limit: int) -> list[Burnin]:
    """Return the node's newest burn-ins, the newest first."""
    return ROWS.every(tx, _b.node_id == node_id, order=_b.id.desc(), limit=limit)


def running(tx: Tx, but: int) -> list[Burnin]:
    """Return the burn-ins that run on other nodes than `but`, the newest first."""
    others = _b.state == BurninState.RUNNING, _b.node_id != but
    return ROWS.every(tx, *others, order=_b.id.desc(), limit=50)


def stale(tx: Tx, before: float) -> int | None:
    """Return the id of a free, idle node for which no burn-in was requested since `before`. Return
    None if there is no such node, or while any burn-in is open."""
    if ROWS.exists(tx, _b.state.in_(OPEN)):
        return None
    n = t.nodes.c
    tested = exists().where(_b.node_id == n.id, _b.asked_at >= before)
    query = select(n.id).where(n.state == NodeState.INACTIVE, n.vcluster_id.is_(None), ~tested)
    found: int | None = tx.scalar(query.order_by(n.id).limit(1))
    return found


def add(tx: Tx, **columns: Any) -> None:
    """Add a requested burn-in; `columns` as in the table."""
    tx.execute(insert(t.burnins).values(state=BurninState.WANTED, **columns))


def end(tx: Tx, burnin_id: int, state: BurninState, reason: str, now: float) -> None:
    """End a burn-in; its secret is no longer valid."""
    change(tx, burnin_id, state=state, reason=reason, ended_at=now, secret="")
