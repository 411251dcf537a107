"""Reclaims: so many nodes of a kind are being taken from a vcluster for a request of higher
priority.

A reclaim is *open* until as many nodes have left the vcluster for it as it wants; it is then
*done*. Until then reservations with its id say which nodes were chosen; whoever answers for the
vcluster may give others of the same kind instead. It is *cancelled* when its request ends or
nothing may be taken any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select

from cod.model import Node, Reclaim
from cod.states import ReclaimState
from cod.store import tables as t
from cod.store.engine import Tx, slices
from cod.store.nodes import nodes
from cod.store.rows import Rows
from cod.store.scheduler import reservations

_c = t.reclaims.c
ROWS = Rows(Reclaim, t.reclaims)
get, change = ROWS.get, ROWS.change


def add(
    tx: Tx,
    *,
    vcluster_id: int,
    request_id: int,
    type_id: int,
    block_id: int | None,
    subnet: str,
    attributes: str,
    nodes: Sequence[Node],
    deadline: float,
    now: float,
) -> Reclaim:
    """Return a new open reclaim of as many nodes as were chosen for it: `nodes`, which are kept for
    its request from now on.

    subnet  '' for any; attributes: what the request wants of nodes (XML) or '', for whoever answers
    """
    made = ROWS.add(
        tx,
        vcluster_id=vcluster_id,
        request_id=request_id,
        type_id=type_id,
        block_id=block_id,
        subnet=subnet,
        attributes=attributes,
        count=len(nodes),
        given=0,
        deadline=deadline,
        state=ReclaimState.OPEN,
        created_at=now,
    )
    reservations.add(tx, [node.id for node in nodes], request_id, made.id, now)
    return made


def open_(tx: Tx, vcluster_id: int | None = None, *, lock: bool = False) -> list[Reclaim]:
    """Return the open reclaims from that vcluster (from any, if None), the first due first."""
    own = [] if vcluster_id is None else [_c.vcluster_id == vcluster_id]
    order = _c.deadline, _c.id
    return ROWS.every(tx, _c.state == ReclaimState.OPEN, *own, order=order, lock=lock)


def written(
    tx: Tx, request_id: int, vcluster_id: int, type_id: int, block_id: int | None, at: float
) -> bool:
    """Return whether such a reclaim was written at that very time. Then the same act is being run
    again."""
    block = _c.block_id.is_(None) if block_id is None else _c.block_id == block_id
    of_kind = _c.type_id == type_id, block
    of_both = _c.request_id == request_id, _c.vcluster_id == vcluster_id
    return ROWS.exists(tx, *of_both, *of_kind, _c.created_at == at)


def leaving(tx: Tx, vcluster_id: int) -> int:
    """Return how many nodes that vcluster is still to give back."""
    query = select(func.sum(_c["count"] - _c.given)).where(
        _c.state == ReclaimState.OPEN, _c.vcluster_id == vcluster_id
    )
    return int(tx.scalar(query) or 0)


def open_for(tx: Tx, request_ids: Sequence[int]) -> list[Reclaim]:
    """Return the open reclaims for those requests."""
    return [
        reclaim
        for part in slices(request_ids)
        for reclaim in ROWS.every(tx, _c.request_id.in_(part), _c.state == ReclaimState.OPEN)
    ]


def chosen_ids(tx: Tx, reclaim: Reclaim) -> list[int]:
    """Return the ids of the nodes that were chosen for a reclaim, or given in answer to it."""
    return list(reservations.of_reclaims(tx, [reclaim.id]))


def held_ids(tx: Tx, reclaim: Reclaim) -> list[int]:
    """Return the ids among `chosen_ids` whose nodes the reclaim's vcluster still holds."""
    n = t.nodes.c
    return [
        one
        for part in slices(chosen_ids(tx, reclaim))
        for one in tx.scalars(
            select(n.id).where(n.id.in_(part), n.vcluster_id == reclaim.vcluster_id)
        )
    ]


def chosen(tx: Tx, reclaim: Reclaim) -> list[Node]:
    """Return the nodes with the ids `held_ids`, locked, as records."""
    return [
        node
        for node in nodes.lock(tx, chosen_ids(tx, reclaim))
        if node.vcluster_id == reclaim.vcluster_id
    ]
