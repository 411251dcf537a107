"""A request that nobody has made, and what the next pass would make of it; what of that may be told
to whom. Pure.

Nothing is decided here: the request is put into a snapshot, and `policy.scheduler.explain` says
what it says of any other.
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
"""The id of the request, and of the vcluster that it is for where there is none yet: no row has
it."""
ANYTHING = '<template name="any"><image target="disk" name="any"/></template>'
"""Stands for a template where none is named: it wants nothing of a node."""
OTHERS = "a vcluster of another group"
"""What a vcluster is called to those who may not see it."""


def supposed(
    snapshot: SiteSnapshot, request: PendingRequest, floor: int, documents: Mapping[int, str]
) -> SiteSnapshot:
    """Return the site as if `request` waited in it, too. `floor`: the size of its vcluster;
    `documents`: of its templates, by id."""
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
    """Return the site, for somebody from whom the vclusters with these ids are hidden: their names
    are not in it."""
    if not hidden:
        return snapshot
    holders = {
        each: replace(holder, name=OTHERS) if each in hidden else holder
        for each, holder in snapshot.holders.items()
    }
    return replace(snapshot, holders=holders)


def remedies(snapshot: SiteSnapshot, request: PendingRequest, room: int) -> tuple[Remedy, ...]:
    """Return what would help a pending request of `snapshot`, the largest number of nodes first;
    nothing where only other requirements would, or for a request of several kinds.

    room  nodes that its vcluster can have addresses for
    """
    if len(request.tuples) != 1:
        return ()
    wanted = request.tuples[0].count
    # maintenance passes
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
    # More kinds of nodes have to be worth something: a remedy for as many nodes is the plain one.
    return tuple(
        one
        for place, one in enumerate(useful)
        if all(one.count != other.count for other in useful[:place])
    )


def at_once(
    snapshot: SiteSnapshot, request: PendingRequest, policy: Policy, now: float
) -> tuple[Remedy, ...]:
    """Return changes by which a waiting request of `snapshot` would be granted in the next pass,
    the largest number of nodes first; none for requests of several kinds, in advance, or moves."""
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
    """Return what would be possible: '38 nodes of several types and blocks'."""
    return nodes(one.count) + (" of several types and blocks" if one.spread else "")


def expected(found: Explanation, now: float) -> float | None:
    """Return when there will be nodes enough, as far as leases, reclaims and immunity tell; None:
    they do not. Requests that go before it are not looked at, nor is whether the nodes are in one
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
