"""Admission of a new reservation in advance, or of a lease's extension: neither may break an
accepted reservation. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cod.model import Policy
from cod.policy.nodes import energy_accounting
from cod.policy.reservations.forecast import (
    LAST,
    Forecast,
    PlacedReservation,
    earliest,
    margin,
    reserved,
    slowest,
)
from cod.policy.reservations.supply import back_at, turnaround
from cod.policy.scheduler import reasons
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.placement import Want
from cod.policy.scheduler.preemption import size
from cod.policy.scheduler.reasons import at
from cod.policy.scheduler.snapshot import PendingRequest, SiteSnapshot
from cod.quantity import first_few

MINUTE = 60.0
TRIES = 20  # later starts that are tried
HOUR = 3600.0
__all__ = ["LAST", "Admission", "bound", "largest", "over_hours", "verdict"]


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer whether a reservation can be accepted.

    sentence  why not; '' if it can
    later     the next start at which it could; None: none is known
    """

    sentence: str = ""
    later: float | None = None


def verdict(
    snapshot: SiteSnapshot, request: PendingRequest, policy: Policy, now: float
) -> Admission:
    """Return whether a reservation can be accepted. `snapshot` has the accepted reservations, but
    not this one."""
    seen = _with(snapshot, request)
    feasibility = Feasibility(seen, now)
    want = Want(request, tuple(feasibility.fit(one, request) for one in request.tuples))
    never = reasons.why_not(want, feasibility)
    if never.code == "impossible":
        return Admission(never.sentence)
    found = Forecast(seen, feasibility, policy, now)
    if limit := next(one.limit for one in found.placed if one.request.id == request.id):
        return Admission(limit)
    if not found.failed and not found.unsure:
        return Admission()
    before = Forecast(snapshot, Feasibility(snapshot, now), policy, now)
    if not found.lost(before):
        return Admission()
    later = next(
        (
            start
            for start in _starts(found, snapshot, request, policy, now)
            if not Forecast(
                _with(snapshot, replace(request, starts_at=start)), feasibility, policy, now
            ).lost(before)
        ),
        None,
    )
    when = (
        f"The next start at which they would be is {at(later)}"
        if later is not None
        else "No later start is known at which they would be"
    )
    causes = [
        f"{reasons.nodes(size(one.request))} reserved for {_name(snapshot, one.request)} (request"
        f" {one.request.id}) from {at(one.start)} to {at(one.start + one.request.lease)}"
        for one in _rivals(found, request, want)
    ]
    causes += list(_holders(snapshot, request, want, policy))
    causes += filter(None, [feasibility.maintained(request)])
    why = f": in the way are {first_few(causes, 5)}" if causes else ""
    start = at(request.starts_at or now)
    return Admission(
        f"{reasons.nodes(size(request))} are not free from {start} on{why}. {when}", later
    )


def largest(snapshot: SiteSnapshot, request: PendingRequest, policy: Policy, now: float) -> int:
    """Return with how many nodes a reservation of one tuple could be accepted, if it cannot be
    accepted as it is; 0: with none."""
    (wanted,) = request.tuples
    before = Forecast(snapshot, Feasibility(snapshot, now), policy, now)

    def accepted(count: int) -> bool:
        seen = _with(snapshot, replace(request, tuples=(replace(wanted, count=count),)))
        found = Forecast(seen, Feasibility(seen, now), policy, now)
        own = next(one for one in found.placed if one.request.id == request.id)
        return own.whole and not own.limit and not found.lost(before)

    low, high = 0, min(wanted.count - 1, sum(snapshot.site.values()))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if accepted(middle) else (low, middle - 1)
    return low


def over_hours(
    snapshot: SiteSnapshot, request: PendingRequest, limit: float, used: float, now: float
) -> str:
    """Say in which month the reservation would exceed its group's limit of node-hours; '' if in
    none. `used`: node-seconds of this month so far. The future use of running leases is unknown and
    does not count."""
    own: defaultdict[int, float] = defaultdict(float)
    others: defaultdict[int, float] = defaultdict(float)
    for one in (request, *(one for one in reserved(snapshot) if one.group_id == request.group_id)):
        start = max(one.starts_at or now, now)
        by = own if one is request else others
        for month, seconds in energy_accounting.months(start, start + one.lease):
            by[month] += seconds * size(one) / HOUR
    for month, hours in sorted(own.items()):
        gone = used / HOUR if month == energy_accounting.month(now) else 0.0
        if gone + others[month] + hours > limit:
            return (
                f"the group may use {limit:g} node-hours in a month: of"
                f" {datetime.fromtimestamp(month * energy_accounting.DAY, UTC):%Y-%m}, {gone:g} are"
                f" used, {others[month]:g} reserved, and {hours:g} were asked for"
            )
    return ""


