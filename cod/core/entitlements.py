"""What groups may hold and are sure of, by the rows of the moment; `policy.sharing.entitlements` has the rules."""

from __future__ import annotations

from cod.model import Policy
from cod.policy.scheduler import preemption
from cod.policy.scheduler.snapshot import ANYTHING
from cod.policy.sharing import entitlements
from cod.store.engine import Tx
from cod.store.people import groups
from cod.store.scheduler import node_counts, vclusters


def between(
    tx: Tx, holder: int, asking: int, wanted: int, policy: Policy, now: float, *, open_: int = 0
) -> tuple[preemption.Beyond, preemption.Within]:
    """Return what group `holder` holds beyond what it is sure of, and what of its own a request of group `asking` for
    `wanted` nodes stays within. `open_`: nodes that leave the holder and count as kept.

    Each act asks: the number of queries is the same however many groups there are.
    """
    nodes = sum(node_counts.by_type(tx).values()) if policy.fair_half_life > 0 else 0
    entitled = entitlements.of(groups.every(tx), policy, nodes)
    beyond = preemption.beyond(entitled.get(holder, ANYTHING), vclusters.kept(tx, holder, now) + open_)
    own = entitled.get(asking)
    return beyond, "" if own is None else preemption.within(own, vclusters.kept(tx, asking, now), wanted)
