"""Explanation of a waiting request: what each node type lacks for it, which requests are ahead of
it, which vclusters hold matching nodes, and which events will free some of these. Pure.

Times are seconds since the epoch; None: unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from cod.model import Policy
from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.allocations import sums
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.leases import over
from cod.policy.scheduler.preemption import GroupHoldings, outranks, spare, takeable
from cod.policy.scheduler.priority import ordered
from cod.policy.scheduler.reasons import in_, nodes, of_holds, of_ports
from cod.policy.scheduler.snapshot import (
    Allocation,
    Decision,
    FreeNodes,
    IncomingNodes,
    NodeKind,
    OpenReclaim,
    PendingRequest,
    SiteSnapshot,
    VclusterHolder,
)


@dataclass(frozen=True, slots=True)
class TypeMatch:
    """A node type as the request sees it.

    site, free, coming, held  its nodes: of the site; available now; on their way to the reserve;
                              held by vclusters
    lacks                     for each tuple that the type does not match: (position, phrases that
                              say why)
    """

    type_id: int
    name: str
    cost: float
    site: int
    free: int
    coming: int
    held: int
    lacks: tuple[tuple[int, tuple[str, ...]], ...] = ()


Promises = Mapping[int, tuple[int, float]]
"""By reclaim id: (number of nodes that the losing vcluster's VCM has promised to give back, when
the last of them will be back)."""
NONE: Promises = {}


@dataclass(frozen=True, slots=True)
class Ahead:
    """A pending request that is decided earlier and asks for nodes of the same types.

    priority  None: its vcluster is preemptible
    wanted    how many nodes it asks for
    """

    request_id: int
    vcluster_id: int
    priority: int | None
    wanted: int


@dataclass(frozen=True, slots=True)
class VclusterHeld:
    """Matching nodes that a vcluster holds.

    priority   None: it is preemptible
    takeable   how many of them the request may preempt now
    protected  why the request may not preempt the rest: 'priority', 'inertia', 'floor', 'guarantee'
               or 'share' of its group, 'leaving' (preempted already) or 'draining' (they return by
               themselves); '': it may preempt all
    until      when that protection ends, if known
    sentence   `protected` in words
    ours       whether the vcluster is of the request's group
    """

    vcluster_id: int
    name: str
    priority: int | None
    count: int
    takeable: int
    protected: str
    until: float | None
    sentence: str
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Chance:
    """An event that will, or may, free `count` matching nodes at the time `at`. `sentence` names
    the event without time and number."""

    at: float | None
    count: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reasons why a request waits.

    code        its outcome in the next pass: 'granted', or the code of its `RequestRefusal`
    wanted      the number of requested nodes
    fitting     the number of the site's nodes that match at least one of its tuples
    own, aside  of the fitting nodes: nodes that its vcluster holds already; nodes in quarantine, or
                off without a power driver
    portless    further nodes that match but have no usable switch port, for an isolated vcluster
    position    its place among the requests that wait for the same types of nodes, from 1; `ahead`
                has the earlier ones
    sentence    the summary; `reason` is its first sentence, which is also stored with the request
    """

    request_id: int
    code: str
    sentence: str
    wanted: int
    fitting: int
    free: int
    coming: int
    position: int
    ahead: tuple[Ahead, ...] = ()
    types: tuple[TypeMatch, ...] = ()
    holders: tuple[VclusterHeld, ...] = ()
    chances: tuple[Chance, ...] = ()
    own: int = 0
    aside: int = 0
    reason: str = ""
    portless: int = 0


