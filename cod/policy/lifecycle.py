"""Where a node goes next. Pure: rows and rules in, an event with its cause out.

`settle` is asked whenever a node stands at the crossroads (state *trampoline*, its agent reporting): after a report, a
wipe, a failure, an approval. `on_trouble` is asked when something went wrong on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cod.model import Node, Policy
from cod.states import NODE_RULES, Disk, NodeEvent, NodeState


@dataclass(frozen=True, slots=True)
class Step:
    """An event to apply to a node, why, the columns that change with it, and the power wish that goes with it."""

    event: NodeEvent
    cause: str
    columns: dict[str, Any] = field(default_factory=dict)
    power: str | None = None


def settle(node: Node, *, cached_fits: bool) -> Step:
    """What a node in state *trampoline* that has reported does next.

    cached_fits  its disk holds the template it is to run, unmodified, and was kept for the group that holds it now
    """
    if node.disk == Disk.DIRTY and node.vcluster_id is None:
        return Step(NodeEvent.WIPE_ORDERED, "its disks may hold a vcluster's data")
    if node.vcluster_id is not None and cached_fits:
        return Step(NodeEvent.BOOT_ORDERED, "its disk holds the template already: priming skipped")
    if node.vcluster_id is not None:
        return Step(NodeEvent.PRIME_ORDERED, "to be primed for its vcluster", {"disk": Disk.DIRTY})
    return Step(NodeEvent.IDLED, "clean and free", {"reason": "", "released": 0})


def on_trouble(node: Node, event: NodeEvent, reason: str, policy: Policy) -> Step:
    """The step after `event` (failed, timed_out, lost, boot_failed) in a state of motion: a retry, or quarantine.

    A timeout, and a boot that failed without the node coming back by itself, also want a power cycle.
    """
    attempts = node.attempts + 1
    rule = NODE_RULES[NodeState(node.state)]
    if attempts > rule.retries:
        return Step(NodeEvent.EXHAUSTED, f"{reason} ({attempts} times in state {node.state})",
                    {"reason": reason, "attempts": attempts})
    cycle = "cycle" if event is NodeEvent.TIMED_OUT and policy.power_cycle else None
    return Step(event, reason, {"reason": reason, "attempts": attempts}, cycle)
