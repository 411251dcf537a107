"""The cause for which a node failed to become ready for its holder, and the consequences. Pure.

=======  ================================  =========================================================
fault    examples                          what follows
=======  ================================  =========================================================
machine  a disk that cannot be erased, a   tried again, then set aside (quarantined)
         free machine that does not come
order    a seed without a place, a disk    not tried again: the node goes back to the reserve, and
         that is too small, a wrong digest its request gets no other node in its place
kept     a disk that the template writes   as for *order*, but the failure does not count against
         is marked keep on the node        the template, which works on other nodes
way      a switch, BMC or file server that COD waits: no failure is counted, and the node goes on
         does not answer, an image that    when the service answers again
         is not served
unknown  a system that never asks for an   tried again, then as for *machine*; as for *order* if
         address, an agent whose           `verdict` returns a reason
         connection is lost at work
=======  ================================  =========================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cod.states import Fault, NodeState

MOST_NODES = 3
"""Nodes that one group's requests may bring into quarantine before an administrator looks."""
BREAKER = 2
"""Different nodes that have to fail with one template revision, without a success in between, until
the template is blamed."""

FAULTS: dict[tuple[NodeState, str], Fault] = {
    (NodeState.PRIME, ""): Fault.UNKNOWN,
    (NodeState.PRIME, "order"): Fault.ORDER,
    (NodeState.PRIME, "kept"): Fault.KEPT,
    (NodeState.PRIME, "way"): Fault.WAY,
    (NodeState.BOOT, ""): Fault.UNKNOWN,
    (NodeState.TRAMPOLINE, ""): Fault.UNKNOWN,
    (NodeState.CAPTURE, "way"): Fault.WAY,
}
"""The fault by the node's state and the cause that its agent or COD reports ('order', 'kept', 'way'
or '': none). In all other states the machine is at fault, because no order or template is in play.
"""


def fault(state: NodeState, held: bool, cause: str = "") -> Fault:
    """Return the fault for trouble of a node in `state`. `held`: a vcluster holds the node."""
    if not held and state is not NodeState.CAPTURE:  # a free node may be captured for the site
        return Fault.MACHINE
    return FAULTS.get((state, cause), FAULTS.get((state, ""), Fault.MACHINE))


@dataclass(frozen=True, slots=True)
class FormerFailures:
    """Counts of earlier failures, without the one being judged.

    template  other nodes that failed with the template revision, without a success since
    group     nodes in quarantine after requests of the group that no administrator has looked at
    """

    template: int = 0
    group: int = 0


def verdict(former: FormerFailures) -> str:
    """Return why a node whose failure has no known cause goes back to the reserve, and its request
    gets no other node; '': the node is set aside instead."""
    if former.template + 1 >= BREAKER:
        return (
            f"{former.template + 1} different nodes have failed with this template, and none has"
            " become ready with it since"
        )
    if former.group >= MOST_NODES:
        return (
            f"requests of this group have brought {former.group} nodes into quarantine, and an"
            " administrator has to look at them first"
        )
    return ""


_NUMBERS = re.compile(r"\d+(?:[.:,]\d+)*")


def alike(reason: str) -> str:
    """Return a reason without its numbers, so that reasons which differ only in numbers are equal:
    'no sign of progress for … s'."""
    return _NUMBERS.sub("…", reason)