def explain(
    snapshot: SiteSnapshot, policy: Policy, now: float, request_id: int, promises: Promises = NONE
) -> Explanation:
    """Return why the pending request `request_id` of `snapshot` waits, at `now`. Raises KeyError if
    the snapshot has no such request."""
    request = {request.id: request for request in snapshot.requests}[request_id]
    feasibility = Feasibility(snapshot, now)
    if request.source_id is not None:
        return _of_move(snapshot, policy, request, feasibility, promises, now)
    fits = [feasibility.fit(one, request) for one in request.tuples]
    kinds = {kind for fit in fits for kind in fit.kinds}
    site_of = {type_id: count for fit in fits for type_id, count in fit.site_of.items()}
    order = ordered(snapshot, policy, feasibility, now)
    place = order.index(request)
    types = {kind.type for kind in kinds}
    ahead = tuple(
        Ahead(one.id, one.vcluster_id, shown(one), sum(each.count for each in one.tuples))
        for one in order[:place]
        if (one.starts_at or now) <= max(now, request.starts_at or now)
        and any(not types.isdisjoint(feasibility.fit(each, one).site_of) for each in one.tuples)
    )
    decision = decide(snapshot, policy, now, feasibility)
    code, sentence = _verdict(decision, request_id)
    parts = Explanation(
        request_id,
        code,
        sentence,
        wanted=sum(one.count for one in request.tuples),
        fitting=sum(site_of.values()),
        free=_mine(snapshot.free_nodes, kinds, request_id),
        coming=_mine(snapshot.coming, kinds, request_id),
        position=len(ahead) + 1,
        ahead=ahead,
        types=tuple(_types(snapshot, request, feasibility)),
        holders=tuple(_holders(snapshot, request, kinds, now)),
        chances=_sorted(_chances(snapshot, policy, request, kinds, now, promises)),
        own=sum(request.own.get(type_id, 0) for type_id in site_of),
        aside=sum(feasibility.aside.get(type_id, 0) for type_id in site_of),
        portless=feasibility.ports(request).unusable,
    )
    holds = [one for one in decision.holds if one.kind.type in types]
    names = {
        one.id: (
            snapshot.holders[one.vcluster_id].name
            if one.vcluster_id in snapshot.holders
            else f"request {one.id}"
        )
        for one in snapshot.requests
    } | {request_id: "it"}
    obstacles = {
        "ports": of_ports(request, feasibility),
        "maintenance": "" if code == "granted" else feasibility.maintained(request),
    }
    others = [
        f"{text[:1].upper()}{text[1:]}."
        for kind, text in obstacles.items()
        if text and kind != code
    ]
    return replace(
        parts,
        reason=sentence,
        sentence=" ".join(
            dict.fromkeys([*_summary(parts, now), *others, *of_holds(holds, names, now)])
        ),
    )


def _verdict(decision: Decision, request_id: int) -> tuple[str, str]:
    """Return the code and the sentence of a request's outcome."""
    for refusal in decision.refusals:
        if refusal.request_id == request_id:
            return refusal.code, f"{refusal.sentence[:1].upper()}{refusal.sentence[1:]}."
    return "granted", "It is granted in the next pass."


def _of_move(
    snapshot: SiteSnapshot,
    policy: Policy,
    request: PendingRequest,
    feasibility: Feasibility,
    promises: Promises,
    now: float,
) -> Explanation:
    """Return the explanation of a move, which waits for its own nodes only: no other request can
    get these."""
    code, sentence = _verdict(decide(snapshot, policy, now, feasibility), request.id)
    free, coming = (
        sum(row.count for row in rows if row.reserved == request.id)
        for rows in (snapshot.free_nodes, snapshot.coming)
    )
    chances = _sorted(
        chance
        for reclaim in snapshot.reclaims
        if reclaim.request_id == request.id and reclaim.open
        for chance in _from_reclaim(reclaim, snapshot.holders[reclaim.vcluster_id].name, promises)
    )
    known = _next(chances, now)
    wanted = sum(one.count for one in request.tuples)
    return Explanation(
        request.id,
        code,
        " ".join([sentence, *known]),
        wanted,
        wanted,
        free,
        coming,
        1,
        chances=chances,
        reason=sentence,
    )


