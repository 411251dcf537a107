"""Reclaims: so many nodes of a kind are being taken from a vcluster for a request of higher
priority.

A reclaim is *open* until as many nodes have left the vcluster for it as it wants; it is then
*done*. Until then reservations with its id say which nodes were chosen; whoever answers for the
vcluster may give others of the same kind instead. It is *cancelled* when its request ends or
nothing may be taken any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, func, insert, select

from cod.model import Node, Reclaim
from cod.states import ReclaimState
from cod.store import tables as t
from cod.store.engine import Tx, rows_among
from cod.store.nodes import nodes
from cod.store.rows import Rows
from cod.store.scheduler import reservations

_c = t.reclaims.c
ROWS = Rows(Reclaim, t.reclaims)
get, change = ROWS.get, ROWS.change


class ReclaimKey(NamedTuple):
    """Key that tells reclaims apart that one plan opens. `subnet`: '' for any."""

    request_id: int
    vcluster_id: int
    type_id: int
    block_id: int | None
    subnet: str


class Opening(NamedTuple):
    """A reclaim to be opened.

    attributes  the request's requirements of nodes (XML) or '', for the answer
    node_ids    the nodes that were chosen for it
    """

    key: ReclaimKey
    attributes: str
    node_ids: Sequence[int]
    deadline: float


def add_all(tx: Tx, openings: Sequence[Opening], now: float) -> list[Reclaim]:
    """Return new open reclaims of as many nodes as were chosen for each; these are kept for its
    request from now on. IntegrityError: one of them is kept for somebody already."""
    if not openings:
        return []
    rows = [
        {
            **one.key._asdict(),
            "attributes": one.attributes,
            "count": len(one.node_ids),
            "given": 0,
            "deadline": one.deadline,
            "state": ReclaimState.OPEN,
            "created_at": now,
        }
        for one in openings
    ]
    tx.execute(insert(t.reclaims), rows)
    # by their keys: not every database returns the ids of rows that are inserted together
    existing = {_key(one): one for one in _of(tx, {one.key.request_id for one in openings}, now)}
    made = [existing[one.key] for one in openings]
    reservations.add_all(
        tx,
        [
            reservations.Reservation(node_id, reclaim.request_id, reclaim.id)
            for one, reclaim in zip(openings, made, strict=True)
            for node_id in one.node_ids
        ],
        now,
    )
    return made


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
    """Return one new open reclaim: see `Opening`."""
    key = ReclaimKey(request_id, vcluster_id, type_id, block_id, subnet)
    chosen = [node.id for node in nodes]
    return add_all(tx, [Opening(key, attributes, chosen, deadline)], now)[0]


def written(tx: Tx, request_ids: Collection[int], at: float) -> set[ReclaimKey]:
    """Return which reclaims for those requests were written at that very time. An act that would
    write one of them is being run again."""
    return {_key(one) for one in _of(tx, request_ids, at)}


def _of(tx: Tx, request_ids: Collection[int], at: float) -> list[Reclaim]:
    return ROWS.among(tx, _c.request_id, sorted(request_ids), _c.created_at == at)


def _key(one: Reclaim) -> ReclaimKey:
    return ReclaimKey(one.request_id, one.vcluster_id, one.type_id, one.block_id, one.subnet)


def open_rows() -> Select[Any]:
    """Return what `open_` reads of all vclusters."""
    return ROWS.select.where(_c.state == ReclaimState.OPEN)


def open_(tx: Tx, vcluster_id: int | None = None, *, lock: bool = False) -> list[Reclaim]:
    """Return the open reclaims from that vcluster (from any, if None), the first due first."""
    own = [] if vcluster_id is None else [_c.vcluster_id == vcluster_id]
    order = _c.deadline, _c.id
    return ROWS.every(tx, _c.state == ReclaimState.OPEN, *own, order=order, lock=lock)


def leaving_each(tx: Tx, vcluster_ids: Collection[int]) -> Counter[int]:
    """Return how many nodes each of the vclusters is still to give back."""
    query = (
        select(_c.vcluster_id, func.sum(_c["count"] - _c.given))
        .where(_c.state == ReclaimState.OPEN)
        .group_by(_c.vcluster_id)
    )
    rows = rows_among(tx, query, _c.vcluster_id, sorted(vcluster_ids))
    return Counter({row[0]: int(row[1]) for row in rows})


def leaving(tx: Tx, vcluster_id: int) -> int:
    """Return how many nodes that vcluster is still to give back."""
    return leaving_each(tx, [vcluster_id])[vcluster_id]


def open_for(tx: Tx, request_ids: Sequence[int]) -> list[Reclaim]:
    """Return the open reclaims for those requests."""
    return ROWS.among(tx, _c.request_id, request_ids, _c.state == ReclaimState.OPEN)


def chosen_ids(tx: Tx, reclaim: Reclaim) -> list[int]:
    """Return the ids of the nodes that were chosen for a reclaim, or given in answer to it."""
    return list(reservations.of_reclaims(tx, [reclaim.id]))


def held_ids(tx: Tx, reclaim: Reclaim) -> list[int]:
    """Return the ids among `chosen_ids` whose nodes the reclaim's vcluster still holds."""
    n = t.nodes.c
    query = select(n.id).where(n.vcluster_id == reclaim.vcluster_id)
    return [row[0] for row in rows_among(tx, query, n.id, chosen_ids(tx, reclaim))]


def chosen(tx: Tx, reclaim: Reclaim) -> list[Node]:
    """Return the nodes with the ids `held_ids`, locked, as records."""
    return [
        node
        for node in nodes.lock(tx, chosen_ids(tx, reclaim))
        if node.vcluster_id == reclaim.vcluster_id
    ]
