"""Check of moves and reservations in advance from outside. It shares no code with the policy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import chain

from cod.model import Policy
from cod.policy.scheduler.snapshot import PassPlan, PendingRequest, SiteSnapshot
from cod.sim.check.groups import Groups
from cod.sim.check.pools import matches_alone, size

MINUTE = 60.0  # after its start a reservation is late


def of_moves(seen: SiteSnapshot, planned: PassPlan, groups: Groups) -> Iterator[str]:
    """Yield errors of moves: each move must get the nodes reserved for it as they come, and no
    other nodes."""
    moves = {request.id: request for request in seen.requests if request.source_id is not None}
    free, others = Counter[int](), Counter[int]()
    for nodes in seen.free_nodes:
        free[nodes.reserved] += nodes.count
    for coming in seen.coming:
        others[coming.reserved] += coming.count
    for reclaim in seen.reclaims:
        others[reclaim.request_id] += reclaim.open
    granted = {grant.request_id: grant for grant in planned.grants}
    ended = {refusal.request_id for refusal in planned.refusals if refusal.code == "ended"}
    for one, request in moves.items():
        shares = granted[one].shares if one in granted else ()
        if foreign := sum(share.count for share in shares if share.free_nodes.reserved != one):
            yield f"request {one}: {foreign} nodes that are not those which move"
        holder = seen.holders.get(request.vcluster_id)
        running = holder is not None and not groups.over(holder)
        if free[one] > sum(share.count for share in shares) and running and not request.isolated:
            yield f"request {one}: {free[one]} nodes have come, and are not given"
        if one in ended and free[one] + others[one]:
            yield f"request {one}: ends, {free[one] + others[one]} nodes are still to move"
    yield from (
        f"request {preempt.request_id}: takes nodes for a move"
        for preempt in planned.preemptions
        if preempt.request_id in moves
    )
    made = {reclaim.id: reclaim.request_id for reclaim in seen.reclaims}
    yield from (
        f"reclaim {less.reclaim_id}: {less.count} nodes that move are let stay"
        for less in planned.reductions
        if made[less.reclaim_id] in moves
    )


def of_reservations(
    seen: SiteSnapshot, planned: PassPlan, policy: Policy, groups: Groups, now: float
) -> Iterator[str]:
    """Yield errors of reservations in advance: none may begin before its start, or preempt nodes
    too early, and at its start it must get its nodes."""
    requests = {request.id: request for request in seen.requests if request.starts_at is not None}
    for one in (grant.request_id for grant in planned.grants if grant.request_id in requests):
        if (starts_at := requests[one].starts_at or 0.0) > now:
            yield f"request {one}: begins {starts_at - now:.0f} s before its start"
    for preempt in planned.preemptions:
        if (request := requests.get(preempt.request_id)) is not None:
            begins = (request.starts_at or 0.0) - _lead(seen, preempt.kind.type, policy)
            if begins > now + 1e-6:
                yield (
                    f"request {request.id}: takes nodes {begins - now:.0f} s before it has to for"
                    " its start"
                )
    for refusal in planned.refusals:
        if (request := requests.get(refusal.request_id)) is None:
            continue
        over = now - (request.starts_at or 0.0)
        if (refusal.code == "late" and over < MINUTE) or (
            refusal.code == "reserved" and over >= MINUTE
        ):
            yield f"request {request.id}: is called {refusal.code}, {over:.0f} s after its start"
    if seen.windows:  # what maintenance takes is nobody's for sure
        return
    yield from _overtaken(seen, planned, requests, groups, now)
    yield from _given_away(seen, planned, policy, requests, groups, now)


def _lead(seen: SiteSnapshot, type_id: int, policy: Policy) -> float:
    """Return the seconds before a start at which nodes of a type may begin to be preempted."""
    return max(policy.max_grace, policy.reclaim_grace) + _erasing(seen, type_id, policy)


def _erasing(seen: SiteSnapshot, type_id: int, policy: Policy) -> float:
    known = seen.types[type_id].turnaround
    return policy.turnaround if known is None else known


def _simple(request: PendingRequest, seen: SiteSnapshot, groups: Groups) -> bool:
    """Return whether a reservation accepts any nodes of its matching types, so that only their
    number can delay it."""
    own, holder = groups.of(request.group_id), seen.holders.get(request.vcluster_id)
    return (
        len(request.tuples) == 1
        and request.may_spread
        and matches_alone(request, seen)
        and own.limit is None
        and not own.type_limits
        and not (holder is not None and (groups.over(holder) or holder.expires_at is not None))
    )


def _overtaken(
    seen: SiteSnapshot,
    planned: PassPlan,
    requests: dict[int, PendingRequest],
    groups: Groups,
    now: float,
) -> Iterator[str]:
    """Yield reservations that wait after their start although another request is granted enough
    nodes for them. Not checked if another reservation waits, which may need these nodes."""
    granted = {grant.request_id for grant in planned.grants}
    waiting = [request for one, request in requests.items() if one not in granted]
    if len(waiting) != 1 or (waiting[0].starts_at or 0.0) > now:
        return
    (request,) = waiting
    if not _simple(request, seen, groups):
        return
    types = groups.pools.types(request.tuples[0])
    for grant in planned.grants:
        free = sum(
            share.count
            for share in grant.shares
            if share.free_nodes.reserved == 0
            and share.free_nodes.kind.type in types
            and share.free_nodes.kind.subnet in ("", request.subnet)
        )
        if grant.request_id not in requests and free >= size(request):
            yield (
                f"request {request.id}: waits after its start, and request {grant.request_id} gets"
                " nodes that are enough for it"
            )


def _given_away(
    seen: SiteSnapshot,
    planned: PassPlan,
    policy: Policy,
    requests: dict[int, PendingRequest],
    groups: Groups,
    now: float,
) -> Iterator[str]:
    """Yield a reservation that certainly had all its nodes before the plan, and lacks some after
    it, even if all nodes on their way come in time. Checked only for a single reservation."""
    if len(requests) != 1:
        return
    (request,) = requests.values()
    start, (one,) = request.starts_at or 0.0, request.tuples
    if start <= now or not _simple(request, seen, groups):
        return
    types = groups.pools.types(one)

    def in_time(type_id: int, gone: float) -> bool:
        return gone + _erasing(seen, type_id, policy) <= start

    def gone(vcluster_id: int) -> float:
        holder = seen.holders.get(vcluster_id)
        if holder is None or holder.expires_at is None:
            return math.inf
        ends = holder.expires_at + policy.drain_grace
        return ends if holder.drain_until is None else holder.drain_until

    before, coming = (
        sum(row.count for row in rows if row.reserved in (0, request.id) and row.kind.type in types)
        for rows in (seen.free_nodes, seen.coming)
    )
    leaving: Counter[tuple[int, int]] = Counter()
    for reclaim in seen.reclaims:
        leaving[reclaim.vcluster_id, reclaim.kind.type] += reclaim.open
    held: Counter[tuple[int, int]] = Counter()
    for allocation in seen.allocations:
        held[allocation.vcluster_id, allocation.kind.type] += allocation.count
    before += sum(
        count - leaving[vcluster_id, type_id]
        for (vcluster_id, type_id), count in held.items()
        if type_id in types and in_time(type_id, gone(vcluster_id))
    )
    lost = sum(
        preempt.count
        for preempt in planned.preemptions
        if preempt.request_id != request.id
        and preempt.kind.type in types
        and in_time(preempt.kind.type, gone(preempt.vcluster_id))
    )
    others = {each.id: each for each in seen.requests if each.id != request.id}
    for grant in planned.grants:
        if (other := others.get(grant.request_id)) is None or other.preemptible:
            continue
        holder = seen.holders.get(other.vcluster_id)
        begins = holder is None or not holder.held
        ends = now + other.lease + policy.drain_grace if begins else gone(other.vcluster_id)
        lost += sum(
            share.count
            for share in grant.shares
            if share.free_nodes.reserved == 0
            and share.free_nodes.kind.type in types
            and not in_time(share.free_nodes.kind.type, ends)
        )
    if before >= size(request) > before - lost + coming:
        yield (
            f"request {request.id}: {size(request)} nodes are reserved, {before} were there for its"
            f" start, {before - lost} are left"
        )


def broken(
    seen: SiteSnapshot, planned: PassPlan, policy: Policy, groups: Groups, now: float
) -> Iterator[str]:
    """Yield a sentence for each promise to a move or a reservation in advance that the plan
    breaks."""
    if any(
        request.source_id is not None or request.starts_at is not None for request in seen.requests
    ):
        yield from chain(
            of_moves(seen, planned, groups),
            of_reservations(seen, planned, policy, groups, now),
        )
