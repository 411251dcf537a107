"""The rule that protects an owner's nodes, and the nodes that the planner may preempt by it. Pure.

The rule is written once, in `takeable`; `inertia` is its part about single nodes. The planner
(`Candidates`), the flows that carry a plan out (`core.preemption`), the simulator and the
explanations for people all use these two functions. Preemptible vclusters lose nodes before all
others, by the criteria of `Policy.victims`. Among other vclusters of one priority, the vcluster
that can lose most nodes of a kind loses first, so that few vclusters are disturbed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Literal, NamedTuple, Protocol

from cod.model import Group, Node, Policy, Reclaim
from cod.policy.scheduler.leases import over
from cod.policy.scheduler.snapshot import (
    ANYTHING,
    OTHERS,
    PREEMPTIBLE,
    Entitlement,
    NodeKind,
    PendingRequest,
    SiteSnapshot,
    TypeEntitlement,
    VclusterHolder,
    effective,
)


class Beyond(NamedTuple):
    """Nodes that a group holds beyond its entitlement, without those that are leaving already.

    guarantee  nodes beyond its guarantee. Requests of higher priority may preempt them, and
               requests of any priority that fit into their groups' guarantees
    own        nodes beyond both its guarantee and its share (`Entitlement.own`). Requests of equal
               priority that fit into their groups' shares may preempt them, too
    """

    guarantee: int
    own: int


EVERYTHING = Beyond(2**62, 0)
EARLIEST = float("-inf")


def beyond(entitlement: Entitlement | TypeEntitlement, kept: int) -> Beyond:
    """Return the nodes that a group holds beyond its entitlement. `kept`: nodes of its vclusters
    with running leases, without those that are leaving already."""
    return Beyond(max(0, kept - entitlement.guarantee), max(0, kept - entitlement.own))


Within = Literal["", "share", "guarantee"]


def within(entitlement: Entitlement | TypeEntitlement, kept: int, wanted: int) -> Within:
    """Return which entitlement of its group a request for `wanted` more nodes fits into: the
    guarantee, the share, or ''. `kept` as in `beyond`."""
    if kept + wanted <= entitlement.guarantee:
        return "guarantee"
    return "share" if kept + wanted <= entitlement.own else ""


def weakest(found: Iterable[Within]) -> Within:
    """Return the entitlement that all parts of a request fit into, given that of each part."""
    return min(found, key=("", "share", "guarantee").index, default="")


class VclusterLike(Protocol):
    """The fields of `model.Vcluster` that `holder` reads."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def group_id(self) -> int: ...
    @property
    def creation_size(self) -> int: ...
    @property
    def expires_at(self) -> float | None: ...
    @property
    def drain_until(self) -> float | None: ...
    @property
    def preemptible(self) -> bool: ...


def holder(vcluster: VclusterLike, priority: int, held: int, leaving: int) -> VclusterHolder:
    """Return a vcluster as a holder of nodes. `priority`: its group's; `held`, `leaving`: as in
    `VclusterHolder`."""
    given_up = vcluster.preemptible
    return VclusterHolder(
        id=vcluster.id,
        name=vcluster.name,
        priority=effective(priority, given_up),
        held=held,
        floor=0 if given_up else vcluster.creation_size,
        leaving=leaving,
        expires_at=vcluster.expires_at,
        drain_until=vcluster.drain_until,
        group_id=0 if given_up else vcluster.group_id,
    )


def takeable(
    holder: VclusterHolder,
    mobile: int,
    priority: int,
    vcluster_id: int,
    now: float,
    *,
    open_: int = 0,
    beyond: Beyond = EVERYTHING,
    within: Within = "",
) -> int:
    """Return how many nodes a request may preempt from `holder`, out of its `mobile` nodes, which
    are past their inertia.

    priority, vcluster_id  of the request
    open_                  nodes of `holder.leaving` that leave for this request: a reclaim is
                           carried out by the same rule
    beyond                 nodes of the holder's group beyond its entitlement, with open nodes
                           counted as kept
    within                 the entitlement of the requesting group that the request fits into

    A vcluster loses nodes only to requests of other vclusters, and only to three sorts:

    - requests of strictly higher priority, and requests of any priority that fit into their groups'
      guarantees: these take nodes that the holder's group has beyond its guarantee;
    - requests of equal priority that fit into their groups' shares: these take nodes that the
      holder's group has beyond its guarantee and its share.

    A vcluster never falls below its creation size. A preemptible vcluster (`snapshot.PREEMPTIBLE`)
    has the lowest priority, no creation size and no protection by its group's entitlement. A
    vcluster whose lease has ended loses nothing more, because its nodes return anyway; a reclaim
    that was open before is still carried out.
    """
    if holder.id == vcluster_id:
        return 0
    if outranks(priority, holder.priority) or within == "guarantee":
        bound = beyond.guarantee
    elif within == "share" and priority == holder.priority:
        bound = beyond.own
    else:
        return 0
    return min(mobile, spare(holder, now, open_=open_), bound)


