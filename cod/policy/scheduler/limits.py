"""How many nodes groups may hold: requests beyond that wait, or are rejected where they could never be met. Pure.

All that a group's vclusters hold counts, and what its requests got or wait for with nodes of their own in the same
plan; but for preemptible vclusters, whose nodes are in nobody's way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cod.policy.scheduler.feasibility import Feasibility, Fit
from cod.policy.scheduler.placement import Found, Want
from cod.policy.scheduler.preemption import size
from cod.policy.scheduler.snapshot import ANYTHING, Entitlement, NodeKind, PendingRequest, Refusal, Snapshot


class Limits:
    """What groups hold, and may still get; changes while it is given out."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._entitlements = {one: each for one, each in snapshot.entitlements.items()
                              if each.limit is not None or each.type_limits or each.used_up}
        self._held: Counter[int] = Counter()
        self._types: Counter[tuple[int, int]] = Counter()
        self._capped: dict[tuple[Fit, frozenset[int]], Fit] = {}
        group = {holder.id: holder.group_id for holder in snapshot.holders.values()} if self._entitlements else {}
        for holding in snapshot.holdings if self._entitlements else ():
            if holding.vcluster_id in group:
                self._held[group[holding.vcluster_id]] += holding.count
                self._types[group[holding.vcluster_id], holding.kind.type] += holding.count

    def admitted(self, wants: Sequence[Want]) -> tuple[list[Want], list[Want]]:
        """Return those that may all be met, and the others. They are counted in order; types that have no room for a
        tuple are taken out of what would do for it."""
        if not self._entitlements:
            return list(wants), []
        held, types = Counter(self._held), Counter(self._types)
        admitted, others = [], []
        for want in wants:
            wish = want.wish
            entitlement = self._of(wish)
            able = self._able(want, entitlement, types)
            total = held[wish.group_id] + size(wish)
            if able is None or entitlement.used_up or (entitlement.limit is not None and total > entitlement.limit):
                others.append(want)
                continue
            held[wish.group_id] += 0 if wish.preemptible else size(wish)
            for one, fit in zip(wish.tuples, able.fits, strict=True):
                for type_id in fit.site_of.keys() & entitlement.type_limits.keys():
                    types[wish.group_id, type_id] += one.count
            admitted.append(able)
        return admitted, others

    def _of(self, wish: PendingRequest) -> Entitlement:
        """Return what binds a request: of a group's limits only its node-hours, where the vcluster is preemptible."""
        found = self._entitlements.get(wish.group_id, ANYTHING)
        return Entitlement(used_up=found.used_up) if wish.preemptible else found

    def _able(self, want: Want, entitlement: Entitlement, types: Counter[tuple[int, int]]) -> Want | None:
        """Return the request with what its group may still get of what would do for it; None where a tuple has
        nothing left of what it had."""
        if not entitlement.type_limits:
            return want
        fits, asked = [], Counter(types)
        for one, fit in zip(want.wish.tuples, want.fits, strict=True):
            full = frozenset(type_id for type_id in fit.site_of if asked[want.wish.group_id, type_id] + one.count
                             > entitlement.type_limits.get(type_id, 2**62))
            if full and full >= _there(fit):
                return None
            fits.append(self._without(fit, full) if full else fit)
            for type_id in fits[-1].site_of.keys() & entitlement.type_limits.keys():
                asked[want.wish.group_id, type_id] += one.count
        return replace(want, fits=tuple(fits))

    def _without(self, fit: Fit, types: frozenset[int]) -> Fit:
        key = fit, types
        if key not in self._capped:
            tiers = tuple(tuple(kind for kind in tier if kind.type not in types) for tier in fit.tiers)
            self._capped[key] = replace(
                fit, tiers=tuple(filter(None, tiers)), kinds=tuple(kind for tier in tiers for kind in tier),
                blocks={kind: size for kind, size in fit.blocks.items() if kind.type not in types},
                site_of={one: count for one, count in fit.site_of.items() if one not in types}, roomy={})
        return self._capped[key]

    def give(self, wish: PendingRequest, found: Found) -> None:
        """Count what a request got, or waits for with nodes of its own."""
        for place in found.places if not wish.preemptible else ():
            self.add(wish.group_id, place)

    def add(self, group_id: int, nodes: Mapping[NodeKind, int]) -> None:
        """Count nodes that a move brings to a group."""
        for kind, count in nodes.items() if self._entitlements else ():
            self._held[group_id] += count
            self._types[group_id, kind.type] += count

    def refusal(self, want: Want, fitting: Feasibility) -> Refusal:
        """Say which limit stands against a request that is not admitted."""
        wish = want.wish
        entitlement = self._of(wish)
        most = entitlement.limit
        if most is not None and size(wish) > most:
            return Refusal(wish.id, "impossible", f"its group may hold {most} nodes at once, and {size(wish)} were "
                           "asked for")
        for one, fit in zip(wish.tuples, want.fits, strict=True):
            limits = {type_id: entitlement.type_limits.get(type_id, 2**62) for type_id in _there(fit)}
            if limits and max(limits.values()) < one.count:
                names = " or ".join(f"{limit} of type {fitting.name(type_id)}"
                                    for type_id, limit in sorted(limits.items()))
                return Refusal(wish.id, "impossible", f"its group may hold {names} at once, and {one.count} were asked "
                               "for")
        if entitlement.used_up:
            why = "its group has used its node-hours of this month"
        elif most is not None and self._held[wish.group_id] + size(wish) > most:
            why = f"its group may hold {most} nodes at once"
        else:
            full = sorted({one for fit in want.fits for one in _there(fit)} & entitlement.type_limits.keys())
            why = "its group may hold " + " and ".join(
                f"{entitlement.type_limits[one]} nodes of type {fitting.name(one)}" for one in full) + " at once"
        return Refusal(wish.id, "limit", f"waits: {why}") if wish.may_wait else Refusal(wish.id, "now", why)


def _there(fit: Fit) -> set[int]:
    """Return the types of a fit that the site has nodes of."""
    return {type_id for type_id, count in fit.site_of.items() if count}
