"""A simulation of the site's future: a snapshot that is moved forward in time. Pure.

It assumes that no further requests are made, no lease is extended, and no node is given back before
it has to be. Leases end, with their grace. Nodes that are given back are free again after their
type's `turnaround`; nodes on their way are free when they are expected (`supply.expected`).
Reclaims are carried out at their deadlines, inertia ends, and reservations in advance begin. At
each such moment the resource manager's policy decides (`policy.scheduler.allocate`), and its
decision takes effect at once.

If shares are on, groups' usage is counted further (without that of preemptible vclusters), and
their ranks change with it.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cod.model import Group, Policy
from cod.policy.nodes import energy_accounting
from cod.policy.reservations import forecast, supply
from cod.policy.scheduler import reasons
from cod.policy.scheduler.leases import gone_at
from cod.policy.scheduler.preemption import inertia
from cod.policy.scheduler.snapshot import (
    WARM,
    Allocation,
    Cache,
    Decision,
    Entitlement,
    FreeNodes,
    IncomingNodes,
    NodeKind,
    OpenReclaim,
    PendingRequest,
    Preempt,
    PreemptLess,
    RequestGrant,
    SiteSnapshot,
    VclusterHolder,
)
from cod.policy.sharing import shares, turns
from cod.policy.sharing.entitlements import creation_size, of, shared

NEVER = math.inf
AGAIN = 1.0  # seconds from a pass that changes groups' holdings to the next pass


class _FreeKey(NamedTuple):
    kind: NodeKind
    readiness: int
    cache: Cache | None
    reserved: int


@dataclass(slots=True)
class _Held:
    """Nodes of one kind that a vcluster holds.

    mobile   nodes that may be preempted
    leaving  nodes that leave by reclaims
    immune   (end, nodes) of nodes within their inertia
    started  as in `Allocation`
    """

    mobile: int = 0
    leaving: int = 0
    immune: list[tuple[float, int]] = field(default_factory=list)
    started: list[tuple[float, int]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.mobile + self.leaving + sum(count for _, count in self.immune)

    def reclaim(self, count: int) -> None:
        """Let `count` of the mobile nodes leave by a reclaim; the latest first for a preemptible
        vcluster."""
        self.mobile -= count
        self.leaving += count
        while count and self.started:
            at, available = self.started[0]
            part = min(count, available)
            self.started[:1] = [(at, available - part)] if available > part else []
            count -= part

    def spare(self, count: int, now: float) -> None:
        """Let `count` leaving nodes stay: their reclaim was reduced."""
        self.mobile += count
        self.leaving -= count
        if self.started:
            self.started.insert(0, (now, count))


class Future:
    """The simulated site at the time `now`, which `advance` moves on."""

    def __init__(
        self, snapshot: SiteSnapshot, policy: Policy, now: float, groups: Iterable[Group] = ()
    ) -> None:
        self._groups = [replace(one, faded_usage=one.faded_usage or 0.0) for one in groups]
        self._first, self._policy, self.now = snapshot, policy, now
        self._holders = dict(forecast.lengthened(snapshot, now).holders)
        self.requests = {request.id: request for request in snapshot.requests}
        self._reclaims = {one.id: one for one in snapshot.reclaims}
        self._again, self._month = NEVER, energy_accounting.month(now)
        self._free_nodes: Counter[_FreeKey] = Counter()
        for free in snapshot.free_nodes:
            self._free_nodes[_FreeKey(free.kind, free.readiness, free.cache, free.reserved)] += (
                free.count
            )
        self._back: list[tuple[float, NodeKind, int, int]] = []
        for one in snapshot.coming:
            at = supply.expected(snapshot, one, policy, now)
            heapq.heappush(self._back, (at, one.kind, one.count, one.reserved))
        leaving: Counter[tuple[int, NodeKind]] = Counter()
        for reclaim in snapshot.reclaims:
            leaving[reclaim.vcluster_id, reclaim.kind.any_port] += reclaim.open
        self._held: dict[int, dict[NodeKind, _Held]] = {}
        for allocation in snapshot.allocations:
            if allocation.vcluster_id not in self._holders:
                self._comes_back(allocation.kind, allocation.count)
                continue
            open_ = min(
                allocation.count - allocation.mobile,
                leaving[allocation.vcluster_id, allocation.kind.any_port],
            )
            leaving[allocation.vcluster_id, allocation.kind.any_port] -= open_
            immune = allocation.count - allocation.mobile - open_
            until = allocation.immune_until or now
            self._held.setdefault(allocation.vcluster_id, {})[allocation.kind] = _Held(
                allocation.mobile,
                open_,
                [(until, immune)] if immune else [],
                list(allocation.started),
            )

    # ------------------------------------------------------------ time

    def next(self) -> float:
        """Return the time of the next event that needs no decision; infinity if there is none."""
        return min((time for time in self._times() if time > self.now), default=NEVER)

    def _times(self) -> Iterator[float]:
        policy, requests = self._policy, self.requests.values()
        yield self._again
        yield from (time for time, _, _, _ in self._back[:1])
        yield from (one.deadline for one in self._reclaims.values() if one.open)
        for holder in self._holders.values():
            if holder.drain_until is not None:
                yield holder.drain_until
            elif holder.expires_at is not None:
                yield holder.expires_at
        # ends of inertia, of vclusters whose nodes a waiting request might then preempt
        most = max((request.priority for request in self.requests.values()), default=-NEVER)
        for vcluster_id, held in self._held.items():
            if self._first.entitlements or self._holders[vcluster_id].priority < most:
                yield from (until for one in held.values() for until, _ in one.immune)
        if policy.hold_after > 0:
            yield from (request.submitted_at + policy.hold_after for request in requests)
        for request in requests:
            if request.starts_at is not None:
                yield request.starts_at
                yield request.starts_at + reasons.PUNCTUAL
                for one in self._first.types:
                    yield request.starts_at - supply.lead(self._first, one, policy)
        yield from (one.ends for one in self._first.windows.values())
        entitlements = self._first.entitlements.values()
        if any(one.share is not None for one in entitlements):
            yield turns.ends(policy, self.now)
        if any(one.used_up for one in entitlements):
            yield energy_accounting.month_end(self.now)

    def advance(self, time: float) -> None:
        """Move the site to `time`: let all events happen that need no decision."""
        self._use(time - self.now)
        self.now = time
        if self._again <= time:
            self._again = NEVER
        while self._back and self._back[0][0] <= time:
            _, kind, count, reserved = heapq.heappop(self._back)
            if reserved not in self.requests:
                reserved = 0
            self._free_nodes[_FreeKey(kind, WARM, None, reserved)] += count
        for held in self._held.values():
            for one in held.values():
                one.mobile += sum(count for until, count in one.immune if until <= time)
                one.immune = [each for each in one.immune if each[0] > time]
        # reclaims before the ends of leases: their nodes come back reserved for their requests
        for reclaim in [one for one in self._reclaims.values() if one.deadline <= time]:
            self._seize(reclaim)
        for holder in list(self._holders.values()):
            if gone_at(holder, self._policy) <= time:
                self._end(holder)
            elif holder.drain_until is None and (holder.expires_at or NEVER) <= time:
                self._holders[holder.id] = replace(
                    holder, drain_until=gone_at(holder, self._policy)
                )

    def _use(self, seconds: float) -> None:
        """Count the groups' usage over the next `seconds`."""
        if self._policy.fair_half_life <= 0 or not self._groups:
            return
        rates: defaultdict[int, float] = defaultdict(float)
        for vcluster_id, held in self._held.items():
            for kind, one in held.items():
                cost = self._first.types[kind.type].cost
                rates[self._holders[vcluster_id].group_id] += one.count * cost
        self._groups = [
            replace(
                one,
                faded_usage=shares.faded(
                    one.faded_usage or 0.0, seconds, self._policy.fair_half_life, rates[one.id]
                ),
            )
            for one in self._groups
        ]

    def _entitlements(self) -> Mapping[int, Entitlement]:
        found = dict(self._first.entitlements)
        # node-hours that were used up last month are no limit any more
        if found and energy_accounting.month(self.now) != self._month:
            found = {group_id: replace(one, used_up=False) for group_id, one in found.items()}
        if turns.number(self._policy, self.now) != self._first.turn:
            found = {group_id: replace(one, had_odd=False) for group_id, one in found.items()}
        if self._policy.fair_half_life > 0 and self._groups:
            ranks = of(self._groups, self._policy, sum(self._first.site.values()))
            for group_id in found.keys() & ranks.keys():
                found[group_id] = replace(found[group_id], rank=ranks[group_id].rank)
        return found

    def _comes_back(self, kind: NodeKind, count: int, reserved: int = 0) -> None:
        """Let nodes be free again one turnaround of their type from now."""
        if count > 0:
            at = self.now + supply.turnaround(self._first, kind.type, self._policy)
            heapq.heappush(self._back, (at, kind, count, reserved))

    def _seize(self, reclaim: OpenReclaim) -> None:
        del self._reclaims[reclaim.id]
        for kind, one, part in self._leaving(reclaim, reclaim.open):
            one.leaving -= part
            self._comes_back(kind, part, reclaim.request_id)
        self._loses(reclaim.vcluster_id, held=reclaim.open, leaving=reclaim.open)

    def _loses(self, vcluster_id: int, *, held: int = 0, leaving: int = 0) -> None:
        if (holder := self._holders.get(vcluster_id)) is not None:
            self._holders[vcluster_id] = replace(
                holder, held=holder.held - held, leaving=holder.leaving - leaving
            )

    def _leaving(self, reclaim: OpenReclaim, count: int) -> Iterator[tuple[NodeKind, _Held, int]]:
        """Yield (kind, held nodes, nodes) for `count` of the nodes that leave by a reclaim."""
        for kind, one in self._held.get(reclaim.vcluster_id, {}).items():
            part = min(count, one.leaving) if kind.any_port == reclaim.kind.any_port else 0
            if part:
                yield kind, one, part
                count -= part

    def _end(self, holder: VclusterHolder) -> None:
        """End a vcluster: free all its nodes, and withdraw its requests."""
        for reclaim in [one for one in self._reclaims.values() if one.vcluster_id == holder.id]:
            self._seize(reclaim)
        for kind, one in self._held.pop(holder.id, {}).items():
            self._comes_back(kind, one.count)
        del self._holders[holder.id]
        for request in [one for one in self.requests.values() if one.vcluster_id == holder.id]:
            self.drop(request.id)

    # ------------------------------------------------------------ what the policy sees and does

    def snapshot(self) -> SiteSnapshot:
        """Return a snapshot of the site at the simulated time."""
        coming: Counter[tuple[NodeKind, int, float]] = Counter()
        for at, kind, count, reserved in self._back:
            # the inverse of `supply.expected`, which adds the turnaround
            since = at - supply.turnaround(self._first, kind.type, self._policy)
            coming[kind, reserved if reserved in self.requests else 0, since] += count
        return shared(
            replace(
                self._first,
                free_nodes=[
                    FreeNodes(free.kind, free.readiness, count, free.cache, free.reserved)
                    for free, count in self._free_nodes.items()
                    if count > 0
                ],
                coming=[
                    IncomingNodes(kind, count, reserved, since=since)
                    for (kind, reserved, since), count in coming.items()
                ],
                allocations=[
                    Allocation(
                        vcluster_id,
                        kind,
                        one.count,
                        one.mobile,
                        min((until for until, _ in one.immune), default=None),
                        tuple(one.started),
                    )
                    for vcluster_id, held in self._held.items()
                    for kind, one in held.items()
                    if one.count
                ],
                holders=self._holders,
                reclaims=[one for one in self._reclaims.values() if one.open],
                requests=[replace(one, own=self._own(one)) for one in self.requests.values()],
                entitlements=self._entitlements(),
                turn=turns.number(self._policy, self.now),
                deserted=(),
            )
        )

    def _own(self, request: PendingRequest) -> dict[int, int]:
        own: Counter[int] = Counter()
        for kind, one in self._held.get(request.vcluster_id, {}).items():
            own[kind.type] += one.count
        return dict(own)

    def apply(self, decision: Decision) -> None:
        """Carry out a decision. A request that it does not let wait is dropped."""
        for grant in decision.grants:
            self._grant(grant)
        waiting = {refusal.request_id for refusal in decision.refusals if not refusal.final}
        for request_id in [one for one in self.requests if one not in waiting]:
            self.drop(request_id)
        for reduction in decision.reductions:
            self._reduce(reduction)
        for preempt in decision.preemptions:
            self._preempt(preempt)
        if self._first.entitlements and (decision.grants or decision.reductions):
            # the changed holdings decide who fits into a share, and so who may preempt whom
            self._again = self.now + AGAIN

    def drop(self, request_id: int) -> None:
        """Remove a request: nodes reserved for it become free for all, and its reclaims end."""
        del self.requests[request_id]
        for free in [one for one in self._free_nodes if one.reserved == request_id]:
            self._free_nodes[free._replace(reserved=0)] += self._free_nodes.pop(free)
        for reclaim in [one for one in self._reclaims.values() if one.request_id == request_id]:
            self._reduce(PreemptLess(reclaim.id, reclaim.open, 0))

    def _grant(self, grant: RequestGrant) -> None:
        request = self.requests[grant.request_id]
        holder = self._holders.get(request.vcluster_id)
        if holder is None:
            return
        held = self._held.setdefault(holder.id, {})
        total = 0
        for share in grant.shares:
            free = share.free_nodes
            self._free_nodes[_FreeKey(free.kind, free.readiness, free.cache, free.reserved)] -= (
                share.count
            )
            one = held.setdefault(free.kind, _Held())
            total += share.count
            if holder.preemptible:
                one.mobile += share.count
                one.started.insert(0, (self.now, share.count))
            else:
                until = self.now + inertia(holder.priority, self._policy)
                one.immune.append((until, share.count))
        self._free_nodes = +self._free_nodes
        floor, ends = holder.floor, holder.expires_at
        if not holder.held and not holder.preemptible:
            floor = self._creation_size(holder)
        if ends is None and not holder.held and request.lease < NEVER:
            ends = self.now + request.lease
        elif ends is not None and request.starts_at is not None:
            ends = max(ends, self.now + request.lease)
        self._holders[holder.id] = replace(
            holder, held=holder.held + total, floor=floor, expires_at=ends
        )

    def _creation_size(self, holder: VclusterHolder) -> int:
        floors: Counter[int] = Counter()
        for one in self._holders.values():
            if one.held and one.drain_until is None and not one.preemptible:
                floors[one.group_id] += one.floor
        guarantees = {
            group_id: one.guarantee
            for group_id, one in self._first.entitlements.items()
            if one.guarantee
        }
        nodes = sum(self._first.site.values())
        return creation_size(holder.floor, holder.group_id, guarantees, floors, nodes)

    def _preempt(self, preempt: Preempt) -> None:
        reclaim = OpenReclaim(
            min(0, *self._reclaims) - 1 if self._reclaims else -1,
            preempt.vcluster_id,
            preempt.request_id,
            preempt.kind,
            preempt.count,
            self.now + self._policy.reclaim_grace,
        )
        left = preempt.count
        for kind, one in self._held[preempt.vcluster_id].items():
            if kind.any_port == preempt.kind.any_port and (part := min(left, one.mobile)):
                one.reclaim(part)
                left -= part
        self._reclaims[reclaim.id] = reclaim
        self._loses(preempt.vcluster_id, leaving=-preempt.count)

    def _reduce(self, reduction: PreemptLess) -> None:
        reclaim = self._reclaims[reduction.reclaim_id]
        for _, one, part in self._leaving(reclaim, reduction.count):
            one.spare(part, self.now)
        self._loses(reclaim.vcluster_id, leaving=reduction.count)
        if reduction.left:
            self._reclaims[reclaim.id] = replace(reclaim, open=reduction.left)
        else:
            del self._reclaims[reclaim.id]
