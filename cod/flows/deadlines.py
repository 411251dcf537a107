"""What happens when something does not happen. Run every second or so by one server, or by several: no harm."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from cod.model import Effect, Node, Site
from cod.policy import lifecycle
from cod.states import NODE_RULES, NodeEvent, NodeState, Step
from cod.store import captures, nodes, power, sessions, steps
from cod.store.engine import Tx

MOST = 50  # nodes moved by one transaction: tens of milliseconds
SILENCE = 12  # heartbeats after which a warm node without a connection is lost, whoever held the connection


def run(tx: Tx, site: Site, now: float, started: float = 0.0) -> list[Effect]:
    """Examine every node that owes something: rested at the crossroads, overdue, or silent in the warm reserve.

    started  when this server began to listen: until agents have had time to come back to it, no silence is held against
             them, for it was COD that did not hear
    At most `MOST` nodes are moved, so that nobody waits long for the database when a hall full of them is overdue; the
    others' turn comes with the next run.
    """
    effects: list[Effect] = []
    for node, step in islice(_due(tx, site, now, started), MOST):
        moved = steps.apply(tx, node, step, now=now, actor="deadline", policy=site.policy)
        effects += steps.wakes(node, moved)
    return list(dict.fromkeys(effects))


def _due(tx: Tx, site: Site, now: float, started: float) -> Iterator[tuple[Node, Step]]:
    patience = SILENCE * site.policy.heartbeat
    for node in sessions.at_crossroads(tx, now - patience):
        if lifecycle.rested(node, site.policy, now):
            yield node, lifecycle.settle(node, steps.wanted(tx, node), captures.is_wanted(tx, node.id))
    if now >= started + patience:
        for node in nodes.overdue(tx, now):
            yield node, _overdue(node, site, power.trouble(tx, node))
        for node in sessions.silent(tx, now - patience):
            sessions.forget(tx, node.id)
            yield node, Step(NodeEvent.LOST, "nothing was heard of it", {"reason": "lost"})


def _overdue(node: Node, site: Site, power_trouble: str) -> Step:
    rule = NODE_RULES[NodeState(node.state)]
    waited = (rule.deadline or 0.0) * site.policy.patience
    reason = f"no sign of progress for {waited:.0f} s in state {node.state} ({rule.about})"
    if power_trouble:
        reason += f"; power: {power_trouble}"
    return lifecycle.on_trouble(node, NodeEvent.TIMED_OUT, reason, site.policy)
