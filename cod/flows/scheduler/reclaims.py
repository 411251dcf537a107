"""Reclaims, for those who lose nodes by them: which are open, and naming the nodes that are given.

Nobody has to answer. The manager has chosen nodes when it wrote the reclaim, and takes them when
the deadline has passed; who answers for the vcluster knows better which it can spare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cod.core import preemption
from cod.core.nodes import assignment
from cod.model import (
    Effect,
    FlowContext,
    Node,
    Reclaim,
    ReclaimView,
    Refused,
    Result,
    Vcluster,
)
from cod.policy.scheduler.preemption import fits
from cod.states import ReclaimState
from cod.store import lists, vcms, views
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.scheduler import reclaims, reservations, vclusters

every, show = lists.reclaims, views.reclaim


def answer(
    tx: Tx,
    context: FlowContext,
    *,
    reclaim_id: int,
    nodes_: Sequence[str],
    later: Mapping[str, float] | None = None,
    passing_over: bool = False,
) -> Result[ReclaimView]:
    """Answer a reclaim: the one who answers for the vcluster gives those nodes (host names in it,
    or the site's names). The value is a `ReclaimView`, as the groups of
    who asks see it.

    later  nodes that it will give, by when: those are taken at the deadline, in place of those that
           were chosen, as far as they are of the kind and are wanted; names that it has no nodes of
           are passed over. It replaces what was promised before; None: that stays
    passing_over  nodes whose grants the vcluster's VCM has not acknowledged are passed over: an
           answer that it repeats means the ones that had their names before
    They have to be of the kind that is taken, and no more than are still wanted. Nodes that were
    given for this reclaim before are passed over, and once it is over all that its vcluster does
    not hold, so that repeating an answer changes nothing. Raises `Refused`; then nothing is given.
    """
    now = context.now
    current = reclaims.get(tx, reclaim_id)
    vcluster = vclusters.get(tx, current.vcluster_id, lock=True) if current else None
    reclaim = reclaims.get(tx, reclaim_id, lock=True)
    if reclaim is None or vcluster is None:
        raise Refused("not_found", f"there is no reclaim {reclaim_id}", "id")
    unacknowledged = vcms.unacknowledged_grants(tx, vcluster.id) if passing_over else set()
    leaving = [
        node for node in _named(tx, reclaim, vcluster, nodes_) if node.name not in unacknowledged
    ]
    effects: tuple[Effect, ...] = ()
    if leaving:
        _check(reclaim, vcluster, leaving)
        preemption.answer(tx, reclaim, leaving, now)
        vclusters.change(tx, vcluster, now, size=vcluster.size - len(leaving))
        effects = assignment.release(
            tx,
            leaving,
            cause=f"given back for reclaim {reclaim.id}",
            now=now,
            actor=context.actor,
            policy=context.site.policy,
        )
    reclaim = reclaims.get(tx, reclaim_id) or reclaim
    if later is not None and reclaim.state == ReclaimState.OPEN:
        held = _by_name(nodes.every(tx, vcluster_id=vcluster.id, lock=True))
        end = reclaim.deadline  # then they are taken, whatever was promised
        promised = {
            node.id: (node, min(at, end))
            for name, at in later.items()
            if (node := held.get(name)) is not None and node.name not in unacknowledged
        }
        preemption.promise(tx, reclaim, list(promised.values()), now)
    return Result(show(tx, reclaim_id, context.who.groups), effects)


def _named(tx: Tx, reclaim: Reclaim, vcluster: Vcluster, names: Sequence[str]) -> list[Node]:
    held = nodes.every(tx, vcluster_id=vcluster.id, lock=True)
    by_name = _by_name(held)
    gone = {
        node.name
        for node in nodes.lock(tx, reservations.of_reclaims(tx, [reclaim.id]))
        if node.vcluster_id != vcluster.id
    }
    # once the reclaim is over nothing tells any more which nodes were given for it
    for name in names:
        if name not in by_name and name not in gone and reclaim.state == ReclaimState.OPEN:
            raise Refused("not_found", f"vcluster {vcluster.name} has no node {name!r}", "nodes")
    return list(dict.fromkeys(by_name[name] for name in names if name in by_name))


def _by_name(held: Sequence[Node]) -> dict[str, Node]:
    return {name: node for node in held for name in (node.hostname or node.name, node.name)}


def _check(reclaim: Reclaim, vcluster: Vcluster, leaving: Sequence[Node]) -> None:
    if reclaim.state != ReclaimState.OPEN:
        raise Refused(
            "conflict", f"reclaim {reclaim.id} is {reclaim.state}: nothing is to be given", "id"
        )
    open_ = reclaim.count - reclaim.given
    if len(leaving) > open_:
        raise Refused(
            "conflict",
            f"reclaim {reclaim.id} wants {open_} more, not {len(leaving)}: release what else you "
            "can spare",
            "nodes",
        )
    if vcluster.size <= len(leaving) and not vcluster.preemptible:
        raise Refused("conflict", f"vcluster {vcluster.name} would have no node left", "nodes")
    for node in leaving:
        if not fits(reclaim, node):
            raise Refused(
                "conflict",
                f"node {node.name} is not of the type and block that reclaim {reclaim.id} is for",
                "nodes",
            )
