"""What groups may hold and are sure of, by the rows of the moment; `policy.sharing.entitlements` has the rules."""

from __future__ import annotations

from collections.abc import Mapping

from cod.model import Policy
from cod.policy.scheduler import preemption
from cod.policy.scheduler.snapshot import ANYTHING, Entitlement
from cod.policy.sharing import entitlements
from cod.store.engine import Tx
from cod.store.people import groups
from cod.store.scheduler import node_counts, vclusters


def beyond(tx: Tx, group_id: int, policy: Policy, now: float, *, open_: int = 0) -> preemption.Beyond:
    """Return what a group holds beyond what it is sure of; `open_`: nodes that leave it and count as kept."""
    entitlement = _every(tx, policy).get(group_id, ANYTHING)
    return preemption.beyond(entitlement, vclusters.kept(tx, group_id, now) + open_)


def within(tx: Tx, group_id: int, policy: Policy, wanted: int, now: float) -> preemption.Within:
    """Return what of its group's a request for `wanted` nodes stays within."""
    entitlement = _every(tx, policy).get(group_id)
    return "" if entitlement is None else preemption.within(entitlement, vclusters.kept(tx, group_id, now), wanted)


def _every(tx: Tx, policy: Policy) -> Mapping[int, Entitlement]:
    return entitlements.of(groups.every(tx), policy, sum(node_counts.by_type(tx).values()))
