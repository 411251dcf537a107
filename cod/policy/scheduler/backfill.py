"""Nodes that are held back for a request that has waited long, so that it is not passed for ever.
Pure.

A large request among many small ones of its priority never sees all of its nodes free at once: the
small ones take each as it comes. So whatever has waited `Policy.hold_after` seconds and can neither
be granted nor wait for nodes that are its own holds back nodes in the place where, as far as leases
tell, it can be served first: those that are free or on their way there, as far as too few others
come back by the time that it is served; and of what vclusters of lower priority could lose there,
as much as it lacks then. Nobody behind it gets those, but for who gives them back before it could
use them (`Hold.until`): preemptible vclusters do within the grace of a reclaim. Higher priorities
come before it, and see nothing of it. That is EASY backfilling (Lifka 1995).

Of all that could use a type of nodes only the first holds any of it: when that is served the next
does. So little stands empty, and each has its turn. Nothing is held for what leases do not bring:
for who wants more than what is free, on its way, can be taken, or is held by vclusters whose lease
has an end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cod.model import Policy
from cod.policy.scheduler.feasibility import Fit
from cod.policy.scheduler.inventory import Inventory
from cod.policy.scheduler.leases import over
from cod.policy.scheduler.placement import Found, Want
from cod.policy.scheduler.preemption import Candidates, Level, Loan
from cod.policy.scheduler.snapshot import Hold, NodeKind, PendingRequest, Snapshot
from cod.policy.scheduler.spread import Demand, Exhausted, fill, whole

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class _Room:
    """What a wish can have of a kind: `now` (free, on its way or to be taken), and what comes back
    when, in order."""

    now: int
    ends: tuple[tuple[float, int], ...]

    @property
    def all(self) -> int:
        return self.now + sum(count for _, count in self.ends)

    def when(self, wanted: int, now: float) -> float:
        """Return when there are so many."""
        have = self.now
        for time, count in ((now, 0), *self.ends):
            have += count
            if have >= wanted:
                return time
        return NEVER

    def back(self, until: float) -> int:
        """Return how many come back by then."""
        return sum(count for time, count in self.ends if time <= until)


class Backfill:
    """Who holds what back; grows while a plan is made."""

    def __init__(
        self, snapshot: Snapshot, policy: Policy, now: float, stock: Inventory, lenders: Candidates
    ) -> None:
        self._snapshot, self._policy, self._now = snapshot, policy, now
        self._stock, self._lenders = stock, lenders
        self._types: set[int] = set()
        self._ends: dict[NodeKind, list[tuple[float, int, int]]] | None = None
        self._later: dict[NodeKind, list[tuple[float, int, int]]] = defaultdict(list)
        self._lost: Counter[tuple[int, NodeKind]] = Counter()
        self._made: list[Hold] = []
        self._lent: list[tuple[float, Loan]] = []
        self._vain: set[tuple[object, ...]] = set()
        self._undecided = {
            wish.id: wish
            for wish in snapshot.wishes
            if wish.id in stock.own and wish.starts_at is None
        }

    def renew(self) -> None:
        """Forget what was in vain for those before: of higher priority one may take more."""
        self._vain.clear()

    def decided(self, wish: PendingRequest) -> None:
        """Count what is reserved for a request no longer: it is counted among what `give` was told,
        or may stay."""
        self._undecided.pop(wish.id, None)

    def give(self, wish: PendingRequest, found: Found) -> None:
        """Count nodes that the request has or will have, and gives back when its lease is over; who
        loses them has them not."""
        self.decided(wish)
        if self._policy.hold_after > 0:
            time = back(wish, self._snapshot, self._policy, self._now)
            for place in found.places:
                for kind, count in place.items():
                    for each in kind.counted:
                        self._later[each].append((time, wish.vcluster_id, count))
            for loan in found.loans:
                self._lost.update(
                    {
                        (loan.vcluster_id, kind): loan.nodes
                        for kind in (loan.kind.any_port, loan.kind.usable)
                    }
                )

    def holds(self) -> tuple[Hold, ...]:
        """Return what is held back, as far as nobody has got it who gives it back in time."""
        left = self._stock.held
        return tuple(replace(one, free=min(one.free, left[one.kind].free)) for one in self._made)

    def hold(self, want: Want) -> bool:
        """Hold nodes back for a request that cannot be served, nor wait for nodes of its own, if it
        is its turn."""
        since = want.wish.submitted_at + self._policy.hold_after
        if (
            not 0 < self._policy.hold_after <= self._now - want.wish.submitted_at
            or not want.wish.may_wait
        ):
            return False
        # its nodes may be taken again at any time: none stands empty for it
        if want.wish.preemptible:
            return False
        asked = want.fits, tuple(one.count for one in want.wish.tuples), want.wish.may_spread
        if asked in self._vain or any(not self._types.isdisjoint(fit.site_of) for fit in want.fits):
            return False
        rooms, needs = self._find(want, self._level(want.wish))
        if needs is not None and not self._can_lend(want.wish, needs):
            rooms, needs = self._find(want, None)
        if needs is None:
            if not want.special and not want.wish.own:  # what there is only shrinks
                self._vain.add(asked)
            return False
        until = max(rooms[kind].when(count, self._now) for kind, count in needs.items())
        wish, level = want.wish, self._level(want.wish)
        for kind, count in sorted(needs.items()):
            self._types.add(kind.type)
            lacking = max(0, count - rooms[kind].back(until))
            free, coming, short = self._stock.hold(kind, lacking, wish.id, until)
            self._made.append(Hold(wish.id, kind, free, coming, since, until))
            if short and level is not None:
                lent = min(short, self._lenders.most(kind, level, wish.vcluster_id))
                loans = self._lenders.lend(kind, lent, level, wish.vcluster_id)
                self._lent += [
                    (until, loan)
                    for loan in loans
                    if self._snapshot.holders[loan.vcluster_id].preemptible
                ]
        return True

    def lent(self, end: float) -> list[Loan]:
        """Return what preemptible vclusters lend of what is held back until `end` or later: who
        gives it back by then may take it."""
        return [loan for until, loan in self._lent if until >= end]

    def keep(self, loans: Sequence[Loan]) -> None:
        """Take again what `lent` returned, as far as the preemptible vclusters still have it."""
        for loan in loans:
            left = min(loan.nodes, self._lenders.able(loan.kind, loan.vcluster_id))
            self._lenders.lose([loan._replace(nodes=left)])
            self._lent = [
                (until, one if one is not loan else loan._replace(nodes=left))
                for until, one in self._lent
            ]

    def _find(
        self, want: Want, level: Level | None
    ) -> tuple[Mapping[NodeKind, _Room], Counter[NodeKind] | None]:
        """Return what it could have, and where, and what of that it would use. `level`: see
        `_room`."""
        rooms = {
            kind: self._room(kind, want.wish, level) for fit in set(want.fits) for kind in fit.kinds
        }
        return rooms, (
            self._spread(want, rooms) if want.wish.may_spread else self._whole(want, rooms)
        )

    def _can_lend(self, wish: PendingRequest, needs: Mapping[NodeKind, int]) -> bool:
        """Return whether all nodes that are counted on can be taken together. One vcluster may lose
        so many, of whichever kind."""
        level, soon, loans = self._level(wish), self._stock.soon_for(wish.id), []
        if level is None:
            return True
        parts = {
            kind: min(count - soon[kind], self._lenders.most(kind, level, wish.vcluster_id))
            for kind, count in sorted(needs.items())
            if count > soon[kind]
        }
        for kind, part in parts.items():
            loans += self._lenders.lend(kind, part, level, wish.vcluster_id)
        self._lenders.give_back(loans)
        return sum(loan.nodes for loan in loans) == sum(parts.values())

    def _level(self, wish: PendingRequest) -> Level | None:
        return max(self._lenders.levels(wish, ""), default=None)

    def _room(self, kind: NodeKind, wish: PendingRequest, level: Level | None) -> _Room:
        """Return the room for a request. Its own vcluster's nodes it cannot get; those that can be
        taken for it, from priorities up to `level`, count once. None: nothing is to be taken."""
        loans = 0 if level is None else self._lenders.most(kind, level, wish.vcluster_id)
        ends = []
        for time, holder, count in self._returns().get(kind, ()):
            if holder != wish.vcluster_id:
                lends = level is not None and self._lenders.lends(holder, level)
                able = self._lenders.able(kind, holder) if lends else 0
                ends.append((time, count - self._lost[holder, kind] - able))
        ends += [
            (time, count)
            for time, holder, count in (*self._later[kind], *self._reserved(kind))
            if holder != wish.vcluster_id and time < NEVER and count > 0
        ]
        return _Room(self._stock.soon_for(wish.id)[kind] + loans, tuple(sorted(ends)))

    def _reserved(self, kind: NodeKind) -> Iterator[tuple[float, int, int]]:
        """Yield (when, from which vcluster, how many) nodes come back that are reserved, or being
        taken, for requests that are decided later."""
        for wish in self._undecided.values():
            own = self._stock.own[wish.id]
            count = sum(
                part
                for parts in (own.free, own.coming, own.taking)
                for each, part in parts.items()
                if kind in each.counted
            )
            yield back(wish, self._snapshot, self._policy, self._now), wish.vcluster_id, count

    def _returns(self) -> Mapping[NodeKind, list[tuple[float, int, int]]]:
        """(when, from which vcluster, how many) come back to each kind: made when it is first
        needed."""
        if self._ends is None:
            self._ends = defaultdict(list)
            leaving: Counter[tuple[int, NodeKind]] = Counter()
            for reclaim in self._snapshot.reclaims:
                for kind in (reclaim.kind.any_port, reclaim.kind.usable):
                    leaving[reclaim.vcluster_id, kind] += reclaim.open
            held: Counter[tuple[int, NodeKind]] = Counter()
            for holding in self._snapshot.holdings:
                for kind in holding.kind.counted:
                    held[holding.vcluster_id, kind] += holding.count
            for (vcluster_id, kind), count in held.items():
                holder = self._snapshot.holders.get(vcluster_id)
                if (
                    holder is not None
                    and holder.expires_at is not None
                    and not over(holder, self._now)
                ):
                    self._ends[kind].append(
                        (
                            holder.expires_at + self._policy.drain_grace,
                            holder.id,
                            max(count - leaving[holder.id, kind], 0),
                        )
                    )
        return self._ends

    # ------------------------------------------------------------ where

    def _whole(self, want: Want, rooms: Mapping[NodeKind, _Room]) -> Counter[NodeKind] | None:
        """Return each tuple where it can be served first."""
        try:
            kinds = whole(
                [
                    Demand(one.count, self._soonest(one.count, fit, rooms))
                    for one, fit in zip(want.wish.tuples, want.fits, strict=True)
                ],
                {kind: room.all for kind, room in rooms.items()},
            )
        except Exhausted:
            return None
        needs: Counter[NodeKind] = Counter()
        for kind, one in zip(kinds or (), want.wish.tuples, strict=False):
            needs[kind] += one.count
        return needs if kinds else None

    def _soonest(
        self, count: int, fit: Fit, rooms: Mapping[NodeKind, _Room]
    ) -> tuple[NodeKind, ...]:
        """Return the kinds that would do, by when there are so many; of equals the one that has
        most now."""
        times = {kind: rooms[kind].when(count, self._now) for kind in fit.kinds}
        return tuple(
            sorted(
                (kind for kind in fit.kinds if times[kind] < NEVER),
                key=lambda kind: (times[kind], -rooms[kind].now),
            )
        )

    def _spread(self, want: Want, rooms: Mapping[NodeKind, _Room]) -> Counter[NodeKind] | None:
        """Return what is there now, wherever; what is short of what comes back first."""
        demands = want.demands()
        shares = fill(demands, {kind: room.now for kind, room in rooms.items()})
        left = {kind: [*room.ends] for kind, room in rooms.items()}
        for demand, share in zip(demands, shares, strict=True):
            while share.total() < demand.count:
                ends = [(left[kind][0][0], kind) for kind in demand.kinds if left[kind]]
                if not ends:
                    return None
                _, kind = min(ends)
                share[kind] += (part := min(demand.count - share.total(), left[kind][0][1]))
                time, count = left[kind][0]
                left[kind][:1] = [(time, count - part)] if count > part else []
        return +sum(shares, Counter())


def back(wish: PendingRequest, snapshot: Snapshot, policy: Policy, now: float) -> float:
    """Return when a request's nodes are back at the latest, if it is granted now and its lease is
    not extended. Those of a preemptible vcluster are taken when they are wanted."""
    holder = snapshot.holders.get(wish.vcluster_id)
    ends = (
        holder.expires_at
        if holder is not None and holder.expires_at is not None
        else now + wish.lease
    )
    if wish.starts_at is not None:
        ends = max(ends, now + wish.lease)
    return min(ends + policy.drain_grace, now + policy.reclaim_grace if wish.preemptible else NEVER)
