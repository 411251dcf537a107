"""Placement of a request's tuples, for each of the tries of `policy.scheduler.allocate`. Pure.

Each tuple is served from one kind of nodes, unless the request may be spread. A request of one
tuple, as most are, needs no search. Where several tuples compete for the same nodes,
`policy.scheduler.distribution` searches for a solution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cod.policy.scheduler.distribution import Exhausted, KindDemand, fill, spread, whole
from cod.policy.scheduler.feasibility import Fit
from cod.policy.scheduler.preemption import Candidates, Level, Victim, Within
from cod.policy.scheduler.snapshot import PREEMPTIBLE, NodeKind, PendingRequest

Place = Mapping[NodeKind, int]
"""How many nodes of which kind one tuple gets."""


class FoundPlaces(NamedTuple):
    """The places of a request's tuples, and the vclusters that lose nodes for them."""

    places: Sequence[Place]
    victims: Sequence[Victim] = ()


@dataclass(frozen=True, slots=True)
class Want:
    """A request, with the kinds that match each of its tuples.

    anchors  kinds with nodes that are reserved or being reclaimed for the request
    special  the request can get nodes that other requests cannot get, or the reverse
    within   the entitlement of its group into which the request fits; the entitlement lets the
             request preempt nodes that other groups hold beyond their entitlements
    """

    request: PendingRequest
    fits: tuple[Fit, ...]
    anchors: frozenset[NodeKind] = frozenset()
    special: bool = False
    within: Within = ""

    @property
    def alone(self) -> tuple[int, Fit] | None:
        """Return (count, matching kinds) of its only tuple; None if it has several tuples or may be
        spread."""
        if len(self.fits) > 1 or self.request.may_spread:
            return None
        return self.request.tuples[0].count, self.fits[0]

    def demands(self) -> list[KindDemand]:
        """Return its tuples, each with its matching kinds in the order of attempts."""
        return [
            KindDemand(one.count, fit.kinds)
            for one, fit in zip(self.request.tuples, self.fits, strict=True)
        ]

    def anchored(self) -> list[KindDemand]:
        """Return its tuples, each with its matching kinds, anchors first."""
        return [
            KindDemand(
                one.count, tuple(sorted(one.kinds, key=lambda kind: kind not in self.anchors))
            )
            for one in self.demands()
        ]

    def touches(self, found: FoundPlaces) -> bool:
        """Return whether the found places are of any kind in `anchors`."""
        return any(not self.anchors.isdisjoint(place) for place in found.places)


def at_once(want: Want, free: Mapping[NodeKind, int]) -> FoundPlaces | None:
    """Return a place among free nodes: the block of the cheapest type with most free nodes."""
    if want.alone is None:
        return _together(want, _by_room(want, free), free)
    count, fit = want.alone
    for tier in (
        (tuple(kind for kind in fit.kinds if kind in want.anchors), *fit.tiers)
        if want.anchors
        else fit.tiers
    ):
        large_enough = [kind for kind in tier if free[kind] >= count]
        if large_enough:
            # `max` takes the first of equals: the larger block
            return FoundPlaces([{max(large_enough, key=free.__getitem__): count}])
    return None


def _by_room(want: Want, free: Mapping[NodeKind, int]) -> list[KindDemand]:
    demands = []
    for one, fit in zip(want.request.tuples, want.fits, strict=True):
        least = 1 if want.request.may_spread else one.count
        kinds = [
            kind
            for tier in fit.tiers
            for kind in sorted(
                [kind for kind in tier if free[kind] >= least], key=free.__getitem__, reverse=True
            )
        ]
        if want.anchors:
            kinds.sort(key=lambda kind: kind not in want.anchors)
        demands.append(KindDemand(one.count, tuple(kinds)))
    return demands


def later(
    want: Want, soon: Mapping[NodeKind, int], taking: Mapping[NodeKind, int], candidates: Candidates
) -> FoundPlaces | None:
    """Return a place among the nodes in `soon`, which are free or on their way; if there is none,
    also among those in `taking`, which are being reclaimed for the request; if there is none, also
    among nodes that may be preempted, from priorities as low as possible.

    So a reclaim does not go on once other nodes suffice. In each of these steps, a place with
    reserved nodes of the request precedes other places. The usual order of kinds is tried before
    the order with anchors first, because it leads to the same place in each pass until something
    changes."""
    return (
        _first(want, _expecting(want, soon))
        or (_given_back(want, soon, taking) if taking else None)
        or _first(want, _preempting(want, _sum(soon, taking), candidates))
    )