def shown(one: VclusterHolder | PendingRequest) -> int | None:
    """Return a priority as it is shown to people: None if the vcluster is preemptible."""
    return None if one.preemptible else one.priority


def _mine(rows: Iterable[FreeNodes | IncomingNodes], kinds: Set[NodeKind], request_id: int) -> int:
    return sum(
        row.count for row in rows if row.kind.among(kinds) and row.reserved in (0, request_id)
    )


def _types(
    snapshot: SiteSnapshot, request: PendingRequest, feasibility: Feasibility
) -> Iterator[TypeMatch]:
    """Yield the types of the site, cheapest first."""
    free, coming = _by_type(snapshot.free_nodes), _by_type(snapshot.coming)
    held = _by_type(snapshot.allocations)
    for type_id, node_type in sorted(
        snapshot.types.items(), key=lambda item: (item[1].cost, item[0])
    ):
        lacks = [
            (position, tuple(map(str, feasibility.lacks(one)[type_id])))
            for position, one in enumerate(request.tuples)
        ]
        yield TypeMatch(
            type_id,
            node_type.name,
            node_type.cost,
            snapshot.site.get(type_id, 0),
            free[type_id],
            coming[type_id],
            held[type_id],
            tuple((position, phrases) for position, phrases in lacks if phrases),
        )


def _by_type(rows: Iterable[FreeNodes | IncomingNodes | Allocation]) -> Counter[int]:
    sums: Counter[int] = Counter()
    for row in rows:
        sums[row.kind.type] += row.count
    return sums


# ---------------------------------------------------------------- who holds what


def _holders(
    snapshot: SiteSnapshot, request: PendingRequest, kinds: Set[NodeKind], now: float
) -> Iterator[VclusterHeld]:
    group_nodes = GroupHoldings(snapshot, now)
    for one in sums(snapshot, request, kinds):
        holder = one.holder
        may_lose = _takeable(group_nodes, request, holder, one.mobile, now)
        within = group_nodes.within(request)
        equals = within if within == "guarantee" or request.priority == holder.priority else ""
        if over(holder, now):
            why, until = "draining", holder.drain_until or holder.expires_at
        elif not outranks(request.priority, holder.priority) and not equals:
            why, until = "priority", holder.expires_at
        elif may_lose < min(one.mobile, spare(holder, now)):
            why, until = equals or "guarantee", holder.expires_at
        elif may_lose == one.count:
            why, until = "", None
        elif may_lose < one.mobile:
            why, until = "floor", holder.expires_at
        elif one.immune > 0:
            why, until = "inertia", one.immune_until
        else:
            why, until = "leaving", one.back_by
        yield VclusterHeld(
            vcluster_id=holder.id,
            name=holder.name,
            priority=shown(holder),
            count=one.count,
            takeable=may_lose,
            protected=why,
            until=until,
            sentence=_keeps(why, holder, until, now),
            ours=holder.group_id != 0 and holder.group_id == request.group_id,
        )


def _takeable(
    group_nodes: GroupHoldings,
    request: PendingRequest,
    holder: VclusterHolder,
    mobile: int,
    now: float,
) -> int:
    return takeable(
        holder,
        mobile,
        request.priority,
        request.vcluster_id,
        now,
        beyond=group_nodes.beyond(holder.group_id, request.asked[0][0]),
        within=group_nodes.within(request),
    )


def _keeps(why: str, holder: VclusterHolder, until: float | None, now: float) -> str:
    when = "" if until is None else f" {in_(until, now)}"
    ends = f", its lease ends{when}" if when else ""
    return {
        "": "it is preemptible" if holder.preemptible else "all may be taken",
        "draining": f"its lease has run out, they come back{when}",
        "priority": (
            "both are preemptible"
            if holder.preemptible
            else f"its priority {holder.priority} is not lower"
        )
        + ends,
        "share": "its group keeps what it is guaranteed and its share",
        "guarantee": "its group keeps the nodes that it is guaranteed",
        "floor": f"it keeps the {holder.floor} that it was created with{ends}",
        "inertia": "the rest was assigned lately"
        + (f", the first is immune no longer{when}" if when else ""),
        "leaving": "the rest is being given back already",
    }[why]


