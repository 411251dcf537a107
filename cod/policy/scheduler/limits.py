"""Limits on the nodes that groups may hold. A request beyond its group's limit waits. If the limit
is lower than the request alone, the request is rejected. Pure.

All nodes of a group's vclusters count, and nodes that its requests get, or wait for with reserved
nodes, in the same plan. Nodes of preemptible vclusters do not count, because any request can take
them. A reservation in advance counts from its start on, for other reservations and for requests
whose leases last until then: so there is room within the limit when it begins.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cod.model import Policy
from cod.policy.scheduler import reasons
from cod.policy.scheduler.backfill import back
from cod.policy.scheduler.feasibility import Feasibility, Fit
from cod.policy.scheduler.leases import gone_at
from cod.policy.scheduler.placement import FoundPlaces, Want
from cod.policy.scheduler.preemption import size
from cod.policy.scheduler.snapshot import (
    ANYTHING,
    Entitlement,
    NodeKind,
    PendingRequest,
    RequestRefusal,
    SiteSnapshot,
)

ALL = 0
"""The key, in counts by type, of nodes of all types together."""
NOW = -math.inf  # a start in the past or present


class _Use(NamedTuple):
    """Nodes that a group has from `start` (or NOW) until `end`: by type, and all together by the
    key ALL."""

    start: float
    end: float
    nodes: Counter[int]


class GroupLimits:
    """The nodes that groups hold now and at the starts of their reservations in advance, compared
    with their limits. The counts change as nodes are given out."""

    def __init__(self, snapshot: SiteSnapshot, policy: Policy, now: float) -> None:
        self._snapshot, self._policy, self._now = snapshot, policy, now
        self._entitlements = {
            one: each
            for one, each in snapshot.entitlements.items()
            if each.limit is not None or each.type_limits or each.used_up
        }
        self._uses: dict[int, list[_Use]] = defaultdict(list)
        self._levels: dict[int, dict[float, Counter[int]]] = defaultdict(lambda: {NOW: Counter()})
        self._capped: dict[tuple[Fit, frozenset[int]], Fit] = {}
        for allocation in snapshot.allocations if self._entitlements else ():
            if (holder := snapshot.holders.get(allocation.vcluster_id)) is not None:
                self._use(
                    holder.group_id,
                    {allocation.kind: allocation.count},
                    NOW,
                    gone_at(holder, policy),
                )

    def admitted(self, wants: Sequence[Want]) -> tuple[list[Want], list[Want]]:
        """Return the requests that their groups' limits would let be granted together, in order,
        and the other requests. A type whose limit leaves no room for a tuple is removed from the
        tuple's matching kinds."""
        if not self._entitlements:
            return list(wants), []
        counted: dict[int, dict[float, Counter[int]]] = {}
        admitted, others = [], []
        for want in wants:
            request = want.request
            if request.group_id not in counted:
                counted[request.group_id] = {
                    at: Counter(level) for at, level in self._levels[request.group_id].items()
                }
            levels, entitlement = self._until(counted[request.group_id], request), self._of(request)
            able = None if entitlement.used_up else self._able(want, entitlement, levels)
            if able is None:
                others.append(want)
                continue
            # counted as if granted: later requests see the rest of the limit
            for level in levels if not request.preemptible else ():
                level[ALL] += size(request)
                for one, fit in zip(request.tuples, able.fits, strict=True):
                    for type_id in fit.site_of.keys() & entitlement.type_limits.keys():
                        level[type_id] += one.count
            admitted.append(able)
        return admitted, others

    def _of(self, request: PendingRequest) -> Entitlement:
        """Return the limits that apply to a request. If its vcluster is preemptible, only the
        node-hours of its group do."""
        found = self._entitlements.get(request.group_id, ANYTHING)
        return Entitlement(used_up=found.used_up) if request.preemptible else found

    def _until(
        self, levels: Mapping[float, Counter[int]], request: PendingRequest
    ) -> list[Counter[int]]:
        """Return the levels at the times at which the request's lease would last, if it is granted
        now."""
        if len(levels) == 1:
            return list(levels.values())
        end = back(request, self._snapshot, self._policy, self._now)
        return [level for at, level in levels.items() if at < end]

    def _able(
        self, want: Want, entitlement: Entitlement, levels: Sequence[Counter[int]]
    ) -> Want | None:
        """Return the request with the matching kinds that its group may still get. None: the
        group's limit is exceeded, or the limits of types leave a tuple no matching type."""
        if (
            entitlement.limit is not None
            and _peak(levels, ALL) + size(want.request) > entitlement.limit
        ):
            return None
        if not entitlement.type_limits:
            return want
        fits: list[Fit] = []
        asked: Counter[int] = Counter()
        for one, fit in zip(want.request.tuples, want.fits, strict=True):
            limited = fit.site_of.keys() & entitlement.type_limits.keys()
            full = frozenset(
                [
                    type_id
                    for type_id in limited
                    if _peak(levels, type_id) + asked[type_id] + one.count
                    > entitlement.type_limits[type_id]
                ]
            )
            if full and full >= _existing_types(fit):
                return None
            fits.append(self._without(fit, full) if full else fit)
            for type_id in limited - full:
                asked[type_id] += one.count
        return want if tuple(fits) == want.fits else replace(want, fits=tuple(fits))

    def _without(self, fit: Fit, types: frozenset[int]) -> Fit:
        key = fit, types
        if key not in self._capped:
            tiers = tuple(
                tuple(kind for kind in tier if kind.type not in types) for tier in fit.tiers
            )
            self._capped[key] = replace(
                fit,
                tiers=tuple(filter(None, tiers)),
                kinds=tuple(kind for tier in tiers for kind in tier),
                blocks={kind: size for kind, size in fit.blocks.items() if kind.type not in types},
                site_of={one: count for one, count in fit.site_of.items() if one not in types},
                roomy={},
            )
        return self._capped[key]

    # ------------------------------------------------------------ what is given out

    def give(self, request: PendingRequest, found: FoundPlaces) -> None:
        """Count the nodes at the places `found` of a request: nodes that it got, or waits for."""
        for place in found.places if self._entitlements and not request.preemptible else ():
            self._use(
                request.group_id, place, NOW, back(request, self._snapshot, self._policy, self._now)
            )

    def move(
        self,
        request: PendingRequest,
        gained: Mapping[NodeKind, int],
        taking: Mapping[NodeKind, int],
    ) -> None:
        """Count the nodes that a move brings to its group: `gained` have left the other vcluster,
        which still holds those in `taking`."""
        source = self._snapshot.holders.get(request.source_id or 0)
        end = back(request, self._snapshot, self._policy, self._now)
        # the group holds these nodes already, but not until `end`
        within = source is not None and source.group_id == request.group_id
        self._use(request.group_id, gained, NOW, end)
        self._use(
            request.group_id,
            taking,
            gone_at(source, self._policy) if source and within else NOW,
            end,
        )

    def book(self, group_id: int, start: float, end: float, nodes: Mapping[NodeKind, int]) -> None:
        """Count the nodes of a reservation that begins later, at `start`."""
        if group_id in self._entitlements:
            self._levels[group_id].setdefault(start, self._at(group_id, start))
            self._use(group_id, nodes, start, end)

    def _use(self, group_id: int, nodes: Mapping[NodeKind, int], start: float, end: float) -> None:
        if group_id not in self._entitlements:
            return
        use = _Use(start, end, Counter({ALL: sum(nodes.values())}))
        for kind, count in nodes.items():
            use.nodes[kind.type] += count
        self._uses[group_id].append(use)
        for at, level in self._levels[group_id].items():
            if start <= at < end:
                level.update(use.nodes)

    def _at(self, group_id: int, time: float) -> Counter[int]:
        total: Counter[int] = Counter()
        for use in self._uses[group_id]:
            if use.start <= time < use.end:
                total.update(use.nodes)
        return total

    # ------------------------------------------------------------ reservations in advance

    def ahead(self, want: Want, start: float, end: float) -> Want | None:
        """Return a reservation with the matching kinds that its group's limits allow from `start`
        until `end`; None if the limits do not allow the reservation."""
        if want.request.group_id not in self._entitlements:
            return want
        return self._able(
            want,
            self._of(want.request),
            [
                self._at(want.request.group_id, time)
                for time in self._times(want.request.group_id, start, end)
            ],
        )

    def _times(self, group_id: int, start: float, end: float) -> list[float]:
        return sorted(
            {start, *(use.start for use in self._uses[group_id] if start < use.start < end)}
        )

    def why_not(self, want: Want, feasibility: Feasibility, start: float, end: float) -> str:
        """Say which limit a reservation would exceed, in numbers, after `ahead` returned None."""
        request, entitlement = want.request, self._of(want.request)
        matching = {one for fit in want.fits for one in _existing_types(fit)}
        wanted: Counter[int] = Counter({ALL: size(request)})
        for one, fit in zip(request.tuples, want.fits, strict=True):
            for type_id in _existing_types(fit):
                wanted[type_id] += one.count
        limits = {ALL: entitlement.limit} | {
            one: entitlement.type_limits.get(one) for one in sorted(matching)
        }
        for key, most in limits.items():
            if most is None:
                continue
            time = max(
                self._times(request.group_id, start, end),
                key=lambda time: self._at(request.group_id, time)[key],
            )
            if self._at(request.group_id, time)[key] + wanted[key] > most:
                reserved = sum(
                    use.nodes[key]
                    for use in self._uses[request.group_id]
                    if NOW < use.start <= time < use.end
                )
                what = "nodes" if key == ALL else f"nodes of type {feasibility.name(key)}"
                return (
                    f"the group may hold {most} {what} at once; at that time it has"
                    f" {self._at(request.group_id, time)[key] - reserved} by leases that last"
                    f" longer and {reserved} by other reservations, and {wanted[key]} were asked"
                    " for"
                )
        return "the group may not hold so many nodes at that time"

    # ------------------------------------------------------------ requests that wait

    def refusal(self, want: Want, feasibility: Feasibility) -> RequestRefusal:
        """Return the refusal of a request that is not admitted, with the limit that it exceeds."""
        request = want.request
        entitlement = self._of(request)
        most = entitlement.limit
        if most is not None and size(request) > most:
            return RequestRefusal(
                request.id,
                "impossible",
                f"its group may hold {most} nodes at once, and {size(request)} were asked for",
            )
        for one, fit in zip(request.tuples, want.fits, strict=True):
            limits = {
                type_id: entitlement.type_limits.get(type_id, 2**62)
                for type_id in _existing_types(fit)
            }
            if limits and max(limits.values()) < one.count:
                names = " or ".join(
                    f"{limit} of type {feasibility.name(type_id)}"
                    for type_id, limit in sorted(limits.items())
                )
                return RequestRefusal(
                    request.id,
                    "impossible",
                    f"its group may hold {names} at once, and {one.count} were asked for",
                )
        if entitlement.used_up:
            why = "its group has used its node-hours of this month"
        elif most is not None and self._levels[request.group_id][NOW][ALL] + size(request) > most:
            why = f"its group may hold {most} nodes at once"
        elif (
            most is not None
            and _peak(self._until(self._levels[request.group_id], request), ALL) + size(request)
            > most
        ):
            why = (
                f"its group may hold {most} nodes at once, and has reserved some of them in advance"
            )
        else:
            full = sorted(
                {one for fit in want.fits for one in _existing_types(fit)}
                & entitlement.type_limits.keys()
            )
            why = (
                "its group may hold "
                + " and ".join(
                    f"{entitlement.type_limits[one]} nodes of type {feasibility.name(one)}"
                    for one in full
                )
                + " at once"
            )
        return reasons.waits(request, "limit", why)


def _peak(levels: Iterable[Counter[int]], key: int) -> int:
    return max([level[key] for level in levels])


def _existing_types(fit: Fit) -> set[int]:
    """Return the types of a fit that the site has nodes of."""
    return {type_id for type_id, count in fit.site_of.items() if count}
