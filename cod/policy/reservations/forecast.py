"""Advance reservations: requests that begin at a time to come, and where each will find its nodes.
Pure.

A forecast places every reservation, the one that was submitted first in front, on what is there by
its start: free nodes and those on their way; nodes of vclusters whose lease, with its grace and
their type's `turnaround`, is over by then; and last what may be taken from vclusters of lower
priority by a reclaim that ends in time. Where one finds no place it is placed first in another try:
an accepted set of reservations is not lost because an earlier one could choose anew.

What must stay free is not more than the reservations lack otherwise: `layers` says how many free
nodes of a kind only those may use that give them back in time. A reservation holds against requests
of every priority.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from cod.model import Policy
from cod.policy.reservations.supply import SLACK, Supply, turnaround
from cod.policy.scheduler import placement, reasons
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.leases import over
from cod.policy.scheduler.limits import GroupLimits
from cod.policy.scheduler.placement import FoundPlaces, Want
from cod.policy.scheduler.preemption import Victim, longest_grace, size
from cod.policy.scheduler.snapshot import NodeKind, PendingRequest, Reserved, SiteSnapshot

LAST = 2**62
"""The id of a reservation that is not made yet: it is placed after all others."""
ROUNDS = 8


@dataclass(frozen=True, slots=True)
class PlacedReservation:
    """A reservation with its place.

    start, gone, end  when its nodes are needed, when its lease and grace are over, and when its
                      nodes are free again
    place             the number of nodes of each kind; `own` of them are reserved for it already,
                      or being preempted for it
    victims           the nodes to preempt
    ready             the place where it can be granted now; None: it cannot
    whole             False: there are too few nodes, and `place` has those there are
    sure              False: some nodes may come too late, because they are on their way or must be
                      preempted and the start is near; or it begins now with nodes on which others
                      count
    limit             the limit of its group that forbids it, a sentence
    usable            how many of its nodes with any switch ports have usable ones: no others are
                      left
    """

    request: PendingRequest
    start: float
    gone: float
    end: float
    place: Counter[NodeKind]
    own: Counter[NodeKind]
    victims: tuple[Victim, ...] = ()
    ready: FoundPlaces | None = None
    whole: bool = True
    sure: bool = True
    limit: str = ""
    usable: Counter[NodeKind] = field(default_factory=Counter)

    def at(self, time: float) -> bool:
        """Return whether the reservation uses its nodes at that time."""
        return self.start <= time < self.end

    def beyond(self, kind: NodeKind) -> int:
        """Return how many nodes it needs beside its own that are counted in that kind."""
        usable = max(0, self.place[kind.usable] - self.own[kind.usable])
        if kind.port:
            return usable + self.usable[kind.any_port]
        return usable + max(0, self.place[kind] - self.own[kind])


def slowest(snapshot: SiteSnapshot, types: Collection[int], policy: Policy) -> float:
    """Return the seconds until nodes of all those types that are given back are free again."""
    return max((turnaround(snapshot, one, policy) for one in types), default=policy.turnaround)


def earliest(snapshot: SiteSnapshot, types: Collection[int], policy: Policy, now: float) -> float:
    """Return the earliest start for which nodes of those types can still be preempted: grace and
    erasing are over by then."""
    return now + longest_grace(policy) + slowest(snapshot, types, policy) + reasons.PUNCTUAL


def margin(snapshot: SiteSnapshot, vcluster_id: int, policy: Policy) -> float:
    """Return the seconds from the end of a vcluster's lease until its nodes can be granted
    again."""
    types = {one.kind.type for one in snapshot.allocations if one.vcluster_id == vcluster_id}
    return policy.drain_grace + slowest(snapshot, types, policy)


def reserved(snapshot: SiteSnapshot) -> list[PendingRequest]:
    """Return the requests with a future start, in the order of their submission."""
    return sorted(
        (request for request in snapshot.requests if request.starts_at is not None),
        key=lambda request: request.id,
    )


def late(request: PendingRequest, now: float) -> bool:
    """Return whether a request is a reservation whose start is over."""
    return request.starts_at is not None and request.starts_at <= now


def lengthened(snapshot: SiteSnapshot, now: float) -> SiteSnapshot:
    """Return the site with leases that last as long as the reservations of their vclusters, also
    leases that would have ended while a reservation is late."""
    holders = dict(snapshot.holders)
    for request in reserved(snapshot):
        holder = holders.get(request.vcluster_id)
        end = max(request.starts_at or now, now) + request.lease
        if (
            holder is not None
            and holder.expires_at is not None
            and holder.expires_at < end
            and (not over(holder, now) or (late(request, now) and holder.drain_until is None))
        ):
            holders[holder.id] = replace(holder, expires_at=end)
    return replace(snapshot, holders=holders)


class Forecast:
    """Placement of all reservations of a snapshot."""

    def __init__(
        self, snapshot: SiteSnapshot, feasibility: Feasibility, policy: Policy, now: float
    ) -> None:
        snapshot = lengthened(snapshot, now)
        self._snapshot = snapshot
        self._feasibility = feasibility
        self._policy = policy
        self._now = now
        order = reserved(snapshot)
        # The node-hours of a month are checked when a reservation is submitted, and when it begins.
        bound = replace(
            snapshot,
            entitlements={
                request.group_id: replace(snapshot.entitlements[request.group_id], used_up=False)
                for request in order
                if request.group_id in snapshot.entitlements
            },
        )
        self._gone = {request.id: self._end(request) for request in order}
        self.placed: list[PlacedReservation] = []
        best: tuple[list[PlacedReservation], Supply] | None = None
        for _ in range(ROUNDS):
            self.placed, self._supply = [], Supply(snapshot, policy, now)
            self._given: Counter[NodeKind] = Counter()
            self._limits = GroupLimits(bound, policy, now)
            for move in (request for request in snapshot.requests if request.source_id is not None):
                taking = self._supply.taking[move.id]
                self._limits.move(move, self._supply.own[move.id] - taking, taking)
            for request in order:
                one = self._placed(request)
                if self._supply.apart and one.ready is None:
                    one = replace(one, usable=self._usable(one))
                self.placed.append(one)
                self._limits.book(request.group_id, one.start, one.gone, one.place)
            if best is None or self._merit(self.placed) < self._merit(best[0]):
                best = self.placed, self._supply
            first = _failed(self.placed) or _unsure(self.placed)
            if not first:
                break
            # who found no place chooses first: an earlier one can choose anew, a later one cannot
            order = [*first, *(request for request in order if request not in first)]
        if best is not None:
            self.placed, self._supply = best

    @property
    def failed(self) -> set[int]:
        """Return the ids of reservations that find no place."""
        return {request.id for request in _failed(self.placed)}

    @property
    def unsure(self) -> set[int]:
        """Return the ids of reservations whose nodes may come too late."""
        return {request.id for request in _unsure(self.placed)}

    def lost(self, before: Forecast) -> set[int]:
        """Return the ids of reservations that had a sure place in `before` and have none now."""
        lost = (self.failed - before.failed) | (self.unsure - before.unsure)
        worse = self._merit(self.placed) > before._merit(before.placed)
        return lost or (self.unsure if worse else set())

    def _merit(self, placed: Sequence[PlacedReservation]) -> tuple[int, float]:
        """Return the defects of places, for comparison: reservations without a place, and the
        seconds by which the others may begin late."""
        grace = longest_grace(self._policy)
        return len(_failed(placed)), sum(
            max(
                1.0,
                self._now
                + slowest(self._snapshot, {kind.type for kind in one.place}, self._policy)
                + (grace if one.victims else 0.0)
                - one.start,
            )
            for one in placed
            if one.whole and not one.sure
        )

    def expected(self, one: PlacedReservation) -> float | None:
        """Return when a reservation whose start is over can begin, by the present leases and
        reclaims, and the expected times of nodes on their way. None: unknown."""
        request = one.request
        want = Want(request, tuple(self._feasibility.fit(each, request) for each in request.tuples))
        kinds = {kind for fit in want.fits for kind in fit.kinds}
        times = {
            math.ceil(time / 60) * 60.0
            for kind in kinds
            for time in self._supply.arrivals(kind, request.id)
        }
        taken = self._now + longest_grace(self._policy)
        preempted = {
            victim: taken + turnaround(self._snapshot, victim.kind.type, self._policy)
            for victim in one.victims
        }
        times |= {math.ceil(time / 60) * 60.0 for time in preempted.values()}
        times |= {at for kind in kinds for at, _, _ in self._supply.returns.get(kind, ())}
        for time in sorted(time for time in times if time > self._now):
            room = {
                kind: self._left(kind, time, True) + self._supply.available(kind, time, request.id)
                for kind in kinds
            }
            if one.at(time):
                for kind, count in one.place.items():
                    room[kind] += max(0, count - one.own[kind])
            for victim, back in preempted.items():
                room[victim.kind] -= victim.nodes if time < back else 0
            if placement.at_once(want, room) is not None:
                return time
        return None

    def layers(self) -> tuple[Reserved, ...]:
        """Return, by kind and start, how many further nodes that are free or on their way only
        leases may use that end by this start."""
        found = []
        rest = [one for one in self.placed if one.ready is None]
        starts = sorted({one.start for one in rest})
        kinds = {kind for one in rest for kind in one.place}
        for any_port in sorted({kind.any_port for kind in kinds}):
            level: Counter[NodeKind] = Counter()
            for start in starts:
                # what is kept with usable ports is kept of all
                for kind in (
                    (any_port.usable, any_port) if any_port.usable in kinds else (any_port,)
                ):
                    need = (
                        self._booked(kind, start)
                        - self._supply.later(kind, start)
                        - self.own_back(kind, start)
                    )
                    # what is kept until an earlier start is kept for this one, too
                    if (more := min(need, self._supply.base[kind]) - level[kind]) > 0:
                        first = next(one for one in rest if one.start == start)
                        found.append(Reserved(first.request.id, kind, more, start))
                        level.update(dict.fromkeys(kind.counted, more))
        return tuple(found)

    def counted_on(self) -> list[Victim]:
        """Return the nodes that vclusters hold and on which reservations count. No others may
        preempt them."""
        victims = list(self._supply.preempted)
        for kind in sorted({kind for one in self.placed for kind in one.place}):
            used = max(
                min(self._booked(kind, one.start), self._supply.back(kind, one.start))
                for one in self.placed
            )
            for _, holder, count in self._supply.returns.get(kind, ()):
                # the nodes that are back first are those that the reservations begin with
                if (part := min(count, used)) > 0:
                    victims.append(Victim(holder, kind, part))
                    used -= part
        return victims

    def own_back(self, kind: NodeKind, time: float) -> int:
        """Return how many nodes that are reserved, or being taken, for reservations are free again
        at that time."""
        erased = time - turnaround(self._snapshot, kind.type, self._policy)
        return sum(
            # `own` has each node in one kind only: of any port are those with usable ones, too
            own[kind] + (own[kind.usable] if not kind.port else 0)
            for request_id, own in self._supply.own.items()
            if self._gone.get(request_id, math.inf) <= erased
        )

    def free(self, until: float) -> dict[NodeKind, list[tuple[float, int]]]:
        """Return by kind, with any switch ports, how many nodes are free beside the reservations,
        from when on: (time, nodes) whenever that changes before `until`. Nodes that would have to
        be taken from others are not free."""
        placed = {kind.any_port for one in self.placed for kind in one.place}
        kinds = {kind.any_port for kind in (*self._supply.base, *self._supply.returns)} | placed
        common = {time for one in self.placed for time in (one.start, one.end)}
        found: dict[NodeKind, list[tuple[float, int]]] = {}
        for kind in sorted(kinds):
            times = {self._now, *common, *self._supply.arrivals(kind, 0)}
            times |= {at for at, _, _ in self._supply.returns.get(kind, ())}
            steps = found.setdefault(kind, [])
            for time in sorted(time for time in times if self._now <= time < until):
                count = max(0, self._left(kind, time, True))
                if not steps or steps[-1][1] != count:
                    steps.append((time, count))
        return found

    # ------------------------------------------------------------ one reservation

    def _end(self, request: PendingRequest) -> float:
        holder = self._snapshot.holders.get(request.vcluster_id)
        ends = max(request.starts_at or 0.0, self._now) + request.lease
        if holder is not None and holder.expires_at is not None:
            ends = max(ends, holder.expires_at)
        return ends + self._policy.drain_grace

    def _placed(self, request: PendingRequest) -> PlacedReservation:
        start, gone = max(request.starts_at or 0.0, self._now), self._gone[request.id]
        own = self._supply.own[request.id]
        fits = tuple(self._feasibility.fit(one, request) for one in request.tuples)
        want = Want(request, fits, frozenset(+own))
        types = {kind.type for fit in fits for kind in fit.kinds}
        end = gone + slowest(self._snapshot, types, self._policy)
        placed = partial(PlacedReservation, request, start, gone, end, own=own)
        able, limit = self._limits.ahead(want, start, gone), ""
        if able is None:
            limit = self._limits.why_not(want, self._feasibility, start, gone)
        want = able or want
        kinds = {kind for fit in want.fits for kind in fit.kinds}
        times = self._times(start, end)
        sure = {kind: self._firm(kind, times, own, sure=True) for kind in kinds}
        firm = {kind: self._firm(kind, times, own) for kind in kinds}
        if (request.starts_at or 0.0) <= self._now and not limit:
            alone = self._ready(want, sure, times, sure=True)
            # else others are left what may come too late for them
            if (found := alone or self._ready(want, firm, times, sure=False)) is not None:
                place = _sum(found)
                for kind, count in (place - self._supply.own_free[request.id]).items():
                    for each in kind.counted:
                        self._given[each] += count
                return placed(place, ready=found, sure=alone is not None)
        if (found := placement.at_once(want, sure)) is not None:
            return placed(_sum(found), whole=not limit, limit=limit)
        short = {
            kind: max(
                (
                    time
                    for time in times
                    if self._firm(kind, [time], own, sure=True) < size(request)
                ),
                default=start,
            )
            for kind in kinds
        }
        can_lose = {
            kind: self._supply.preemptible(kind, request, start, short[kind]) for kind in kinds
        }
        timely = {
            kind: count for kind, count in can_lose.items() if self._timely(kind, request, start)
        }
        if timely:
            room = {kind: sure[kind] + timely.get(kind, 0) for kind in kinds}
            if (found := placement.at_once(want, room)) is not None:
                return self._preempted(placed(_sum(found), limit=limit), sure, short)
        if (found := _surest(want, sure, firm)) is not None:
            place = (_filled(want, sure, firm) if request.may_spread else None) or _sum(found)
            return placed(place, whole=not limit, sure=False, limit=limit)
        room = {kind: firm[kind] + can_lose[kind] for kind in kinds}
        found = placement.at_once(want, room)
        place = _sum(found) if found is not None else _most(want, room)
        one = placed(place, whole=found is not None, sure=False, limit=limit)
        return self._preempted(one, firm, short)

    def _ready(
        self, want: Want, most: Mapping[NodeKind, int], times: Sequence[float], *, sure: bool
    ) -> FoundPlaces | None:
        """Return the place where a reservation whose start is over can begin now, with at most
        `most` nodes of each kind."""
        own = self._supply.own_free[want.request.id]
        room = {
            kind: max(0, min(count, self._supply.free[kind] - self._given[kind] + own[kind]))
            for kind, count in most.items()
        }
        found = placement.at_once(want, room)
        if found is None or not self._supply.apart or want.request.isolated:
            return found
        return self._parted(found, own, times, sure=sure)

    def _parted(
        self, found: FoundPlaces, own: Counter[NodeKind], times: Sequence[float], *, sure: bool
    ) -> FoundPlaces | None:
        """Return the places found, with usable ports only where other reservations leave no nodes
        without; None where too few nodes have usable ports."""
        left, places, free, given = +own, [], self._supply.free, self._given
        used: Counter[NodeKind] = Counter()
        for place in found.places:
            parts: Counter[NodeKind] = Counter()
            for kind, count in place.items():
                more = max(0, count - left[kind])
                left[kind] -= count - more
                others = min(
                    free[kind] - free[kind.usable] - given[kind] + given[kind.usable],
                    self._others(kind, times, sure),
                )
                usable = more - min(more, max(0, others - used[kind]))
                used[kind] += more - usable
                used[kind.usable] += usable
                parts.update({kind.usable: usable, kind: count - usable})
            places.append(+parts)
        for kind in (kind for kind in used if kind.port):
            available = min(self._left(kind, time, sure) for time in times)
            if used[kind] > min(available, free[kind] - given[kind]):
                return None
        return FoundPlaces(places)

    def _times(self, start: float, end: float) -> list[float]:
        """Return when there may be the fewest nodes for a reservation: at its start, and when
        others begin."""
        return [start, *(one.start for one in self.placed if start < one.start < end)]

    def _usable(self, one: PlacedReservation) -> Counter[NodeKind]:
        """Return how many nodes with usable ports a place takes that need not have them."""
        times, taken = self._times(one.start, one.end), Counter[NodeKind]()
        for victim in one.victims:
            taken[victim.kind] += victim.nodes
        return Counter(
            {
                kind: max(
                    0, one.beyond(kind) - taken[kind] - max(0, self._others(kind, times, one.sure))
                )
                for kind in one.place
                if not kind.port
            }
        )

    def _others(self, kind: NodeKind, times: Sequence[float], sure: bool = False) -> int:
        """Return how many nodes without usable ports there are at all those times."""
        return min(
            self._left(kind.any_port, time, sure) - self._left(kind.usable, time, sure)
            for time in times
        )

    def _timely(self, kind: NodeKind, request: PendingRequest, start: float) -> bool:
        """Return whether nodes of a kind can still be taken from others by the start."""
        # one that was accepted was in time then: a pass a little later must not lose it
        slack = 0.0 if request.id == LAST else reasons.PUNCTUAL + SLACK
        return start >= earliest(self._snapshot, {kind.type}, self._policy, self._now) - slack

    def _preempted(
        self, one: PlacedReservation, firm: Mapping[NodeKind, int], short: Mapping[NodeKind, float]
    ) -> PlacedReservation:
        """Return a place whose nodes are preempted except for those in `firm`."""
        lacking = {kind: count - firm[kind] for kind, count in one.place.items()}
        victims = self._supply.preempt(lacking, one.request, one.start, short)
        taken = sum(victim.nodes for victim in victims)
        enough = taken == sum(max(0, count) for count in lacking.values())
        return replace(one, victims=tuple(victims), whole=one.whole and enough and not one.limit)

    def _firm(
        self, kind: NodeKind, times: Sequence[float], own: Counter[NodeKind], sure: bool = False
    ) -> int:
        """Return the nodes of a kind that are there at all those times without preemption. `sure`:
        of nodes on their way to the reserve only those that will surely be there in time."""
        if not self._supply.apart:
            return max(0, min(self._left(kind, time, sure) for time in times) + own[kind])
        usable = min(self._left(kind.usable, time, sure) for time in times)
        # of those without usable ports more may be booked than there are: usable ones replace them
        others = self._others(kind, times, sure)
        return max(0, usable + (min(0, others) if kind.port else others) + own[kind])

    def _left(self, kind: NodeKind, time: float, sure: bool) -> int:
        return (
            (self._supply.available(kind, time) if sure else self._supply.base[kind])
            + self._supply.later(kind, time)
            + self.own_back(kind, time)
            - self._booked(kind, time)
        )

    def _booked(self, kind: NodeKind, time: float) -> int:
        return sum(one.beyond(kind) for one in self.placed if one.at(time))


def _failed(placed: Sequence[PlacedReservation]) -> list[PendingRequest]:
    return [one.request for one in placed if not one.whole]


def _unsure(placed: Sequence[PlacedReservation]) -> list[PendingRequest]:
    return [one.request for one in placed if not one.sure]


def _sum(found: FoundPlaces) -> Counter[NodeKind]:
    total: Counter[NodeKind] = Counter()
    for place in found.places:
        total.update(place)
    return total


def _surest(
    want: Want, sure: Mapping[NodeKind, int], firm: Mapping[NodeKind, int]
) -> FoundPlaces | None:
    """Return where a request finds its nodes with those on their way of one kind, the one with most
    sure nodes first; else of all kinds."""
    for kind in sorted(firm, key=lambda kind: (-sure[kind], kind)):
        if firm[kind] > sure[kind] and (
            found := placement.at_once(want, {**sure, kind: firm[kind]})
        ):
            return found
    return placement.at_once(want, firm)


def _filled(
    want: Want, sure: Mapping[NodeKind, int], firm: Mapping[NodeKind, int]
) -> Counter[NodeKind] | None:
    """Return a place of a request that may be spread, with as many sure nodes as possible: which
    nodes on their way come in time is unknown. None: too few nodes are left."""
    place: Counter[NodeKind] = Counter()
    left = [one.count for one in want.request.tuples]
    for room in (sure, firm):
        for number, fit in enumerate(want.fits):
            for kind in fit.kinds:
                part = max(0, min(left[number], room[kind] - place[kind]))
                place[kind] += part
                left[number] -= part
    return None if any(left) else +place


def _most(want: Want, room: Mapping[NodeKind, int]) -> Counter[NodeKind]:
    """Return what there is for a request that there is too little for."""
    place: Counter[NodeKind] = Counter()
    for one, fit in zip(want.request.tuples, want.fits, strict=True):
        left = one.count
        for kind in sorted(fit.kinds, key=lambda kind: (place[kind] - room[kind], kind)):
            part = max(0, min(left, room[kind] - place[kind]))
            place[kind] += part
            left -= part
            if not want.request.may_spread:
                break
    return +place
