"""The site at one moment, as the planner sees it, read from the database. The planner, the
forecasts for people and the checks of advance reservations read it here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cod.core import energy_curve, reserve_marks
from cod.model import Policy, Site
from cod.policy.nodes import energy_accounting
from cod.policy.reservations import maintenance
from cod.policy.scheduler import preemption
from cod.policy.scheduler.snapshot import (
    COLD,
    USABLE,
    WARM,
    Allocation,
    Cache,
    FreeNodes,
    IncomingNodes,
    NodeKind,
    OpenReclaim,
    PendingRequest,
    SiteSnapshot,
    VclusterHolder,
    effective,
)
from cod.policy.sharing import entitlements, turns, users
from cod.states import NodeState, VclusterState
from cod.store.engine import Tx
from cod.store.scheduler import node_counts, node_kinds, pass_rows
from cod.store.scheduler.pass_rows import PassRows


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a pass has read: the rows, and the planner's snapshot of them by the rules of
    that moment.

    until  when nodes that cannot be divided evenly by shares go to other groups
    """

    scene: PassRows
    site: SiteSnapshot
    rules: Policy
    until: float


def look(
    tx: Tx,
    site: Site,
    now: float,
    before: Observed | None = None,
    *,
    isolated: bool = False,
    times: bool = False,
    again: bool = False,
) -> Observed:
    """Return the site as it is now.

    before    the last result: parts that have not changed since are the same objects
    isolated  tell nodes apart by their switch ports even if no isolated vcluster waits for nodes
    times     read the times of nodes on their way even if nothing is reserved in advance
    again     the result will be the `before` of a later call
    """
    found = _look(tx, site, now, before, isolated, times, again)
    dear = energy_curve.dear(tx, site.energy, now)
    spare = reserve_marks.spare(tx, site.energy, found.site.types, now)
    if (dear, spare) == (found.site.dear, found.site.spare):
        return found
    return replace(found, site=replace(found.site, dear=dear, spare=spare))


def _look(
    tx: Tx,
    site: Site,
    now: float,
    before: Observed | None,
    isolated: bool,
    times: bool,
    again: bool,
) -> Observed:
    many = len(site.subnets) > 1
    ports = site.isolation is not None and (isolated or pass_rows.isolated_waits(tx))
    by = node_counts.AssignedBy(*preemption.assigned_by(site.policy, now))
    read = pass_rows.read(
        tx,
        by,
        many=many,
        idle_since=now - site.energy.idle_time,
        month=energy_accounting.month(now),
        before=before.scene if before else None,
        apart=node_kinds.Apart(ports, windows=pass_rows.windows_planned(tx)),
        times=times,
        again=again,
    )
    if (
        before is None
        or before.rules != site.policy
        or before.until <= now
        or before.scene._replace(digests=read.digests) != read
    ):
        until = turns.ends(site.policy, now)
        return Observed(read, _snapshot(read, many, site.policy, now), site.policy, until)
    return before if before.scene.digests == read.digests else replace(before, scene=read)


def snapshot(tx: Tx, site: Site, now: float) -> SiteSnapshot:
    """Return the planner's snapshot of the site."""
    return look(tx, site, now).site


