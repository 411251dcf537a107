"""Readiness checks of booting nodes whose template requires more than an address from DHCP: an
answer on a port, or time that passes."""

from __future__ import annotations

from dataclasses import dataclass

from cod.core.nodes import transitions
from cod.model import Effect, Policy, dotted
from cod.policy.nodes import template
from cod.states import NodeState
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import bindings, nodes


@dataclass(frozen=True, slots=True)
class Check:
    """A check of one node: TCP `port` of `address` has to accept a connection and, unless `path` is
    '', to answer GET `path`. Port 0: the node's time is over, and nothing is asked."""

    node_id: int
    generation: int
    name: str
    address: str
    port: int
    path: str


def waiting(tx: Tx, now: float) -> list[Check]:
    """Return the checks to make now, of nodes in state boot. A check of a port begins when the
    node's system has its address, or, if the template names a port alone, when its boot was served.
    A check by time is returned when the time since the boot was served is over."""
    found = []
    booting = {node.id: node for node in nodes.every(tx, [NodeState.BOOT])}
    documents = templates.documents(
        tx, {node.template_id for node in booting.values() if node.template_id}
    )
    read = {
        template_id: template.parse(document).ready for template_id, document in documents.items()
    }
    wanted = {
        node.id: read[node.template_id] for node in booting.values() if node.template_id in read
    }
    for binding in bindings.of_systems(
        tx, [node_id for node_id, ready in wanted.items() if ready.port]
    ):
        node, ready = booting[binding.node_id or 0], wanted[binding.node_id or 0]
        if binding.state == "bound" or (ready.by == "port" and node.boot_served_at is not None):
            found.append(
                Check(
                    node.id,
                    node.generation,
                    node.name,
                    dotted(binding.address),
                    ready.port,
                    ready.path,
                )
            )
    for node_id, ready in wanted.items():
        node = booting[node_id]
        if (
            ready.by == "time"
            and node.boot_served_at is not None
            and now >= node.boot_served_at + ready.seconds
        ):
            found.append(Check(node.id, node.generation, node.name, "", 0, ""))
    return found


def answered(tx: Tx, check: Check, policy: Policy, now: float) -> tuple[Effect, ...]:
    """Make the checked node active, because its system answered or its time is over. A node that
    has changed its state since the check began is left alone."""
    node = nodes.get(tx, check.node_id)
    if node is None or node.generation != check.generation:
        return ()
    cause = f"its system answers on port {check.port}"
    if not check.port:
        since = now - (node.boot_served_at or now)
        cause = f"{since:.0f} s have passed since its boot was served, as its template wants"
    moved = transitions.booted(
        tx, node, cause, now=now, actor="readiness", policy=policy, unseen=not check.port
    )
    return transitions.wakes(node, moved)
