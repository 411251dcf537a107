"""Ways of erasing a node's disks. Pure.

tables  partition tables and signatures are zeroed. Other data stays, so only the group that had the
        node may get it in this state
zero    every byte is zeroed
purge   as zero, but disks that can erase themselves do so first

Site, group and template each name a way, and the strictest is used. It is decided when a wipe
begins, and stored in `nodes.wipe`: a later change of the site's rule changes neither the ordered
wipe nor the state that the disks have afterwards.
"""

from __future__ import annotations

from cod.choices import Wipe
from cod.model import Node, Policy
from cod.states import Disk, NodeState

HEADROOM = 1.25  # factor from measured turnarounds to the one that is counted on
WAYS = Wipe.names()  # the strictest last


def strictest(*ways: str | None) -> str:
    """Return the strictest of `ways`; '' if all are empty or None."""
    return max(filter(None, ways), key=WAYS.index, default="")


def begin(node: Node, policy: Policy, *, whole: bool = False) -> str:
    """Return the way of a wipe that begins now. It is at least 'zero', unless no vcluster holds the
    node, its disks have data of one group only, and `whole` is False."""
    one_group = node.disk == Disk.DIRTY and node.cached_group_id is not None
    alone = one_group and node.vcluster_id is None
    return strictest(policy.wipe, node.wipe, "" if alone and not whole else Wipe.ZERO)


def is_its_holders(node: Node) -> bool:
    """Return whether all data on the disks of a node that is given back is its holder's: the
    holder's system runs, and the disks count neither as foreign nor as left for a capture."""
    exposed = node.disk in (Disk.FOREIGN, Disk.SYSTEM)
    return node.state == NodeState.ACTIVE and not exposed


def is_kept_for(node: Node, group_id: int) -> bool:
    """Return whether the disks are kept for this group with only their tables zeroed."""
    return node.disk == Disk.TABLES and node.cached_group_id == group_id


def learnt(known: float | None, seconds: float) -> float:
    """Return the turnaround to count on for nodes of a type, in seconds, after a node has taken
    `seconds`. A longer one counts at once; a clearly shorter one reduces the known value by an
    eighth of the difference. `known`: the value so far; None: there is none."""
    seen = seconds * HEADROOM
    if known is None or seen > known:
        return seen
    return known + (seen - known) / 8 if seen < 0.8 * known else known
