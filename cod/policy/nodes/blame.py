"""The cause for which a node did not get where its holder wants it, and the consequences. Pure.

=======  ================================  =========================================================
fault    examples                          what follows
=======  ================================  =========================================================
machine  a disk that cannot be erased, a   tried again, then set aside (quarantined)
         free machine that does not come
order    a seed without a place, a disk    not tried again: the node goes back to the reserve, and
         that is too small, a digest that  the request for another in its place stops
         does not fit
kept     a disk that the template writes   as for the order's fault, but nothing is counted against
         is marked keep on the node        the template: it does on other nodes
way      a switch, BMC or file server that waited for: nothing is counted, and the node goes on when
         does not answer, an image that    the way is back
         is not served
unknown  a system that never asks for an   tried again, then as for the machine's fault; as for the
         address, an agent that is lost    order's where `verdict` says so
         at work
=======  ================================  =========================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cod.states import Fault, NodeState

MOST_NODES = 3
"""Nodes that one group's requests may bring into quarantine before an administrator has looked."""
BREAKER = 2
"""Different nodes that fail with one template revision, with no success since, before it is the
template's fault."""

FAULTS: dict[tuple[NodeState, str], Fault] = {
    (NodeState.PRIME, ""): Fault.UNKNOWN,
    (NodeState.PRIME, "order"): Fault.ORDER,
    (NodeState.PRIME, "kept"): Fault.KEPT,
    (NodeState.PRIME, "way"): Fault.WAY,
    (NodeState.BOOT, ""): Fault.UNKNOWN,
    (NodeState.TRAMPOLINE, ""): Fault.UNKNOWN,
    (NodeState.CAPTURE, "way"): Fault.WAY,
}
"""Whose fault trouble is in a state, by what its agent or COD says of its cause ('order',
'kept', 'way' or '': nothing). In all other states COD works for nobody, and it is the machine's."""


def fault(state: NodeState, held: bool, cause: str = "") -> Fault:
    """Return whose fault trouble is of a node in `state`. `held`: it is on its way to a holder."""
    if not held and state is not NodeState.CAPTURE:  # which is its group's, or the site's wish
        return Fault.MACHINE
    return FAULTS.get((state, cause), FAULTS.get((state, ""), Fault.MACHINE))


@dataclass(frozen=True, slots=True)
class FormerFailures:
    """The known former failures, without the one being judged.

    template  other nodes that failed with the template revision, without a success since
    group     nodes in quarantine after requests of the group that no administrator has looked at
    """

    template: int = 0
    group: int = 0


def verdict(former: FormerFailures) -> str:
    """Return why a node whose failure has no known cause is not set aside, and its request stops;
    '' where the node is."""
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
    """Return what reasons have in common that differ in numbers alone: 'no sign of progress for …
    s'."""
    return _NUMBERS.sub("…", reason)
