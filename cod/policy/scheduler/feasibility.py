"""Nodes that match a request: types by what they have, blocks by their size. Pure.

A type is eligible for a tuple of a request when its canonical attributes satisfy the requirements
of the tuple and of its template, with the needs of the template's images
(`policy.hardware.needs`). Whether a document's requirements are satisfied never changes, so the
result is cached from pass to pass. The site's nodes of each kind are counted once a pass. Nodes
that are set aside are neither free nor allocated: they count for their type, and may be in any
block of it.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from cod.model import RequestTuple
from cod.policy.hardware import needs
from cod.policy.hardware.match import AttributeMismatch, satisfies
from cod.policy.nodes import template
from cod.policy.scheduler.snapshot import (
    USABLE,
    Allocation,
    FreeNodes,
    IncomingNodes,
    NodeKind,
    PendingRequest,
    SiteSnapshot,
)

Lacking = tuple[AttributeMismatch, ...]

_parse = lru_cache(maxsize=1024)(template.parse)


@lru_cache(maxsize=1 << 16)
def _satisfies(requirements: str, attributes: str) -> Lacking:
    return tuple(satisfies(requirements, attributes))


@lru_cache(maxsize=1 << 14)
def _of_template(document: str, attributes: str) -> Lacking:
    return needs.lacking(_parse(document), attributes)


def lacking(wanted: str, document: str, attributes: str) -> Lacking:
    """Return the requirements that a node type does not satisfy, out of those of a tuple (`wanted`)
    and of its template (`document`). `attributes`: the type's canonical attributes."""
    return _satisfies(wanted, attributes) + _of_template(document, attributes)


@dataclass(frozen=True, slots=True)
class PortCounts:
    """Numbers of nodes that match a request for an isolated vcluster, by their switch ports.

    matching  matching nodes with any switch port
    unusable  matching nodes whose port is unusable, so that the vcluster cannot have them
    usable    matching nodes with a usable port
    """

    matching: int
    unusable: int
    usable: int


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """The node kinds that match a tuple on one subnet. Tuples that the same types match share one.

    tiers    eligible kinds by cost, the cheapest first; within a cost the largest blocks of the
             site first; without kinds whose maintenance comes too early
    kinds    the kinds of all tiers, in the same order
    blocks   how many nodes each block has, with all nodes that are set aside, in maintenance or not
    site_of  nodes of each eligible type on that subnet, of all holders
    site     nodes of all eligible types
    largest  nodes of the largest block
    parted   whether the nodes are in more than one block
    roomy    cached results of `in_blocks_of`
    """

    tiers: tuple[tuple[NodeKind, ...], ...]
    kinds: tuple[NodeKind, ...]
    blocks: Mapping[NodeKind, int]
    site_of: Mapping[int, int]
    site: int
    largest: int
    parted: bool
    roomy: dict[int, int] = field(default_factory=dict)

    def in_blocks_of(self, count: int) -> int:
        """Return how many nodes are in eligible blocks that have at least `count` nodes."""
        if count not in self.roomy:
            self.roomy[count] = sum(size for size in self.blocks.values() if size >= count)
        return self.roomy[count]