def movable(held: int, leaving: int) -> int:
    """Return how many nodes an owner may move out of a vcluster that holds `held` nodes, of which
    `leaving` leave already. One node stays. The creation size does not limit the owner's own
    moves."""
    return max(0, held - leaving - 1)


def spare(holder: VclusterHolder, now: float, *, open_: int = 0) -> int:
    """Return how many nodes a vcluster may lose to any request; `open_` as in `takeable`."""
    if over(holder, now) and not open_:
        return 0
    return max(0, holder.held - holder.leaving + open_ - holder.floor)


def outranks(priority: int, other: int) -> bool:
    """Return whether a request of `priority` may take from a vcluster of priority `other`."""
    return other < priority


def inertia(priority: int, policy: Policy) -> float:
    """Return the seconds for which a newly assigned node is protected from preemption, by the
    priority of its holder; 0 for a preemptible vcluster."""
    return (
        0.0 if priority == PREEMPTIBLE else policy.inertia_by_priority.get(priority, policy.inertia)
    )


def longest_grace(policy: Policy) -> float:
    """Return the longest grace that a group may set as its own, in seconds."""
    return max(policy.max_grace, policy.reclaim_grace)


def grace(group: Group, policy: Policy) -> float:
    """Return the seconds from a reclaim to its deadline, for a vcluster of the group."""
    return policy.reclaim_grace if group.grace is None else min(group.grace, longest_grace(policy))


def assigned_by(policy: Policy, now: float) -> tuple[float, dict[int, float]]:
    """Return the time such that nodes assigned at or before it are past their inertia at `now`, and
    the different times for some priorities of holders."""
    return now - policy.inertia, {
        one: now - inertia(one, policy) for one in policy.inertia_by_priority
    }


def fits(reclaim: Reclaim, node: Node) -> bool:
    """Return whether the node is of the kind that the reclaim takes. Nodes of one type have equal
    attributes, so all of them satisfy the same requirements."""
    return (
        node.type_id == reclaim.type_id
        and node.block_id == reclaim.block_id
        and reclaim.subnet in ("", node.subnet or "")
    )


class Victim(NamedTuple):
    """Nodes of `kind` that a vcluster is to lose."""

    vcluster_id: int
    kind: NodeKind
    nodes: int


