"""Admission of requests for nodes: each tuple is valid, all machines of the site together could
meet the request, and the group does not have too many waiting requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cod.core.networks import address_blocks
from cod.model import (
    SITE,
    AskedTuple,
    Group,
    Impossible,
    Policy,
    Refused,
    Request,
    RequestTuple,
    Site,
    TypeRules,
    Vcluster,
)
from cod.policy.hardware import match
from cod.policy.scheduler import reasons, whatif
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.snapshot import (
    Allocation,
    IncomingNodes,
    NodeKind,
    PendingRequest,
    SiteSnapshot,
)
from cod.states import VclusterState
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import types
from cod.store.scheduler import node_counts, requests, vclusters


def asked_before(tx: Tx, key: str | None, vcluster: str, kind: str = "") -> Request | None:
    """Return the request that was made with this key; None if there is none. Raises `Refused` if it
    is of a vcluster of another name, or of another kind ('': of any)."""
    before = requests.by_key(tx, key) if key else None
    if before is None:
        return None
    name = vclusters.known(tx, before.vcluster_id).name
    if name != vcluster or kind not in ("", before.kind):
        raise Refused("conflict", f"that key was used before, for vcluster {name}", "key")
    return before


def active(tx: Tx, name: str, *, lock: bool = False) -> Vcluster:
    """Return the active vcluster of that name. Raises `Refused` if there is no live vcluster of
    that name, or if it is not active."""
    holder = vclusters.named(tx, name, "vcluster", lock=lock)
    if holder.state != VclusterState.ACTIVE:
        raise Refused("conflict", f"vcluster {name} is {holder.state}, not active", "vcluster")
    return holder


def tuples(
    tx: Tx,
    asked: Sequence[AskedTuple],
    field: str,
    default: RequestTuple,
    group_id: int,
    rules: TypeRules,
) -> list[RequestTuple]:
    """Return the tuples of a request of the group, made of what was asked for. Raises `Refused`,
    which names the field that is wrong.

    field    name of the list, with which the names of fields in refusals begin
    default  has the values that tuples leave out
    rules    of the site's node types: only attributes that make types can be requested
    """
    found = []
    for place, one in enumerate(asked):
        part, template_id = f"{field}.{place}.", default.template_id
        if one.count < 1:
            raise Refused("invalid", "a request is for one node at least", f"{part}count")
        if one.attributes:
            match.check(one.attributes, rules, field=f"{part}attributes")
        if one.template:
            template_id = templates.usable(tx, one.template, group_id, f"{part}template").id
        found.append(RequestTuple(one.count, one.attributes or default.attributes, template_id))
    return found


def check_waiting(tx: Tx, group: Group, policy: Policy) -> None:
    """Raise `Refused` if the group has as many waiting requests and reservations as it may have.
    The site's own group, which belongs to the administrators, has no limit."""
    most = policy.pending_requests
    if group.name != SITE and most and (waiting := requests.waiting(tx, group.id)) >= most:
        raise Refused(
            "slow_down",
            f"group {group.name} has {waiting} requests that wait, and may have {most}: end some"
            " first",
        )


def check_possible(
    tx: Tx,
    vcluster: Vcluster,
    tuples: Sequence[RequestTuple],
    *,
    spread: bool,
    site: Site,
    field: str,
) -> None:
    """Raise `Impossible` if all machines of the site together, including those that are out of
    service or expected, could not meet a request for the vcluster. Nothing is checked on a site
    without machines, which is being set up."""
    many = len(site.subnets) > 1
    known = node_counts.by_type(tx)
    if not known:
        return
    counts = node_counts.by_kind(tx, vcluster.id, many)
    own: Counter[int] = Counter()
    for (kind, its_own), count in counts.items():
        own[kind.type] += count * its_own
    request = PendingRequest(
        whatif.NEW_VCLUSTER,
        vcluster.id,
        0,
        0.0,
        vcluster.group_id,
        (vcluster.subnet or "") if many else "",
        tuple(tuples),
        may_spread=spread,
        own=+own,
    )
    snapshot = SiteSnapshot(
        {kind.id: kind for kind in types.every(tx)},
        coming=[
            IncomingNodes(NodeKind(*kind), count)
            for (kind, its_own), count in counts.items()
            if not its_own
        ],
        allocations=[
            Allocation(vcluster.id, NodeKind(*kind), count, 0)
            for (kind, its_own), count in counts.items()
            if its_own
        ],
        site=known,
        templates=templates.for_matching(tx, {one.template_id for one in tuples}),
        expected=node_counts.expected(tx),
    )
    why = reasons.never(request, Feasibility(snapshot, 0.0))
    if not why:
        return
    holder = None if vcluster.state == VclusterState.PENDING else vcluster
    room = address_blocks.room(tx, holder, site, isolated=vcluster.isolated)
    helps = whatif.remedies(snapshot, request, room)
    raise Impossible(
        f"{why}. Possible: {' or '.join(map(whatif.offer, helps))}" if helps else why,
        field,
        helps,
    )
