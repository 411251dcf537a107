"""Forecast of reservations in advance: the nodes that each will have at its start. Pure.

A forecast places all reservations, in the order of their submission. A reservation is placed on
nodes that are available by its start: first free nodes and nodes on their way; then nodes of
vclusters whose lease, grace and `turnaround` (erasing, by node type) are over by then; last nodes
that can be preempted in time from vclusters of lower priority. If a reservation finds no place, the
forecast is repeated with this reservation first: an earlier one may choose other nodes, and must
not cost a later one its place.

Only as many nodes stay free as the reservations lack otherwise. `layers` returns how many free
nodes of each kind only leases may use that end in time. Reservations have precedence over requests
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
"""The id of a reservation that does not exist yet: it is placed after all others."""
ROUNDS = 8


@dataclass(frozen=True, slots=True)
class PlacedReservation:
    """A reservation with its place.

    start, gone, end  when its nodes are needed, when its lease and grace are over, and when its
                      nodes are free again
    place             the number of nodes of each kind
    own               nodes of each kind that are reserved or being preempted for it already
    victims           the nodes to preempt
    ready             the place where it can be granted now; None: it cannot be granted now
    whole             False: there are too few nodes, and `place` has as many as there are
    sure              False: some nodes may come too late, because they are on their way, or because
                      the start is too near for a preemption; or the reservation begins now with
                      nodes that other reservations count on
    limit             a sentence about the group's limit that forbids the reservation; '': none does
    usable            how many nodes with usable switch ports it takes although any port would do,
                      because too few nodes with other ports are left
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
        """Return how many nodes counted in that kind the reservation needs besides its own."""
        usable = max(0, self.place[kind.usable] - self.own[kind.usable])
        if kind.port:
            return usable + self.usable[kind.any_port]
        return usable + max(0, self.place[kind] - self.own[kind])


def slowest(snapshot: SiteSnapshot, types: Collection[int], policy: Policy) -> float:
    """Return the seconds after which nodes of any of the types are free again when they are given
    back."""
    return max((turnaround(snapshot, one, policy) for one in types), default=policy.turnaround)


