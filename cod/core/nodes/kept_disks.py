"""The effect of marks of kept disks on a node that has reported.

An order spares the disks that are marked when it is given, but marks may be removed while it is
carried out. Until its end, the node's stored report shows all disks as kept that the order may
spare (`policy.hardware.keep_marks.stored`). At its end the report is marked by the rules of that
time, and a disk that is no longer kept has to be erased before anybody gets the node.
"""

from __future__ import annotations

from cod.model import Node, Site
from cod.policy.hardware import equal, keep_marks
from cod.store.engine import Tx
from cod.store.nodes import nodes, types
from cod.store.scheduler import reservations


def remark(tx: Tx, node: Node, site: Site, now: float) -> Node:
    """Mark the kept disks in the node's stored report by the present rules; return the node as it
    is now. If the marks have changed, the node may have another type."""
    if not node.attributes:
        return node
    report = keep_marks.stored(node.attributes, node, site.keep)
    if report == node.attributes:
        return node
    canonical = equal.canonical(report, site.types)
    kind = types.of(tx, canonical, now, system=equal.system(canonical))
    if kind.id != node.type_id:
        reservations.drop(tx, [node.id])
    changed = keep_marks.changed(node, report)
    return nodes.change(tx, node, attributes=report, type_id=kind.id, **changed)
