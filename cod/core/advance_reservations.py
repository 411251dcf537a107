"""Reservations in advance: whether they can be made, the leases that end before them, and their
beginnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace

from cod import notice_texts
from cod.core import notices, snapshot, vcm_outbox
from cod.model import (
    AskedNodes,
    AskedVcluster,
    FlowContext,
    Group,
    Policy,
    Refused,
    Request,
    RequestTuple,
    Site,
    Vcluster,
)
from cod.policy.nodes import energy_accounting
from cod.policy.reservations import admission, forecast
from cod.policy.scheduler import leases, reasons, whatif
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.snapshot import PendingRequest, SiteSnapshot
from cod.quantity import exact_span
from cod.states import RequestState, VclusterState
from cod.store import watermarks
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import energy, nodes
from cod.store.people import groups as group_rows
from cod.store.scheduler import requests, vclusters

FARTHEST = 366 * 86400.0
"""Seconds from now within which a reservation has to start."""


def check(
    tx: Tx,
    vcluster: Vcluster,
    tuples: Sequence[RequestTuple],
    asked: AskedNodes | AskedVcluster,
    starts_at: float | None,
    duration: float | None,
    context: FlowContext,
) -> None:
    """Raise `Refused` unless the nodes can be reserved from `starts_at` on for `duration` seconds,
    beside the other reservations and within the group's limits. The sentence contains only names
    that the asking user may see."""
    site, now, groups = context.site, context.now, context.who.groups
    if not asked.wait:
        raise Refused(
            "invalid",
            "a reservation in advance waits for its start: leave out that it does not wait",
            "wait",
        )
    owner = group_rows.get(tx, vcluster.group_id)
    starts_at, duration = checked_times(
        vcluster, owner, starts_at, duration, vcluster.preemptible, site.policy, now
    )
    watermarks.version(tx, watermarks.RESERVED, lock=True)
    seen = snapshot.look(tx, site, now, isolated=vcluster.isolated, times=True)
    request = unmade(tx, vcluster, owner, tuples, asked, duration, context)
    request = replace(request, starts_at=starts_at)
    if why := over_hours(tx, seen.site, request, owner, now):
        raise Refused("conflict", why, "duration")
    documents = templates.for_matching(tx, {one.template_id for one in tuples})
    hidden = (
        set()
        if groups is None
        else {one.id for one in seen.scene.live if one.group_id not in groups}
    )
    known = whatif.masked(
        replace(seen.site, templates={**seen.site.templates, **documents}), hidden
    )
    if why := admission.verdict(known, request, site.policy, now).sentence:
        raise Refused("conflict", why, "starts_at")
    watermarks.raise_version(tx, watermarks.RESERVED)


def checked_times(
    vcluster: Vcluster | None,
    owner: Group,
    starts_at: float | None,
    duration: float | None,
    preemptible: bool,
    policy: Policy,
    now: float,
) -> tuple[float, float]:
    """Return the start and the duration of a reservation. Raise `Refused` for times that are
    impossible whatever nodes are free: a start that is over or too far ahead, or a duration against
    the rules of leases. `vcluster` None: a new one."""
    if starts_at is None or duration is None:
        raise Refused(
            "invalid",
            "a reservation in advance has a start and a duration",
            "starts_at" if starts_at is None else "duration",
        )
    if preemptible:
        raise Refused(
            "conflict",
            "nodes of a preemptible vcluster cannot be reserved in advance: any other request "
            "may take them",
            "starts_at",
        )
    if starts_at <= now:
        raise Refused(
            "invalid",
            f"the start {reasons.at(starts_at)} is over: it is {reasons.at(now)}",
            "starts_at",
        )
    if starts_at > now + FARTHEST:
        raise Refused(
            "invalid",
            f"the start {reasons.at(starts_at)} is too far ahead: {reasons.at(now + FARTHEST)} is"
            " the last that can be reserved",
            "starts_at",
        )
    leases.check(duration, "duration")
    _check_lease(vcluster, owner, starts_at, duration, policy)
    return starts_at, duration


def over_hours(
    tx: Tx, seen: SiteSnapshot, request: PendingRequest, owner: Group, now: float
) -> str:
    """Return a sentence about the month in which the reservation would exceed the group's limit of
    node-hours; '' where there is no such month."""
    if owner.hours_limit is None:
        return ""
    used = energy.node_seconds(tx, energy_accounting.month(now), [owner.id]).get(owner.id, 0.0)
    return admission.over_hours(seen, request, owner.hours_limit, used, now)


def unmade(
    tx: Tx,
    vcluster: Vcluster,
    owner: Group,
    tuples: Sequence[RequestTuple],
    asked: AskedNodes | AskedVcluster,
    duration: float,
    context: FlowContext,
) -> PendingRequest:
    """Return a request that is not made yet, for the planner, without a start."""
    return PendingRequest(
        admission.LAST,
        vcluster.id,
        owner.priority,
        context.now,
        owner.id,
        (vcluster.subnet or "") if len(context.site.subnets) > 1 else "",
        tuple(tuples),
        may_spread=asked.spread,
        own=Counter(node.type_id or 0 for node in nodes.every(tx, vcluster_id=vcluster.id)),
        lease=duration,
        isolated=vcluster.isolated,
    )


def _check_lease(
    vcluster: Vcluster | None, owner: Group, starts_at: float, duration: float, policy: Policy
) -> None:
    """Raise `Refused` unless the vcluster's lease lasts to the start, and can last to the end."""
    ends = None if vcluster is None else vcluster.expires_at
    if vcluster is not None and ends is not None and ends <= starts_at:
        raise Refused(
            "conflict",
            f"the lease of vcluster {vcluster.name} ends {reasons.at(ends)}, "
            "before the start: extend it first",
            "starts_at",
        )
    began = starts_at
    if vcluster is not None and vcluster.state != VclusterState.PENDING:
        began = vcluster.leased_at or vcluster.created_at
    last = leases.latest(began, owner, policy)
    if starts_at + duration > max(last, ends or 0.0):
        raise Refused(
            "invalid",
            f"a lease of group {owner.name} lasts {exact_span(leases.longest(owner, policy))} at"
            f" most, with all extensions: this one ends {reasons.at(last)} at the latest",
            "duration",
        )


