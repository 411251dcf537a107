"""What groups are promised, looked at from outside: their shares, guarantees and limits, and whose
requests go before whose. It shares no code with the policy.

The plan's steps are not known in their order, so each bound is one that holds in every order: what
a group loses in the plan may be gone, and what it gets may be there, when a request is decided.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from cod.model import Policy
from cod.policy.hardware.match import satisfies
from cod.policy.scheduler.snapshot import (
    ANYTHING,
    Entitlement,
    NodeKind,
    PassPlan,
    PendingRequest,
    Preempt,
    RequestGrant,
    SiteSnapshot,
    VclusterHolder,
)


class Groups:
    """What groups hold before a plan, and what the plan gives them and takes from them."""

    def __init__(self, seen: SiteSnapshot, planned: PassPlan, now: float) -> None:
        self._seen, self._planned, self._now = seen, planned, now
        self.kept: Counter[int] = Counter()
        self.lost: Counter[int] = Counter()
        self.won: Counter[int] = Counter()
        self.requests = {request.id: request for request in seen.requests}
        for holder in seen.holders.values():
            if not self.over(holder):
                self.kept[holder.group_id] += holder.held - holder.leaving
        for preempt in planned.preemptions:
            self.lost[seen.holders[preempt.vcluster_id].group_id] += preempt.count
        reclaims = {reclaim.id: reclaim.vcluster_id for reclaim in seen.reclaims}
        for less in planned.reductions:
            if (holder_ := seen.holders.get(reclaims[less.reclaim_id])) is not None:
                self.won[holder_.group_id] += less.count
        for grant in planned.grants:
            request = self.requests[grant.request_id]
            self.won[request.group_id] += 0 if request.preemptible else _nodes(grant)
        for request in seen.requests:  # what a move brings counts from the beginning
            if request.source_id is not None:
                self.won[request.group_id] += _size(request)

    def over(self, holder: VclusterHolder) -> bool:
        """Return whether a vcluster's lease has run out, or the vcluster is draining."""
        ends = holder.expires_at
        return holder.drain_until is not None or (ends is not None and ends <= self._now)

    def of(self, group_id: int) -> Entitlement:
        """Return what a group is promised."""
        return self._seen.entitlements.get(group_id, ANYTHING)

    def may_take(self, request: PendingRequest, holder: VclusterHolder) -> str:
        """Return by what right a request takes from a vcluster: 'priority', 'guarantee', 'share';
        '' by none."""
        if holder.priority < request.priority:
            return "priority"
        if not self._seen.entitlements or request.preemptible:
            return ""
        most, own = self.kept[request.group_id] + _size(request), self.of(request.group_id)
        most -= self.lost[request.group_id]
        if most <= own.guarantee:
            return "guarantee"
        sure = max(own.guarantee, own.share or 0)
        return "share" if holder.priority == request.priority and most <= sure else ""

    def broken(self) -> Iterator[str]:
        """Yield a sentence for each promise to a group that the plan breaks."""
        if self._seen.entitlements:
            yield from self._victims()
            yield from self._claims()
            yield from self._limits()
            yield from _shares(self._seen)

    def _by_right(self) -> Iterator[tuple[Preempt, str, PendingRequest, int]]:
        for preempt in self._planned.preemptions:
            request = self.requests[preempt.request_id]
            holder = self._seen.holders[preempt.vcluster_id]
            yield preempt, self.may_take(request, holder), request, holder.group_id

    def _victims(self) -> Iterator[str]:
        """Yield groups that lose what they are sure of: their guarantees to anybody, their shares
        to equals."""
        equals: Counter[int] = Counter()
        for preempt, right, _, group_id in self._by_right():
            equals[group_id] += preempt.count if right == "share" else 0
        for group_id, count in self.lost.items():
            own = self.of(group_id)
            had = self.kept[group_id] + self.won[group_id]
            if count > max(0, had - own.guarantee):
                yield f"group {group_id}: {count} are taken of {had}, {own.guarantee} guaranteed"
            if equals[group_id] > max(0, had - (own.share or 0)):
                yield (
                    f"group {group_id}: {equals[group_id]} are taken of {had} by equals, its share"
                    f" is {own.share}"
                )

    def _claims(self) -> Iterator[str]:
        """Yield groups whose requests together take more by their guarantee and share than these
        are."""
        claimed: dict[int, set[int]] = defaultdict(set)
        for _, right, request, _ in self._by_right():
            if right in ("guarantee", "share"):
                claimed[request.group_id].add(request.id)
        for group_id, requests in claimed.items():
            own = self.of(group_id)
            wanted = sum(_size(self.requests[one]) for one in requests)
            had = self.kept[group_id] - self.lost[group_id]
            if had + wanted > max(own.guarantee, own.share or 0):
                yield (
                    f"group {group_id}: has {had} and takes for {wanted} by its guarantee of"
                    f" {own.guarantee} and its share of {own.share}"
                )

    def _limits(self) -> Iterator[str]:
        """Yield groups that are granted more than they may hold."""
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


