"""Explanations of waiting requests, and prospects of hypothetical requests.

The manager's own policy gives both, from the snapshot that a pass begins with; nothing is written.
Those who may not see a vcluster are not told its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from cod.core import admission as core_admission
from cod.core import advance_reservations, node_hours, request_starts, vcluster_names
from cod.core.networks import address_blocks as core_blocks
from cod.core.networks import isolation as core_isolation
from cod.core.networks import sources
from cod.core.nodes import stories
from cod.model import (
    Group,
    Refused,
    Remedy,
    Request,
    RequestTuple,
    RequestView,
    Site,
    Template,
    Vcluster,
)
from cod.policy.hardware import match
from cod.policy.reservations import admission, free_nodes
from cod.policy.scheduler import explain as policy
from cod.policy.scheduler import leases, reasons, whatif
from cod.policy.scheduler.snapshot import PendingRequest, SiteSnapshot, effective
from cod.states import RequestState
from cod.store import views
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import nodes, switches
from cod.store.people import groups as group_rows
from cod.store.scheduler import maintenance, node_counts, reservations, vclusters
from cod.store.scheduler.pass_rows import PassRows

Groups = frozenset[int] | None
OTHERS = whatif.OTHERS


@dataclass(frozen=True, slots=True)
class Why:
    """A request and why it waits.

    names     of vclusters that the asking user may see, by id
    remedies  changes by which a rejected request could have been granted, or by which a waiting one
              could be: in the next pass if `at_once`, otherwise at any time
    start     a sentence about when the request is expected to start; '' where that is not known
    """

    request: RequestView
    why: policy.Explanation
    names: Mapping[int, str]
    remedies: tuple[Remedy, ...] = ()
    at_once: bool = False
    start: str = ""


def waits(
    tx: Tx,
    *,
    request_id: int,
    scene: PassRows,
    snapshot: SiteSnapshot,
    site: Site,
    groups: Groups,
    now: float,
) -> Why:
    """Return why a request waits (`policy.scheduler.explain`); for a request that does not wait,
    return its state and reason. Raises `Refused` ('not_found').

    `scene`, `snapshot`: the site as `core.snapshot.look` sees it.
    """
    view = views.request(tx, request_id, groups)
    request = view.request
    if request.state != RequestState.PENDING:
        wanted = sum(one.count for one in request.tuples)
        why_waiting = request.reason or f"it is {request.state}"
        helps = (
            _remedies(tx, request, snapshot, site) if request.state == RequestState.REJECTED else ()
        )
        return Why(
            view,
            policy.Explanation(
                request.id, request.state, why_waiting, wanted, 0, 0, 0, 0, reason=why_waiting
            ),
            {},
            helps,
        )
    seen = whatif.masked(snapshot, _hidden(scene, groups))
    seen_names = {
        one.id: one.name for one in scene.live if groups is None or one.group_id in groups
    }
    promises = reservations.promised(tx, request.id)
    why = policy.explain(seen, site.policy, now, request.id, promises)
    away = _passed_over(tx, why, len(request.tuples))
    held = stories.site_held(tx)
    before = [f"{held[0].upper()}{held[1:]}."] if held else []
    why = replace(why, sentence=" ".join([*before, why.sentence, *away]))
    pending = next(one for one in seen.requests if one.id == request.id)
    start = "" if held else request_starts.sentence(tx, view.start, now)
    helps = () if why.code == "granted" else whatif.at_once(seen, pending, site.policy, now)
    if helps or why.fitting >= why.wanted or pending.starts_at is not None:
        return Why(view, why, seen_names, helps, at_once=True, start=start)
    helps = _remedies(tx, request, snapshot, site)
    return Why(view, why, seen_names, helps, start=start)


def _passed_over(tx: Tx, why: policy.Explanation, tuples: int) -> Iterator[str]:
    """Yield sentences about matching nodes that the request cannot get: their power control or
    their switch does not answer, or they are in maintenance."""
    types = [one.type_id for one in why.types if len(one.lacks) < tuples]
    if silent := node_counts.silent(tx, types):
        some = "1 of them is" if silent == 1 else f"{silent} of them are"
        yield f"{some} passed over: power control does not answer."
    for why_away, out in maintenance.taken(tx, types).items():
        yield f"{out} of them {'is' if out == 1 else 'are'} out of service: {why_away}."
    if why.portless and (switches_away := switches.away(tx)):
        yield f"Ports of switches that do not answer are passed over: {', '.join(switches_away)}."


def _remedies(tx: Tx, request: Request, snapshot: SiteSnapshot, site: Site) -> tuple[Remedy, ...]:
    """Return the changes by which the request could be granted if it were made again now. Its
    vcluster may have ended."""
    vcluster = vclusters.known(tx, request.vcluster_id)
    own = Counter(node.type_id or 0 for node in nodes.every(tx, vcluster_id=vcluster.id))
    pending = PendingRequest(
        request.id,
        vcluster.id,
        effective(request.priority, vcluster.preemptible),
        request.submitted_at,
        vcluster.group_id,
        (vcluster.subnet or "") if len(site.subnets) > 1 else "",
        request.tuples,
        may_spread=request.may_spread,
        own=own,
        isolated=vcluster.isolated,
    )
    documents = templates.documents(tx, {one.template_id for one in request.tuples})
    seen = whatif.supposed(snapshot, pending, vcluster.creation_size, documents)
    holder = None if request.kind == "create" else vcluster
    room = core_blocks.room(tx, holder, site, isolated=vcluster.isolated)
    return whatif.remedies(seen, pending, room)


def _hidden(scene: PassRows, groups: Groups) -> set[int]:
    return set() if groups is None else {one.id for one in scene.live if one.group_id not in groups}


# ---------------------------------------------------------------- a request that nobody has made


@dataclass(frozen=True, slots=True)
class HypotheticalRequest:
    """A request that nobody has made yet. `template` '' stands for any.

    vcluster  the vcluster that would get the nodes; '': a new vcluster of `group` with the name
              `name` ('': not chosen yet)
    lease     length of the lease in seconds; None: the group's default
    isolated  the new vcluster would be in a VLAN of its own
    preemptible  the new vcluster would be preemptible
    starts_at  start of a reservation of the nodes for `lease` seconds; None: as soon as possible
    """

    count: int
    attributes: str = ""
    template: str = ""
    group: str = ""
    vcluster: str = ""
    spread: bool = False
    name: str = ""
    lease: float | None = None
    isolated: bool = False
    preemptible: bool = False
    starts_at: float | None = None


@dataclass(frozen=True, slots=True)
class ReservationOffer:
    """A reservation that would be accepted: `count` nodes from `starts_at` on."""

    count: int
    starts_at: float


@dataclass(frozen=True, slots=True)
class Match:
    """Prospects of a hypothetical request.

    room         number of nodes that its vcluster can have addresses for
    expected_at  when it could be granted, by the ends of leases; None: never, or not known
    remedies     changes by which a request that can never be granted could be
    faults       why a vcluster of that name and lease could not be created, by field
    proposals    in place of a reservation that cannot be accepted: fewer nodes at the same start,
                 and all nodes at a later start
    """

    why: policy.Explanation
    room: int
    expected_at: float | None
    remedies: tuple[Remedy, ...] = ()
    faults: Mapping[str, str] = field(default_factory=dict)
    proposals: tuple[ReservationOffer, ...] = ()


def match_(
    tx: Tx,
    *,
    asked: HypotheticalRequest,
    scene: PassRows,
    snapshot: SiteSnapshot,
    site: Site,
    groups: Groups,
    now: float,
) -> Match:
    """Return what the next pass would decide about the request if it were made now. Raises
    `Refused` if it could not be made."""
    match.check(asked.attributes, site.types)
    if asked.isolated:
        core_isolation.rules_of(site)
    holder = core_admission.active(tx, asked.vcluster) if asked.vcluster else None
    owner = (
        group_rows.get(tx, holder.group_id)
        if holder
        else group_rows.named(tx, asked.group, "group")
    )
    template = _template(tx, asked.template, holder, owner)
    pending = _pending_request(tx, asked, holder, owner, template, site, now)
    documents = templates.for_matching(tx, [template.id]) if template else {0: whatif.ANYTHING}
    seen = whatif.supposed(
        whatif.masked(snapshot, _hidden(scene, groups)), pending, asked.count, documents
    )
    why = policy.explain(seen, site.policy, now, pending.id)
    proposals: tuple[ReservationOffer, ...] = ()
    if asked.starts_at is not None:
        known = replace(
            whatif.masked(snapshot, _hidden(scene, groups)),
            templates={**snapshot.templates, **documents},
        )
        why, proposals = _reserved(tx, asked, holder, owner, known, pending, why, site, now)
    room = core_blocks.room(tx, holder, site, isolated=asked.isolated)
    helps = (
        whatif.remedies(seen, pending, room)
        if why.code == "impossible" or asked.count > room
        else ()
    )
    return Match(
        why,
        room,
        None if asked.starts_at is not None else whatif.expected(why, now),
        helps,
        {} if holder else _faults(tx, asked, owner, site, now),
        proposals,
    )


def _reserved(
    tx: Tx,
    asked: HypotheticalRequest,
    holder: Vcluster | None,
    owner: Group,
    snapshot: SiteSnapshot,
    pending: PendingRequest,
    why: policy.Explanation,
    site: Site,
    now: float,
) -> tuple[policy.Explanation, tuple[ReservationOffer, ...]]:
    """Return an explanation whether the reservation would be accepted, and proposals that would be.
    The free nodes in the explanation are those that are free for the reservation's whole time,
    rather than now."""
    preemptible = asked.preemptible if holder is None else holder.preemptible
    length = pending.lease if holder is None else asked.lease
    starts_at, length = advance_reservations.checked_times(
        holder, owner, asked.starts_at, length, preemptible, site.policy, now
    )
    request = replace(pending, id=admission.LAST, lease=length, starts_at=starts_at)
    found = admission.verdict(snapshot, request, site.policy, now)
    free = free_nodes.of_types(snapshot, site.policy, now, starts_at + length)
    types = tuple(
        replace(
            one,
            free=min(one.site, free_nodes.least(free.get(one.type_id, ()), starts_at)),
            coming=0,
            held=0,
        )
        for one in why.types
    )
    over = advance_reservations.over_hours(tx, snapshot, request, owner, now)
    answer = over or found.sentence
    if not answer:
        answer = f"{reasons.nodes(asked.count)} can be reserved from {reasons.at(starts_at)} on."
        return replace(why, code="granted", sentence=answer, types=types, chances=()), ()
    never = why.code == "impossible"
    proposals = []
    if not over and not never:
        if count := admission.largest(snapshot, request, site.policy, now):
            proposals.append(ReservationOffer(count, starts_at))
        if found.later is not None:
            proposals.append(ReservationOffer(asked.count, found.later))
    code = why.code if never else "reserved"
    sentence = f"{answer[:1].upper()}{answer[1:]}{'' if answer.endswith('.') else '.'}"
    why = replace(why, code=code, sentence=sentence, types=types, chances=())
    return why, tuple(proposals)


def _faults(
    tx: Tx, asked: HypotheticalRequest, owner: Group, site: Site, now: float
) -> dict[str, str]:
    """Return the faults of a new vcluster's name and lease, by field."""

    def name() -> None:
        if asked.name:
            vcluster_names.check_new(tx, asked.name)

    def lease() -> None:
        leases.check(asked.lease)
        if asked.starts_at is not None:
            return  # the reservation's own check counts the node-hours of its months
        until = now + leases.granted_time(asked.lease, owner, site.policy)
        node_hours.check(tx, owner, asked.count, until, now, field="lease")

    found: dict[str, str] = {}
    for check in (name, lease):
        try:
            check()
        except Refused as refused:
            found[refused.field] = refused.sentence
    return found