def _with(snapshot: SiteSnapshot, request: PendingRequest) -> SiteSnapshot:
    return replace(snapshot, requests=[*snapshot.requests, request])


def _rivals(found: Forecast, request: PendingRequest, want: Want) -> Iterator[PlacedReservation]:
    """Yield the other reservations that overlap the request in time and kinds of nodes."""
    own = next(one for one in found.placed if one.request.id == request.id)
    kinds = {kind.any_port for fit in want.fits for kind in fit.kinds}
    for one in sorted(found.placed, key=lambda one: (one.start, one.request.id)):
        if (
            one.request.id != request.id
            and one.start < own.end
            and own.start < one.end
            and kinds & {kind.any_port for kind in one.place}
        ):
            yield one


def _holders(
    snapshot: SiteSnapshot, request: PendingRequest, want: Want, policy: Policy
) -> Iterator[str]:
    """Yield phrases about the vclusters that hold matching nodes until after the start."""
    kinds = {kind for fit in want.fits for kind in fit.kinds}
    counts: dict[int, int] = {}
    for allocation in snapshot.allocations:
        if allocation.kind.among(kinds) and allocation.vcluster_id in snapshot.holders:
            counts[allocation.vcluster_id] = (
                counts.get(allocation.vcluster_id, 0) + allocation.count
            )
    for vcluster_id, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        ends = margin(snapshot, vcluster_id, policy) - policy.drain_grace
        back = back_at(snapshot.holders[vcluster_id], policy, ends)
        if back is None or back > (request.starts_at or 0.0):
            until = "" if back is None else f" until {at(back)}"
            yield f"{reasons.nodes(count)} of vcluster {snapshot.holders[vcluster_id].name}{until}"


def _starts(
    found: Forecast, snapshot: SiteSnapshot, request: PendingRequest, policy: Policy, now: float
) -> list[float]:
    """Return later starts, in whole minutes: times at which more nodes are free or can be
    preempted than before."""
    start = request.starts_at or 0.0
    types = {
        kind.type for one in found.placed if one.request.id == request.id for kind in one.place
    }
    ends = {now + slowest(snapshot, types, policy), earliest(snapshot, types, policy, now)}
    ends |= {one.end for one in found.placed if one.request.id != request.id}
    ends |= {
        back
        for one in snapshot.allocations
        if (holder := snapshot.holders.get(one.vcluster_id)) is not None
        and (back := back_at(holder, policy, turnaround(snapshot, one.kind.type, policy)))
        is not None
    }
    ends |= {one.ends for one in snapshot.windows.values() if one.ends < math.inf}
    # people read and type whole minutes
    minutes = {math.ceil(end / MINUTE) * MINUTE for end in ends if end > start}
    return sorted(minutes)[:TRIES]


def _name(snapshot: SiteSnapshot, request: PendingRequest) -> str:
    holder = snapshot.holders.get(request.vcluster_id)
    return f"vcluster {holder.name}" if holder is not None else "a vcluster"


# ---------------------------------------------------------------- leases


def bound(
    snapshot: SiteSnapshot, vcluster_id: int, until: float, policy: Policy, now: float
) -> tuple[float, str]:
    """Return until when a lease can be extended without breaking a reservation, at most `until`;
    and the reservation in the way, as a sentence; '' if there is none."""
    holder, requests = snapshot.holders.get(vcluster_id), reserved(snapshot)
    if holder is None or not requests:
        return until, ""
    feasibility = Feasibility(snapshot, now)
    before = Forecast(snapshot, feasibility, policy, now)

    def lost(end: float) -> set[int]:
        longer = replace(holder, expires_at=end, drain_until=None)
        seen = replace(snapshot, holders={**snapshot.holders, vcluster_id: longer})
        return Forecast(seen, feasibility, policy, now).lost(before)

    failing = lost(until)
    if not failing:
        return until, ""
    first = min(
        (request for request in requests if request.id in failing),
        key=lambda request: (request.starts_at, request.id),
    )
    erased = margin(snapshot, vcluster_id, policy)
    ends = sorted({(request.starts_at or now) - erased for request in requests}, reverse=True)
    current = holder.expires_at or now
    longest = next((end for end in ends if current < end < until and not lost(end)), current)
    return (
        longest,
        (
            f"{reasons.nodes(size(first))} are reserved for {_name(snapshot, first)} (request"
            f" {first.id}) from {at(first.starts_at or now)} on"
        ),
    )
