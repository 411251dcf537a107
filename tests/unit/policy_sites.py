"""Small sites for the tests of the resource manager's policy: by hand, at random, and after a plan
was carried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from cod.model import NodeType, Policy, RequestTuple
from cod.policy.scheduler.snapshot import (
    COLD,
    PREEMPTIBLE,
    WARM,
    Allocation,
    Cache,
    Decision,
    FreeNodes,
    IncomingNodes,
    NodeKind,
    OpenReclaim,
    PendingRequest,
    SiteSnapshot,
    VclusterHolder,
)

TEMPLATES = {
    1: '<template><image target="disk" name="any"/></template>',
    2: (
        '<template><requires><memory><mib min="2048"/></memory></requires><image target="disk"'
        ' name="big"/></template>'
    ),
    3: (
        '<template><image target="disk" name="bios"><when><firmware><kind'
        ' equal="bios"/></firmware></when></image></template>'
    ),
}
SMALL, BIG, UEFI = 1, 2, 3
TYPES = {
    SMALL: NodeType(
        SMALL, "small", "", '<node><firmware kind="bios" /><memory mib="1024" /></node>', 1.0, 0.0
    ),
    BIG: NodeType(
        BIG, "big", "", '<node><firmware kind="bios" /><memory mib="4096" /></node>', 5.0, 0.0
    ),
    UEFI: NodeType(
        UEFI, "uefi", "", '<node><firmware kind="uefi" /><memory mib="1024" /></node>', 1.0, 0.0
    ),
}
BIG_ONLY = '<requires><memory><mib min="4096"/></memory></requires>'
LARGER_THAN_ANY = '<requires><memory><mib min="8GiB"/></memory></requires>'
NOW = 1000.0
POLICY = Policy(age_step=10.0)


def kind(type_id: int = SMALL, block: int = 0, subnet: str = "") -> NodeKind:
    """Nodes of a type, in a block."""
    return NodeKind(type_id, block, subnet)


def free(
    count: int, where: NodeKind | int = SMALL, readiness: int = WARM, **columns: Any
) -> FreeNodes:
    """Free nodes."""
    return FreeNodes(
        where if isinstance(where, NodeKind) else kind(where), readiness, count, **columns
    )


def request(number: int, *counts: int | RequestTuple, **columns: Any) -> PendingRequest:
    """A request for so many nodes of any kind (a tuple for each count), of a vcluster of its
    own."""
    tuples = tuple(
        one if isinstance(one, RequestTuple) else RequestTuple(one, "", 1) for one in counts
    )
    return replace(
        PendingRequest(number, 1000 + number, 0, float(number), 9, "lab", tuples), **columns
    )


def holder(
    number: int, held: int, floor: int = 0, priority: int = 0, **columns: Any
) -> VclusterHolder:
    """A vcluster."""
    return VclusterHolder(number, f"v{number}", priority, held, floor, **columns)


def site(**columns: Any) -> SiteSnapshot:
    """A site; it has the nodes that are free, on their way or held."""
    seen = SiteSnapshot(types=TYPES, templates=TEMPLATES, **columns)
    if not seen.site:
        seen = replace(seen, site=census(seen))
    holders: Any = seen.holders
    if not isinstance(holders, dict):
        holders = {one.id: one for one in holders}
    return replace(seen, holders=holders)


def census(seen: SiteSnapshot) -> dict[int, int]:
    """How many nodes there are of each type."""
    total: Counter[int] = Counter()
    for rows in (seen.free_nodes, seen.coming, seen.allocations):
        for row in rows:
            total[row.kind.type] += row.count
    return dict(total)


# ---------------------------------------------------------------- any site

KINDS = [
    kind(SMALL, 1),
    kind(SMALL, 2),
    kind(BIG, 1),
    kind(UEFI),
    kind(BIG, 3, "lab"),
    kind(SMALL, 4, "far"),
]
TUPLES = st.builds(
    RequestTuple,
    st.integers(1, 4),
    st.sampled_from(["", "", "", "", BIG_ONLY, LARGER_THAN_ANY]),
    st.sampled_from([1, 1, 1, 2, 3]),
)
CACHES = st.sampled_from([None, None, None, Cache(1, 9), Cache(2, 10)])
OLD = 7  # id of a request that waits already and may have nodes reserved


@st.composite
def snapshots(
    draw: st.DrawFn,
    settled: bool = False,
    tuples: int = 2,
    contended: bool = False,
    preemptible: bool = True,
) -> SiteSnapshot:
    """Small sites with every kind of trouble.

    settled    nothing is reserved or being taken yet
    contended  requests want what lower priorities hold
    preemptible  some vclusters are preemptible
    """
    kinds = st.sampled_from(KINDS)
    reserved = st.sampled_from([0, 0, 0] if settled else [0, 0, 0, OLD, 99])
    free_nodes = draw(
        st.lists(
            st.builds(
                FreeNodes, kinds, st.sampled_from([WARM, COLD]), st.integers(1, 3), CACHES, reserved
            ),
            max_size=6,
            unique_by=lambda one: replace(one, count=0),
        )
    )
    coming = draw(
        st.lists(
            st.builds(IncomingNodes, kinds, st.integers(1, 3), reserved, st.booleans()), max_size=3
        )
    )
    holders, allocations, reclaims = [], [], []
    for number in range(1, draw(st.integers(0, 4)) + 1):
        own = draw(st.dictionaries(kinds, st.integers(1, 4), max_size=3))
        held = sum(own.values())
        given_up = preemptible and draw(st.integers(0, 3)) == 3
        left = 0
        for where, count in own.items():
            leaving = 0 if settled or left + 1 > held else draw(st.sampled_from([0, 0, 0, 1]))
            left += leaving
            mobile = count - leaving if given_up else draw(st.integers(0, count - leaving))
            immune = NOW + 50 if mobile + leaving < count else None
            late = draw(st.integers(0, mobile)) if given_up else 0
            started = (
                ((NOW - 5, late), (NOW - draw(st.sampled_from([50, 500])), mobile - late))
                if given_up
                else ()
            )
            allocations.append(
                Allocation(
                    number, where, count, mobile, immune, tuple(one for one in started if one[1])
                )
            )
            if leaving:
                reclaims.append(
                    OpenReclaim(
                        len(reclaims) + 1,
                        number,
                        OLD,
                        where,
                        leaving,
                        draw(st.sampled_from([NOW - 1, NOW + 5])),
                    )
                )
        ends = draw(st.sampled_from([None, None, NOW + 500, NOW + 500 if contended else NOW - 5]))
        drains = draw(st.sampled_from([None, NOW - 1, NOW + 1])) if ends == NOW - 5 else None
        floor, priority = draw(st.integers(0, held)), draw(st.integers(0, 2 if contended else 3))
        holders.append(
            holder(
                number,
                held,
                *((0, PREEMPTIBLE) if given_up else (floor, priority)),
                leaving=left,
                expires_at=ends,
                drain_until=drains,
            )
        )
    wanted = (
        st.builds(RequestTuple, st.integers(1, 4), st.just(""), st.just(1)) if contended else TUPLES
    )
    requests = [
        request(
            number,
            *draw(st.lists(wanted, min_size=1, max_size=tuples)),
            priority=draw(st.integers(2 if contended else 0, 3)),
            submitted_at=float(draw(st.integers(0, 25))),
            group_id=draw(st.integers(9, 10)),
            may_wait=draw(st.sampled_from([True, True, True, False])),
            may_spread=draw(st.sampled_from([False, False, True])),
        )
        for number in range(1, draw(st.integers(0, 5)) + 1)
    ]
    if preemptible and requests and draw(st.integers(0, 3)) == 3:
        requests[-1] = replace(requests[-1], priority=PREEMPTIBLE)
    if requests and not settled:
        requests[0] = replace(requests[0], id=OLD, may_wait=True)
    if holders and requests and draw(st.booleans()):
        grows = holders[0]
        own = Counter(
            {one.kind.type: one.count for one in allocations if one.vcluster_id == grows.id}
        )
        requests[-1] = replace(
            requests[-1], vcluster_id=grows.id, priority=grows.priority, own=dict(own)
        )
    seen = site(
        free_nodes=free_nodes,
        coming=coming,
        holders=holders,
        allocations=allocations,
        reclaims=reclaims,
        requests=requests,
    )
    aside = draw(st.dictionaries(st.sampled_from(sorted(TYPES)), st.integers(1, 2), max_size=1))
    return replace(seen, site=dict(Counter(seen.site) + Counter(aside)))


def shuffled(seen: SiteSnapshot, shuffle: Callable[[list[Any]], None]) -> SiteSnapshot:
    """Return the same site, its rows in another order."""

    def turned(rows: Iterable[Any]) -> list[Any]:
        turn = list(rows)
        shuffle(turn)
        return turn

    rows = {
        name: turned(getattr(seen, name))
        for name in ("free_nodes", "coming", "allocations", "reclaims", "requests", "deserted")
    }
    tables = {
        name: dict(turned(getattr(seen, name).items()))
        for name in ("types", "holders", "site", "templates", "warned")
    }
    return replace(seen, **rows, **tables)


# ---------------------------------------------------------------- after a plan


def carried_out(
    seen: SiteSnapshot, done: Decision, policy: Policy = POLICY, now: float = NOW
) -> SiteSnapshot:
    """The site when a decision has been carried out: what is granted is held, what is taken is on
    its way out."""
    gone = {grant.request_id for grant in done.grants} | {
        refusal.request_id for refusal in done.refusals if refusal.final
    }
    told = {refusal.request_id: refusal.sentence for refusal in done.refusals}
    seen = _cleared(seen, gone)
    requests = {one.id: one for one in seen.requests}
    for grant in done.grants:
        for share in grant.shares:
            seen = _given(
                seen,
                replace(
                    share.free_nodes,
                    reserved=0 if share.free_nodes.reserved in gone else share.free_nodes.reserved,
                ),
                share.count,
                requests[grant.request_id],
                now,
                now + policy.inertia,
            )
    for reduction in done.reductions:
        reclaim = next(one for one in seen.reclaims if one.id == reduction.reclaim_id)
        assert reclaim.open == reduction.count + reduction.left
        seen = _taken(seen, reclaim.vcluster_id, reclaim.kind, -reduction.count)
        rest = [replace(reclaim, open=reduction.left)] if reduction.left else []
        seen = replace(
            seen, reclaims=[one for one in seen.reclaims if one.id != reduction.reclaim_id] + rest
        )
    for preempt in done.preemptions:
        seen = _taken(seen, preempt.vcluster_id, preempt.kind, preempt.count)
        number = max((one.id for one in seen.reclaims), default=0) + 1
        seen = replace(
            seen,
            reclaims=[
                *seen.reclaims,
                OpenReclaim(
                    number,
                    preempt.vcluster_id,
                    preempt.request_id,
                    preempt.kind,
                    preempt.count,
                    now + policy.reclaim_grace,
                ),
            ],
        )
    return replace(
        seen,
        requests=[
            replace(one, reason=told.get(one.id, one.reason))
            for one in seen.requests
            if one.id not in gone
        ],
    )


def _cleared(seen: SiteSnapshot, gone: set[int]) -> SiteSnapshot:
    """Nothing is reserved for, or being taken for, requests that wait no longer."""
    free_nodes: Counter[FreeNodes] = Counter()
    for one in seen.free_nodes:
        free_nodes[replace(one, count=0, reserved=0 if one.reserved in gone else one.reserved)] += (
            one.count
        )
    for reclaim in seen.reclaims:
        if reclaim.request_id in gone:
            seen = _taken(seen, reclaim.vcluster_id, reclaim.kind, -reclaim.open)
    return replace(
        seen,
        free_nodes=[replace(one, count=count) for one, count in free_nodes.items()],
        coming=[
            replace(one, reserved=0 if one.reserved in gone else one.reserved)
            for one in seen.coming
        ],
        reclaims=[one for one in seen.reclaims if one.request_id not in gone],
    )


def _given(
    seen: SiteSnapshot,
    where: FreeNodes,
    count: int,
    wanted: PendingRequest,
    now: float,
    immune_until: float,
) -> SiteSnapshot:
    free_nodes = [
        (
            replace(one, count=one.count - count)
            if replace(one, count=0) == replace(where, count=0)
            else one
        )
        for one in seen.free_nodes
    ]
    assert sum(one.count for one in free_nodes) == sum(one.count for one in seen.free_nodes) - count
    assert all(one.count >= 0 for one in free_nodes)
    ends = now + wanted.lease if wanted.lease < float("inf") else None
    known = seen.holders.get(
        wanted.vcluster_id,
        holder(
            wanted.vcluster_id,
            0,
            0,
            wanted.priority,
            expires_at=ends,
            group_id=0 if wanted.preemptible else wanted.group_id,
        ),
    )
    # It counts as its creation size: else what it grew by could be taken from those that it has had
    # for long.
    known = replace(
        known, held=known.held + count, floor=0 if wanted.preemptible else known.floor + count
    )
    held = {(one.vcluster_id, one.kind): one for one in seen.allocations}
    before = held.get((known.id, where.kind), Allocation(known.id, where.kind, 0, 0))
    held[known.id, where.kind] = (
        replace(before, count=before.count + count, immune_until=immune_until)
        if (not wanted.preemptible)
        else replace(
            before,
            count=before.count + count,
            mobile=before.mobile + count,
            started=((now, count), *before.started),
        )
    )
    return replace(
        seen,
        free_nodes=[one for one in free_nodes if one.count],
        holders={**seen.holders, known.id: known},
        allocations=list(held.values()),
    )


def _taken(seen: SiteSnapshot, vcluster_id: int, where: NodeKind, count: int) -> SiteSnapshot:
    allocations = [
        (
            replace(one, mobile=one.mobile - count)
            if (one.vcluster_id, one.kind) == (vcluster_id, where)
            else one
        )
        for one in seen.allocations
    ]
    loser = seen.holders[vcluster_id]
    return replace(
        seen,
        allocations=allocations,
        holders={**seen.holders, vcluster_id: replace(loser, leaving=loser.leaving + count)},
    )


def granted(done: Decision) -> list[int]:
    """Which requests are granted, in order."""
    return [grant.request_id for grant in done.grants]


def nodes_of(done: Decision, request_id: int) -> Counter[NodeKind]:
    """How many nodes of which kind are granted to a request."""
    nodes: Counter[NodeKind] = Counter()
    for grant in done.grants:
        for share in grant.shares if grant.request_id == request_id else ():
            nodes[share.free_nodes.kind] += share.count
    return nodes


def codes(done: Decision) -> dict[int, str]:
    """The codes of those that are not granted."""
    return {refusal.request_id: refusal.code for refusal in done.refusals}


def in_turn(rows: Sequence[Any]) -> list[Any]:
    """Rows in an order of their own."""
    return sorted(rows, key=repr)