def _first(want: Want, ways: Iterator[FoundPlaces]) -> FoundPlaces | None:
    first = None
    for found in ways:
        if not want.anchors or want.touches(found):
            return found
        first = first or found
    return first


def _sum(soon: Mapping[NodeKind, int], taking: Mapping[NodeKind, int]) -> Mapping[NodeKind, int]:
    return (
        {kind: soon.get(kind, 0) + taking.get(kind, 0) for kind in {*soon, *taking}}
        if taking
        else soon
    )


def _expecting(want: Want, soon: Mapping[NodeKind, int]) -> Iterator[FoundPlaces]:
    for order in (want.demands, want.anchored) if want.anchors else (want.demands,):
        demands = order()
        found = _in_one(demands[0], soon) if want.alone else _together(want, demands, soon)
        if found is not None:
            yield found


def _given_back(
    want: Want, soon: Mapping[NodeKind, int], taking: Mapping[NodeKind, int]
) -> FoundPlaces | None:
    """Return a place that uses nodes in `taking`. A request that may be spread first uses all nodes
    in `soon`, of all kinds, so that no more nodes are reclaimed than it lacks."""
    if want.request.may_spread:
        shares = fill(want.demands(), soon)
        left = Counter(dict(taking))
        for demand, share in zip(want.demands(), shares, strict=True):
            for kind in demand.kinds:
                part = min(demand.count - share.total(), left[kind])
                share[kind] += part
                left[kind] -= part
        if all(
            share.total() == demand.count
            for demand, share in zip(want.demands(), shares, strict=True)
        ):
            return FoundPlaces([dict(+share) for share in shares])
    return _first(want, _expecting(want, _sum(soon, taking)))


def _preempting(
    want: Want, soon: Mapping[NodeKind, int], candidates: Candidates
) -> Iterator[FoundPlaces]:
    levels = candidates.levels(want.request, want.within)
    if not levels or not _each_with_victims(want, soon, candidates, levels[-1]):
        return
    demands = want.anchored() if want.anchors else want.demands()
    for level in levels:
        victims = _Victims(candidates, level, want.request.vcluster_id)
        asked = demands
        if level.priority == PREEMPTIBLE and not want.anchors:
            asked = _by_victims(demands, soon, candidates, want.request.vcluster_id)
        found = (
            victims.in_one(asked[0], soon)
            if want.alone
            else victims.together(asked, soon, want.request.may_spread)
        )
        victims.restore_all()
        if found is not None:
            yield found


def _by_victims(
    demands: Sequence[KindDemand], soon: Mapping[NodeKind, int], candidates: Candidates, but: int
) -> list[KindDemand]:
    """Return the demands with their kinds in the order in which preemptible vclusters are to lose
    nodes (`Policy.victims`)."""
    return [
        replace(
            one,
            kinds=tuple(
                sorted(
                    one.kinds,
                    key=lambda kind: candidates.preference(
                        kind, max(0, one.count - soon[kind]), but
                    ),
                )
            ),
        )
        for one in demands
    ]


def _in_one(demand: KindDemand, room: Mapping[NodeKind, int]) -> FoundPlaces | None:
    return next(
        (
            FoundPlaces([{kind: demand.count}])
            for kind in demand.kinds
            if room[kind] >= demand.count
        ),
        None,
    )


def _together(
    want: Want, demands: Sequence[KindDemand], room: Mapping[NodeKind, int]
) -> FoundPlaces | None:
    # a cheap check before the search: are there enough nodes for each tuple alone?
    if not all(
        most(fit, room, want.request.may_spread) >= one.count
        for one, fit in zip(want.request.tuples, want.fits, strict=True)
    ):
        return None
    try:
        kinds = whole(demands, room)
    except Exhausted:
        kinds = None
    if kinds is not None:
        return FoundPlaces(
            [{kind: demand.count} for kind, demand in zip(kinds, demands, strict=True)]
        )
    shares = spread(demands, room) if want.request.may_spread else None
    return None if shares is None else FoundPlaces([dict(+share) for share in shares])


