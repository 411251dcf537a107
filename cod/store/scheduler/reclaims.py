"""Reclaims: so many nodes of a kind are being taken from a vcluster for a request of higher priority.

A reclaim is *open* until as many nodes have left the vcluster for it as it wants; it is then *done*. Until then
reservations with its id say which nodes were chosen; whoever answers for the vcluster may give others of the same kind
instead. It is *cancelled* when its request ends or nothing may be taken any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import Select, func, insert, select, update

from cod import notice_texts
from cod.core import vcm_outbox
from cod.model import Node, Reclaim, Request, Vcluster
from cod.states import ReclaimState, VclusterState
from cod.store import tables as t
from cod.store.engine import Tx, new_id, slices
from cod.store.nodes import nodes
from cod.store.notices import notices
from cod.store.people import groups
from cod.store.scheduler import reservations, vclusters

_c = t.reclaims.c
_COLUMNS = [_c[f.name] for f in fields(Reclaim)]


def _read(tx: Tx, query: Select[Any]) -> list[Reclaim]:
    return [Reclaim(*row) for row in tx.execute(query)]


def add(
    tx: Tx, *, vcluster_id: int, request_id: int, type_id: int, block_id: int | None, subnet: str, attributes: str,
    nodes: Sequence[Node], deadline: float, now: float,
) -> Reclaim:
    """A new open reclaim of as many nodes as were chosen for it: `nodes`, which are kept for its request from now on.

    subnet  '' for any; attributes: what the request wants of nodes (XML) or '', for whoever answers
    """
    values: dict[str, Any] = {
        "vcluster_id": vcluster_id, "request_id": request_id, "type_id": type_id, "block_id": block_id,
        "subnet": subnet, "attributes": attributes, "count": len(nodes), "given": 0, "deadline": deadline,
        "state": ReclaimState.OPEN, "created_at": now, "ended_at": None}
    made = Reclaim(id=new_id(tx.execute(insert(t.reclaims).values(**values))), **values)
    reservations.add(tx, [node.id for node in nodes], request_id, made.id, now)
    return made


def get(tx: Tx, reclaim_id: int, *, lock: bool = False) -> Reclaim | None:
    """The reclaim with that id; locked until the transaction ends, if `lock`."""
    query = select(*_COLUMNS).where(_c.id == reclaim_id)
    found = _read(tx, query.with_for_update() if lock else query)
    return found[0] if found else None


def open_(tx: Tx, vcluster_id: int | None = None, *, lock: bool = False) -> list[Reclaim]:
    """Open reclaims from that vcluster (from any, if None), the first due first."""
    query = select(*_COLUMNS).where(_c.state == ReclaimState.OPEN).order_by(_c.deadline, _c.id)
    if vcluster_id is not None:
        query = query.where(_c.vcluster_id == vcluster_id)
    return _read(tx, query.with_for_update() if lock else query)


def written(tx: Tx, request_id: int, vcluster_id: int, type_id: int, block_id: int | None, at: float) -> bool:
    """Was such a reclaim written at that very time? Then the same act is being run again."""
    block = _c.block_id.is_(None) if block_id is None else _c.block_id == block_id
    query = select(_c.id).where(_c.request_id == request_id, _c.vcluster_id == vcluster_id, _c.type_id == type_id,
                                block, _c.created_at == at)
    return tx.scalar(query.limit(1)) is not None


def leaving(tx: Tx, vcluster_id: int) -> int:
    """How many nodes that vcluster is still to give back."""
    query = select(func.sum(_c["count"] - _c.given)).where(_c.state == ReclaimState.OPEN, _c.vcluster_id == vcluster_id)
    return int(tx.scalar(query) or 0)


def to_spare(tx: Tx, vcluster: Vcluster, request: Request, own: int) -> int:
    """How many nodes may be taken from the vcluster for the request: none below its creation size, beside those that
    are leaving it already, of which `own` are the request's. None at all for an equal or lower priority.
    """
    ahead = groups.get(tx, vcluster.group_id).priority < request.priority
    if not ahead or vcluster.state != VclusterState.ACTIVE or vcluster.id == request.vcluster_id:
        return 0
    return vclusters.held(tx, vcluster.id) - leaving(tx, vcluster.id) + own - vcluster.creation_size


def fits(reclaim: Reclaim, node: Node) -> bool:
    """Is the node of the kind that is taken? Nodes of one type have equal attributes: what one satisfies, all do."""
    return (node.type_id == reclaim.type_id and node.block_id == reclaim.block_id
            and reclaim.subnet in ("", node.subnet or ""))


def answer(tx: Tx, reclaim: Reclaim, given: Sequence[Node], now: float) -> Reclaim:
    """`given`, which fit and are no more than it wants, leave their vcluster for it; the reclaim as it is now.

    Nodes that were chosen and are not needed now may stay: as many as others were given instead, of those that are
    promised the last.
    """
    chosen = [node for node, one in reservations.of_reclaims(tx, [reclaim.id]).items() if one == reclaim.id]
    instead = [node.id for node in given if node.id not in chosen]
    held = set(tx.scalars(select(t.nodes.c.id).where(t.nodes.c.vcluster_id == reclaim.vcluster_id,
                                                     t.nodes.c.id.in_(chosen))))
    promised = reservations.promises(tx, reclaim.id)
    spared = sorted(held - {node.id for node in given}, key=lambda one: (one in promised, one))[:len(instead)]
    reservations.drop(tx, [*spared, *instead])
    reservations.add(tx, instead, reclaim.request_id, reclaim.id, now)
    whole = reclaim.given + len(given) >= reclaim.count
    if whole:
        vcm_outbox.over(tx, reclaim, ReclaimState.DONE, now)
    return _change(tx, reclaim, given=reclaim.given + len(given),
                   **{"state": ReclaimState.DONE, "ended_at": now} if whole else {})


def promise(tx: Tx, reclaim: Reclaim, nodes_: Sequence[tuple[Node, float]], now: float) -> None:
    """Nodes that its vcluster holds will be given, each by a time: at the deadline they go in place of others that were
    chosen. What was promised before and is not now is no promise any more."""
    there = {one.node_id: one.reclaim_id for one in reservations.every(tx)}
    left = reclaim.count - reclaim.given
    able = [node.id for node, _ in nodes_ if fits(reclaim, node) and there.get(node.id, reclaim.id) == reclaim.id]
    promised = able[:left]
    others = sorted(node.id for node in chosen(tx, reclaim) if node.id not in promised)
    reservations.drop(tx, others[left - len(promised):])
    reservations.add(tx, [one for one in promised if one not in there], reclaim.request_id, reclaim.id, now)
    reservations.promise(tx, reclaim.id, {node.id: at for node, at in nodes_ if node.id in promised})


def answer_all(tx: Tx, vcluster_id: int, leaving_: Sequence[Node], now: float) -> None:
    """Those nodes leave the vcluster whatever for: they count as answers to its open reclaims. Call it before
    `holding.give_back`.
    """
    there = open_(tx, vcluster_id, lock=True)
    if not there:
        return
    chosen = reservations.of_reclaims(tx, [reclaim.id for reclaim in there])
    left = list(leaving_)
    for reclaim in there:
        own = [node for node in left if chosen.get(node.id) == reclaim.id]
        others = [node for node in left if node.id not in chosen and fits(reclaim, node)]
        given = (own + others)[:reclaim.count - reclaim.given]
        left = [node for node in left if node not in given]
        answer(tx, reclaim, given, now)


def deserted(tx: Tx, vcluster_id: int, held: Sequence[Node], now: float) -> None:
    """All nodes of the vcluster leave it: they answer its open reclaims, and nothing more can be taken."""
    answer_all(tx, vcluster_id, held, now)
    for reclaim in open_(tx, vcluster_id):
        close(tx, reclaim, now)


def ease(
    tx: Tx, reclaim_id: int, count: int, left: int, order: Callable[[Sequence[Node], int], Sequence[Node]], now: float
) -> int:
    """`count` of what is open in it is not wanted any more, only `left`; returns how many, 0 if it was done before.

    Of the nodes that were chosen those may stay that are last by `order` (`policy.scheduler.leases.victims`), of those
    that are promised the last. Where nothing is left the reclaim is over. Raises `Stale` when something else is open
    than both.
    """
    there = get(tx, reclaim_id)
    vcluster = vclusters.get(tx, there.vcluster_id, lock=True) if there else None
    reclaim = get(tx, reclaim_id, lock=True)
    if vcluster is None or reclaim is None or reclaim.state != ReclaimState.OPEN:
        return 0
    open_now = reclaim.count - reclaim.given
    if open_now == left:
        return 0
    if open_now != left + count:
        raise nodes.Changed(f"{open_now} nodes are open in reclaim {reclaim.id}, not {left + count}")
    eased = _change(tx, reclaim, count=reclaim.count - count)
    _tell_spared(tx, reclaim, count, now)
    if not left:
        close(tx, eased, now)
        return count
    held, promised = chosen(tx, reclaim), reservations.promises(tx, reclaim.id)
    first = sorted(order(held, len(held)), key=lambda node: node.id not in promised)
    reservations.drop(tx, [node.id for node in first[left:]])
    would_do = [node for node in nodes.every(tx, vcluster_id=vcluster.id) if fits(reclaim, node)]
    vcm_outbox.reclaimed(tx, eased, f"request {reclaim.request_id} is short of fewer", would_do, now)
    return count


def chosen(tx: Tx, reclaim: Reclaim) -> list[Node]:
    """The nodes that were chosen for it and have not left the vcluster, locked."""
    there = nodes.lock(tx, list(reservations.of_reclaims(tx, [reclaim.id])))
    return [node for node in there if node.vcluster_id == reclaim.vcluster_id]


def close(tx: Tx, reclaim: Reclaim, now: float) -> Reclaim:
    """No more is taken by it: nodes that were chosen and are still held may stay."""
    ids = list(reservations.of_reclaims(tx, [reclaim.id]))
    n = t.nodes.c
    for part in slices(ids):
        reservations.drop(tx, list(tx.scalars(
            select(n.id).where(n.id.in_(part), n.vcluster_id == reclaim.vcluster_id))))
    state = ReclaimState.DONE if reclaim.given else ReclaimState.CANCELLED
    vcm_outbox.over(tx, reclaim, ReclaimState.CANCELLED, now)  # whatever was given: what was not may be used again
    return _change(tx, reclaim, state=state, ended_at=now)


def cancel(tx: Tx, request_ids: Sequence[int], now: float) -> None:
    """Those requests have ended: nothing more is taken for them."""
    for part in slices(request_ids):
        for reclaim in _read(tx, select(*_COLUMNS).where(_c.request_id.in_(part), _c.state == ReclaimState.OPEN)):
            vcm_outbox.over(tx, reclaim, ReclaimState.CANCELLED, now)
            spared(tx, reclaim, now)
        tx.execute(update(t.reclaims).where(_c.request_id.in_(part), _c.state == ReclaimState.OPEN)
                   .values(state=ReclaimState.CANCELLED, ended_at=now))


def spared(tx: Tx, reclaim: Reclaim, now: float) -> None:
    """Tell the vcluster's group that what the reclaim still wanted may stay."""
    _tell_spared(tx, reclaim, reclaim.count - reclaim.given, now)


def _tell_spared(tx: Tx, reclaim: Reclaim, left: int, now: float) -> None:
    vcluster = vclusters.get(tx, reclaim.vcluster_id)
    if vcluster is not None and vcluster.state == VclusterState.ACTIVE and left > 0:
        notices.add(tx, **notice_texts.reclaim_dropped(vcluster, left), group_id=vcluster.group_id,
                    vcluster_id=vcluster.id,
                    now=now)


def _change(tx: Tx, reclaim: Reclaim, **columns: Any) -> Reclaim:
    tx.execute(update(t.reclaims).where(_c.id == reclaim.id).values(**columns))
    return replace(reclaim, **columns)