def earliest(snapshot: SiteSnapshot, types: Collection[int], policy: Policy, now: float) -> float:
    """Return the earliest start by which nodes of those types can be preempted now: their grace and
    erasing must be over."""
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
    """Return the snapshot with leases extended to the end of the reservations of their vclusters.
    That includes leases that ended while their reservation begins late."""
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
            # reservations without a place choose first in the next round
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
        """Return the ids of reservations that are worse off than in the forecast `before`: without
        a place, or without a sure one."""
        lost = (self.failed - before.failed) | (self.unsure - before.unsure)
        worse = self._merit(self.placed) > before._merit(before.placed)
        return lost or (self.unsure if worse else set())

    def _merit(self, placed: Sequence[PlacedReservation]) -> tuple[int, float]:
        """Return a key that compares placements, smaller is better: the number of reservations
        without a place, and the seconds by which the others may begin late."""
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
        """Return when a late reservation can begin, by the present leases and reclaims and the
        expected arrivals of nodes on their way. None: unknown."""
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
        """Return the nodes, free or on their way, that only leases which end by a start may use: by
        kind and start, each without the nodes held for earlier starts."""
        found = []
        rest = [one for one in self.placed if one.ready is None]
        starts = sorted({one.start for one in rest})
        kinds = {kind for one in rest for kind in one.place}
        for any_port in sorted({kind.any_port for kind in kinds}):
            level: Counter[NodeKind] = Counter()
            for start in starts:
                # nodes kept with usable ports also count as kept with any port
                for kind in (
                    (any_port.usable, any_port) if any_port.usable in kinds else (any_port,)
                ):
                    need = (
                        self._booked(kind, start)
                        - self._supply.later(kind, start)
                        - self.own_back(kind, start)
                    )
                    # nodes kept until an earlier start are kept for this start, too
                    if (more := min(need, self._supply.base[kind]) - level[kind]) > 0:
                        first = next(one for one in rest if one.start == start)
                        found.append(Reserved(first.request.id, kind, more, start))
                        level.update(dict.fromkeys(kind.counted, more))
        return tuple(found)

    def counted_on(self) -> list[Victim]:
        """Return the nodes of vclusters on which reservations count. Other requests must not
        preempt them."""
        victims = list(self._supply.preempted)
        for kind in sorted({kind for one in self.placed for kind in one.place}):
            used = max(
                min(self._booked(kind, one.start), self._supply.back(kind, one.start))
                for one in self.placed
            )
            for _, holder, count in self._supply.returns.get(kind, ()):
                # reservations begin with the nodes that are back first
                if (part := min(count, used)) > 0:
                    victims.append(Victim(holder, kind, part))
                    used -= part
        return victims

    def own_back(self, kind: NodeKind, time: float) -> int:
        """Return how many nodes that are reserved, or being reclaimed, for reservations are free
        again by that time, because these reservations have ended."""
        erased = time - turnaround(self._snapshot, kind.type, self._policy)
        return sum(
            # `own` has each node in one kind only: nodes with usable ports also count for any port
            own[kind] + (own[kind.usable] if not kind.port else 0)
            for request_id, own in self._supply.own.items()
            if self._gone.get(request_id, math.inf) <= erased
        )

    def free(self, until: float) -> dict[NodeKind, list[tuple[float, int]]]:
        """Return how many nodes no reservation needs, by kind (of any switch port): (time, nodes)
        for each change from now until `until`. Nodes that would have to be preempted do not
        count."""
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
            # otherwise nodes that may come too late are left to the other reservations
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
        """Return the place where a reservation whose start has come can begin now, with at most
        `most` nodes of each kind; None if there are too few free nodes."""
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
        """Return `found` with its nodes divided by their ports: nodes with usable ports are taken
        only if other reservations leave too few without. None: too few have usable ports."""
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
        """Return the times at which there may be fewest nodes for a reservation that lasts from
        `start` to `end`: its start, and the starts of other reservations."""
        return [start, *(one.start for one in self.placed if start < one.start < end)]

    def _usable(self, one: PlacedReservation) -> Counter[NodeKind]:
        """Return how many nodes with usable ports a place takes although any port would do, by kind
        (`PlacedReservation.usable`)."""
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
        """Return how many nodes without usable ports are available at each of those times."""
        return min(
            self._left(kind.any_port, time, sure) - self._left(kind.usable, time, sure)
            for time in times
        )

    def _timely(self, kind: NodeKind, request: PendingRequest, start: float) -> bool:
        """Return whether nodes of a kind can still be preempted in time for the start."""
        # an accepted reservation was in time when it was accepted: allow for later passes
        slack = 0.0 if request.id == LAST else reasons.PUNCTUAL + SLACK
        return start >= earliest(self._snapshot, {kind.type}, self._policy, self._now) - slack

    def _preempted(
        self, one: PlacedReservation, firm: Mapping[NodeKind, int], short: Mapping[NodeKind, float]
    ) -> PlacedReservation:
        """Return the placed reservation with the preemption of the nodes that `firm` lacks."""
        lacking = {kind: count - firm[kind] for kind, count in one.place.items()}
        victims = self._supply.preempt(lacking, one.request, one.start, short)
        taken = sum(victim.nodes for victim in victims)
        enough = taken == sum(max(0, count) for count in lacking.values())
        return replace(one, victims=tuple(victims), whole=one.whole and enough and not one.limit)

    def _firm(
        self, kind: NodeKind, times: Sequence[float], own: Counter[NodeKind], sure: bool = False
    ) -> int:
        """Return how many nodes of a kind are available at all those times without preemption.
        `sure`: without nodes that are on their way and not expected in time."""
        if not self._supply.apart:
            return max(0, min(self._left(kind, time, sure) for time in times) + own[kind])
        usable = min(self._left(kind.usable, time, sure) for time in times)
        # if more nodes without usable ports are booked than there are, usable ones replace them
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
    """Return a place for a request that counts on unsure nodes of one kind only, the kind with most
    sure nodes first; if there is none, a place that counts on unsure nodes of all kinds."""
    for kind in sorted(firm, key=lambda kind: (-sure[kind], kind)):
        if firm[kind] > sure[kind] and (
            found := placement.at_once(want, {**sure, kind: firm[kind]})
        ):
            return found
    return placement.at_once(want, firm)


def _filled(
    want: Want, sure: Mapping[NodeKind, int], firm: Mapping[NodeKind, int]
) -> Counter[NodeKind] | None:
    """Return a place for a request that may be spread, with as many sure nodes as possible, because
    nodes on their way may come too late. None: there are too few nodes."""
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
    """Return the nodes that a request could have, by kind, if there are too few for all of it."""
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