def _pending_request(
    tx: Tx,
    asked: HypotheticalRequest,
    holder: Vcluster | None,
    owner: Group,
    template: Template | None,
    site: Site,
    now: float,
) -> PendingRequest:
    wanted = RequestTuple(asked.count, asked.attributes, template.id if template else 0)
    many = len(site.subnets) > 1
    if holder is None:
        source = sources.choose(tx, site, [wanted], isolated=asked.isolated)
        subnet = source.name if many else ""
        return PendingRequest(
            whatif.NEW_VCLUSTER,
            whatif.NEW_VCLUSTER,
            effective(owner.priority, asked.preemptible),
            now,
            owner.id,
            subnet,
            (wanted,),
            may_spread=asked.spread,
            lease=leases.length(asked.lease, owner, site.policy),
            isolated=asked.isolated,
        )
    own = Counter(node.type_id or 0 for node in nodes.every(tx, vcluster_id=holder.id))
    return PendingRequest(
        whatif.NEW_VCLUSTER,
        holder.id,
        effective(owner.priority, holder.preemptible),
        now,
        owner.id,
        (holder.subnet or "") if many else "",
        (wanted,),
        may_spread=asked.spread,
        own=own,
        isolated=holder.isolated,
    )


def _template(tx: Tx, name: str, holder: Vcluster | None, owner: Group) -> Template | None:
    if not name:
        return templates.get(tx, holder.template_id) if holder else None
    return templates.usable(tx, name, owner.id)