def _snapshot(read: PassRows, many: bool, rules: Policy, now: float) -> SiteSnapshot:
    inertia = {
        each.id: preemption.inertia(
            effective(read.groups[each.group_id].priority, each.preemptible), rules
        )
        for each in read.live
    }
    requests = _pending_requests(read, many, _user_ranks(read, rules, now))
    isolated = {request.id for request in requests if request.isolated}
    seen = SiteSnapshot(
        types={kind.id: kind for kind in read.types},
        free_nodes=[_free(one) for one in read.free],
        coming=[
            IncomingNodes(NodeKind(*one.kind), count, one.request_id, one.soon, one.since)
            for one, count in read.coming.items()
        ],
        allocations=[
            Allocation(
                one.vcluster_id,
                NodeKind(*one.kind),
                one.nodes,
                one.mobile,
                None if one.first_later is None else one.first_later + inertia[one.vcluster_id],
                one.started,
            )
            for one in read.held
        ],
        holders=_holders(read),
        reclaims=[
            OpenReclaim(
                one.id,
                one.vcluster_id,
                one.request_id,
                NodeKind(
                    one.type_id,
                    one.block_id or 0,
                    one.subnet,
                    USABLE if one.request_id in isolated else "",
                    read.reclaimed.get(one.id, 0),
                ),
                one.count - one.given,
                one.deadline,
            )
            for one in read.reclaims
        ],
        site=read.site,
        requests=requests,
        templates=read.templates,
        deserted=read.deserted,
        turn=turns.number(rules, now),
        version=read.version,
        expected=read.expected,
        windows=maintenance.times(read.windows, rules),
        warned={one.id: one.warned for one in read.live if one.warned is not None},
        entitlements=entitlements.of(
            read.groups.values(),
            rules,
            sum(read.site.values()),
            read.type_limits,
            read.used,
            now=now,
            by_type=entitlements.ByType(read.type_terms, read.site),
        ),
    )
    return entitlements.shared(seen)


def _free(one: node_counts.Free) -> FreeNodes:
    key = one.key
    cache = None if key.template is None or key.group is None else Cache(key.template, key.group)
    return FreeNodes(
        NodeKind(*key.kind),
        WARM if key.state == NodeState.INACTIVE else COLD,
        one.nodes,
        cache,
        key.reserved,
        one.idle,
    )


def _holders(read: PassRows) -> dict[int, VclusterHolder]:
    nodes: Counter[int] = Counter()
    leaving: Counter[int] = Counter()
    for one in read.held:
        nodes[one.vcluster_id] += one.nodes
    for reclaim in read.reclaims:
        leaving[reclaim.vcluster_id] += reclaim.count - reclaim.given
    return {
        each.id: preemption.holder(
            each, read.groups[each.group_id].priority, nodes[each.id], leaving[each.id]
        )
        for each in read.live
        if each.state != VclusterState.RELEASING
    }


def _user_ranks(read: PassRows, rules: Policy, now: float) -> Mapping[int, int]:
    """Return the rank of each vcluster's creator among the users of its group, by the vcluster's
    id; only for groups that have users' shares."""
    asking = {
        one.id: (one.group_id, one.user_id or 0)
        for one in read.live
        if read.groups[one.group_id].user_shares
    }
    if not asking:
        return {}
    accounts = users.with_users(read.users, asking.values())
    found = users.standings(accounts, rules.fair_half_life, now)
    return {
        one: found[group_id][user_id].rank
        for one, (group_id, user_id) in asking.items()
        if group_id in found
    }


def _pending_requests(
    read: PassRows, many: bool, user_ranks: Mapping[int, int]
) -> list[PendingRequest]:
    live = {one.id: one for one in read.live}
    own: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for one in read.held:
        own[one.vcluster_id][one.kind.type] += one.nodes
    requests = []
    for request in read.pending:
        vcluster = live[request.vcluster_id]
        subnet = (vcluster.subnet or "") if many else ""
        requests.append(
            PendingRequest(
                id=request.id,
                vcluster_id=vcluster.id,
                priority=effective(request.priority, vcluster.preemptible),
                submitted_at=request.submitted_at,
                group_id=vcluster.group_id,
                subnet=subnet,
                tuples=request.tuples,
                may_wait=request.may_wait,
                may_spread=request.may_spread,
                own=own.get(vcluster.id, {}),
                reason=request.reason,
                lease=vcluster.lease_time if request.duration is None else request.duration,
                isolated=vcluster.isolated,
                source_id=request.source_id,
                starts_at=request.starts_at,
                user_rank=user_ranks.get(vcluster.id, 0),
            )
        )
    return requests
