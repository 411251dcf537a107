"""The resource manager's decision: which request gets which nodes, and from whom they are taken. Pure."""

from __future__ import annotations

from cod.model import Policy
from cod.policy.world import Decision, Snapshot


def decide(snapshot: Snapshot, policy: Policy, now: float) -> Decision:
    """What becomes of every pending request of `snapshot`, at `now` (seconds since the epoch)."""
    return Decision()