def most(fit: Fit, room: Mapping[NodeKind, int], may_spread: bool) -> int:
    """Return the most nodes that a tuple could have: those of all matching kinds together if the
    request may be spread, else those of the kind with most nodes."""
    rooms = [room[kind] for kind in fit.kinds]
    return sum(rooms) if may_spread else max(rooms, default=0)


def _each_with_victims(
    want: Want, soon: Mapping[NodeKind, int], candidates: Candidates, level: Level
) -> bool:
    """Return whether each tuple alone could have enough nodes if all possible nodes were preempted
    at `level`."""
    but = want.request.vcluster_id
    for one, fit in zip(want.request.tuples, want.fits, strict=True):
        rooms = (soon[kind] + candidates.most(kind, level, but) for kind in fit.kinds)
        if not (
            sum(rooms) >= one.count
            if want.request.may_spread
            else any(room >= one.count for room in rooms)
        ):
            return False
    return True


def with_victims(
    want: Want, soon: Mapping[NodeKind, int], candidates: Candidates
) -> Mapping[NodeKind, int]:
    """Return the nodes in `soon` of each matching kind, plus all nodes that the request may
    preempt."""
    levels = candidates.levels(want.request, want.within)
    if not levels:
        return soon
    but = want.request.vcluster_id
    return {
        kind: soon[kind] + candidates.most(kind, levels[-1], but)
        for fit in set(want.fits)
        for kind in fit.kinds
    }


class _Victims:
    """Nodes that are preempted to try out one placement, from vclusters up to one level."""

    def __init__(self, candidates: Candidates, level: Level, but: int) -> None:
        self._candidates, self._level, self._but = candidates, level, but
        self._made: list[list[Victim]] = []

    def in_one(self, demand: KindDemand, soon: Mapping[NodeKind, int]) -> FoundPlaces | None:
        for kind in demand.kinds:
            short = demand.count - soon[kind]
            if short <= 0 or self._preempt(kind, short):
                return FoundPlaces([{kind: demand.count}], self._victims())
        return None

    def together(
        self, demands: Sequence[KindDemand], soon: Mapping[NodeKind, int], may_spread: bool
    ) -> FoundPlaces | None:
        """Return places for all demands. If the request may be spread, first use available nodes of
        all kinds: preempting more nodes only to keep a tuple in one block is not justified."""
        if may_spread and (found := self._spread(demands, soon)) is not None:
            return found
        self.restore_all()
        try:
            kinds = whole(demands, soon, self._preempt, self._restore)
        except Exhausted:
            kinds = None
        if kinds is not None:
            return FoundPlaces(
                [{kind: demand.count} for kind, demand in zip(kinds, demands, strict=True)],
                self._victims(),
            )
        return None

    def _spread(
        self, demands: Sequence[KindDemand], soon: Mapping[NodeKind, int]
    ) -> FoundPlaces | None:
        """Return places that use all available nodes first and preempt only the nodes that are
        missing; None if there are too few."""
        shares = fill(demands, soon)
        for demand, share in zip(demands, shares, strict=True):
            for kind in demand.kinds:
                short = demand.count - share.total()
                part = min(short, self._candidates.most(kind, self._level, self._but))
                if part and self._preempt(kind, part):
                    share[kind] += part
            if share.total() < demand.count:
                return None
        return FoundPlaces([dict(+share) for share in shares], self._victims())

    def _preempt(self, kind: NodeKind, count: int) -> bool:
        made = self._candidates.preempt(kind, count, self._level, self._but)
        if made:
            self._made.append(made)
        return bool(made)

    def _restore(self, kind: NodeKind, count: int) -> None:
        if count:  # the last preemption is undone first
            self._candidates.restore(self._made.pop())

    def restore_all(self) -> None:
        while self._made:
            self._candidates.restore(self._made.pop())

    def _victims(self) -> list[Victim]:
        """Return the preempted nodes, summed by vcluster and kind."""
        sums: Counter[tuple[int, NodeKind]] = Counter()
        for made in self._made:
            for victim in made:
                sums[victim.vcluster_id, victim.kind] += victim.nodes
        return [Victim(holder, kind, count) for (holder, kind), count in sorted(sums.items())]
