"""Reclaims that a plan opens: one, or many in one transaction, with a statement for all of them.

What a plan has counted is checked by the rows of the moment, which were read and locked for all; a
reclaim that cannot be opened any more changes nothing of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from cod import notice_texts
from cod.core import notices, preemption, vcm_outbox
from cod.core.nodes import grants
from cod.model import Group, Node, Reclaim, Site, Vcluster
from cod.policy.scheduler import leases
from cod.policy.scheduler.preemption import grace
from cod.policy.scheduler.snapshot import PassPlan, Preempt
from cod.states import RequestState
from cod.store import vcms
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.scheduler import node_counts, reclaims, requests, vclusters
from cod.store.scheduler.node_counts import Member, NodeKindRow


class ReclaimBatch:
    """Reclaims of one transaction: what was read for all of them, and what is to be written."""

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
        there = [self._vclusters[one] for one in losers if one in self._vclusters]
        others = [self._vclusters[one] for one in asking]
        self._rows = preemption.PreemptionRows(tx, there, others, now, sharing=plan.sharing)
        self._members: dict[tuple[int, NodeKindRow], list[Member]] = {}
        self._chosen: set[int] = set()
        self._opened: list[tuple[Vcluster, reclaims.Opening]] = []

    def open(self, taken: Preempt) -> int:
        """Open a reclaim, and choose the nodes that go unless the owner or the VCM names others;
        return how many, 0 where the request has ended or this very reclaim is there already.

        Raises `Changed` if the vcluster has fewer nodes to spare, `Refused` if the requesting group
        lacks node-hours to use them. `write` writes it.
        """
        request = self._requests.get(taken.request_id)
        vcluster = self._vclusters.get(taken.vcluster_id)
        if request is None or vcluster is None or request.state != RequestState.PENDING:
            return 0
        kind, block = NodeKindRow(*taken.kind), taken.kind.block or None
        key = reclaims.ReclaimKey(request.id, vcluster.id, kind.type, block)
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
        chosen = leases.victims(self._mobile(vcluster, group, kind), taken.count)
        if len(chosen) < taken.count:
            raise nodes.Changed(
                f"vcluster {vcluster.name} has not {taken.count} such nodes outside their inertia"
                " any more"
            )
        self._chosen.update(one.id for one in chosen)
        self._written.add(key)
        self._rows.leave(vcluster, kind.type, taken.count)
        attributes = {one.attributes for one in request.tuples}
        opening = reclaims.Opening(
            key,
            kind.subnet,
            attributes.pop() if len(attributes) == 1 else "",
            [one.id for one in chosen],
            self._now + grace(group, self._site.policy),
        )
        self._opened.append((vcluster, opening))
        if vcluster.id in self._spoken_for:  # its VCM is told which other nodes would do
            [(made, gone)] = self.write()[-1:]
            would_do = node_counts.pick_held(self._tx, vcluster.id, kind, self._many, self._now)
            why = (
                f"request {request.id} needs these nodes; {vcluster.name} is preemptible"
                if vcluster.preemptible
                else (f"request {request.id} has priority {request.priority}")
            )
            vcm_outbox.reclaimed(self._tx, made, why, [*gone, *would_do], self._now)
        return taken.count

    def _mobile(self, vcluster: Vcluster, group: Group, kind: NodeKindRow) -> list[Member]:
        """Return the vcluster's nodes of the kind that can be chosen still."""
        if (vcluster.id, kind) not in self._members:
            by = preemption.protected_since(vcluster, group, self._site.policy, self._now)
            self._members[vcluster.id, kind] = node_counts.members(
                self._tx, vcluster.id, kind, self._many, by
            )
        found = self._members[vcluster.id, kind]
        return [one for one in found if one.id not in self._chosen]

    def write(self) -> list[tuple[Reclaim, list[Node]]]:
        """Write what was opened and is not written yet; return the reclaims with the nodes chosen
        for them, locked. Raises `Changed` where one of these has left meanwhile: then nothing may
        be committed."""
        opened, self._opened = self._opened, []
        ids = [one for _, opening in opened for one in opening.node_ids]
        locked = {node.id: node for node in nodes.lock(self._tx, ids)}
        done, told = [], []
        made = reclaims.add_all(self._tx, [one for _, one in opened], self._now)
        for (vcluster, opening), reclaim in zip(opened, made, strict=True):
            chosen = [locked[one] for one in opening.node_ids if one in locked]
            if [one.vcluster_id for one in chosen] != [vcluster.id] * reclaim.count:
                raise nodes.Changed(f"nodes of vcluster {vcluster.name} have left meanwhile")
            names = [node.name for node in chosen]
            said = notice_texts.reclaim(vcluster, names, reclaim.count, reclaim.deadline)
            told.append((vcluster, self._rows.groups[vcluster.group_id], said))
            done.append((reclaim, chosen))
        notices.tell_all(self._tx, told, self._now)
        return done
