"""Flexible requests: nodes for some hours before a deadline. Pure.

The start is the cheapest by the curve at which the nodes can be reserved in advance, beside all
other reservations and leases (`policy.reservations`); among equal ones the earliest. Without a
curve it is the earliest. A request so placed is a reservation like any other: it holds against
requests of every priority.

The mean over a span of a curve that changes at certain moments only is lowest where the span begins
or ends at such a moment, or where its nodes come or go; so only these starts are looked at, the
cheapest first, and then those at which nodes come back, the earliest first: a deadline that can be
met is met, whatever that costs. Starts at which too few nodes would be there without any other
reservation are passed over at once. Of the others so many are tried as can be in little time: fewer
where many reservations are to be placed anew for each (`tries`). Beyond `FAR` only starts at which
nodes come or go are looked at.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

from cod.model import Policy
from cod.policy.energy.curve import DAY, Curve
from cod.policy.reservations.forecast import Forecast, earliest, slowest
from cod.policy.reservations.supply import back_at, turnaround
from cod.policy.scheduler import placement
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.placement import Want
from cod.policy.scheduler.snapshot import NodeKind, PendingRequest, SiteSnapshot

MOST, LEAST = 600, 12
"""Starts that are tried: for all reservations together, and at least."""
FAR = 31 * DAY
"""Seconds from now in which moments are looked at at which the curve changes."""
SOON = 1.0
"""Seconds from now until the first start: a reservation begins at a time to come."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Placement of a flexible request.

    cost     the curve's mean over it; `at_once`: if it began now; None: there is no curve
    """

    start: float
    cost: float | None
    at_once: float | None


def choose(
    snapshot: SiteSnapshot,
    request: PendingRequest,
    last: float,
    curve: Curve | None,
    policy: Policy,
    now: float,
    refused: Callable[[PendingRequest], str] = lambda _: "",
) -> Chosen | None:
    """Return the start of a flexible request, `last` at the latest; None: there is none. `snapshot`
    does not have the request yet.

    refused  why a start is not allowed for other reasons; ''
    """
    first = now + SOON
    if last < first:
        return None
    feasibility = Feasibility(_with(snapshot, request, first), now)
    before = Forecast(snapshot, Feasibility(snapshot, now), policy, now)

    def cost(start: float) -> float:
        return 0.0 if curve is None else curve.mean(start, start + request.lease, curve.usual)

    want = Want(request, tuple(feasibility.fit(one, request) for one in request.tuples))
    times = _at_most(snapshot, request, policy)

    def conceivable(start: float) -> bool:
        room = Counter[NodeKind]()
        for since, kind, count in times:
            room[kind] += count if since <= start else 0
        return placement.at_once(want, room) is not None

    def admitted(start: float) -> bool:
        if refused(replace(request, starts_at=start)):
            return False
        found = Forecast(_with(snapshot, request, start), feasibility, policy, now)
        own = next(one for one in found.placed if one.request.id == request.id)
        return own.whole and not own.limit and not found.lost(before)

    events = _events(snapshot, request, before, policy, now)
    events = [first, *(one for one in events if first < one < last), last]
    turns = [] if curve is None else curve.changes(first, min(last + request.lease, now + FAR))
    # the mean cost of a lease is linear between these: the cheapest start is one of them
    dear = {*events, *turns, *(one - request.lease for one in turns)}
    cheapest = sorted(
        (one for one in dear if first <= one <= last), key=lambda one: (round(cost(one), 9), one)
    )
    half = tries(len(before.placed)) // 2
    by_price = islice(filter(conceivable, cheapest), half)
    by_time = _spaced([one for one in events if conceivable(one)], half)
    start = next((one for one in dict.fromkeys([*by_price, *by_time]) if admitted(one)), None)
    if start is None:
        return None
    return Chosen(start, cost(start), cost(first)) if curve else Chosen(start, None, None)


def _at_most(
    snapshot: SiteSnapshot, request: PendingRequest, policy: Policy
) -> list[tuple[float, NodeKind, int]]:
    """Return (from when, kind, nodes) of all nodes that a request could have without other
    reservations: nodes that are free or coming, those that leases return, and those of vclusters
    with lower priority. While a move waits, the nodes of all vclusters count."""
    found = [
        (-math.inf, kind, one.count)
        for rows in (snapshot.free_nodes, snapshot.coming)
        for one in rows
        for kind in one.kind.counted
    ]
    moves = any(one.source_id is not None for one in snapshot.requests)
    for one in snapshot.allocations:
        if (holder := snapshot.holders.get(one.vcluster_id)) is None:
            continue
        erasing = turnaround(snapshot, one.kind.type, policy)
        since = back_at(holder, policy, erasing)
        if moves or holder.priority < request.priority:
            since = -math.inf
        if since is not None:
            found += [(since, kind, one.count) for kind in one.kind.counted]
    return found


def _events(
    snapshot: SiteSnapshot, request: PendingRequest, before: Forecast, policy: Policy, now: float
) -> list[float]:
    """Return the moments, in order, at which more nodes are free than before, or can be taken from
    others; and the latest at which the request has given its nodes back when another reservation
    begins."""
    kinds = {one.kind for one in snapshot.allocations} | {one.kind for one in snapshot.free_nodes}
    types = {kind.type for kind in kinds | {one.kind for one in snapshot.coming}}
    ends = {now + slowest(snapshot, {one}, policy) for one in types}
    ends |= {earliest(snapshot, {one}, policy, now) for one in types}
    ends |= {one.end for one in before.placed}
    back = {request.lease + policy.drain_grace + slowest(snapshot, {one}, policy) for one in types}
    latest = {one.start - each for one in before.placed for each in back}
    for one in snapshot.allocations:
        if (holder := snapshot.holders.get(one.vcluster_id)) is not None:
            erasing = turnaround(snapshot, one.kind.type, policy)
            if (free := back_at(holder, policy, erasing)) is not None:
                ends.add(free)
    found = {float(math.ceil(one)) for one in ends if one < math.inf}
    return sorted(found | {float(math.floor(one)) for one in latest})


def tries(reservations: int) -> int:
    """Return how many starts to try; the more reservations there are, the fewer."""
    return max(LEAST, MOST // (1 + reservations))


def _spaced(events: list[float], most: int) -> list[float]:
    """Return at most `most` + 1 of the events, evenly spaced, the first and the last included."""
    step = max(1, math.ceil(len(events) / most))
    return [*events[::step], *events[-1:]]


def _with(snapshot: SiteSnapshot, request: PendingRequest, start: float) -> SiteSnapshot:
    return replace(snapshot, requests=[*snapshot.requests, replace(request, starts_at=start)])
