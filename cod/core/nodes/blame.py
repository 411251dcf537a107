"""Failures of nodes that are being prepared for a holder: new ones are recorded, and judged by
former ones. `policy.nodes.blame` has the rules."""

from __future__ import annotations

from cod.model import Node, Policy
from cod.policy.nodes import blame, lifecycle, template
from cod.states import Fault, NodeEvent, NodeState, Step
from cod.store.engine import Tx
from cod.store.nodes import failures, holding
from cod.store.scheduler import vclusters


def on_trouble(
    tx: Tx, node: Node, event: NodeEvent, reason: str, policy: Policy, cause: str = ""
) -> Step:
    """Return the step after `event` went wrong, as `lifecycle.on_trouble` does. `cause`: as in
    `blame.FAULTS`."""
    if cause == "way" and node.state == NodeState.PRIME and not _by_cod(tx, node):
        cause = ""
    fault = blame.fault(NodeState(node.state), node.vcluster_id is not None, cause)
    former = _former(tx, node) if fault is Fault.UNKNOWN else blame.FormerFailures()
    return lifecycle.on_trouble(node, event, reason, policy, fault, former)


def _former(tx: Tx, node: Node) -> blame.FormerFailures:
    vcluster = vclusters.get(tx, node.vcluster_id or 0)
    if vcluster is None or node.template_id is None:
        return blame.FormerFailures()
    return blame.FormerFailures(
        failures.with_template(tx, node.template_id, but=node.id),
        failures.set_aside_by(tx, vcluster.group_id, but=node.id),
    )


def _by_cod(tx: Tx, node: Node) -> bool:
    """Return whether COD itself serves all files that the node fetches for its holder. If a
    template fetches files from elsewhere, a failed transfer is not COD's fault."""
    wanted = holding.assignment(tx, node)
    if wanted is None:
        return False
    images = template.parse(wanted.document).images
    return all(one.name and "://" not in one.installer for one in images)


def note(tx: Tx, node: Node, step: Step, now: float) -> None:
    """Record a failure that may be the fault of the node's template or group. Call this while the
    node still has its holder."""
    vcluster = vclusters.get(tx, node.vcluster_id) if node.vcluster_id is not None else None
    if step.fault not in (Fault.ORDER, Fault.UNKNOWN) or vcluster is None:
        return
    if not step.stops and step.event is not NodeEvent.EXHAUSTED:
        return
    failures.add(
        tx,
        node_id=node.id,
        template_id=node.template_id,
        group_id=vcluster.group_id,
        set_aside=not step.stops,
        reason=step.cause,
        now=now,
    )