class GroupHoldings:
    """The nodes that each group holds, as `beyond` and `within` count them: for each type that is
    apart, and for `OTHERS`. The counts change while a plan is made.

    any    whether some group has an entitlement; if none has, nothing is counted
    apart  types whose nodes are apart
    """

    def __init__(self, snapshot: SiteSnapshot, now: float) -> None:
        self._entitlements = snapshot.entitlements
        self.any = bool(snapshot.entitlements)
        self.apart = snapshot.apart
        self._nodes: Counter[tuple[int, int]] = Counter()
        self._awaited: Counter[tuple[int, int]] = Counter()
        self._beyond: dict[tuple[int, int], Beyond] = {}
        lasting = {
            one.id: one.group_id
            for one in (snapshot.holders.values() if self.any else ())
            if not over(one, now)
        }
        for one, group_id in lasting.items():
            holder = snapshot.holders[one]
            self._nodes[group_id, OTHERS] += holder.held - holder.leaving
        for vcluster_id, type_id, nodes in _apart(snapshot, self.apart):
            if vcluster_id in lasting:
                self._nodes[lasting[vcluster_id], type_id] += nodes
                self._nodes[lasting[vcluster_id], OTHERS] -= nodes

    def pool(self, type_id: int) -> int:
        """Return the key by which nodes of a type are counted: the type if it is apart, else
        `OTHERS`."""
        return type_id if type_id in self.apart else OTHERS

    def add(self, group_id: int, nodes: int, pool: int = OTHERS) -> None:
        """Count more nodes of a group."""
        self._nodes[group_id, pool] += nodes
        self._beyond.pop((group_id, pool), None)

    def wait(self, group_id: int, nodes: int, pool: int = OTHERS) -> None:
        """Count nodes that a group waits for. `within` counts them as the group's, so that further
        requests fit into what is left of its entitlement. `beyond` does not count them, because
        nodes that the group does not have yet cannot be preempted."""
        self._awaited[group_id, pool] += nodes

    def beyond(self, group_id: int, pool: int = OTHERS) -> Beyond:
        """Return the nodes that a group holds beyond its entitlement."""
        if not self.any:
            return EVERYTHING
        key = group_id, pool
        if key not in self._beyond:
            entitlement = self._entitlements.get(group_id, ANYTHING)
            self._beyond[key] = beyond(entitlement.of(pool), self._nodes[key])
        return self._beyond[key]

    def within(self, request: PendingRequest) -> Within:
        """Return which entitlement of its group a request fits into; '' for a preemptible
        vcluster."""
        if not self.any or request.preemptible:
            return ""
        entitlement = self._entitlements.get(request.group_id, ANYTHING)
        return weakest(
            within(
                entitlement.of(pool),
                self._nodes[request.group_id, pool] + self._awaited[request.group_id, pool],
                count,
            )
            for pool, count in request.asked
        )


