"""Check of groups' guarantees, limits and shares from outside. It shares no code with the policy.

The order of the plan's steps is not known, so each bound holds in every order: when a request is
decided, the group's losses by the plan may have happened already, and its gains, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from cod.policy.scheduler.snapshot import (
    ANYTHING,
    OTHERS,
    Entitlement,
    PassPlan,
    PendingRequest,
    Preempt,
    SiteSnapshot,
    VclusterHolder,
)
from cod.sim.check.pools import Key, Pools, held_apart, matches_alone, of_type, sure
from cod.sim.check.shares import not_filled


class Groups:
    """Holdings of groups before a plan, and the plan's changes to them, by group and pool."""

    def __init__(self, seen: SiteSnapshot, planned: PassPlan, now: float) -> None:
        self._seen, self._planned, self._now = seen, planned, now
        self.pools = pools = Pools(seen)
        self.kept: Counter[Key] = Counter()
        self.lost: Counter[Key] = Counter()
        self.won: Counter[Key] = Counter()
        self.requests = {request.id: request for request in seen.requests}
        lasting = {one.id: one for one in seen.holders.values() if not self.over(one)}
        for holder in lasting.values():
            self.kept[holder.group_id, OTHERS] += holder.held - holder.leaving
        for vcluster_id, type_id, count in held_apart(seen, pools.apart):
            if (keeps := lasting.get(vcluster_id)) is not None:
                self.kept[keeps.group_id, type_id] += count
                self.kept[keeps.group_id, OTHERS] -= count
        for preempt in planned.preemptions:
            group_id = seen.holders[preempt.vcluster_id].group_id
            self.lost[group_id, pools.of(preempt.kind.type)] += preempt.count
        reclaims = {reclaim.id: reclaim for reclaim in seen.reclaims}
        for less in planned.reductions:
            eased = reclaims[less.reclaim_id]
            if (holder_ := seen.holders.get(eased.vcluster_id)) is not None:
                self.won[holder_.group_id, pools.of(eased.kind.type)] += less.count
        for grant in planned.grants:
            request = self.requests[grant.request_id]
            counts = not request.preemptible and request.source_id is None
            for share in grant.shares if counts else ():
                self.won[request.group_id, pools.of(share.free_nodes.kind.type)] += share.count
        # nodes of a move count from the move's beginning
        movers = {
            request.id: request.group_id
            for request in seen.requests
            if request.source_id is not None
        }
        moving = [
            *((one.reserved, one.kind.type, one.count) for one in seen.free_nodes),
            *((one.reserved, one.kind.type, one.count) for one in seen.coming),
            *((one.request_id, one.kind.type, one.open) for one in seen.reclaims),
        ]
        for request_id, type_id, count in moving:
            if request_id in movers:
                self.won[movers[request_id], pools.of(type_id)] += count

    def over(self, holder: VclusterHolder) -> bool:
        """Return whether a vcluster's lease has run out, or the vcluster is draining."""
        ends = holder.expires_at
        return holder.drain_until is not None or (ends is not None and ends <= self._now)

    def of(self, group_id: int) -> Entitlement:
        """Return the entitlement of a group."""
        return self._seen.entitlements.get(group_id, ANYTHING)

    def may_take(self, request: PendingRequest, holder: VclusterHolder, type_id: int) -> str:
        """Return by which right a request may take nodes of a type from a vcluster: 'priority',
        'guarantee' or 'share'; '' if it may not."""
        if holder.priority < request.priority:
            return "priority"
        asked = self.pools.asked(request)
        if not self._seen.entitlements or request.preemptible:
            return ""
        if self.pools.of(type_id) not in asked:
            return ""
        own = self.of(request.group_id)
        most = {
            pool: self.kept[request.group_id, pool] + count - self.lost[request.group_id, pool]
            for pool, count in asked.items()
        }
        if all(count <= own.of(pool).guarantee for pool, count in most.items()):
            return "guarantee"
        within = all(count <= sure(own, pool) for pool, count in most.items())
        return "share" if holder.priority == request.priority and within else ""

    def broken(self) -> Iterator[str]:
        """Yield a sentence for each promise to a group that the plan breaks."""
        if self._seen.entitlements:
            yield from self._asked()
            yield from self._victims()
            yield from self._claims()
            yield from self._limits()
            for pool in sorted({OTHERS, *self.pools.apart}):
                yield from not_filled(self._seen, self.pools, pool)

    def _asked(self) -> Iterator[str]:
        """Yield requests whose recorded numbers of nodes by type differ from the requested ones."""
        for request in self._seen.requests if self.pools.apart else ():
            asked = self.pools.asked(request)
            if matches_alone(request, self._seen) and dict(request.asked) != asked:
                yield (
                    f"request {request.id}: counts as {dict(request.asked)} by type, not"
                    f" {dict(asked)}"
                )

    def _by_right(self) -> Iterator[tuple[Preempt, str, PendingRequest, Key]]:
        for preempt in self._planned.preemptions:
            request = self.requests[preempt.request_id]
            holder = self._seen.holders[preempt.vcluster_id]
            right = self.may_take(request, holder, preempt.kind.type)
            yield preempt, right, request, (holder.group_id, self.pools.of(preempt.kind.type))

    def _victims(self) -> Iterator[str]:
        """Yield groups that lose entitled nodes: nodes of their guarantees to any group, or nodes
        of their shares to groups of equal priority."""
        equals: Counter[Key] = Counter()
        for preempt, right, _, key in self._by_right():
            equals[key] += preempt.count if right == "share" else 0
        for key, count in self.lost.items():
            group_id, pool = key
            own, what = self.of(group_id).of(pool), of_type(pool)
            had = self.kept[key] + self.won[key]
            if count > max(0, had - own.guarantee):
                yield (
                    f"group {group_id}: {count} are taken of {had}{what}, {own.guarantee}"
                    " guaranteed"
                )
            if equals[key] > max(0, had - (own.share or 0)):
                yield (
                    f"group {group_id}: {equals[key]} are taken of {had}{what} by equals, its"
                    f" share is {own.share}"
                )

    def _claims(self) -> Iterator[str]:
        """Yield groups whose requests, by right of guarantee or share, take more nodes in all than
        the larger of the two."""
        claimed: dict[int, set[int]] = defaultdict(set)
        for _, right, request, _ in self._by_right():
            if right in ("guarantee", "share"):
                claimed[request.group_id].add(request.id)
        for group_id, requests in claimed.items():
            wanted: Counter[int] = Counter()
            for one in requests:
                wanted.update(self.pools.asked(self.requests[one]))
            for pool, count in wanted.items():
                own = self.of(group_id).of(pool)
                had = self.kept[group_id, pool] - self.lost[group_id, pool]
                if had + count > max(own.guarantee, own.share or 0):
                    yield (
                        f"group {group_id}: has {had}{of_type(pool)} and takes for {count} by its"
                        f" guarantee of {own.guarantee} and its share of {own.share}"
                    )

    def _limits(self) -> Iterator[str]:
        """Yield groups that get more nodes than they may hold."""
        held: dict[int, Counter[int]] = defaultdict(Counter)
        for allocation in self._seen.allocations:
            if (holder := self._seen.holders.get(allocation.vcluster_id)) is not None:
                held[holder.group_id][allocation.kind.type] += allocation.count
        got: dict[int, Counter[int]] = defaultdict(Counter)
        for grant in self._planned.grants:
            request = self.requests[grant.request_id]
            if request.source_id is not None:
                continue
            if self.of(request.group_id).used_up:
                yield f"request {request.id}: is granted, its group has used all node-hours"
            for share in grant.shares if not request.preemptible else ():
                got[request.group_id][share.free_nodes.kind.type] += share.count
        for group_id, types in got.items():
            own, total = self.of(group_id), held[group_id] + types
            if own.limit is not None and total.total() > own.limit:
                yield f"group {group_id}: would hold {total.total()}, its limit is {own.limit}"
            for type_id in types.keys() & own.type_limits.keys():
                if total[type_id] > own.type_limits[type_id]:
                    yield (
                        f"group {group_id}: would hold {total[type_id]} of type {type_id}, its"
                        f" limit is {own.type_limits[type_id]}"
                    )
