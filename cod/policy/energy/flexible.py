"""Flexible requests: nodes for some hours before a deadline. Pure.

The chosen start is the cheapest by the curve at which the nodes can be reserved in advance, besides
all other reservations and leases (`policy.reservations`); among equal starts the earliest. Without
a curve it is the earliest. The request then is a reservation like any other, with precedence over
requests of every priority.

The mean of the curve over a lease is lowest when the lease begins or ends at a moment at which the
curve changes, or begins at a moment at which nodes come or go. So only such starts are tried: first
the cheapest ones, then, from the earliest on, those at which nodes come back. So a deadline that
can be met is met, whatever the cost. Starts at which there would be too few nodes even without
other reservations are skipped. The number of the others is limited (`tries`): the more reservations
have to be placed anew for each start, the fewer are tried. Beyond `FAR` only starts at which nodes
come or go are tried.
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
"""Starts that are tried: `MOST` divided by the number of reservations, but at least `LEAST`."""
FAR = 31 * DAY
"""Seconds from now within which starts at changes of the curve are tried."""
SOON = 1.0
"""Seconds from now until the first start: a reservation has to begin in the future."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The chosen start of a flexible request.

    cost     mean of the curve over its lease; None: there is no curve
    at_once  the same, if it began now
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
    """Return the best start of a flexible request, `last` at the latest; None if no start is
    possible. `snapshot` does not have the request yet.

    refused  returns why a start is not allowed for other reasons; '': it is allowed
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
    """Return (time from which they are available, kind, nodes) of all nodes that a request could
    have without other reservations: free nodes, nodes on their way, nodes that come back at the
    ends of leases, and nodes of vclusters with lower priority. While a move waits, the nodes of all
    vclusters count."""
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
    """Return moments for a start, in order: moments at which more nodes are free or can be
    preempted than before, and the latest starts at which the request's lease is over before another
    reservation begins."""
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
    """Return how many starts to try, given the number of reservations."""
    return max(LEAST, MOST // (1 + reservations))


def _spaced(events: list[float], most: int) -> list[float]:
    """Return at most `most` + 1 of the events, evenly spaced, the first and the last included."""
    step = max(1, math.ceil(len(events) / most))
    return [*events[::step], *events[-1:]]


def _with(snapshot: SiteSnapshot, request: PendingRequest, start: float) -> SiteSnapshot:
    return replace(snapshot, requests=[*snapshot.requests, replace(request, starts_at=start)])
