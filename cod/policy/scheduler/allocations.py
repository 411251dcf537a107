"""The nodes that each vcluster holds of the kinds that match a request. Pure."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from cod.policy.scheduler.snapshot import NodeKind, PendingRequest, SiteSnapshot, VclusterHolder


@dataclass(slots=True)
class VclusterSum:
    """The nodes that one vcluster holds of the matching kinds.

    mobile        how many are past their inertia and leave by no reclaim
    leaving       how many leave by reclaims
    immune_until  when the inertia of the next protected node ends; None: none is protected
    back_by       the earliest deadline of these reclaims
    """

    holder: VclusterHolder
    count: int = 0
    mobile: int = 0
    leaving: int = 0
    immune_until: float | None = None
    back_by: float | None = None

    @property
    def immune(self) -> int:
        """Return how many nodes are protected by their inertia."""
        return self.count - self.mobile - self.leaving


def sums(
    snapshot: SiteSnapshot, request: PendingRequest, kinds: Set[NodeKind]
) -> list[VclusterSum]:
    """Return the sums of nodes of `kinds` for each vcluster except the request's own."""
    found: dict[int, VclusterSum] = {}
    for allocation in snapshot.allocations:
        if allocation.kind.among(kinds) and allocation.vcluster_id != request.vcluster_id:
            one = found.setdefault(
                allocation.vcluster_id, VclusterSum(snapshot.holders[allocation.vcluster_id])
            )
            one.count += allocation.count
            one.mobile += allocation.mobile
            one.immune_until = earlier(one.immune_until, allocation.immune_until)
    for reclaim in snapshot.reclaims:
        if reclaim.kind.among(kinds) and reclaim.vcluster_id in found:
            found[reclaim.vcluster_id].leaving += reclaim.open
            found[reclaim.vcluster_id].back_by = earlier(
                found[reclaim.vcluster_id].back_by, reclaim.deadline
            )
    return [found[vcluster_id] for vcluster_id in sorted(found)]


def earlier(one: float | None, other: float | None) -> float | None:
    """Return the earlier of two times; None stands for no time."""
    return min((time for time in (one, other) if time is not None), default=None)