def _nodes(grant: RequestGrant) -> int:
    return sum(share.count for share in grant.shares)


def _size(request: PendingRequest) -> int:
    return sum(one.count for one in request.tuples)


# ---------------------------------------------------------------- shares


def _shares(seen: SiteSnapshot) -> Iterator[str]:
    """Yield groups whose share is not the one by water-filling, rounded either way, among those
    that hold or want nodes. Of a family the sum is looked at."""
    wants = {one: each for one, each in seen.entitlements.items() if each.share is not None}
    families: dict[int, list[int]] = defaultdict(list)
    for group_id, own in wants.items():
        families[own.parent if own.parent in wants else group_id].append(group_id)
    most, least = _demand(seen, wants)
    level = {
        head: _Claim(
            wants[head].weight, sum(least[one] for one in all_), sum(most[one] for one in all_)
        )
        for head, all_ in families.items()
    }
    parts = _filled(level, sum(seen.site.values()))
    together, whole = sum(one.share or 0 for one in wants.values()), sum(parts.values())
    if wants and abs(together - whole) > 0.5 + 1e-3:
        yield f"all shares together are {together}, not {whole:.2f}"
    for head, all_ in families.items():
        share = sum(wants[one].share or 0 for one in all_)
        if abs(share - parts[head]) >= len(all_) + 1e-3:
            yield f"group {head}: its share is {share}, not {parts[head]:.2f}"


class _Claim:
    """What a group, or a family, can get."""

    def __init__(self, weight: float, least: float, most: float) -> None:
        self.weight, self.least, self.most = weight, least, most

    def at(self, level: float) -> float:
        """Return what it gets when each unit of weight gets so much."""
        return min(self.most, max(self.least, level * self.weight))


def _demand(
    seen: SiteSnapshot, wants: Mapping[int, Entitlement]
) -> tuple[Counter[int], Counter[int]]:
    """Return what each group holds and waits for, and what of that is guaranteed."""
    held: Counter[int] = Counter()
    for holder in seen.holders.values():
        held[holder.group_id] += 0 if holder.drain_until is not None else holder.held
    waits: Counter[int] = Counter()
    for request in seen.requests:
        if request.starts_at is None and not request.preemptible:
            waits[request.group_id] += _size(request)
    most: Counter[int] = Counter()
    least: Counter[int] = Counter()
    for group_id, own in wants.items():
        more = 0 if own.used_up else waits[group_id]
        if own.limit is not None:
            more = min(more, max(0, own.limit - held[group_id]))
        most[group_id] = held[group_id] + more
        least[group_id] = min(own.guarantee, most[group_id])
    return most, least


def _filled(claims: Mapping[int, _Claim], nodes: float) -> dict[int, float]:
    """Return what each gets when `nodes` are poured out: the same for each unit of weight, no less
    than it is sure of, no more than it can use. The level is found by halving."""
    low, high = 0.0, 1.0
    total = min(nodes, sum(one.most for one in claims.values()))
    while high < 2.0**80 and sum(one.at(high) for one in claims.values()) < total - 1e-9:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if sum(one.at(middle) for one in claims.values()) < total:
            low = middle
        else:
            high = middle
    return {group_id: one.at(high) for group_id, one in claims.items()}


