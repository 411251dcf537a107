"""Installing a node anew in the hands of its holder: may it be, what it does, and which of a
cluster's nodes are next. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cod.choices import CANNOT_SWITCH_OFF
from cod.model import Node, Refused, Reinstall
from cod.states import NODE_TRANSITIONS, Disk, NodeEvent, NodeState, Step

Wanted = tuple[Node, Reinstall]


def check(node: Node) -> None:
    """Check that the node can be installed anew. Raises `Refused`."""
    if node.power_driver in CANNOT_SWITCH_OFF and node.state != NodeState.TRAMPOLINE:
        raise Refused(
            "conflict",
            f"no power driver can restart node {node.name}: an administrator gives it one, or"
            " release it",
            "nodes",
        )


def step(wanted: Reinstall, template: str) -> Step:
    """Return the step of a node that leaves its system, or its way there, to be installed with
    `template`. Nothing that is on its disks is trusted any more."""
    columns = {
        "template_id": wanted.template_id,
        "disk": Disk.DIRTY,
        "cached_template_id": None,
        "cached_group_id": None,
        "attempts": 0,
        "reason": "",
    }
    cause = f"{wanted.actor} has it reinstalled with {template}"
    return Step(NodeEvent.REINSTALL_WANTED, cause, columns, "cycle")


def is_over(node: Node, wanted: Reinstall) -> bool:
    """Return whether the node runs what was to be installed, or has left the cluster."""
    if node.vcluster_id != wanted.vcluster_id:
        return True
    return wanted.begun_at is not None and node.state == NodeState.ACTIVE


def has_failed(node: Node, wanted: Reinstall) -> bool:
    """Return whether the node was lost on its way: the next one may be lost like it."""
    left = node.vcluster_id != wanted.vcluster_id
    return left and wanted.begun_at is not None and bool(node.reason)


def due(every: Sequence[Wanted]) -> list[Wanted]:
    """Return those of a cluster's nodes that begin now: as many as may be under way at once, less
    those that are. Nodes that are not active anyway go first."""
    under_way = sum(row.begun_at is not None and not is_over(node, row) for node, row in every)
    waiting = [
        (node, row)
        for node, row in every
        if row.begun_at is None
        and node.vcluster_id == row.vcluster_id
        and (
            node.state == NodeState.TRAMPOLINE
            or (NodeState(node.state), NodeEvent.REINSTALL_WANTED) in NODE_TRANSITIONS
        )
    ]
    waiting.sort(key=lambda one: (one[0].state == NodeState.ACTIVE, one[0].id))
    most = waiting[0][1].at_once if waiting else 0
    return waiting[: max(0, most - under_way)] if most else waiting
