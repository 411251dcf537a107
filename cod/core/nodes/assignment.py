"""Taking nodes from the vcluster that holds them."""

from __future__ import annotations

from collections.abc import Iterable

from cod.core import vcm_outbox
from cod.core.nodes import transitions
from cod.model import Effect, Node, Policy
from cod.policy.hardware import wiping
from cod.policy.nodes import lifecycle
from cod.states import NODE_TRANSITIONS, NodeEvent, NodeState, Step
from cod.store.engine import Tx
from cod.store.nodes import holding


def release(
    tx: Tx, held: Iterable[Node], *, cause: str, now: float, actor: str, policy: Policy
) -> tuple[Effect, ...]:
    """Take nodes from their vcluster and send them back to the trampoline by a power cycle; return
    the services to wake.

    A disk that may be kept for the group keeps its software (`lifecycle.may_keep_disk`). A node
    that is in the trampoline already, or on its way there, only loses its holder: it is settled
    when it reports.
    """
    effects = {Effect("wake", "manager")}
    for node in held:
        stuck = transitions.is_stuck(node)
        runs = holding.assignment(tx, node)
        vcm_outbox.moved(tx, node, node.vcluster_id, "lost", cause, now)
        kept = runs is not None and lifecycle.may_keep_disk(node, runs.document)
        given = holding.give_back(
            tx,
            node,
            up_until=now + policy.binding_time if stuck else None,
            keep_disk=kept,
            one_group=wiping.is_its_holders(node),
            wipe=transitions.asked_wipe(tx, node, runs),
        )
        if (NodeState(node.state), NodeEvent.RELEASED) in NODE_TRANSITIONS:
            columns = {"attempts": 0, "reason": transitions.BY_HAND if stuck else ""}
            step = Step(NodeEvent.RELEASED, cause, columns, "cycle")
            moved = transitions.apply(tx, given, step, now=now, actor=actor, policy=policy)
            effects.update(transitions.wakes(node, moved))
    return tuple(sorted(effects, key=lambda effect: effect.what))