# ---------------------------------------------------------------- order


def passed_over(seen: SiteSnapshot, planned: PassPlan, policy: Policy, now: float) -> Iterator[str]:
    """Yield requests that wait although a request behind them is granted nodes that would have
    been enough for them. Where nodes are kept for others, who may use them depends on leases, and
    nothing is said."""
    if planned.holds or planned.reserved or seen.dear:
        return
    places = _places(seen, policy, now)
    waits = {refusal.request_id for refusal in planned.refusals if refusal.code == "busy"}
    requests = {request.id: request for request in seen.requests}
    reserved = {free.reserved for free in seen.free_nodes} | {one.reserved for one in seen.coming}
    reserved |= {reclaim.request_id for reclaim in seen.reclaims}
    for one in sorted((waits - reserved) & places.keys()):
        request = requests[one]
        if not _plain(request, seen):
            continue
        for grant in planned.grants:
            other = places.get(grant.request_id)
            if other is None or places[one] >= other:
                continue
            if (request.group_id in seen.entitlements) != (
                requests[grant.request_id].group_id in seen.entitlements
            ):
                continue
            if _enough(request, grant, seen):
                yield (
                    f"request {one} waits, and request {grant.request_id}, which is behind it, gets"
                    " nodes that are enough for it"
                )


Place = tuple[bool, int, int, int, float]


def _places(seen: SiteSnapshot, policy: Policy, now: float) -> dict[int, Place]:
    """Return where requests stand: within a guarantee first, then by priority; where there are
    shares, those that have waited long, then those within shares, by ranks; then by age."""
    groups, kept = Groups(seen, PassPlan(), now), Counter[int]()
    places: dict[int, Place] = {}
    for request in sorted(seen.requests, key=lambda one: (-one.priority, one.submitted_at, one.id)):
        if request.source_id is not None or request.starts_at is not None:
            continue
        own = groups.of(request.group_id)
        age = request.submitted_at
        if policy.age_step > 0:
            age = math.floor(age / policy.age_step)
        had = groups.kept[request.group_id] + kept[request.group_id] + _size(request)
        sure = not request.preemptible and had <= own.guarantee
        within = not request.preemptible and had <= max(own.guarantee, own.share or 0)
        if within and seen.entitlements:
            kept[request.group_id] += _size(request)
        long = 0 < policy.hold_after <= now - request.submitted_at
        if own.share is not None and long and not sure:
            stage, rank = 0, 0
        else:
            stage, rank = (1 if within else 2), own.rank
        places[request.id] = (not sure, -request.priority, stage, rank, age)
    return places


def _plain(request: PendingRequest, seen: SiteSnapshot) -> bool:
    """Return whether a request is for nodes of one kind, and nothing but their number stands
    against it."""
    own = seen.entitlements.get(request.group_id, ANYTHING)
    document = seen.templates.get(request.tuples[0].template_id, "<requires>")
    return (
        len(request.tuples) == 1
        and not request.isolated
        and own.limit is None
        and not own.type_limits
        and not own.used_up
        and "<requires" not in document
        and "<when" not in document
    )


def _enough(request: PendingRequest, grant: RequestGrant, seen: SiteSnapshot) -> bool:
    """Return whether what was granted to another, free for all, is enough for a request."""
    (one,) = request.tuples
    there: Counter[NodeKind] = Counter()
    for share in grant.shares:
        kind = share.free_nodes.kind
        if share.free_nodes.reserved or kind.port or kind.subnet not in ("", request.subnet):
            continue
        if not satisfies(one.attributes, seen.types[kind.type].attributes):
            there[kind] += share.count
    return one.count <= (there.total() if request.may_spread else max(there.values(), default=0))
