"""Ways of erasing a node's disks, and the group that may have disks whose tables alone were erased.
Pure.

tables  partition tables and signatures are zeroed: what lies between stays, and only the group that
        had the node may be given it as it is
zero    every byte is zeroed
purge   disks that can do so erase themselves first

The strictest of what the site, the group and its template say is done. A wipe's way is settled when
it begins, and kept in `nodes.wipe`: a site that says otherwise meanwhile does not change what was
ordered, nor what the disks count as afterwards.
"""

from __future__ import annotations

from cod.choices import Wipe
from cod.model import Node, Policy
from cod.states import Disk, NodeState

HEADROOM = 1.25  # a turnaround that is counted on is longer than those that were seen
WAYS = Wipe.names()  # the strictest last


def strictest(*ways: str | None) -> str:
    """Return the strictest of `ways`; '' where none of them says anything."""
    return max(filter(None, ways), key=WAYS.index, default="")


def begin(node: Node, policy: Policy, *, whole: bool = False) -> str:
    """Return how a wipe erases that begins now. Data that may be of more than one group is zeroed
    whatever anybody says; so is what `whole` asks for."""
    one_group = node.disk == Disk.DIRTY and node.cached_group_id is not None
    alone = one_group and node.vcluster_id is None
    return strictest(policy.wipe, node.wipe, "" if alone and not whole else "zero")


def is_its_holders(node: Node) -> bool:
    """Return whether a node that is given back has nothing on its disks that its holder could not
    read anyway: its system runs, and no disk of the node was exposed or left out meanwhile."""
    exposed = node.disk in (Disk.FOREIGN, Disk.SYSTEM)
    return node.state == NodeState.ACTIVE and not exposed


def is_kept_for(node: Node, group_id: int) -> bool:
    """Return whether the disks were left to this very group with their tables zeroed."""
    return node.disk == Disk.TABLES and node.cached_group_id == group_id


def learnt(known: float | None, seconds: float) -> float:
    """Return the turnaround that a type's nodes can be counted on for, after a node of it has taken
    `seconds`: at once as long as the slowest, shorter again by little, and not for every node."""
    seen = seconds * HEADROOM
    if known is None or seen > known:
        return seen
    return known + (seen - known) / 8 if seen < 0.8 * known else known