def bounded(
    tx: Tx, vcluster: Vcluster, until: float, *, clip: bool, site: Site, now: float
) -> float:
    """Return until when the lease can last without keeping nodes from reservations in advance, at
    most `until`. If that is earlier than `until`, raise `Refused`, unless `clip`."""
    if not requests.reserved(tx):
        return until
    watermarks.version(tx, watermarks.RESERVED, lock=True)
    seen = snapshot.look(tx, site, now)
    others = {one.id for one in seen.scene.live if one.group_id != vcluster.group_id}
    end, why = admission.bound(
        whatif.masked(seen.site, others), vcluster.id, until, site.policy, now
    )
    if why and not clip:
        left = (
            f"the lease can last until {reasons.at(end)}"
            if end > (vcluster.expires_at or now)
            else "the lease cannot be extended"
        )
        raise Refused("conflict", f"{left}: {why}", "lease")
    begins = (one.starts_at or now for one in forecast.reserved(seen.site))
    erased = end + forecast.margin(seen.site, vcluster.id, site.policy)
    if any((vcluster.expires_at or now) < start <= erased for start in begins):
        watermarks.raise_version(tx, watermarks.RESERVED)
    return end


def failing(tx: Tx, site: Site, now: float) -> Set[int]:
    """Return the ids of the accepted reservations that could not be met with the present nodes and
    leases. Until the transaction ends, no reservation is made, and no request is granted."""
    if not requests.reserved(tx):
        return frozenset()
    watermarks.version(tx, watermarks.RESERVED, lock=True)
    seen = snapshot.look(tx, site, now).site
    return forecast.Forecast(seen, Feasibility(seen, now), site.policy, now).failed


def check_kept(tx: Tx, before: Set[int], group_id: int, site: Site, now: float) -> None:
    """Raise `Refused` if a move of nodes in this transaction means that a reservation cannot be met
    any more.

    before    the ids that `failing` returned before the move
    group_id  the group whose vclusters' names the sentence may contain
    """
    lost = failing(tx, site, now) - before
    for request in (requests.get(tx, one) for one in sorted(lost)):
        vcluster = vclusters.get(tx, request.vcluster_id) if request is not None else None
        if request is None or vcluster is None:
            continue
        whom = f"vcluster {vcluster.name}" if vcluster.group_id == group_id else whatif.OTHERS
        raise Refused(
            "conflict",
            f"{reasons.nodes(sum(one.count for one in request.tuples))} are reserved for {whom}"
            f" (request {request.id}) from {reasons.at(request.starts_at or now)} on, and would not"
            " be there: move fewer nodes, or nodes of another type",
            "nodes",
        )
    if requests.reserved(tx):
        watermarks.raise_version(tx, watermarks.RESERVED)


def begin(tx: Tx, vcluster: Vcluster, request: Request, policy: Policy, now: float) -> None:
    """Extend the lease of a vcluster that has got its reservation's nodes, to last as long as the
    reservation; tell its group if the reservation begins late."""
    start = now if request.starts_at is None else request.starts_at
    longest = leases.latest(
        vcluster.leased_at or vcluster.created_at, group_rows.get(tx, vcluster.group_id), policy
    )
    end = min(now + (request.duration or 0.0), longest + max(0.0, now - start))
    if end > (vcluster.expires_at or now):
        vcluster = vclusters.change(
            tx, vcluster, now, expires_at=end, warned=leases.begun(end - now, policy)
        )
        vcm_outbox.leased(tx, vcluster, "extended", now)
    tell_begun(tx, vcluster, request, now)


def tell_begun(tx: Tx, vcluster: Vcluster, request: Request, now: float) -> None:
    """Tell the group of a reservation that begins now if it begins late."""
    start = now if request.starts_at is None else request.starts_at
    if now >= start + reasons.PUNCTUAL:
        notices.tell(
            tx, vcluster, notice_texts.reservation_late(vcluster, request.id, start, True), now
        )


def late(tx: Tx, request_id: int, sentence: str, now: float) -> None:
    """Tell the group that its reservation cannot begin yet, and when it will: once, and again when
    that becomes known."""
    request = requests.get(tx, request_id, lock=True)
    vcluster = vclusters.get(tx, request.vcluster_id) if request is not None else None
    if (
        request is None
        or vcluster is None
        or request.state != RequestState.PENDING
        or (
            request.reason.startswith(reasons.LATE)
            and (reasons.UNKNOWN in sentence or reasons.UNKNOWN not in request.reason)
        )
    ):
        return
    start = now if request.starts_at is None else request.starts_at
    notices.tell(
        tx,
        vcluster,
        notice_texts.reservation_late(vcluster, request.id, start, False, sentence),
        now,
    )