# ---------------------------------------------------------------- what would free something


def _chances(
    snapshot: SiteSnapshot,
    policy: Policy,
    request: PendingRequest,
    kinds: Set[NodeKind],
    now: float,
    promises: Promises,
) -> Iterator[Chance]:
    coming = _mine(snapshot.coming, kinds, request.id)
    if coming:
        yield Chance(None, coming, "on the way to the reserve")
    group_nodes = GroupHoldings(snapshot, now)
    for reclaim in snapshot.reclaims:
        if reclaim.request_id == request.id and reclaim.open:
            yield from _from_reclaim(reclaim, snapshot.holders[reclaim.vcluster_id].name, promises)
    for one in sums(snapshot, request, kinds):
        holder, left = one.holder, one.count - one.leaving
        if left > 0 and holder.drain_until is not None:
            yield Chance(holder.drain_until, left, f"{holder.name} is draining and ends")
        elif left > 0 and holder.expires_at is not None:
            ends = max(now, holder.expires_at) + policy.drain_grace
            yield Chance(ends, left, f"the lease of {holder.name} and its grace end")
        more = _takeable(group_nodes, request, holder, one.mobile + one.immune, now) - _takeable(
            group_nodes, request, holder, one.mobile, now
        )
        if more > 0 and one.immune_until is not None:
            yield Chance(one.immune_until, more, f"nodes of {holder.name} lose their immunity")


def _sorted(chances: Iterable[Chance]) -> tuple[Chance, ...]:
    """Return the chances in the order of their times; those whose time is unknown come last."""
    return tuple(sorted(chances, key=lambda one: (one.at is None, one.at or 0.0, one.sentence)))


def _from_reclaim(one: OpenReclaim, loser: str, promises: Promises) -> Iterator[Chance]:
    """Yield the chances of an open reclaim: the nodes that the VCM of the vcluster `loser` has
    promised to give back, and those that COD takes at the deadline."""
    count, by = promises.get(one.id, (0, one.deadline))
    count, by = min(count, one.open), min(by, one.deadline)
    if count:
        yield Chance(by, count, f"the VCM of {loser} gives nodes back")
    if one.open > count:
        more = one.open - count
        yield Chance(one.deadline, more, f"{loser} gives nodes back at the latest")


# ---------------------------------------------------------------- in words


def _summary(parts: Explanation, now: float) -> Iterator[str]:
    yield parts.sentence
    if parts.code in ("granted", "impossible"):
        return
    ours = sum(held.count for held in parts.holders if held.ours)
    held = sum(held.count for held in parts.holders) - ours
    takeable = sum(held.takeable for held in parts.holders)
    own = f"{parts.own} its own, " if parts.own else ""
    own += f"{ours} of its group's other vclusters, " if ours else ""
    aside = (
        f"; {parts.aside} out of service, or off with nothing to switch them on"
        if parts.aside
        else ""
    )
    yield (
        f"Of the {nodes(parts.fitting)} that match {parts.free} are free, {parts.coming} coming,"
        f" {own}{held} held by others; {takeable} may be taken{aside}."
    )
    if parts.ahead:
        wanted = sum(one.wanted for one in parts.ahead)
        yield (
            f"Ahead of it {len(parts.ahead)} of the requests that wait want {nodes(wanted)} of the"
            " same types."
        )
    yield from _next(parts.chances, now)


def _next(chances: Iterable[Chance], now: float) -> list[str]:
    """Return a list with a sentence about the first chance with a known time; [] without any."""
    return [
        f"Next that is known: {one.sentence} {in_(one.at, now)} ({nodes(one.count)})."
        for one in chances
        if one.at is not None
    ][:1]
