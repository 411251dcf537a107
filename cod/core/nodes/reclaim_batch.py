"""Reclaims that a plan opens: one, or many in one transaction, with a statement for all of them.

Each reclaim of the plan is checked against the present rows, which are read and locked for all
reclaims at once. If one reclaim cannot be opened any more, the others still are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cod import notice_texts
from cod.core import notices, preemption, vcm_outbox
from cod.core.nodes import grants
from cod.model import Request, Site, Vcluster
from cod.policy.scheduler import leases
from cod.policy.scheduler.preemption import grace
from cod.policy.scheduler.snapshot import PassPlan, Preempt
from cod.states import RequestState
from cod.store import vcms
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.scheduler import node_picks, reclaims, requests, vclusters
from cod.store.scheduler.node_kinds import NodeKindRow
from cod.store.scheduler.node_picks import Member


class _Opened(NamedTuple):
    """A reclaim to write. `others`: nodes that the VCM may give instead; None: there is no VCM."""

    opening: reclaims.Opening
    request: Request
    vcluster: Vcluster
    others: Sequence[Member] | None


class ReclaimBatch:
    """Reclaims of one transaction: rows that were read for all of them, and reclaims to write."""

    def __init__(
        self, tx: Tx, taken: Sequence[Preempt], plan: PassPlan, site: Site, now: float
    ) -> None:
        self._tx, self._site, self._now = tx, site, now
        self._many = len(site.subnets) > 1
        self._requests = requests.lock(tx, {one.request_id for one in taken})
        losers = {one.vcluster_id for one in taken}
        asking = {one.vcluster_id for one in self._requests.values()}
        self._vclusters = vclusters.lock(tx, losers | asking)
        self._spoken_for = vcms.enrolled(tx, losers)
        self._written = reclaims.written(tx, self._requests, now)
        losing = [self._vclusters[one] for one in losers if one in self._vclusters]
        others = [self._vclusters[one] for one in asking]
        self._rows = preemption.PreemptionRows(tx, losing, others, now, sharing=plan.sharing)
        self._members: dict[tuple[int, NodeKindRow], list[Member]] = {}
        self._chosen: set[int] = set()
        self._opened: list[_Opened] = []

    def open(self, taken: Preempt) -> int:
        """Open a reclaim, and choose the nodes to take unless the owner or the VCM names others;
        return their number, 0 if the request has ended or the same reclaim exists already.

        Raises `Changed` if the vcluster has fewer nodes to spare, `Refused` if the requesting group
        lacks node-hours to use them; other reclaims can still be opened. Nothing is written before
        `write`.
        """
        request = self._requests.get(taken.request_id)
        vcluster = self._vclusters.get(taken.vcluster_id)
        if request is None or vcluster is None or request.state != RequestState.PENDING:
            return 0
        kind, block = NodeKindRow(*taken.kind), taken.kind.block or None
        key = reclaims.ReclaimKey(request.id, vcluster.id, kind.type, block, kind.subnet)
        if key in self._written:
            return 0
        asking = self._vclusters[request.vcluster_id]
        wanted = sum(one.count for one in request.tuples)
        owner = self._rows.groups[asking.group_id]
        grants.check_hours(self._tx, asking, request, owner, wanted, self._site, self._now)
        able = self._rows.takeable(vcluster, asking, request, taken.count, kind.type)
        if able < taken.count:
            raise nodes.Changed(
                f"vcluster {vcluster.name} has not {taken.count} nodes to spare any more"
            )
        group = self._rows.groups[vcluster.group_id]
        by = preemption.protected_since(vcluster, group, self._site.policy, self._now)
        available = self._left(vcluster, kind)
        mobile = [one for one in available if (one.assigned_at or 0.0) <= by]
        chosen = leases.victims(mobile, taken.count)
        if len(chosen) < taken.count:
            raise nodes.Changed(
                f"vcluster {vcluster.name} has not {taken.count} such nodes outside their inertia"
                " any more"
            )
        ids = [one.id for one in chosen]
        self._written.add(key)
        self._chosen.update(ids)
        self._rows.leave(vcluster, kind.type, taken.count)
        attributes = {one.attributes for one in request.tuples}
        opening = reclaims.Opening(
            key,
            attributes.pop() if len(attributes) == 1 else "",
            ids,
            self._now + grace(group, self._site.policy),
        )
        spoken_for = vcluster.id in self._spoken_for
        others = [one for one in available if one.id not in self._chosen] if spoken_for else None
        self._opened.append(_Opened(opening, request, vcluster, others))
        return taken.count

    def _left(self, vcluster: Vcluster, kind: NodeKindRow) -> list[Member]:
        """Return the vcluster's nodes of the kind that no reclaim has chosen."""
        key = vcluster.id, kind
        if key not in self._members:
            self._members[key] = node_picks.members(
                self._tx, vcluster.id, kind, self._many, self._now
            )
        return [one for one in self._members[key] if one.id not in self._chosen]

    def write(self) -> None:
        """Write the opened reclaims, and tell the owners and VCMs. Raises `Changed` if a chosen
        node has left its vcluster meanwhile: then nothing may be committed."""
        locked = {node.id: node for node in nodes.lock(self._tx, self._chosen)}
        recipients = []
        made = reclaims.add_all(self._tx, [one.opening for one in self._opened], self._now)
        for (opening, request, vcluster, others), reclaim in zip(self._opened, made, strict=True):
            chosen = [locked[one] for one in opening.node_ids if one in locked]
            if [one.vcluster_id for one in chosen] != [vcluster.id] * reclaim.count:
                raise nodes.Changed(f"nodes of vcluster {vcluster.name} have left meanwhile")
            names = [node.name for node in chosen]
            notice = notice_texts.reclaim(vcluster, names, reclaim.count, reclaim.deadline)
            recipients.append((vcluster, self._rows.groups[vcluster.group_id], notice))
            if others is not None:
                why = (
                    f"request {request.id} needs these nodes; {vcluster.name} is preemptible"
                    if vcluster.preemptible
                    else f"request {request.id} has priority {request.priority}"
                )
                vcm_outbox.reclaimed(self._tx, reclaim, why, [*chosen, *others], self._now)
        notices.tell_all(self._tx, recipients, self._now)
