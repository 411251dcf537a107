"""Reinstalling a node that its vcluster keeps: whether that is possible, the node's step, and which
of a vcluster's nodes are next. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cod.choices import CANNOT_SWITCH_OFF
from cod.model import Node, Refused, Reinstall
from cod.states import NODE_TRANSITIONS, Disk, NodeEvent, NodeState, Step

Wanted = tuple[Node, Reinstall]


def check(node: Node) -> None:
    """Raise `Refused` unless the node can be reinstalled."""
    if node.power_driver in CANNOT_SWITCH_OFF and node.state != NodeState.TRAMPOLINE:
        raise Refused(
            "conflict",
            f"no power driver can restart node {node.name}: an administrator gives it one, or"
            " release it",
            "nodes",
        )


def step(wanted: Reinstall, template: str) -> Step:
    """Return the step of a node that leaves its system, or the installation of it, to be
    reinstalled with `template`. Its disks then count as dirty."""
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
    """Return whether the reinstallation has ended: the node runs the new system, or has left the
    vcluster."""
    if node.vcluster_id != wanted.vcluster_id:
        return True
    return wanted.begun_at is not None and node.state == NodeState.ACTIVE


def has_failed(node: Node, wanted: Reinstall) -> bool:
    """Return whether the vcluster lost the node during the reinstallation. The next node might be
    lost, too."""
    left = node.vcluster_id != wanted.vcluster_id
    return left and wanted.begun_at is not None and bool(node.reason)


def due(every: Sequence[Wanted]) -> list[Wanted]:
    """Return the nodes of a vcluster to reinstall now: as many as may be under way at once, minus
    those under way. Nodes that are not active go first."""
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
