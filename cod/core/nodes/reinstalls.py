"""Reinstallation of nodes that keep their holder, as many at once as was requested."""

from __future__ import annotations

from collections import defaultdict

from cod import notice_texts
from cod.core import notices
from cod.core.nodes import transitions
from cod.model import Effect, Node, Policy, Reinstall, Result
from cod.policy import reinstall
from cod.states import NodeState
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import holding, nodes
from cod.store.scheduler import reinstalls, vclusters

MOST = 50  # nodes that begin in one transaction


def advance(tx: Tx, *, now: float, policy: Policy) -> Result[bool]:
    """Begin the reinstallation of nodes that are due, and forget nodes that are done; return
    whether there were any. Where a vcluster's nodes are reinstalled a few at a time and one of them
    fails, those that have not begun keep their system."""
    has_written = False
    effects: list[Effect] = []
    of_each: dict[int, list[reinstall.Wanted]] = defaultdict(list)
    for node, row in reinstalls.every(tx):
        of_each[row.vcluster_id].append((node, row))
    for vcluster_id, every in of_each.items():
        failed = [node for node, row in every if row.at_once and reinstall.has_failed(node, row)]
        over: list[reinstall.Wanted] = []
        left: list[reinstall.Wanted] = []
        for node, row in every:
            ends = reinstall.is_over(node, row) or (failed and row.begun_at is None)
            (over if ends else left).append((node, row))
        reinstalls.remove(tx, [node.id for node, _ in over])
        if over and (failed or not left):
            _tell(tx, vcluster_id, over, failed, now)
        due = reinstall.due(left)[:MOST]
        for node, row in due:
            effects += _begin(tx, node, row, now, policy)
        has_written |= bool(over or due)
    return Result(has_written, tuple(effects))


def _begin(tx: Tx, node: Node, row: Reinstall, now: float, policy: Policy) -> tuple[Effect, ...]:
    locked = nodes.get(tx, node.id, lock=True)
    if locked is None or locked.generation != node.generation:
        return ()  # the next call, in a second, sees the node again
    reinstalls.change(tx, node.id, begun_at=now)
    template = templates.known(tx, row.template_id)
    step = reinstall.step(row, f"{template.name}@{template.revision}")
    holding.set_installation(tx, node.id, "pending", "", now, template_id=row.template_id)
    if node.state == NodeState.TRAMPOLINE:  # no reboot is needed: the node is settled again
        nodes.change(tx, locked, **step.columns)
        return (Effect("wake", "orders"),)
    moved = transitions.apply(tx, locked, step, now=now, actor=row.actor, policy=policy)
    return transitions.wakes(node, moved)


def _tell(
    tx: Tx, vcluster_id: int, over: list[reinstall.Wanted], failed: list[Node], now: float
) -> None:
    """Tell a cluster's group that its nodes are reinstalled, or why the rest is not."""
    vcluster = vclusters.get(tx, vcluster_id)
    if vcluster is None or vcluster.ended_at is not None:
        return
    if failed:
        waiting = sum(
            row.begun_at is None and node.vcluster_id == vcluster_id for node, row in over
        )
        text = notice_texts.reinstall_stopped(vcluster, failed[0].name, failed[0].reason, waiting)
        notices.tell(tx, vcluster, text, now)
    elif any(row.begun_at is not None for _, row in over):
        notices.tell(tx, vcluster, notice_texts.reinstalled(vcluster), now)
