"""Check of the policy's promises from outside: `broken` names those that a plan breaks. It decides
nothing itself.

It shares no code with the policy except the comparison of attributes, so that it does not repeat an
error of the policy.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from cod.model import Policy
from cod.policy.hardware.match import satisfies
from cod.policy.scheduler.snapshot import (
    ANYTHING,
    FreeNodes,
    NodeKind,
    PassPlan,
    PendingRequest,
    Preempt,
    RequestGrant,
    SiteSnapshot,
)
from cod.sim.check import bookings
from cod.sim.check.groups import Groups
from cod.sim.check.order import passed_over


def broken(seen: SiteSnapshot, planned: PassPlan, policy: Policy, now: float) -> list[str]:
    """Return a sentence for each promise that the plan, made for `seen` at `now`, breaks; none if
    it keeps all."""
    groups = Groups(seen, planned, now)
    return [
        *_grants(seen, planned),
        *_maintained(seen, planned, now),
        *_preemptions(seen, planned, groups),
        *groups.broken(),
        *bookings.broken(seen, planned, policy, groups, now),
        *passed_over(seen, planned, policy, now),
        *_leases(seen, planned, now),
        *_reserve(planned),
    ]


def _grants(seen: SiteSnapshot, planned: PassPlan) -> Iterator[str]:
    requests = {request.id: request for request in seen.requests}
    used: Counter[FreeNodes] = Counter()
    supply: Counter[FreeNodes] = Counter(dict.fromkeys(seen.free_nodes, 0))
    for free in seen.free_nodes:
        supply[free] += free.count
    for grant in planned.grants:
        yield from _whole(grant, requests[grant.request_id])
        yield from _constraints(grant, requests[grant.request_id], seen)
        for share in grant.shares:
            used[share.free_nodes] += share.count
    for change in planned.power_changes:
        used[change.free_nodes] += change.count
    yield from (
        f"{count} nodes are used of a pool of {supply[free]}: {free}"
        for free, count in used.items()
        if count > supply[free]
    )
    moves = {request.id for request in seen.requests if request.source_id is not None}
    answered = Counter(grant.request_id for grant in planned.grants)
    # a move may get some nodes and be told why it waits for others
    answered.update(
        refusal.request_id
        for refusal in planned.refusals
        if refusal.final or refusal.request_id not in moves
    )
    yield from (
        f"request {one} is decided about twice" for one, count in answered.items() if count > 1
    )


def _whole(grant: RequestGrant, request: PendingRequest) -> Iterator[str]:
    """Yield errors of a grant's size: a request is granted whole or not at all, except for a
    move."""
    for position, one in enumerate(request.tuples):
        got = sum(share.count for share in grant.shares if share.position == position)
        if got > one.count or (got < one.count and request.source_id is None):
            yield f"request {request.id}: {got} nodes for tuple {position}, which wants {one.count}"
    if any(share.count < 1 for share in grant.shares):
        yield f"request {request.id}: a share of no nodes"


def _constraints(grant: RequestGrant, request: PendingRequest, seen: SiteSnapshot) -> Iterator[str]:
    """Yield the requirements of attributes, blocks, reservations and templates that a grant
    breaks."""
    blocks: dict[int, set[NodeKind]] = defaultdict(set)
    for share in grant.shares:
        one, free = request.tuples[share.position], share.free_nodes
        blocks[share.position].add(free.kind)
        if satisfies(one.attributes, seen.types[free.kind.type].attributes):
            yield f"request {request.id}: nodes of type {free.kind.type}, which lack what it wants"
        if free.reserved not in (0, request.id):
            yield f"request {request.id}: nodes that are reserved for request {free.reserved}"
        if share.template_id != one.template_id:
            yield (
                f"request {request.id}: template {share.template_id} in place of {one.template_id}"
            )
        if free.kind.subnet not in ("", request.subnet):
            yield (
                f"request {request.id}: nodes on {free.kind.subnet}, its addresses are on"
                f" {request.subnet}"
            )
    if not request.may_spread:
        yield from (
            f"request {request.id}: tuple {position} comes from {len(kinds)} blocks"
            for position, kinds in blocks.items()
            if len(kinds) > 1
        )


def _maintained(seen: SiteSnapshot, planned: PassPlan, now: float) -> Iterator[str]:
    """Yield grants of nodes that maintenance takes before their leases end."""
    requests = {request.id: request for request in seen.requests}
    for grant in planned.grants if seen.windows else ():
        request = requests[grant.request_id]
        holder = seen.holders.get(request.vcluster_id)
        ends = now + request.lease
        if holder is not None and holder.expires_at is not None:
            ends = holder.expires_at
        for share in grant.shares:
            for bit, window in seen.windows.items():
                taken = window.begins < (now if request.preemptible else ends)
                if share.free_nodes.kind.windows & bit and taken and now < window.ends:
                    yield f"request {request.id}: nodes that maintenance takes at {window.begins}"


def _preemptions(seen: SiteSnapshot, planned: PassPlan, groups: Groups) -> Iterator[str]:
    requests = {request.id: request for request in seen.requests}
    mobile = {(one.vcluster_id, one.kind): one.mobile for one in seen.allocations}
    by_holder: Counter[int] = Counter()
    by_holding: Counter[tuple[int, NodeKind]] = Counter()
    for preempt in planned.preemptions:
        by_holder[preempt.vcluster_id] += preempt.count
        by_holding[preempt.vcluster_id, preempt.kind] += preempt.count
        yield from _may_take(preempt, requests, seen, groups)
    for vcluster, count in by_holder.items():
        holder = seen.holders[vcluster]
        surplus = holder.held - holder.leaving - holder.floor
        if count > surplus:
            yield f"vcluster {vcluster}: {count} are taken, {surplus} are above its creation size"
    for key, count in by_holding.items():
        if count > mobile.get(key, 0):
            yield (
                f"vcluster {key[0]}: {count} are taken, {mobile.get(key, 0)} are outside their"
                " inertia"
            )
    open_ = Counter({reclaim.id: reclaim.open for reclaim in seen.reclaims})
    yield from (
        f"reclaim {one.reclaim_id}: {open_[one.reclaim_id]} are open, {one.count} and {one.left}"
        " are not"
        for one in planned.reductions
        if open_[one.reclaim_id] != one.count + one.left or one.count < 1
    )
    yield from _no_more_than_short(seen, planned, requests)


def _may_take(
    preempt: Preempt, requests: Mapping[int, PendingRequest], seen: SiteSnapshot, groups: Groups
) -> Iterator[str]:
    request, holder = requests[preempt.request_id], seen.holders[preempt.vcluster_id]
    if holder.id == request.vcluster_id:
        yield f"request {request.id}: takes from its own vcluster {holder.id}"
    if groups.over(holder):
        yield f"request {request.id}: takes from vcluster {holder.id}, whose lease is over"
    if not groups.may_take(request, holder, preempt.kind.type):
        yield (
            f"request {request.id} of priority {request.priority} takes from vcluster"
            f" {holder.id} of {holder.priority}"
        )
    kind = seen.types[preempt.kind.type].attributes
    if all(satisfies(one.attributes, kind) for one in request.tuples):
        yield (
            f"request {request.id}: takes nodes of type {preempt.kind.type}, which lack what it"
            " wants"
        )
    if preempt.count < 1:
        yield f"request {request.id}: takes no nodes from vcluster {holder.id}"


def _no_more_than_short(
    seen: SiteSnapshot, planned: PassPlan, requests: Mapping[int, PendingRequest]
) -> Iterator[str]:
    """Yield requests that preempt more nodes than they lack. At the place of a preemption, nodes
    being preempted and nodes reserved for the request must not exceed the wanted number; if it is
    the only waiting request, the free nodes there, and those on their way, count as well.

    Its nodes elsewhere do not count, unless it may be spread: a request that has lost its place in
    one block may begin again in another.
    """
    granted = {grant.request_id for grant in planned.grants}
    takers = {preempt.request_id for preempt in planned.preemptions}
    yield from (f"request {one}: is granted and takes" for one in granted & takers)
    rejected = {refusal.request_id for refusal in planned.refusals if refusal.final}
    open_, had = _open(seen, planned), _had(seen)
    plain = {
        one
        for one, each in requests.items()
        if each.source_id is None
        and each.starts_at is None
        and not seen.entitlements.get(each.group_id, ANYTHING).type_limits
    }
    # free nodes may be needed for another reservation's start, or exceed a limit by type; a move
    # has its own nodes
    whose = {0} if len(requests) == len(plain) == 1 else set()
    for request in sorted(set(open_) & set(requests) - granted - rejected):
        here = set(open_[request])
        if requests[request].may_spread:
            here |= {kind for kind, _ in had if _would_do(kind, requests[request], seen)}
        supply = sum(
            count
            for (kind, reserved), count in had.items()
            if kind in here and reserved in whose | {request}
        )
        count, wanted = open_[request].total(), sum(one.count for one in requests[request].tuples)
        if count + supply > wanted:
            yield (
                f"request {request}: {count} are taken, {supply} are there or on their way,"
                f" {wanted} wanted"
            )


def _open(seen: SiteSnapshot, planned: PassPlan) -> dict[int, Counter[NodeKind]]:
    """Return the nodes being preempted for each request after the plan, by kind."""
    open_: dict[int, Counter[NodeKind]] = defaultdict(Counter)
    for preempt in planned.preemptions:
        open_[preempt.request_id][preempt.kind] += preempt.count
    left = {reduction.reclaim_id: reduction.left for reduction in planned.reductions}
    for reclaim in seen.reclaims:
        if left.get(reclaim.id, reclaim.open):
            open_[reclaim.request_id][reclaim.kind] += left.get(reclaim.id, reclaim.open)
    return open_


def _had(seen: SiteSnapshot) -> Counter[tuple[NodeKind, int]]:
    """Return the nodes that are free or on their way, by kind and by the request that has reserved
    them."""
    had: Counter[tuple[NodeKind, int]] = Counter()
    for free in seen.free_nodes:
        had[free.kind, free.reserved] += free.count
    for coming in seen.coming:
        had[coming.kind, coming.reserved] += coming.count
    return had


def _would_do(kind: NodeKind, request: PendingRequest, seen: SiteSnapshot) -> bool:
    return kind.subnet in ("", request.subnet) and any(
        not satisfies(one.attributes, seen.types[kind.type].attributes) for one in request.tuples
    )


def _leases(seen: SiteSnapshot, planned: PassPlan, now: float) -> Iterator[str]:
    """Yield drains and seizures that come too early."""
    for vcluster in planned.drains:
        ends = seen.holders[vcluster].expires_at
        if ends is None or ends > now:
            yield f"vcluster {vcluster}: drained before its lease is over"
    for vcluster in planned.expired:
        drains = seen.holders[vcluster].drain_until
        if drains is None or drains > now:
            yield f"vcluster {vcluster}: seized before its grace is over"
    deadlines = {reclaim.id: reclaim.deadline for reclaim in seen.reclaims}
    for reclaim in planned.overdue:
        if deadlines[reclaim] > now:
            yield f"reclaim {reclaim}: seized before its deadline"


def _reserve(planned: PassPlan) -> Iterator[str]:
    """Yield changes of power of nodes in a wrong state: nodes put to sleep must be warm, idle and
    unreserved, and nodes woken must be asleep."""
    for change in planned.power_changes:
        free = change.free_nodes
        if change.sleep and (free.readiness != 0 or free.reserved or change.count > free.idle):
            yield f"{change.count} nodes are put to sleep of {free}"
        if not change.sleep and free.readiness == 0:
            yield f"{change.count} nodes are woken that are awake: {free}"
