"""Check of the shares of groups from outside. It shares no code with the policy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from cod.policy.scheduler.snapshot import OTHERS, Entitlement, SiteSnapshot
from cod.sim.check.pools import Key, Pools, of_type


def not_filled(seen: SiteSnapshot, pools: Pools, pool: int) -> Iterator[str]:
    """Yield groups whose share of a pool's nodes differs by more than rounding from the share by
    water-filling among the groups that hold or want such nodes. For a family of groups, the sum is
    compared."""
    wants = {one: each for one, each in seen.entitlements.items() if each.share is not None}
    families: dict[int, list[int]] = defaultdict(list)
    for group_id, own in wants.items():
        families[own.parent if own.parent in wants else group_id].append(group_id)
    most, least = _demand(seen, wants, pools, pool)
    level = {
        head: _Claim(
            wants[head].of(pool).weight,
            sum(least[one] for one in all_),
            sum(most[one] for one in all_),
        )
        for head, all_ in families.items()
    }
    parts = _filled(level, pools.nodes(pool))
    together = sum(one.of(pool).share or 0 for one in wants.values())
    whole = sum(parts.values())
    if wants and abs(together - whole) > 0.5 + 1e-3:
        yield f"all shares{of_type(pool)} together are {together}, not {whole:.2f}"
    for head, all_ in families.items():
        share = sum(wants[one].of(pool).share or 0 for one in all_)
        if abs(share - parts[head]) >= len(all_) + 1e-3:
            yield f"group {head}: its share{of_type(pool)} is {share}, not {parts[head]:.2f}"


class _Claim:
    """Bounds and weight of the share of a group, or of a family of groups, in nodes."""

    def __init__(self, weight: float, least: float, most: float) -> None:
        self.weight, self.least, self.most = weight, least, most

    def at(self, level: float) -> float:
        """Return the claim's nodes when each unit of weight gets `level`."""
        return min(self.most, max(self.least, level * self.weight))


def _demand(
    seen: SiteSnapshot, wants: Mapping[int, Entitlement], pools: Pools, pool: int
) -> tuple[Counter[int], Counter[int]]:
    """Return, by group, the nodes of a pool that it holds or waits for, and how many of these are
    guaranteed."""
    held: Counter[Key] = Counter()
    staying = {one.id: one for one in seen.holders.values() if one.drain_until is None}
    for holder in staying.values():
        held[holder.group_id, OTHERS] += holder.held
    for allocation in seen.allocations:
        if allocation.kind.type in pools.apart and allocation.vcluster_id in staying:
            group_id = staying[allocation.vcluster_id].group_id
            held[group_id, allocation.kind.type] += allocation.count
            held[group_id, OTHERS] -= allocation.count
    waits: Counter[int] = Counter()
    for request in seen.requests:
        if request.starts_at is None and not request.preemptible:
            waits[request.group_id] += pools.asked(request)[pool]
    most: Counter[int] = Counter()
    least: Counter[int] = Counter()
    for group_id, own in wants.items():
        more = 0 if own.used_up else waits[group_id]
        if own.limit is not None:
            more = min(more, max(0, own.limit - held[group_id, pool]))
        most[group_id] = held[group_id, pool] + more
        least[group_id] = min(own.of(pool).guarantee, most[group_id])
    return most, least


def _filled(claims: Mapping[int, _Claim], nodes: float) -> dict[int, float]:
    """Return each claim's nodes when `nodes` are divided: the same for each unit of weight, but no
    less than the claim's lower bound and no more than its upper bound. The level is found by
    bisection."""
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
