"""The nodes that a plan can give out, counted down while it is made. Pure.

There are three sorts: free nodes, in pools; nodes on their way to the reserve (being woken, wiped
and so on, and nodes of vclusters whose lease has run out); and nodes that are reserved for one
request, which may be free, on their way, or still to be given back by their holders. No other
request gets reserved nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cod.policy.scheduler.leases import over
from cod.policy.scheduler.snapshot import USABLE, WARM, Cache, FreeNodes, NodeKind, SiteSnapshot


@dataclass(slots=True)
class Own:
    """The nodes that are reserved for one request, by kind: free nodes (`free`), nodes on their way
    (`coming`), and nodes that their holders have yet to give back (`taking`)."""

    free: Counter[NodeKind] = field(default_factory=Counter)
    coming: Counter[NodeKind] = field(default_factory=Counter)
    taking: Counter[NodeKind] = field(default_factory=Counter)

    @property
    def kinds(self) -> frozenset[NodeKind]:
        """Return the kinds of which nodes are reserved for the request."""
        return frozenset(+self.free) | frozenset(+self.coming) | frozenset(+self.taking)


class Missing(NamedTuple):
    """Numbers of nodes that a waiting request still lacks: `coming` are on their way, `taking` are
    being reclaimed for it."""

    coming: int
    taking: int


@dataclass(slots=True)
class HeldBack:
    """Free nodes that are held back. Leases that end by `until` may use them."""

    free: int
    until: float


class AvailableNodes:
    """The available nodes of a pass, which shrink with each grant.

    free    unreserved nodes that are available now, by kind
    soon    the same, plus unreserved nodes on their way to the reserve
    held    nodes that are held back, by kind; `free` and `soon` do not include them
    booked  nodes held for reservations in advance, in the order of their starts
    left    free nodes of each pool that are not given out yet
    own     reserved nodes, by request id
    """

    def __init__(self, snapshot: SiteSnapshot, kinds: Iterable[NodeKind], now: float) -> None:
        self.free: dict[NodeKind, int] = dict.fromkeys(kinds, 0)
        self.soon: dict[NodeKind, int] = dict(self.free)
        self.held: dict[NodeKind, HeldBack] = {}
        self.booked: dict[NodeKind, list[HeldBack]] = {}
        self.left: dict[FreeNodes, int] = {}
        self.own: dict[int, Own] = defaultdict(Own)
        self._waking: Counter[NodeKind] = Counter()
        self._free_nodes: dict[tuple[NodeKind, int], list[FreeNodes]] = defaultdict(list)
        self._isolated = {request.id for request in snapshot.requests if request.isolated}
        self._apart = any(kind.port for kind in self.free)  # nodes are told apart by their ports
        self._shelve(snapshot)
        self._expect(snapshot, now)

    def _shelve(self, snapshot: SiteSnapshot) -> None:
        for free in snapshot.free_nodes:
            self.left[free] = self.left.get(free, 0) + free.count
            self._free_nodes[free.kind.any_port, free.reserved].append(free)
            if free.reserved:
                self.own[free.reserved].free[self._wanted(free.kind, free.reserved)] += free.count
            else:
                for kind in free.kind.counted:
                    self.free[kind] += free.count
                    self.soon[kind] += free.count

    def _expect(self, snapshot: SiteSnapshot, now: float) -> None:
        for coming in snapshot.coming:
            if coming.reserved:
                self.own[coming.reserved].coming[self._wanted(coming.kind, coming.reserved)] += (
                    coming.count
                )
            else:
                for kind in coming.kind.counted:
                    self.soon[kind] += coming.count
                    self._waking[kind] += coming.count * coming.waking
        leaving: Counter[tuple[int, NodeKind]] = Counter()
        for reclaim in snapshot.reclaims:
            self.own[reclaim.request_id].taking[reclaim.kind] += reclaim.open
            leaving[reclaim.vcluster_id, reclaim.kind.any_port] += reclaim.open
        draining = {each.id for each in snapshot.holders.values() if over(each, now)}
        for allocation in sorted(
            (one for one in snapshot.allocations if one.vcluster_id in draining),
            key=lambda one: (one.vcluster_id, one.kind),
        ):
            key = allocation.vcluster_id, allocation.kind.any_port
            # nodes that leave by a reclaim are counted in `taking` of its request
            reclaimed = min(allocation.count, leaving[key])
            leaving[key] -= reclaimed
            for kind in allocation.kind.counted:
                self.soon[kind] += allocation.count - reclaimed

    def _wanted(self, kind: NodeKind, request_id: int) -> NodeKind:
        """Return the kind under which nodes of `kind` are counted for a request: an isolated
        vcluster counts usable ports apart."""
        return kind if kind.port == USABLE and request_id in self._isolated else kind.any_port

    def now_for(self, request_id: int) -> Mapping[NodeKind, int]:
        """Return how many nodes the request can have now, by kind."""
        own = self.own.get(request_id)
        return self.free if own is None else _sum(self.free, own.free)

    def soon_for(self, request_id: int) -> Mapping[NodeKind, int]:
        """Return how many nodes the request can have now or when nodes on their way arrive, by
        kind."""
        own = self.own.get(request_id)
        return self.soon if own is None else _sum(self.soon, own.free, own.coming)

    def unused(self, request_id: int) -> Counter[NodeKind]:
        """Return how many nodes are still being reclaimed for the request although `keep` has not
        counted on them, by kind."""
        own = self.own.get(request_id)
        return Counter() if own is None else +own.taking

    # ------------------------------------------------------------ giving out

    def take(
        self, kind: NodeKind, count: int, request_id: int, wanted: Cache
    ) -> list[tuple[FreeNodes, int]]:
        """Give out the `count` best free nodes of `kind` to a request, and return them by pool.
        `wanted`: the software that the request wants on their disks."""
        reserved = self._draw(kind, request_id, count, wanted)
        return reserved + self._draw(kind, 0, count - _count(reserved), wanted)

    def keep(
        self, kind: NodeKind, count: int, request_id: int, wanted: Cache
    ) -> tuple[list[tuple[FreeNodes, int]], Missing]:
        """Keep up to `count` nodes for a waiting request. Return the free nodes among them, by
        pool, and the number of missing nodes.

        Nodes reserved for the request count first, then awake nodes, then waking nodes, and
        sleeping nodes last: otherwise each pass would wake another node. Nodes that other vclusters
        have still to give back count after all of these, because they may stay if the request has
        enough."""
        own = self.own.get(request_id) or Own()
        kept = self._draw(kind, request_id, count, wanted)
        left = count - _count(kept)
        coming = min(left, own.coming[kind])
        own.coming[kind] -= coming
        left -= coming
        for readiness_only in (True, False):
            more = self._draw(kind, 0, left, wanted, readiness_only)
            kept += more
            left -= _count(more)
            expected = self._wait(kind, left, waking_only=readiness_only)
            coming += expected
            left -= expected
        taking = min(left, own.taking[kind])
        own.taking[kind] -= taking
        return kept, Missing(coming, taking)

    def hold(
        self, kind: NodeKind, count: int, request_id: int, until: float
    ) -> tuple[int, int, int]:
        """Hold back nodes of a kind for a request, so that it has `count` with its reserved nodes.
        Return the numbers of free nodes, of nodes on their way, and of missing nodes."""
        own = self.own.get(request_id) or Own()
        left = max(0, count - own.free[kind] - own.coming[kind])
        free = min(left, self.free[kind])
        self._use(kind, free, free)
        coming = self._wait(kind, left - free, waking_only=False)
        self.held[kind] = HeldBack(free, until)
        return free, coming, left - free - coming

    def until(self, end: float) -> dict[NodeKind, int]:
        """Return how many nodes a lease that ends at `end` may use, by kind, for kinds with held
        nodes: these held nodes, plus the free nodes."""
        back = {
            kind: sum(held.free for held in self._all_held(kind) if held.until >= end)
            for kind in {**self.held, **self.booked}
        }
        return {kind: self.free[kind] + count for kind, count in back.items() if count}

    def let(self, kind: NodeKind, count: int, end: float) -> None:
        """Let a lease that ends at `end` have `count` nodes: if too few are free, make held nodes
        free that this lease may use."""
        left = max(0, count - self.free[kind])
        for held in self._all_held(kind) if left else ():
            part = min(left, held.free) if held.until >= end else 0
            held.free -= part
            left -= part
            for each in kind.counted:
                self.free[each] += part
                self.soon[each] += part

    def book(self, kind: NodeKind, until: float, count: int) -> None:
        """Hold nodes for a reservation in advance; call it in the order of the starts. Free nodes
        go before nodes on their way, which may come too late."""
        free = min(count, self.free[kind])
        self._use(kind, free, free)
        self._wait(kind, count - free, waking_only=False)
        self.booked.setdefault(kind, []).append(HeldBack(free, until))

    def _all_held(self, kind: NodeKind) -> list[HeldBack]:
        return [*([self.held[kind]] if kind in self.held else []), *self.booked.get(kind, ())]

    def _wait(self, kind: NodeKind, count: int, waking_only: bool) -> int:
        """Count out up to `count` nodes that are on their way, and return how many."""
        incoming = self.soon[kind] - self.free[kind]
        expected = min(count, incoming, self._waking[kind]) if waking_only else min(count, incoming)
        self._use(kind, 0, expected)
        for each in kind.counted:
            self._waking[each] -= min(expected, self._waking[each])
        return expected

    def _draw(
        self, kind: NodeKind, reserved: int, count: int, wanted: Cache, warm_only: bool = False
    ) -> list[tuple[FreeNodes, int]]:
        drawn = []
        if not reserved:
            count = min(count, self.free[kind])  # the rest is held back
        free_nodes = self._free_nodes.get((kind.any_port, reserved), []) if count else []
        for free in sorted(free_nodes, key=lambda free: _rank(free, wanted)):
            part = min(count, self.left[free]) if kind.port in ("", free.kind.port) else 0
            if part and (free.readiness == WARM or not warm_only):
                self.left[free] -= part
                count -= part
                drawn.append((free, part))
                if not self.left[free]:
                    free_nodes.remove(free)
        for free, part in drawn:
            if reserved:
                self.own[reserved].free[kind] -= part
            else:
                self._use(free.kind, part, part)
        return drawn

    def _use(self, kind: NodeKind, free: int, soon: int) -> None:
        """Subtract nodes from the counts `free` and `soon`. Nodes with usable ports have counts of
        their own: if `kind` leaves the port open, nodes without usable ports go first."""
        for each in kind.counted:
            self.free[each] = max(self.free[each] - free, 0)
            self.soon[each] = max(self.soon[each] - soon, 0)
        if self._apart and (usable := kind.usable) in self.free:
            lost = max(self.free[usable] - self.free[kind.any_port], 0)
            self.free[usable] -= lost
            self.soon[usable] = min(self.soon[usable] - lost, self.soon[kind.any_port])


def _rank(free: FreeNodes, wanted: Cache) -> tuple[object, ...]:
    """Return the sort key of a pool: pools with small keys are used first. First come nodes that
    isolated vclusters cannot use, then nodes that hold the wanted software, then awake nodes. Nodes
    with other software come last, because its group may want it again."""
    return (
        free.kind.port == USABLE,
        free.cache != wanted,
        free.readiness,
        free.cache is not None,
        free.cache or (),
    )


def _count(drawn: Iterable[tuple[FreeNodes, int]]) -> int:
    return sum(count for _, count in drawn)


def _sum(first: Mapping[NodeKind, int], *others: Mapping[NodeKind, int]) -> dict[NodeKind, int]:
    both = dict(first)
    for other in others:
        for kind, count in other.items():
            both[kind] = both.get(kind, 0) + count
    return both
