"""Reclaims: each takes a number of nodes of a kind from a vcluster for a request of higher
priority.

A reclaim is *open* until the requested number of nodes have left the vcluster for it; it is then
*done*. Until then reservations with its id record the nodes that were chosen; the vcluster's owners
or its VCM may give others of the same kind instead. It is *cancelled* when its request ends or the
vcluster may no longer lose nodes.
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
    """A key by which the reclaims that one plan opens differ. `subnet`: '' for any."""

    request_id: int
    vcluster_id: int
    type_id: int
    block_id: int | None
    subnet: str


class Opening(NamedTuple):
    """A reclaim to be opened.

    attributes  the request's requirements of nodes (XML) or '', shown to the vcluster's VCM
    node_ids    the nodes that were chosen for it
    """

    key: ReclaimKey
    attributes: str
    node_ids: Sequence[int]
    deadline: float


def add_all(tx: Tx, openings: Sequence[Opening], now: float) -> list[Reclaim]:
    """Open reclaims for the nodes that were chosen, and reserve these nodes for the reclaims'
    requests; return the reclaims. Raises IntegrityError when a node is reserved already."""
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
    """Open one reclaim and return it: see `Opening`."""
    key = ReclaimKey(request_id, vcluster_id, type_id, block_id, subnet)
    chosen = [node.id for node in nodes]
    return add_all(tx, [Opening(key, attributes, chosen, deadline)], now)[0]


def written(tx: Tx, request_ids: Collection[int], at: float) -> set[ReclaimKey]:
    """Return the reclaims for those requests that were written exactly at `at`. If an act would
    write one of them, the act is being run a second time."""
    return {_key(one) for one in _of(tx, request_ids, at)}


def _of(tx: Tx, request_ids: Collection[int], at: float) -> list[Reclaim]:
    return ROWS.among(tx, _c.request_id, sorted(request_ids), _c.created_at == at)


def _key(one: Reclaim) -> ReclaimKey:
    return ReclaimKey(one.request_id, one.vcluster_id, one.type_id, one.block_id, one.subnet)


def open_rows() -> Select[Any]:
    """Return the query of `open_` for all vclusters."""
    return ROWS.select.where(_c.state == ReclaimState.OPEN)


def open_(tx: Tx, vcluster_id: int | None = None, *, lock: bool = False) -> list[Reclaim]:
    """Return the open reclaims from the vcluster (None: from any), the first due first."""
    own = [] if vcluster_id is None else [_c.vcluster_id == vcluster_id]
    order = _c.deadline, _c.id
    return ROWS.every(tx, _c.state == ReclaimState.OPEN, *own, order=order, lock=lock)


def leaving_each(tx: Tx, vcluster_ids: Collection[int]) -> Counter[int]:
    """Return the number of nodes that each of the vclusters has still to give back."""
    query = (
        select(_c.vcluster_id, func.sum(_c["count"] - _c.given))
        .where(_c.state == ReclaimState.OPEN)
        .group_by(_c.vcluster_id)
    )
    rows = rows_among(tx, query, _c.vcluster_id, sorted(vcluster_ids))
    return Counter({row[0]: int(row[1]) for row in rows})


def leaving(tx: Tx, vcluster_id: int) -> int:
    """Return the number of nodes that the vcluster has still to give back."""
    return leaving_each(tx, [vcluster_id])[vcluster_id]


def open_for(tx: Tx, request_ids: Sequence[int]) -> list[Reclaim]:
    """Return the open reclaims for those requests."""
    return ROWS.among(tx, _c.request_id, request_ids, _c.state == ReclaimState.OPEN)


def chosen_ids(tx: Tx, reclaim: Reclaim) -> list[int]:
    """Return the ids of the nodes that were chosen for a reclaim, or given in answer to it."""
    return list(reservations.of_reclaims(tx, [reclaim.id]))


def held_ids(tx: Tx, reclaim: Reclaim) -> list[int]:
    """Return those of `chosen_ids` whose nodes the reclaim's vcluster still holds."""
    n = t.nodes.c
    query = select(n.id).where(n.vcluster_id == reclaim.vcluster_id)
    return [row[0] for row in rows_among(tx, query, n.id, chosen_ids(tx, reclaim))]


def chosen(tx: Tx, reclaim: Reclaim) -> list[Node]:
    """Return the nodes of `held_ids` as records, locked."""
    return [
        node
        for node in nodes.lock(tx, chosen_ids(tx, reclaim))
        if node.vcluster_id == reclaim.vcluster_id
    ]
