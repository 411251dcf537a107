"""The resource manager's decision: which request gets which nodes, and which vclusters lose nodes
for it. Pure.

**Order.** Requests are decided one after the other (`policy.scheduler.priority`). Each is granted
as a whole or not at all. Requests of one priority and age are packed into the free nodes so that as
many as possible are granted (`policy.scheduler.packing`). Then each of the others looks for a place
to wait in.

**Which nodes.** Requests match node types and blocks, never single nodes
(`policy.scheduler.feasibility`). Each tuple of a request is served from one block, unless the
request may be spread. Of the blocks that are large enough, the decision takes those of the cheapest
type (the administrator sets costs, and so keeps rare machines for the requests that need them), and
of these the largest block. Inside a block nodes that hold the wanted template unmodified for the
same group go first (they need no priming), then warm ones, then cold ones, which are woken.

**Three tries.** The first try uses free nodes: if they suffice, the request is granted. The second
adds nodes on their way to the reserve. The third adds nodes that may be preempted from vclusters
(`policy.scheduler.preemption`), from the lowest priority only, then from the two lowest, and so on;
only as many nodes are preempted as the block lacks. In the first try the largest block is the one
with most free nodes. Later it is the one with most nodes, so that a waiting request waits in the
same place from pass to pass.

**A waiting request** that counts on nodes on their way or being reclaimed keeps the free nodes that
it would use: later requests do not get these. Nodes that are reserved for it, or reclaimed for it,
no other request gets. It stays in the place where it has such nodes, unless nodes without
preemption suffice elsewhere. Nodes that are still to be given back for it are counted, so that none
is preempted twice. If the request needs some of them no longer, because other nodes have come free
or it waits elsewhere, the reclaim is reduced by as many. A request that needs nodes which cannot be
preempted keeps nothing, and smaller requests may pass it. A request that all nodes of the site
could not satisfy is rejected at once; so is a request that would have to wait and may not. Every
refusal has a code and a sentence (`policy.scheduler.reasons`).

**A request that has waited long** and can have nothing yet holds back the nodes that it will need
(`policy.scheduler.backfill`). Later requests of its priority or a lower one may use these nodes
only if their leases end before it can be served.

**Moves** between two vclusters (`PendingRequest.source_id`) do not compete: an owner has chosen
their nodes, which are reserved from the beginning and granted one by one as they come free. From
the beginning, too, all of them count for the limit of the group that gets them.

**Reservations in advance** come before all other requests (`policy.reservations.forecast`). A
reservation whose start has come is granted first. Nodes that a later reservation needs are given
out only to leases that end by its start.

**Dear hours.** While energy is dear (`SiteSnapshot.dear`) preemptible vclusters get no more nodes;
they keep those that they have.

**Stability.** The plan depends on the rows of the snapshot, never on their order. Planning again
when nothing has changed decides nothing.

The work grows with the number of kinds of nodes and of requests, not with nodes. The available
nodes only become fewer while a plan is made. So once a request has failed, a later request for the
same or more nodes is not tried.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from cod.model import Policy
from cod.policy.reservations import forecast, supply
from cod.policy.scheduler import placement, priority, reasons
from cod.policy.scheduler.available_nodes import AvailableNodes, Own
from cod.policy.scheduler.backfill import Backfill, back
from cod.policy.scheduler.feasibility import Feasibility, Fit
from cod.policy.scheduler.leases import over
from cod.policy.scheduler.limits import GroupLimits
from cod.policy.scheduler.packing import pack
from cod.policy.scheduler.placement import FoundPlaces, Want
from cod.policy.scheduler.preemption import Candidates, Level, Victim
from cod.policy.scheduler.snapshot import (
    USABLE,
    Cache,
    Decision,
    FreeNodes,
    NodeKind,
    OpenReclaim,
    PendingRequest,
    Preempt,
    PreemptLess,
    RequestGrant,
    RequestRefusal,
    Reserved,
    Share,
    SiteSnapshot,
)

ROUNDS = 8  # of looking again at requests for which their group's limit had no room


def decide(
    snapshot: SiteSnapshot, policy: Policy, now: float, feasibility: Feasibility | None = None
) -> Decision:
    """Return the decision about every pending request of `snapshot`, at `now` (seconds since the
    epoch).

    feasibility  of `snapshot`; None: it is made here
    """
    feasibility = feasibility or Feasibility(snapshot, now)
    if reservations := forecast.reserved(snapshot):
        snapshot = forecast.lengthened(snapshot, now)
    choice = _Choice(snapshot, feasibility, policy, now)
    for move in (request for request in snapshot.requests if request.source_id is not None):
        choice.move(move)
    if reservations:
        choice.reserve()
        snapshot = replace(
            snapshot,
            requests=[request for request in snapshot.requests if request.starts_at is None],
        )
    if snapshot.dear:
        snapshot = choice.hold(snapshot)
    for peers in priority.peers(snapshot, policy, feasibility, now):
        choice.decide(peers)
    return choice.decision()


class _Choice:
    """The decision about one request after another, with counts of the nodes still available."""

    def __init__(
        self, snapshot: SiteSnapshot, feasibility: Feasibility, policy: Policy, now: float
    ) -> None:
        self._snapshot = snapshot
        self._feasibility = feasibility
        self._policy = policy
        self._now = now
        self._available = AvailableNodes(snapshot, feasibility.kinds, now)
        self._candidates = Candidates(snapshot, now, policy.victims)
        self._limits = GroupLimits(snapshot, policy, now)
        self._backfill = Backfill(snapshot, policy, now, self._available, self._candidates)
        self._failures = _Failures()
        self._grants: list[RequestGrant] = []
        self._preemptions: list[Preempt] = []
        self._refusals: list[RequestRefusal] = []
        self._reductions: list[PreemptLess] = []
        self._reclaims: dict[int, list[OpenReclaim]] = defaultdict(list)
        for reclaim in snapshot.reclaims:
            self._reclaims[reclaim.request_id].append(reclaim)
        self._kept: Counter[FreeNodes] = Counter()
        self._reserved: tuple[Reserved, ...] = ()
        self._losing: set[tuple[int, NodeKind]] = set()
        self._priority = math.inf  # of the request that was decided last
        self._preemptible = any(one.preemptible for one in snapshot.holders.values())

    def decision(self) -> Decision:
        """Return what has been decided, in the order of the requests."""
        return Decision(
            tuple(self._grants),
            tuple(self._preemptions),
            tuple(self._refusals),
            tuple(self._reductions),
            dict(self._kept),
            self._backfill.holds(),
            self._reserved,
        )

    def move(self, request: PendingRequest) -> None:
        """Grant the free nodes among those reserved for a move, or say why the move waits. A move
        without reserved nodes has ended."""
        holder = self._snapshot.holders.get(request.vcluster_id)
        source = self._snapshot.holders.get(request.source_id or 0)
        # the move ends with the lease: see `core.requests.suspend`
        if holder is None or over(holder, self._now):
            self._refusals.append(reasons.run_out(request))
            return
        own = self._available.own.get(request.id, Own())
        free, coming, taking = +own.free, own.coming.total(), own.taking.total()
        portless = Counter(
            {
                kind: count
                for kind, count in free.items()
                if request.isolated and kind.port != USABLE
            }
        )
        free -= portless
        # nodes that `source` holds already count for its group
        within = source is not None and source.group_id == request.group_id
        self._limits.move(request, free + own.coming, own.taking)
        for kind, count in free.items():
            self._candidates.add(request.group_id, kind, count)
        for kind, count in (own.coming + (Counter() if within else own.taking)).items():
            self._candidates.wait(request.group_id, kind, count)
        if free:
            wanted = Cache(request.tuples[0].template_id, request.group_id)
            self._grants.append(
                RequestGrant(
                    request.id,
                    tuple(
                        Share(0, request.tuples[0].template_id, nodes, part)
                        for kind, count in sorted(free.items())
                        for nodes, part in self._available.take(kind, count, request.id, wanted)
                    ),
                )
            )
        if not free or coming or taking or portless:
            self._refusals.append(reasons.moving(request, coming, taking, portless.total()))

    def reserve(self) -> None:
        """Grant reservations whose start has come, and keep nodes for the later ones."""
        ahead = forecast.Forecast(self._snapshot, self._feasibility, self._policy, self._now)
        for reservation in ahead.placed:
            self._begin(reservation, ahead)
        for reservation in ahead.placed:
            if reservation.ready is None:
                self._limits.book(
                    reservation.request.group_id,
                    reservation.start,
                    reservation.gone,
                    reservation.place,
                )
        self._reserved = ahead.layers()
        for layer in self._reserved:
            erasing = supply.turnaround(self._snapshot, layer.kind.type, self._policy)
            self._available.book(layer.kind, layer.start - erasing, layer.count)
        for holder, kind, count in ahead.counted_on():
            if (able := min(count, self._candidates.able(kind, holder))) > 0:
                self._candidates.remove([Victim(holder, kind, able)])
                # the loser's group holds these nodes until the preemption: they still use up its
                # entitlement
                self._candidates.wait(self._snapshot.holders[holder].group_id, kind, able)

    def _begin(self, reservation: forecast.PlacedReservation, ahead: forecast.Forecast) -> None:
        """Grant a reservation, or say why it waits; preempt its victims for which it is time."""
        request = reservation.request
        want = self._want(request)
        if self._run_out(request):
            return
        if reservation.limit and self._now >= reservation.start:
            why = f"waits: {reservation.limit}"
            self._refuse(request, RequestRefusal(request.id, "limit", why))
        elif reservation.ready is None:
            late = forecast.late(request, self._now - reasons.PUNCTUAL)
            when = ahead.expected(reservation) if late else None
            self._refusals.append(reasons.reserved(request, self._now, when))
            if not reservation.limit:
                near = [
                    victim
                    for victim in reservation.victims
                    if self._now
                    >= reservation.start
                    - supply.lead(self._snapshot, victim.kind.type, self._policy)
                ]
                self._preempt(request, near)
        elif self._limits.admitted([want])[0]:
            self._grant(want, reservation.ready)
        else:
            self._refuse(request, self._limits.refusal(want, self._feasibility))

    def hold(self, snapshot: SiteSnapshot) -> SiteSnapshot:
        """Let requests of preemptible vclusters wait while energy is dear. Return the snapshot
        without these requests."""
        others = []
        for one in snapshot.requests:
            if one.preemptible and one.source_id is None:
                self._refuse(one, reasons.waits(one, "dear", snapshot.dear))
            else:
                others.append(one)
        return replace(snapshot, requests=others)

    def decide(self, peers: Sequence[PendingRequest]) -> None:
        """Grant requests of one priority and age, or say why not.

        Nodes that they get, keep or preempt are gone for later requests. A request that its group's
        limit has no room for may find room when requests before it were not granted after all: such
        requests are tried again, in up to `ROUNDS` rounds.
        """
        if peers[0].priority > self._priority:  # may preempt more than earlier requests could
            self._failures = _Failures()
            self._backfill.renew()
        self._priority = peers[0].priority
        wants = [self._want(request) for request in peers if not self._run_out(request)]
        for _ in range(ROUNDS):
            admitted, wants = self._limits.admitted(wants)
            self._decide(admitted)
            if not wants or not admitted:
                break
        for want in wants:
            self._refuse(want.request, self._limits.refusal(want, self._feasibility))

    def _decide(self, wants: Sequence[Want]) -> None:
        """Decide requests that their groups' limits admit. A request with reserved nodes keeps them
        and its place in the order: only requests behind the last such request are packed."""
        waited = max((number for number, want in enumerate(wants, 1) if want.anchors), default=0)
        left: list[Want] = []
        for want in wants[:waited]:
            found = self._now_for(want)
            if found is not None:
                self._grant(want, found)
            elif not self._preemptible:
                self._postpone(want)
            elif not (self._meanwhile(want) or self._awaits(want)):
                left.append(want)
        packed: dict[int, FoundPlaces] = {}
        # one after the other, because nodes with usable ports count for both
        for isolated in (True, False):
            part = [want for want in wants[waited:] if want.request.isolated == isolated]
            packed |= self._packed(part)
            for want in part:
                if want.request.id in packed:
                    self._grant(want, packed[want.request.id])
        rest = [want for want in wants[waited:] if want.request.id not in packed]
        # nodes of preemptible vclusters are as good as free: give them out before any of these
        # requests holds them back
        if self._preemptible:
            rest = [want for want in rest if not (self._meanwhile(want) or self._awaits(want))]
        for want in [*left, *rest]:
            if not self._meanwhile(want):
                self._postpone(want)

    def _run_out(self, request: PendingRequest) -> bool:
        holder = self._snapshot.holders.get(request.vcluster_id)
        if holder is None or not over(holder, self._now):
            return False
        self._refuse(request, reasons.run_out(request))
        return True

    def _packed(self, wants: Sequence[Want]) -> dict[int, FoundPlaces]:
        """Return the places of the requests that can be granted together, by request id. Leave out
        requests that could not be granted even alone."""
        alone = [(want, found) for want in wants if (found := self._now_for(want)) is not None]
        if len(alone) < 2:
            return {want.request.id: found for want, found in alone}
        types = self._snapshot.types
        return pack(
            [want for want, _ in alone], self._available.free, lambda kind: types[kind.type].cost
        )

    def _meanwhile(self, want: Want) -> bool:
        """Grant the request with nodes that are held back for other requests, if its lease ends
        before those requests could use them. Return whether it was granted."""
        if not (self._available.held or self._available.booked):
            return False
        end = back(want.request, self._snapshot, self._policy, self._now)
        room = {
            kind: count
            for kind, count in self._available.until(end).items()
            if want.request.preemptible
            or (want.request.group_id, kind.any_port) not in self._losing
        }
        own = self._available.own.get(want.request.id)
        if own is not None:
            room = {kind: count + own.free[kind] for kind, count in room.items()}
        if not any(
            kind in fit.blocks and (want.request.may_spread or count >= one.count)
            for kind, count in room.items()
            for one, fit in zip(want.request.tuples, want.fits, strict=True)
        ):
            return False
        found = placement.at_once(want, {**self._available.now_for(want.request.id), **room})
        if found is None:
            return False
        for place in found.places:
            for kind, count in place.items():
                self._available.let(
                    kind, count if own is None else max(0, count - own.free[kind]), end
                )
        self._grant(want, found)
        return True

    def _later_meanwhile(self, want: Want) -> FoundPlaces | None:
        """Return a place for the request that also uses nodes held back for other requests, free or
        in use by preemptible vclusters, if its lease ends before the others could use them. None:
        there is no such place."""
        end = back(want.request, self._snapshot, self._policy, self._now)
        held = self._available.until(end) if self._preemptible else {}
        preempted = self._backfill.preempted(end)
        own = self._available.own.get(want.request.id) or Own()
        if want.request.preemptible or not (preempted or (held and own.kinds)):
            return None
        room = {
            kind: count + held[kind] - self._available.free[kind] if kind in held else count
            for kind, count in self._available.soon_for(want.request.id).items()
        }
        # Backfill has counted these nodes as lost. Restore them while looking for a place, then let
        # backfill keep those that are left, and undo the new preemptions: `_wait` makes them.
        self._candidates.restore(preempted)
        found = placement.later(want, room, own.taking, self._candidates)
        victims = found.victims if found is not None else ()
        self._candidates.remove(victims)
        self._backfill.keep(preempted)
        self._candidates.restore(victims)
        for place in found.places if found is not None else ():
            for kind, count in place.items():
                taken = sum(victim.nodes for victim in victims if victim.kind == kind)
                taken += own.free[kind] + own.coming[kind] + own.taking[kind]
                if kind in held and count > taken:
                    self._available.let(kind, min(count - taken, held[kind]), end)
        return found

    def _now_for(self, want: Want) -> FoundPlaces | None:
        return self._failures.unless("now", want, self._at_once, self._most_now)

    def _grant(self, want: Want, found: FoundPlaces) -> None:
        self._count(want.request, found)
        shares = tuple(self._shares(want, found))
        for share in shares if not want.request.preemptible else ():
            if not share.free_nodes.reserved:
                self._candidates.grow(want.request.group_id, share.free_nodes.kind)
        self._grants.append(RequestGrant(want.request.id, shares))

    def _preempt(self, request: PendingRequest, victims: Sequence[Victim]) -> None:
        for victim in victims:
            self._preemptions.append(Preempt(request.id, *victim))
            self._losing.add(
                (self._snapshot.holders[victim.vcluster_id].group_id, victim.kind.any_port)
            )

    def _count(self, request: PendingRequest, found: FoundPlaces, *, waits: bool = False) -> None:
        """Count the nodes that the request gets or, with `waits`, waits for."""
        self._backfill.give(request, found)
        self._limits.give(request, found)
        self._candidates.gain(request, found.places, waits=waits)

    def _awaits(self, want: Want, *, meanwhile: bool = False) -> bool:
        """Let the request wait for the best place, if there is one, and return whether there is.
        `meanwhile`: consider also nodes that are held back for others, if they return in time."""
        if not want.request.may_wait:
            return False
        want = self._entitled(want)
        found = self._failures.unless("later", want, self._later, self._most_later)
        if found is None and meanwhile:
            found = self._later_meanwhile(want)
        if found is not None:
            self._refuse(want.request, self._wait(want, found))
        return found is not None

    def _postpone(self, want: Want) -> None:
        """Let the request wait in the best place, or say why there is none."""
        if self._awaits(want, meanwhile=True):
            return
        want = self._entitled(want)
        refusal = reasons.why_not(want, self._feasibility, self._backfill.hold(want))
        # perhaps there is a place that the search did not find: see `spread.Exhausted`
        if len(want.fits) > 1 and not want.request.may_spread:
            self._refusals.append(refusal)
        else:
            self._refuse(want.request, refusal)

    def _refuse(self, request: PendingRequest, refusal: RequestRefusal) -> None:
        """Refuse the request. Reduce its open reclaims by the nodes that it no longer counts on:
        reclaims from the highest priority first, of these the one with the latest deadline."""
        self._refusals.append(refusal)
        self._backfill.decided(request)
        unused = Counter() if refusal.final else self._available.unused(request.id)
        for reclaim in sorted(
            self._reclaims.get(request.id, ()) if unused else (), key=self._spared
        ):
            part = min(reclaim.open, unused[reclaim.kind])
            if part:
                unused[reclaim.kind] -= part
                self._reductions.append(PreemptLess(reclaim.id, part, reclaim.open - part))

    def _spared(self, reclaim: OpenReclaim) -> tuple[float, ...]:
        holder = self._snapshot.holders.get(reclaim.vcluster_id)
        return -(holder.priority if holder else 0), -reclaim.deadline, -reclaim.id

    def _want(self, request: PendingRequest) -> Want:
        own = self._available.own.get(request.id)
        fits = tuple(self._feasibility.fit(one, request) for one in request.tuples)
        return Want(
            request,
            fits,
            own.kinds if own else frozenset(),
            own is not None
            or self._candidates.can_lose(request.vcluster_id, Level(request.priority - 1)),
        )

    def _entitled(self, want: Want) -> Want:
        """Return `want` with the entitlement of its group (guarantee or share) that it fits into
        at present."""
        within = self._candidates.within(want.request)
        return want if within == want.within else replace(want, within=within)

    def _at_once(self, want: Want) -> FoundPlaces | None:
        return placement.at_once(want, self._available.now_for(want.request.id))

    def _later(self, want: Want) -> FoundPlaces | None:
        own = self._available.own.get(want.request.id)
        return placement.later(
            want,
            self._available.soon_for(want.request.id),
            own.taking if own else {},
            self._candidates,
        )

    def _most_now(self, want: Want) -> list[int]:
        return [
            placement.most(fit, self._available.free, want.request.may_spread) for fit in want.fits
        ]

    def _most_later(self, want: Want) -> list[int]:
        rooms = placement.with_victims(want, self._available.soon, self._candidates)
        return [placement.most(fit, rooms, want.request.may_spread) for fit in want.fits]

    def _shares(self, want: Want, found: FoundPlaces) -> Iterator[Share]:
        for position, (one, place) in enumerate(
            zip(want.request.tuples, found.places, strict=True)
        ):
            for kind, count in sorted(place.items()):
                wanted = Cache(one.template_id, want.request.group_id)
                for free, part in self._available.take(kind, count, want.request.id, wanted):
                    yield Share(position, one.template_id, free, part)

    def _wait(self, want: Want, found: FoundPlaces) -> RequestRefusal:
        """Keep the free nodes at the found place for the request, and preempt the victims. Return
        the refusal that says what the request waits for."""
        request, coming = want.request, 0
        taking = sum(victim.nodes for victim in found.victims)
        for one, place in zip(request.tuples, found.places, strict=True):
            for kind, count in sorted(place.items()):
                kept, missing = self._available.keep(
                    kind, count, request.id, Cache(one.template_id, request.group_id)
                )
                coming += missing.coming
                taking += missing.taking
                self._kept.update(dict(kept))
        self._candidates.remove(found.victims)
        self._count(request, found, waits=True)
        self._preempt(request, found.victims)
        return reasons.waiting(request, coming, taking)


_Key = tuple[str, Fit, bool, str]


class _Failures:
    """The failed attempts of a pass. A later request for the same or more nodes fails, too, because
    the available nodes only become fewer.

    Requests are always tried if they have reserved nodes, or if their own vcluster holds nodes that
    other requests can preempt (`Want.special`)."""

    def __init__(self) -> None:
        self._least: dict[_Key, int] = {}
        self._asked: set[tuple[object, ...]] = set()

    def unless(
        self,
        name: str,
        want: Want,
        way: Callable[[Want], FoundPlaces | None],
        most: Callable[[Want], Sequence[int]],
    ) -> FoundPlaces | None:
        """Return the place that `way` finds; None, without calling `way`, if the same attempt has
        failed before. `most`: returns how many nodes each tuple could have if it were alone."""
        if want.special:
            return way(want)
        keys = [(name, fit, want.request.may_spread, want.within) for fit in want.fits]
        asked = *keys, *(one.count for one in want.request.tuples)
        if asked in self._asked or not all(
            one.count < self._least.get(key, one.count + 1)
            for key, one in zip(keys, want.request.tuples, strict=True)
        ):
            return None
        found = way(want)
        if found is None:
            self._asked.add(asked)
            self._least.update((key, one + 1) for key, one in zip(keys, most(want), strict=True))
        return found
