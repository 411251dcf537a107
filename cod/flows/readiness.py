"""Nodes whose system has its address and whose template wants to see it answer before the node counts as active."""

from __future__ import annotations

from dataclasses import dataclass

from cod import news
from cod.model import Effect, Policy, dotted
from cod.policy import template
from cod.states import NodeEvent, NodeState, Step
from cod.store import bindings, nodes, notices, steps, templates, vclusters
from cod.store.engine import Tx


@dataclass(frozen=True, slots=True)
class Check:
    """One node to look at: TCP `port` of `address` accepts, and answers GET `path` unless that is ''."""

    node_id: int
    generation: int
    name: str
    address: str
    port: int
    path: str


def waiting(tx: Tx) -> list[Check]:
    """The checks that are due: nodes in state boot whose system was given its address."""
    found = []
    booting = {node.id: node for node in nodes.every(tx, [NodeState.BOOT])}
    addresses = bindings.of_systems(tx, list(booting))
    documents = templates.documents(tx, {node.template_id for node in booting.values() if node.template_id})
    for node_id, address in addresses.items():
        node = booting[node_id]
        wanted = template.parse(documents[node.template_id]).ready if node.template_id in documents else None
        if wanted is not None:
            found.append(Check(
                node.id, node.generation, node.name, dotted(address), wanted.port, wanted.path))
    return found


def answered(tx: Tx, check: Check, policy: Policy, now: float) -> tuple[Effect, ...]:
    """The node's system answered: it is active. A node that has moved on since the check began is left alone."""
    node = nodes.get(tx, check.node_id)
    if node is None or node.generation != check.generation:
        return ()
    cause = f"its system answers on port {check.port}"
    moved = steps.apply(tx, node, Step(NodeEvent.BOOTED, cause), now=now, actor="readiness", policy=policy)
    ready = vclusters.first_ready(tx, node.vcluster_id, now)
    if ready is not None:
        said = news.vcluster_ready(ready, ready.size)
        notices.add(tx, **said, group_id=ready.group_id, vcluster_id=ready.id, now=now)
    return steps.wakes(node, moved)
