"""Reclaims, for vclusters that lose nodes by them: the open ones, and answers that name the nodes
to give.

No answer is needed. The manager chooses nodes when it opens the reclaim, and takes them after the
deadline. But the vcluster's owner or VCM knows better which nodes the vcluster can spare.
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
    """Answer a reclaim: release the nodes `nodes_` (host names in the vcluster, or the site's
    names) for it. Return the reclaim as the caller's groups see it. Raises `Refused`; then no node
    is released.

    later  nodes that the vcluster promises to give, each with the time by which. They are taken at
           the deadline in place of nodes that were chosen, if they are of the reclaim's kind and
           still needed. Names of which the vcluster has no node are ignored. These promises replace
           the former ones; None: the former ones stay
    passing_over  ignore nodes whose grants the vcluster's VCM has not acknowledged: a repeated
           answer means the nodes that had these names before

    The nodes have to be of the reclaim's kind, and no more than it still takes. A repeated answer
    changes nothing: nodes that were given for this reclaim before are ignored, and, once it is
    over, all nodes that the vcluster does not hold.
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
