"""Hypothetical requests: the outcome of a request if it were made now, and changes with which it
would be granted. Pure.

The request is added to a snapshot, and `policy.scheduler.explain` treats it as any other request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace

from cod.model import Policy, Remedy
from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.explain import Explanation
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.reasons import nodes
from cod.policy.scheduler.snapshot import NodeKind, PendingRequest, SiteSnapshot, VclusterHolder
from cod.policy.sharing.entitlements import shared

NEW_VCLUSTER = -1
"""The id of a hypothetical request, and of its vcluster if that does not exist yet. No row has this
id."""
ANYTHING = '<template name="any"><image target="disk" name="any"/></template>'
"""The template of a request that names none: every node satisfies it."""
OTHERS = "a vcluster of another group"
"""The name of a vcluster as told to people who may not see it."""


def supposed(
    snapshot: SiteSnapshot, request: PendingRequest, floor: int, documents: Mapping[int, str]
) -> SiteSnapshot:
    """Return the snapshot as if `request` waited in it, too. `floor`: the creation size of its
    vcluster; `documents`: the documents of its templates, by id."""
    holders = snapshot.holders
    if request.vcluster_id not in holders:
        holders = {
            **holders,
            request.vcluster_id: VclusterHolder(
                request.vcluster_id, "", request.priority, 0, floor, group_id=request.group_id
            ),
        }
    return shared(
        replace(
            snapshot,
            holders=holders,
            requests=[*snapshot.requests, request],
            templates={**snapshot.templates, **documents},
        )
    )


def masked(snapshot: SiteSnapshot, hidden: Set[int]) -> SiteSnapshot:
    """Return the snapshot without the names of the vclusters with the ids `hidden`, for a person
    who may not see these vclusters."""
    if not hidden:
        return snapshot
    holders = {
        each: replace(holder, name=OTHERS) if each in hidden else holder
        for each, holder in snapshot.holders.items()
    }
    return replace(snapshot, holders=holders)


def remedies(snapshot: SiteSnapshot, request: PendingRequest, room: int) -> tuple[Remedy, ...]:
    """Return the changes that would make an impossible request possible, the largest number of
    nodes first. There are none if only other requirements would help, or for a request of several
    tuples.

    room  nodes that its vcluster can have addresses for
    """
    if len(request.tuples) != 1:
        return ()
    wanted = request.tuples[0].count
    # without windows: maintenance does not make a request impossible
    feasibility = Feasibility(replace(snapshot, windows={}), 0.0)
    fit = feasibility.fit(request.tuples[0], request)
    largest = max(feasibility.others(request, fit).values(), default=0)
    total = sum(feasibility.other_types(request, fit).values())
    found = [] if request.may_spread else [Remedy(min(wanted, largest, room), False)]
    found.append(Remedy(min(wanted, total, room), True))
    asked = Remedy(wanted, request.may_spread)
    useful = [
        one
        for one in sorted(found, key=lambda one: (-one.count, one.spread))
        if one.count > 0 and one != asked
    ]
    # of two remedies with the same number of nodes, only the one without spreading
    return tuple(
        one
        for place, one in enumerate(useful)
        if all(one.count != other.count for other in useful[:place])
    )


def at_once(
    snapshot: SiteSnapshot, request: PendingRequest, policy: Policy, now: float
) -> tuple[Remedy, ...]:
    """Return changes by which a waiting request of `snapshot` would be granted in the next pass,
    the largest number of nodes first; none for requests of several tuples, reservations in advance,
    and moves."""
    if len(request.tuples) != 1 or request.starts_at is not None or request.source_id is not None:
        return ()
    feasibility, (one,) = Feasibility(snapshot, now), request.tuples
    kinds = set(feasibility.fit(one, request).kinds)
    by_kind: Counter[NodeKind] = Counter()
    for free in snapshot.free_nodes:
        if free.kind.among(kinds) and free.reserved in (0, request.id):
            by_kind[free.kind] += free.count
    found: list[Remedy] = []
    for count, spread in ((by_kind.total(), True), (max(by_kind.values(), default=0), False)):
        remedy = Remedy(min(count, one.count), spread or request.may_spread)
        same = remedy.count in (0, *(other.count for other in found))
        if same or remedy == Remedy(one.count, request.may_spread):
            continue
        less = replace(
            request, tuples=(replace(one, count=remedy.count),), may_spread=remedy.spread
        )
        changed = [less if other.id == request.id else other for other in snapshot.requests]
        decision = decide(replace(snapshot, requests=changed), policy, now)
        if all(refusal.request_id != request.id for refusal in decision.refusals):
            found.append(remedy)
    return tuple(found)


def offer(one: Remedy) -> str:
    """Return a remedy in words: '38 nodes of several types and blocks'."""
    return nodes(one.count) + (" of several types and blocks" if one.spread else "")


def expected(found: Explanation, now: float) -> float | None:
    """Return when enough nodes for a request will be free, by the ends of leases, reclaims and
    inertia; None: unknown. Earlier requests are ignored, and so is whether the nodes are in one
    block."""
    if found.code == "granted":
        return now
    if found.code == "impossible":
        return None
    have = found.free + found.coming
    for chance in found.chances:
        if chance.at is None:
            continue
        have += chance.count
        if have >= found.wanted:
            return max(now, chance.at)
    return None