def _apart(snapshot: SiteSnapshot, apart: Set[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (vcluster, type, nodes that it keeps) for held nodes of types that are apart."""
    if not apart:
        return
    for allocation in snapshot.allocations:
        if allocation.kind.type in apart:
            yield allocation.vcluster_id, allocation.kind.type, allocation.count
    for reclaim in snapshot.reclaims:
        if reclaim.kind.type in apart:
            yield reclaim.vcluster_id, reclaim.kind.type, -reclaim.open


def size(request: PendingRequest) -> int:
    """Return the number of nodes that a request asks for."""
    return sum(one.count for one in request.tuples)


class Level(NamedTuple):
    """The holders that may lose nodes to a request: those of a priority up to `priority`.

    equals    the entitlement that the request fits into, by which holders may lose nodes that the
              request does not outrank; '': only holders that it outranks lose nodes
    asked     the types of the requested nodes, if some types are apart: only nodes of these are
              preempted from holders that the request does not outrank
    outranks  with `asked`, the priority of the request, which outranks holders of lower priority
    """

    priority: int
    equals: Within = ""
    asked: frozenset[int] = frozenset()
    outranks: int = 0


class Candidates:
    """The nodes that each vcluster can still lose, and the nodes that each group holds. The counts
    change as the plan preempts and grants nodes.

    victims  criteria of `Policy.victims`
    """

    def __init__(self, snapshot: SiteSnapshot, now: float, victims: Sequence[str] = ()) -> None:
        self._now, self._criteria, self._types = now, victims, snapshot.types
        self._group = {holder.id: holder.group_id for holder in snapshot.holders.values()}
        self._group_nodes = GroupHoldings(snapshot, now)
        able = {holder.id: spare(holder, now) for holder in snapshot.holders.values()}
        self._surplus = {holder: count for holder, count in able.items() if count}
        self._priority = {holder: snapshot.holders[holder].priority for holder in self._surplus}
        self._mobile: dict[NodeKind, dict[int, int]] = defaultdict(dict)
        self._kinds: dict[int, set[NodeKind]] = defaultdict(set)
        self._started: dict[tuple[int, NodeKind], tuple[tuple[float, int], ...]] = {}
        for allocation in snapshot.allocations:
            if allocation.mobile and allocation.vcluster_id in self._surplus:
                for kind in allocation.kind.counted:
                    own = self._mobile[kind]
                    own[allocation.vcluster_id] = (
                        own.get(allocation.vcluster_id, 0) + allocation.mobile
                    )
                    self._kinds[allocation.vcluster_id].add(kind)
                    if allocation.started:
                        runs = (
                            *self._started.get((allocation.vcluster_id, kind), ()),
                            *allocation.started,
                        )
                        self._started[allocation.vcluster_id, kind] = tuple(
                            sorted(runs, reverse=True)
                        )
        self._apart = any(kind.port for kind in self._mobile)  # nodes are told apart by their ports
        self._levels = [
            Level(one) for one in sorted({self._priority[holder] for holder in self._kinds})
        ]
        self._growing: set[tuple[int, NodeKind]] = set()
        self._sorted: dict[NodeKind, dict[Level, list[tuple[int, int]]]] = defaultdict(dict)
        self._most: dict[NodeKind, dict[Level, int]] = defaultdict(dict)

    def within(self, request: PendingRequest) -> Within:
        """Return which entitlement of its group a request fits into at present."""
        return self._group_nodes.within(request)

    def gain(
        self, request: PendingRequest, places: Iterable[Mapping[NodeKind, int]], *, waits: bool
    ) -> None:
        """Count the nodes at `places` for the request's group: nodes that the request gets or, with
        `waits`, nodes that it waits for."""
        if self._group_nodes.any and not request.preemptible:
            count = self._group_nodes.wait if waits else self._group_nodes.add
            for place in places:
                for kind, nodes in place.items():
                    count(request.group_id, nodes, self._group_nodes.pool(kind.type))

    def add(self, group_id: int, kind: NodeKind, nodes: int) -> None:
        """Count nodes that a group gets or, if negative, loses."""
        if self._group_nodes.any:
            self._group_nodes.add(group_id, nodes, self._group_nodes.pool(kind.type))

    def wait(self, group_id: int, kind: NodeKind, nodes: int) -> None:
        """Count nodes that a move has yet to bring to a group; see `GroupHoldings.wait`."""
        if self._group_nodes.any:
            self._group_nodes.wait(group_id, nodes, self._group_nodes.pool(kind.type))

    def grow(self, group_id: int, kind: NodeKind) -> None:
        """Preempt no node of a kind from a group that gets free nodes of that kind by this plan."""
        if self._group_nodes.any:
            self._growing.add((group_id, kind.any_port))

    def levels(self, request: PendingRequest, equals: Within) -> list[Level]:
        """Return the levels at which a request may preempt nodes, the lowest priority first.
        `equals`: the entitlement of its group that the request fits into."""
        priority = request.priority
        asked = (
            frozenset(one for one, _ in request.asked) if self._group_nodes.apart else frozenset()
        )
        found = [level for level in self._levels if outranks(priority, level.priority)]
        if equals == "guarantee":  # it goes before every priority
            others = self._levels[len(found) :]
        else:
            others = [level for level in self._levels if equals and level.priority == priority]
        return [*found, *(Level(one.priority, equals, asked, priority) for one in others)]

    def can_lose(self, vcluster_id: int, level: Level) -> bool:
        """Return whether that vcluster can lose nodes at that level."""
        return vcluster_id in self._kinds and self._priority[vcluster_id] <= level.priority

    def most(self, kind: NodeKind, level: Level, but: int) -> int:
        """Return how many nodes of `kind` all vclusters together can lose at that level, except the
        vcluster `but`."""
        if self._group_nodes.any or (self.can_lose(but, level) and kind in self._kinds[but]):
            return sum([count for _, count in self._able(kind, level, but)])
        known = self._most[kind]
        if level not in known:
            known[level] = sum(count for _, count in self._able(kind, level))
        return known[level]

    def preempt(self, kind: NodeKind, count: int, level: Level, but: int) -> list[Victim]:
        """Preempt `count` nodes of `kind`, and return which vclusters lose them. If there are fewer
        nodes, preempt none."""
        if self.most(kind, level, but) < count:  # fewer would not serve the tuple
            return []
        nodes: Counter[int] = Counter()
        for holder, most in self._first(kind, dict(self._able(kind, level, but))):
            part = min(count, most)
            nodes[holder] += part
            count -= part
        victims = [Victim(holder, kind, part) for holder, part in nodes.items() if part]
        self.remove(victims)
        return victims

    def _first(self, kind: NodeKind, able: dict[int, int]) -> Iterator[tuple[int, int]]:
        """Yield (holder, nodes) in the order of preemption."""
        preemptible = {
            holder: most for holder, most in able.items() if self._priority[holder] == PREEMPTIBLE
        }
        for _, holder, most in self._latest(kind, preemptible):
            yield holder, most
        for holder in sorted(
            able.keys() - preemptible.keys(), key=lambda one: (self._priority[one], -able[one], one)
        ):
            yield holder, able[holder]

    def _latest(self, kind: NodeKind, able: dict[int, int]) -> list[tuple[float, int, int]]:
        """Return (when assigned, holder, nodes) for the nodes of a kind that preemptible holders
        can lose, the latest first. A holder has lost its latest nodes first in this plan, too."""
        found = []
        for holder, left in able.items():
            runs = self._started.get((holder, kind), ())
            gone = sum(count for _, count in runs) - self._mobile[kind][holder]
            for time, count in (*runs, (EARLIEST, left)):
                skipped = min(max(gone, 0), count)
                gone -= skipped
                if part := min(left, count - skipped):
                    found.append((time, holder, part))
                    left -= part
        return sorted(found, key=lambda one: (-one[0], one[1]))

    def preference(self, kind: NodeKind, count: int, but: int) -> tuple[float, ...]:
        """Return the key that sorts kinds for preemption from preemptible vclusters: the kind with
        the smallest key is to lose the `count` nodes. `but` as in `most`."""
        return tuple(
            (
                self._types[kind.type].cost
                if one == "cheap-type"
                else (
                    -float(self.most(kind, Level(PREEMPTIBLE), but))
                    if one == "whole-block"
                    else self._work(kind, count, but)
                )
            )
            for one in self._criteria
        )

    def _work(self, kind: NodeKind, count: int, but: int) -> float:
        """Return the seconds of work lost, on average for each node, if `count` nodes of a kind are
        preempted."""
        lost = wanted = 0.0
        for time, _, nodes in self._latest(kind, dict(self._able(kind, Level(PREEMPTIBLE), but))):
            part = min(nodes, count - wanted)
            lost += part * (self._now - time)
            wanted += part
        return lost / wanted if wanted else float("inf")

    def remove(self, victims: Iterable[Victim]) -> None:
        """Count the nodes of `victims` as lost, as `preempt` does."""
        self._change(victims, -1)

    def restore(self, victims: Iterable[Victim]) -> None:
        """Undo `preempt` or `remove`."""
        self._change(victims, 1)

    def _change(self, victims: Iterable[Victim], sign: int) -> None:
        for holder, kind, count in victims:
            self._mobile[kind.any_port][holder] += sign * count
            # Which nodes go is open: they may be those with usable ports.
            if self._apart and (usable := kind.usable) in self._kinds[holder]:
                self._mobile[usable][holder] += sign * count
            self._surplus[holder] += sign * count
            self.add(self._group[holder], kind, sign * count)
            for other in self._kinds[holder]:
                self._sorted.pop(other, None)
                self._most.pop(other, None)

    def _able(self, kind: NodeKind, level: Level, but: int = 0) -> Iterator[tuple[int, int]]:
        """Yield (holder, nodes of `kind` that it can lose). The entitlement of a group bounds the
        loss of all its vclusters together."""
        left: dict[int, int] = {}
        pool = self._group_nodes.pool(kind.type)
        foreign = bool(level.asked) and pool not in level.asked
        known = self._sorted[kind]
        if level not in known:
            able = [
                (holder, self.able(kind, holder))
                for holder in self._mobile.get(kind, ())
                if self._priority[holder] <= level.priority
            ]
            known[level] = sorted(
                (one for one in able if one[1]), key=lambda one: (-one[1], one[0])
            )
        for holder, most in known[level]:
            if holder == but:
                continue
            if foreign and not outranks(level.outranks, self._priority[holder]):
                continue
            if self._group_nodes.any:
                group = self._group[holder]
                if (group, kind.any_port) in self._growing:
                    continue
                if group not in left:
                    shared = level.equals == "share" and self._priority[holder] == level.priority
                    bounds = self._group_nodes.beyond(group, pool)
                    left[group] = bounds.own if shared else bounds.guarantee
                most = min(most, left[group])
                left[group] -= most
            yield holder, most

    def able(self, kind: NodeKind, holder: int) -> int:
        """Return how many nodes of `kind` a vcluster can lose, its group's entitlement aside."""
        return max(min(self._mobile.get(kind, {}).get(holder, 0), self._surplus.get(holder, 0)), 0)