class Feasibility:
    """The nodes of the site that match requests at `now`."""

    def __init__(self, snapshot: SiteSnapshot, now: float) -> None:
        self._snapshot, self._now = snapshot, now
        self.expected = snapshot.expected
        self.sizes: Counter[NodeKind] = Counter()
        parts: tuple[Sequence[FreeNodes | IncomingNodes | Allocation], ...] = (
            snapshot.free_nodes,
            snapshot.coming,
            snapshot.allocations,
        )
        rows: Counter[NodeKind] = Counter()
        for part in itertools.chain(*parts):
            rows[part.kind] += part.count
        for row, count in rows.items():
            for kind in row.counted:
                self.sizes[kind] += count
        seen: Counter[int] = Counter()
        for kind, count in self.sizes.items():
            if not kind.port:
                seen[kind.type] += count
        # the larger of both: the rows of a type may be more than its count says
        self._known = Counter(dict(snapshot.site)) | seen
        self.aside = {
            type_id: max(0, count - seen[type_id]) for type_id, count in snapshot.site.items()
        }
        self._by_type: dict[int, list[NodeKind]] = defaultdict(list)
        # A node that is set aside may come back in any block, also in one without other nodes of
        # its type.
        away = {NodeKind(one, 0, "") for one, count in self.aside.items() if count or not seen[one]}
        if any(request.isolated for request in snapshot.requests):
            away |= {kind.usable for kind in away}
        for kind in sorted(self.sizes.keys() | away):
            self._by_type[kind.type].append(kind)
        self._allocations: dict[int, Counter[NodeKind]] = defaultdict(Counter)
        for allocation in snapshot.allocations:
            for kind in allocation.kind.counted:
                self._allocations[allocation.vcluster_id][kind] += allocation.count
        self._lacks: dict[tuple[str, int], dict[int, Lacking]] = {}
        self._asked: dict[tuple[str, int, str, bool, int], Fit] = {}
        self._fits: dict[tuple[tuple[int, ...], str, str, int], Fit] = {}
        self._blocks: Counter[NodeKind] = Counter()
        for kind, count in self.sizes.items():
            self._blocks[kind._replace(windows=0)] += count

    @property
    def kinds(self) -> Iterable[NodeKind]:
        """Return all kinds of nodes that the site has, or may have when nodes that are set aside
        come back."""
        return (kind for kinds in self._by_type.values() for kind in kinds)

    def has(self, type_id: int) -> bool:
        """Return whether the site has any nodes of the type."""
        return self._known[type_id] > 0

    def name(self, type_id: int) -> str:
        return self._snapshot.types[type_id].name

    def fit(self, one: RequestTuple, request: PendingRequest) -> Fit:
        """Return the kinds that match a tuple of a request: on its vcluster's subnet, with usable
        switch ports for an isolated vcluster, and without maintenance before its lease ends."""
        return self._found(one, request.subnet, request.isolated, self.closed(request))

    def anywhere(self, request: PendingRequest) -> tuple[Fit, ...]:
        """Return the kinds that match each tuple, with any switch port and any maintenance."""
        return tuple(self._found(one, request.subnet, False, 0) for one in request.tuples)

    def _found(self, one: RequestTuple, subnet: str, isolated: bool, closed: int) -> Fit:
        asked = one.attributes, one.template_id, subnet, isolated, closed
        if asked not in self._asked:
            eligible = tuple(sorted(type_id for type_id, why in self.lacks(one).items() if not why))
            key = eligible, subnet, USABLE if isolated else "", closed
            if key not in self._fits:
                self._fits[key] = self._fit(*key)
            self._asked[asked] = self._fits[key]
        return self._asked[asked]

    def closed(self, request: PendingRequest) -> int:
        """Return the bits of the maintenance windows that the request's lease would overlap. A
        preemptible vcluster may have nodes of a coming window, and loses them when the window
        begins. No vcluster gets nodes of a window that drains."""
        closed = 0
        for bit, window in self._snapshot.windows.items():
            starts, ends = self._lease(request)
            if starts < window.ends and ends > window.begins:
                closed |= bit
        return closed

    def _lease(self, request: PendingRequest) -> tuple[float, float]:
        """Return the begin and end of the lease with which a request is compared to maintenance
        windows. The lease of a preemptible vcluster ends as it begins: it may be cut short."""
        starts = max(self._now, request.starts_at or self._now)
        if request.preemptible:
            return starts, starts
        holder = self._snapshot.holders.get(request.vcluster_id)
        if request.starts_at is None and holder is not None and holder.expires_at is not None:
            return starts, holder.expires_at
        return starts, starts + request.lease

    def maintained(self, request: PendingRequest) -> str:
        """Return the reasons of the maintenance windows that keep matching nodes from a request, as
        text; '' if there are none."""
        closed = self.closed(request)
        if not closed:
            return ""
        kinds = {kind for fit in self.anywhere(request) for kind in fit.kinds}
        bits = {bit for bit in self._snapshot.windows for kind in kinds if kind.windows & bit}
        return "; ".join(self._snapshot.windows[bit].reason for bit in sorted(bits) if bit & closed)

    def ports(self, request: PendingRequest) -> PortCounts:
        """Count the switch ports of the nodes that match a request. The ports of nodes that are set
        aside are unknown. All counts are zero for a vcluster that is not isolated."""
        if not request.isolated:
            return PortCounts(0, 0, 0)
        fits = {self.fit(one, replace(request, isolated=False)) for one in request.tuples}
        kinds = {kind for fit in fits for kind in fit.kinds}
        matching = sum(
            {type_id: count for fit in fits for type_id, count in fit.site_of.items()}.values()
        )
        usable = sum(self.sizes[kind.usable] for kind in kinds)
        return PortCounts(matching, sum(self.sizes[kind] for kind in kinds) - usable, usable)

    def lacks(self, one: RequestTuple) -> Mapping[int, Lacking]:
        """Return the requirements of a tuple that each type does not satisfy, by the type's id;
        none for an eligible type."""
        key = one.attributes, one.template_id
        if key not in self._lacks:
            document = self._snapshot.templates[one.template_id]
            self._lacks[key] = {
                type_id: lacking(one.attributes, document, kind.attributes)
                for type_id, kind in self._snapshot.types.items()
            }
        return self._lacks[key]

    def _fit(self, eligible: Iterable[int], subnet: str, port: str, closed: int) -> Fit:
        tiers: dict[float, list[NodeKind]] = defaultdict(list)
        site_of: dict[int, int] = {}
        for type_id in eligible:
            here = [
                kind
                for kind in self._by_type[type_id]
                if kind.subnet in ("", subnet) and kind.port == port
            ]
            tiers[self._snapshot.types[type_id].cost] += [
                kind for kind in here if not kind.windows & closed
            ]
            site_of[type_id] = sum(self.sizes[kind] for kind in here) + self.aside.get(type_id, 0)
        ordered = tuple(
            tuple(sorted(tiers[cost], key=lambda kind: (-self.sizes[kind], kind)))
            for cost in sorted(tiers)
        )
        kinds = tuple(kind for tier in ordered for kind in tier)
        blocks = {
            kind: self._blocks[kind._replace(windows=0)] + self.aside.get(kind.type, 0)
            for kind in kinds
        }
        return Fit(
            ordered,
            kinds,
            blocks,
            site_of,
            sum(site_of.values()),
            max(blocks.values(), default=0),
            len({kind.block for kind in kinds}) > 1,
        )

    # ------------------------------------------------------------ what a vcluster could ever get

    def others(self, request: PendingRequest, fit: Fit) -> dict[NodeKind, int]:
        """Return how many nodes each eligible block has, without nodes that the request's own
        vcluster holds already."""
        own = self._allocations.get(request.vcluster_id, Counter[NodeKind]())
        return {
            kind: max(0, min(size - own[kind], self._of_type(kind.type, request)))
            for kind, size in fit.blocks.items()
        }

    def other_types(self, request: PendingRequest, fit: Fit) -> dict[int, int]:
        """Return how many nodes of each eligible type the request's subnet has, in all blocks,
        without nodes that the request's own vcluster holds already."""
        return {
            type_id: max(
                0, min(count - request.own.get(type_id, 0), self._of_type(type_id, request))
            )
            for type_id, count in fit.site_of.items()
        }

    def _of_type(self, type_id: int, request: PendingRequest) -> int:
        return self._known[type_id] - request.own.get(type_id, 0)
