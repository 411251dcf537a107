"""The resource manager's pass, up to the plan: `snapshot` reads, `decide` plans with no transaction open.

`flows.scheduler.apply_plan` cuts the plan into short transactions. `preview` shows people what a pass would do,
`flows.scheduler.explain` why a request waits, out of the same snapshot and the same policy: nothing is decided twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from cod import notice_texts
from cod.model import Energy, Policy, Site
from cod.policy.nodes import energy_accounting
from cod.policy.scheduler import plan as policy
from cod.policy.scheduler import preemption, reasons
from cod.policy.scheduler.snapshot import (
    COLD,
    WARM,
    Allocation,
    Cache,
    FreeNodes,
    Holder,
    IncomingNodes,
    NodeKind,
    OpenReclaim,
    PendingRequest,
    Plan,
    Snapshot,
)
from cod.policy.sharing import entitlements
from cod.states import NodeState, VclusterState
from cod.store import claims
from cod.store.engine import Tx
from cod.store.nodes import blocks
from cod.store.scheduler import node_counts, pass_rows, vclusters
from cod.store.scheduler.pass_rows import PassRows

give_up = claims.give_up
pulse = pass_rows.pulse
Claim = claims.Claim


def hold(tx: Tx, owner: str, now: float, seconds: float, held: Claim | None = None) -> Claim | None:
    """Become, or with `held` stay, the one manager for `seconds`; None while another server is."""
    return claims.hold(tx, "manager", owner, now, seconds, held)


# ---------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class Observed:
    """What a pass has read, as rows and, by the rules of that moment, as the planner sees it."""

    scene: PassRows
    site: Snapshot
    rules: Policy


def look(tx: Tx, site: Site, now: float, before: Observed | None = None) -> Observed:
    """Return the site now. `before`: what was seen last; what has not changed since is the same object."""
    many = len(site.subnets) > 1
    by = node_counts.AssignedBy(*preemption.assigned_by(site.policy, now))
    read = pass_rows.read(tx, by, many=many, idle_since=now - site.energy.idle_time,
                          month=energy_accounting.month(now), now=now,
                          before=before.scene if before else None)
    if before is None or before.rules != site.policy or before.scene._replace(digests=read.digests) != read:
        return Observed(read, _snapshot(read, many, site.policy), site.policy)
    return before if before.scene.digests == read.digests else Observed(read, before.site, site.policy)


def snapshot(tx: Tx, site: Site, now: float) -> Snapshot:
    """Return the site as the planner sees it."""
    return look(tx, site, now).site


def _snapshot(read: PassRows, many: bool, rules: Policy) -> Snapshot:
    inertia = {each.id: preemption.inertia(read.groups[each.group_id].priority, rules) for each in read.live}
    return Snapshot(
        types={kind.id: kind for kind in read.types},
        lots=[_lot(one) for one in read.free],
        coming=[IncomingNodes(NodeKind(*kind), count, request_id, waking)
                for (kind, request_id, waking), count in read.coming.items()],
        holdings=[Allocation(one.vcluster_id, NodeKind(*one.kind), one.nodes, one.mobile,
                             None if one.first_later is None else one.first_later + inertia[one.vcluster_id])
                  for one in read.held],
        holders=_holders(read),
        reclaims=[OpenReclaim(one.id, one.vcluster_id, one.request_id,
                              NodeKind(one.type_id, one.block_id or 0, one.subnet), one.count - one.given, one.deadline)
                  for one in read.reclaims],
        site=read.site,
        wishes=_wishes(read, many),
        templates=read.templates,
        deserted=read.deserted,
        warned={one.id: one.warned for one in read.live if one.warned is not None},
        entitlements=entitlements.of(read.groups.values(), rules, sum(read.site.values()), read.type_limits, read.used),
    )


def _lot(one: node_counts.Free) -> FreeNodes:
    key = one.key
    cache = None if key.template is None or key.group is None else Cache(key.template, key.group)
    return FreeNodes(NodeKind(*key.kind), WARM if key.state == NodeState.INACTIVE else COLD, one.nodes, cache,
                     key.reserved,
                     one.idle)


def _holders(read: PassRows) -> dict[int, Holder]:
    nodes: Counter[int] = Counter()
    leaving: Counter[int] = Counter()
    for one in read.held:
        nodes[one.vcluster_id] += one.nodes
    for reclaim in read.reclaims:
        leaving[reclaim.vcluster_id] += reclaim.count - reclaim.given
    return {each.id: Holder(each.id, each.name, read.groups[each.group_id].priority, nodes[each.id],
                            each.creation_size, leaving[each.id], each.expires_at, each.drain_until, each.group_id)
            for each in read.live if each.state != VclusterState.RELEASING}


def _wishes(read: PassRows, many: bool) -> list[PendingRequest]:
    live = {one.id: one for one in read.live}
    own: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for one in read.held:
        own[one.vcluster_id][one.kind.type] += one.nodes
    wishes = []
    for request in read.pending:
        vcluster = live[request.vcluster_id]
        subnet = (vcluster.subnet or "") if many else ""
        wishes.append(PendingRequest(
            request.id, vcluster.id, request.priority, request.submitted_at, vcluster.group_id, subnet, request.tuples,
            request.may_wait, request.may_spread, own.get(vcluster.id, {}), request.reason, vcluster.lease_time))
    return wishes


def decide(seen: Snapshot, site: Site, now: float) -> Plan:
    """Return the plan for what was seen; no transaction is open."""
    return policy.plan(seen, site.policy, site.energy, now)


def without(seen: Snapshot, request_ids: Collection[int]) -> Snapshot:
    """Return what was seen, but for those requests."""
    if not request_ids:
        return seen
    return replace(seen, wishes=[wish for wish in seen.wishes if wish.id not in request_ids])


def due(seen: Snapshot, site: Site, now: float) -> float:
    """Return when time alone may next give a pass something to do; infinity when it never will.

    Idle nodes are not looked at: that some fall asleep a few seconds later does no harm.
    """
    ends = [reclaim.deadline for reclaim in seen.reclaims]
    for holder in seen.holders.values():
        if holder.drain_until is not None:
            ends.append(holder.drain_until)
        elif holder.expires_at is not None:
            ends += [holder.expires_at, *(holder.expires_at - ahead for ahead in site.policy.lease_warnings)]
    ends += [wish.submitted_at + site.policy.hold_after for wish in seen.wishes]
    if seen.wishes:
        ends += [one.immune_until for one in seen.holdings if one.immune_until is not None]
    return min((end for end in ends if end > now), default=float("inf"))


@dataclass(frozen=True, slots=True)
class NoChange:
    """A pass that found nothing to do: until `until`, one that sees the same by the same rules need not plan."""

    seen: Snapshot
    policy: Policy
    energy: Energy
    until: float

    def lasts(self, seen: Snapshot, site: Site, now: float) -> bool:
        """Return whether there is still nothing to do."""
        return now < self.until and (site.policy, site.energy, seen) == (self.policy, self.energy, self.seen)


def still(seen: Snapshot, site: Site, now: float) -> NoChange:
    """Return the plan for what was seen at `now` was empty. The time plays a part in plans by what `due` knows, no
    other."""
    return NoChange(seen, site.policy, site.energy, due(seen, site, now))


# ---------------------------------------------------------------- for people


@dataclass(frozen=True, slots=True)
class Planned:
    """One thing that the next pass would do, with names in place of ids.

    kind        'warn', 'drain', 'expire', 'end', 'seize', 'grant', 'ease', 'take', 'hold', 'reject', 'wait', 'wake' or
                'sleep'
    vcluster    whom it concerns: for 'take', 'ease' and 'seize' the one that loses nodes; '' for 'wake' and 'sleep'
    request_id  the request that it is done for; None where there is none
    nodes       how many
    type, block, subnet  of which nodes; '' where it says nothing
    about       a sentence
    """

    kind: str
    vcluster: str = ""
    request_id: int | None = None
    nodes: int = 0
    type: str = ""
    block: str = ""
    subnet: str = ""
    about: str = ""


def preview(tx: Tx, *, site: Site, now: float) -> list[Planned]:
    """Return what a pass at `now` would do, in order, without doing it. A grant of several kinds of nodes is several
    lines.

    All requests that would go on waiting are in it, also those that have been told why already.
    """
    seen = snapshot(tx, site, now)
    seen = replace(seen, wishes=[replace(wish, reason="") for wish in seen.wishes])
    return list(_Names(tx, seen, now).lines(decide(seen, site, now)))


class _Names:
    """Puts names in place of a plan's ids."""

    def __init__(self, tx: Tx, seen: Snapshot, now: float) -> None:
        self._now = now
        self._types = {each.id: each.name for each in seen.types.values()}
        self._blocks = blocks.names(tx)
        self._vclusters = {each.id: each.name for each in vclusters.every(tx)}
        self._of = {wish.id: self._vclusters[wish.vcluster_id] for wish in seen.wishes}
        self._reclaims = {reclaim.id: reclaim for reclaim in seen.reclaims}
        self._held = {each.id: each.held for each in seen.holders.values()}

    def lines(self, plan: Plan) -> Iterator[Planned]:
        """Yield the plan, line by line, in the order of `flows.scheduler.apply_plan.acts`."""
        yield from self._leases(plan)
        for grant in plan.grants:
            for share in grant.shares:
                yield self._line("grant", share.lot.kind, share.count, self._of[grant.request_id], grant.request_id,
                                 _readiness(share.lot))
        left = {ease.reclaim_id: ease.left for ease in plan.reductions}
        for ease in plan.reductions:
            reclaim = self._reclaims[ease.reclaim_id]
            yield self._line("ease", reclaim.kind, ease.count, self._vclusters[reclaim.vcluster_id], reclaim.request_id,
                             "not wanted any more: there is enough without")
        for reclaim in (self._reclaims[one] for one in plan.overdue if left.get(one, 1)):
            yield self._line("seize", reclaim.kind, left.get(reclaim.id, reclaim.open),
                             self._vclusters[reclaim.vcluster_id], reclaim.request_id,
                             "not given back by the deadline of the reclaim")
        for take in plan.preemptions:
            yield self._line("take", take.kind, take.count, self._vclusters[take.vcluster_id], take.request_id,
                             f"for vcluster {self._of[take.request_id]}, which goes first")
        for hold in (one for one in plan.holds if one.free + one.coming):
            yield self._line("hold", hold.kind, hold.free + hold.coming, self._of[hold.request_id], hold.request_id,
                             next(reasons.held([hold], {hold.request_id: f"request {hold.request_id}"}, self._now)))
        for no in plan.refusals:
            yield Planned("reject" if no.final else "wait", self._of[no.request_id], no.request_id, about=no.sentence)
        for change in plan.power_changes:
            yield self._line("sleep" if change.sleep else "wake", change.lot.kind, change.count, "", None, change.why)

    def _leases(self, plan: Plan) -> Iterator[Planned]:
        for one, seconds in plan.warnings:
            yield self._of_lease("warn", one, f"its lease ends within {notice_texts.span(seconds)}")
        for one in plan.drains:
            yield self._of_lease("drain", one, "its lease has run out")
        for one in plan.expired:
            yield self._of_lease("expire", one, "the grace after its lease is over: its nodes are taken back")
        for one in plan.deserted:
            yield self._of_lease("end", one, "its last node is back")

    def _of_lease(self, kind: str, one: int, about: str) -> Planned:
        return Planned(kind, self._vclusters[one], nodes=self._held.get(one, 0), about=about)

    def _line(self, name: str, kind: NodeKind, count: int, vcluster: str, request_id: int | None,
              about: str) -> Planned:
        return Planned(name, vcluster, request_id, count, self._types[kind.type], self._blocks.get(kind.block, ""),
                       kind.subnet, about)


def _readiness(lot: FreeNodes) -> str:
    ready = "awake" if lot.readiness == WARM else "asleep: to be woken"
    return f"{ready}, with cached software" if lot.cache else ready
