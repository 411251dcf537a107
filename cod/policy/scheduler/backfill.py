"""Nodes that are held back for a request that has waited long, so that later requests do not pass
it for ever (EASY backfilling, Lifka 1995). Pure.

A large request among many small ones of its priority never sees all of its nodes free at once: the
small requests take each node as it comes free. So nodes are held back for a request that has waited
`Policy.hold_after` seconds, if it can neither be granted nor wait for nodes of its own. The place
is the one where, by the ends of leases, the request can be served first. Nodes there that come back
by that time need no holding. Of the others, as many as the request still lacks are held back: free
nodes and nodes on their way first, then nodes that vclusters of lower priority could lose.

Later requests do not get these nodes, unless their leases end before the waiting request could use
them (`Hold.until`). Preemptible vclusters give nodes back within the grace of a reclaim, so they
may. Requests of higher priority are decided earlier, and nothing is held back from them.

Of all requests that could use a type of nodes, only the first holds nodes of it back; the next one
does when the first has been served. So few nodes are idle, and each request has its turn. Nothing
is held back for a request that asks for more nodes than are free, on their way, preemptible by it,
or held by vclusters whose lease has an end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cod.model import Policy
from cod.policy.scheduler.available_nodes import AvailableNodes
from cod.policy.scheduler.distribution import Exhausted, KindDemand, fill, whole
from cod.policy.scheduler.feasibility import Fit
from cod.policy.scheduler.leases import over
from cod.policy.scheduler.placement import FoundPlaces, Want
from cod.policy.scheduler.preemption import Candidates, Level, Victim
from cod.policy.scheduler.snapshot import Hold, NodeKind, PendingRequest, SiteSnapshot

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class _Room:
    """Nodes of a kind that a request can have: `now` nodes (free, on their way or preempted), and
    `ends`, (time, nodes) for nodes that come back later, in the order of time."""

    now: int
    ends: tuple[tuple[float, int], ...]

    @property
    def all(self) -> int:
        return self.now + sum(count for _, count in self.ends)

    def when(self, wanted: int, now: float) -> float:
        """Return the time at which `wanted` nodes are there; `NEVER` if too few come back."""
        have = self.now
        for time, count in ((now, 0), *self.ends):
            have += count
            if have >= wanted:
                return time
        return NEVER

    def back(self, until: float) -> int:
        """Return how many nodes come back by the time `until`."""
        return sum(count for time, count in self.ends if time <= until)


class Backfill:
    """Nodes that are held back, by request; grows while a plan is made."""

    def __init__(
        self,
        snapshot: SiteSnapshot,
        policy: Policy,
        now: float,
        available: AvailableNodes,
        candidates: Candidates,
    ) -> None:
        self._snapshot, self._policy, self._now = snapshot, policy, now
        self._available, self._candidates = available, candidates
        self._types: set[int] = set()
        self._ends: dict[NodeKind, list[tuple[float, int, int]]] | None = None
        self._later: dict[NodeKind, list[tuple[float, int, int]]] = defaultdict(list)
        self._lost: Counter[tuple[int, NodeKind]] = Counter()
        self._made: list[Hold] = []
        self._preempted: list[tuple[float, Victim]] = []
        self._vain: set[tuple[object, ...]] = set()
        self._undecided = {
            request.id: request
            for request in snapshot.requests
            if request.id in available.own and request.starts_at is None
        }

    def renew(self) -> None:
        """Forget failed attempts: the next request has a higher priority and may preempt more."""
        self._vain.clear()

    def decided(self, request: PendingRequest) -> None:
        """Stop counting on the return of the request's reserved nodes: the request has been
        decided."""
        self._undecided.pop(request.id, None)

    def give(self, request: PendingRequest, found: FoundPlaces) -> None:
        """Count the nodes that the request gets, as returning when its lease is over; nodes of
        the victims no longer return from the victims."""
        self.decided(request)
        if self._policy.hold_after > 0:
            time = back(request, self._snapshot, self._policy, self._now)
            for place in found.places:
                for kind, count in place.items():
                    for each in kind.counted:
                        self._later[each].append((time, request.vcluster_id, count))
            for victim in found.victims:
                self._lost.update(
                    {
                        (victim.vcluster_id, kind): victim.nodes
                        for kind in (victim.kind.any_port, victim.kind.usable)
                    }
                )

    def holds(self) -> tuple[Hold, ...]:
        """Return the nodes that are held back and not in use by a short lease meanwhile."""
        left = self._available.held
        return tuple(replace(one, free=min(one.free, left[one.kind].free)) for one in self._made)

    def hold(self, want: Want) -> bool:
        """Hold nodes back for a request that can neither be granted nor wait for nodes of its own.
        Return whether that was done: the request must have waited long, it must be its turn, and
        leases must bring enough nodes."""
        since = want.request.submitted_at + self._policy.hold_after
        if (
            not 0 < self._policy.hold_after <= self._now - want.request.submitted_at
            or not want.request.may_wait
        ):
            return False
        # a preemptible vcluster may lose its nodes at any time: none is kept idle for it
        if want.request.preemptible:
            return False
        asked = want.fits, tuple(one.count for one in want.request.tuples), want.request.may_spread
        if asked in self._vain or any(not self._types.isdisjoint(fit.site_of) for fit in want.fits):
            return False
        rooms, needs = self._find(want, self._level(want.request))
        if needs is not None and not self._can_preempt(want.request, needs):
            rooms, needs = self._find(want, None)
        if needs is None:
            if not want.special and not want.request.own:  # the available nodes only become fewer
                self._vain.add(asked)
            return False
        until = max(rooms[kind].when(count, self._now) for kind, count in needs.items())
        request, level = want.request, self._level(want.request)
        for kind, count in sorted(needs.items()):
            self._types.add(kind.type)
            lacking = max(0, count - rooms[kind].back(until))
            free, coming, short = self._available.hold(kind, lacking, request.id, until)
            self._made.append(Hold(request.id, kind, free, coming, since, until))
            if short and level is not None:
                preempted = min(short, self._candidates.most(kind, level, request.vcluster_id))
                victims = self._candidates.preempt(kind, preempted, level, request.vcluster_id)
                self._preempted += [
                    (until, victim)
                    for victim in victims
                    if self._snapshot.holders[victim.vcluster_id].preemptible
                ]
        return True

    def preempted(self, end: float) -> list[Victim]:
        """Return the nodes of preemptible vclusters that are held back until `end` or later. A
        request whose lease ends by `end` may use them."""
        return [victim for until, victim in self._preempted if until >= end]

    def keep(self, victims: Sequence[Victim]) -> None:
        """Hold back again the nodes that `preempted` returned, except those that their holders have
        lost meanwhile."""
        for victim in victims:
            left = min(victim.nodes, self._candidates.able(victim.kind, victim.vcluster_id))
            self._candidates.remove([victim._replace(nodes=left)])
            self._preempted = [
                (until, one if one is not victim else victim._replace(nodes=left))
                for until, one in self._preempted
            ]

    def _find(
        self, want: Want, level: Level | None
    ) -> tuple[Mapping[NodeKind, _Room], Counter[NodeKind] | None]:
        """Return the room of each matching kind, and how many nodes of each kind the request would
        use, or None if there are too few nodes. For `level` see `_room`."""
        rooms = {
            kind: self._room(kind, want.request, level)
            for fit in set(want.fits)
            for kind in fit.kinds
        }
        return rooms, (
            self._spread(want, rooms) if want.request.may_spread else self._whole(want, rooms)
        )

    def _can_preempt(self, request: PendingRequest, needs: Mapping[NodeKind, int]) -> bool:
        """Return whether all nodes that `needs` counts on can be preempted together: a vcluster can
        lose only a limited number of nodes of all kinds together."""
        level, soon, victims = self._level(request), self._available.soon_for(request.id), []
        if level is None:
            return True
        parts = {
            kind: min(count - soon[kind], self._candidates.most(kind, level, request.vcluster_id))
            for kind, count in sorted(needs.items())
            if count > soon[kind]
        }
        for kind, part in parts.items():
            victims += self._candidates.preempt(kind, part, level, request.vcluster_id)
        self._candidates.restore(victims)
        return sum(victim.nodes for victim in victims) == sum(parts.values())

    def _level(self, request: PendingRequest) -> Level | None:
        return max(self._candidates.levels(request, ""), default=None)

    def _room(self, kind: NodeKind, request: PendingRequest, level: Level | None) -> _Room:
        """Return the room of a kind for a request, without the nodes of its own vcluster. It
        includes nodes that the request can preempt at `level`; None: it preempts nothing."""
        victims = 0 if level is None else self._candidates.most(kind, level, request.vcluster_id)
        ends = []
        for time, holder, count in self._returns().get(kind, ()):
            if holder != request.vcluster_id:
                can_lose = level is not None and self._candidates.can_lose(holder, level)
                able = self._candidates.able(kind, holder) if can_lose else 0
                # a node that can be preempted counts once: not also as returning by its lease
                ends.append((time, count - self._lost[holder, kind] - able))
        ends += [
            (time, count)
            for time, holder, count in (*self._later[kind], *self._reserved(kind))
            if holder != request.vcluster_id and time < NEVER and count > 0
        ]
        return _Room(self._available.soon_for(request.id)[kind] + victims, tuple(sorted(ends)))

    def _reserved(self, kind: NodeKind) -> Iterator[tuple[float, int, int]]:
        """Yield (time, vcluster, nodes) for the return of nodes that are reserved, or being
        reclaimed, for requests that are decided later."""
        for request in self._undecided.values():
            own = self._available.own[request.id]
            count = sum(
                part
                for parts in (own.free, own.coming, own.taking)
                for each, part in parts.items()
                if kind in each.counted
            )
            yield back(request, self._snapshot, self._policy, self._now), request.vcluster_id, count

    def _returns(self) -> Mapping[NodeKind, list[tuple[float, int, int]]]:
        """Return (time, vcluster, nodes) for the return of held nodes of each kind, computed on
        first use."""
        if self._ends is None:
            self._ends = defaultdict(list)
            leaving: Counter[tuple[int, NodeKind]] = Counter()
            for reclaim in self._snapshot.reclaims:
                for kind in (reclaim.kind.any_port, reclaim.kind.usable):
                    leaving[reclaim.vcluster_id, kind] += reclaim.open
            held: Counter[tuple[int, NodeKind]] = Counter()
            for allocation in self._snapshot.allocations:
                for kind in allocation.kind.counted:
                    held[allocation.vcluster_id, kind] += allocation.count
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
        """Return how many nodes of each kind the request uses if each tuple is served from the one
        kind that has enough nodes first; None: there is no such place, or it was not found."""
        try:
            kinds = whole(
                [
                    KindDemand(one.count, self._soonest(one.count, fit, rooms))
                    for one, fit in zip(want.request.tuples, want.fits, strict=True)
                ],
                {kind: room.all for kind, room in rooms.items()},
            )
        except Exhausted:
            return None
        needs: Counter[NodeKind] = Counter()
        for kind, one in zip(kinds or (), want.request.tuples, strict=False):
            needs[kind] += one.count
        return needs if kinds else None

    def _soonest(
        self, count: int, fit: Fit, rooms: Mapping[NodeKind, _Room]
    ) -> tuple[NodeKind, ...]:
        """Return the matching kinds in the order of the times at which `count` nodes are there; at
        equal times the kind with most nodes now comes first."""
        times = {kind: rooms[kind].when(count, self._now) for kind in fit.kinds}
        return tuple(
            sorted(
                (kind for kind in fit.kinds if times[kind] < NEVER),
                key=lambda kind: (times[kind], -rooms[kind].now),
            )
        )

    def _spread(self, want: Want, rooms: Mapping[NodeKind, _Room]) -> Counter[NodeKind] | None:
        """Return how many nodes of each kind the request gets: free nodes first, then those that
        return first. None: too few nodes return."""
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


def back(request: PendingRequest, snapshot: SiteSnapshot, policy: Policy, now: float) -> float:
    """Return when a request's nodes are back at the latest, if it is granted now and its lease is
    not extended. Nodes of a preemptible vcluster can be back after the grace of a reclaim."""
    holder = snapshot.holders.get(request.vcluster_id)
    ends = (
        holder.expires_at
        if holder is not None and holder.expires_at is not None
        else now + request.lease
    )
    if request.starts_at is not None:
        ends = max(ends, now + request.lease)
    return min(
        ends + policy.drain_grace, now + policy.reclaim_grace if request.preemptible else NEVER
    )
