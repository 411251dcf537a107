"""How long a plan takes: `python -m tests.bench.plan_site [nodes requests]`, by default 1,000 to
100,000 nodes.

A synthetic snapshot of 40 types in 10 blocks each, 500 vclusters of 10 priorities that hold three
quarters of the nodes, and requests of 1 to 16 nodes by 120 different attribute documents and 4
templates. Three figures: the first plan (documents are matched for the first time); the plan of the
same requests when the documents are known, from other records; and the plan of the site as it is
after the plan has been carried out, where nothing is to be done.
"""

from __future__ import annotations

import copy
import random
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from cod.model import Energy, NodeType, Policy, RequestTuple
from cod.policy.scheduler.plan import plan
from cod.policy.scheduler.snapshot import (
    COLD,
    WARM,
    Allocation,
    Cache,
    FreeNodes,
    IncomingNodes,
    NodeKind,
    OpenReclaim,
    PassPlan,
    PendingRequest,
    SiteSnapshot,
    VclusterHolder,
)

NOW = 1e6
TYPES, BLOCKS, VCLUSTERS, DOCUMENTS, TEMPLATES = 40, 10, 500, 120, 4
POLICY, ENERGY = Policy(), Energy()


def synthetic(nodes: int, requests: int, seed: int = 1) -> SiteSnapshot:
    """A site of that size."""
    dice = random.Random(seed)
    kinds = [
        NodeKind(number, block, "")
        for number in range(1, TYPES + 1)
        for block in range(1, BLOCKS + 1)
    ]
    each = nodes // len(kinds)
    free_nodes = [free for kind in kinds for free in _free_nodes(kind, each * 20 // 100, dice)]
    coming = [IncomingNodes(kind, each * 5 // 100 + 1) for kind in kinds]
    allocations = [one for kind in kinds for one in _allocations(kind, each * 75 // 100, dice)]
    held, site = Counter[int](), Counter[int]()
    for allocation in allocations:
        held[allocation.vcluster_id] += allocation.count
    for part in chain[Any](free_nodes, coming, allocations):
        site[part.kind.type] += part.count
    return SiteSnapshot(
        {number: _type(number) for number in range(1, TYPES + 1)},
        free_nodes,
        coming,
        allocations,
        {
            number: VclusterHolder(
                number,
                f"v{number}",
                number % 10,
                held[number],
                held[number] * 4 // 5,
                expires_at=NOW + 1e5,
            )
            for number in range(1, VCLUSTERS + 1)
        },
        (),
        dict(site),
        _requests(requests, dice),
        {number: _template(number) for number in range(1, TEMPLATES + 1)},
    )


def _type(number: int) -> NodeType:
    nics = '<nic speed="10000"/>' * (1 + number % 3)
    attributes = (
        f'<node><memory mib="{number * 1024}"/><cpu cores="{4 << number % 5}"'
        f' mhz="2400"/>{nics}</node>'
    )
    return NodeType(number, f"type{number}", "", attributes, float(number % 8), 0.0)


def _template(number: int) -> str:
    return (
        '<template><requires><memory><mib min="512"/></memory></requires><image target="disk"'
        f' name="x"><when><cpu><cores min="{number}"/></cpu></when></image></template>'
    )


def _free_nodes(kind: NodeKind, nodes: int, dice: random.Random) -> Iterator[FreeNodes]:
    alike = Counter[tuple[int, Cache | None]]()
    for _ in range(nodes):
        cached = Cache(dice.randint(1, TEMPLATES), dice.randint(1, 20))
        alike[dice.choice([WARM, COLD]), dice.choice([None, None, cached])] += 1
    return (FreeNodes(kind, readiness, count, cache) for (readiness, cache), count in alike.items())


def _allocations(kind: NodeKind, nodes: int, dice: random.Random) -> Iterator[Allocation]:
    for vcluster in dice.sample(range(1, VCLUSTERS + 1), 12):
        count = min(nodes, max(1, nodes // 12))
        if count:
            nodes -= count
            yield Allocation(vcluster, kind, count, dice.randint(0, count), NOW + 100)


def _requests(requests: int, dice: random.Random) -> list[PendingRequest]:
    wants = [
        f'<requires><memory><mib min="{dice.randint(1, 36) * 1024}"/></memory>'
        f'<cpu><cores min="{number % 30 + 2}"/></cpu></requires>'
        for number in range(DOCUMENTS)
    ]
    return [
        PendingRequest(
            number,
            1000 + number,
            dice.randint(0, 9),
            NOW - dice.randint(0, 20000),
            dice.randint(1, 20),
            "lab",
            tuple(
                RequestTuple(dice.randint(1, 16), dice.choice(wants), dice.randint(1, TEMPLATES))
                for _ in range(dice.choice([1, 1, 1, 2]))
            ),
            may_spread=number % 10 == 0,
        )
        for number in range(1, requests + 1)
    ]


def timed(seen: SiteSnapshot) -> tuple[float, PassPlan]:
    """Seconds of processor time that a plan takes, from records that have not been looked at
    before."""
    seen = copy.deepcopy(seen)
    start = time.process_time()
    done = plan(seen, POLICY, ENERGY, NOW)
    return time.process_time() - start, done


def after(seen: SiteSnapshot, done: PassPlan) -> SiteSnapshot:
    """The site after the plan, as far as it matters for the next: what was granted is gone, what
    was taken is told."""
    gone = {grant.request_id for grant in done.grants} | {
        refusal.request_id for refusal in done.refusals if refusal.final
    }
    told = {refusal.request_id: refusal.sentence for refusal in done.refusals}
    given = Counter[FreeNodes]()
    held = {request.id: Counter[NodeKind]() for request in seen.requests}
    for grant in done.grants:
        for share in grant.shares:
            given[share.free_nodes] += share.count
            held[grant.request_id][share.free_nodes.kind] += share.count
    lost = Counter[tuple[int, NodeKind]]()
    for preempt in done.preemptions:
        lost[preempt.vcluster_id, preempt.kind] += preempt.count
    leaving = Counter[int]()
    for (vcluster_id, _), count in lost.items():
        leaving[vcluster_id] += count
    return replace(
        seen,
        free_nodes=[replace(free, count=free.count - given[free]) for free in seen.free_nodes],
        allocations=[
            replace(one, mobile=one.mobile - lost[one.vcluster_id, one.kind])
            for one in seen.allocations
        ]
        + [
            Allocation(1000 + one, kind, count, 0, NOW + 300)
            for one, kinds in held.items()
            for kind, count in kinds.items()
        ],
        holders={one.id: replace(one, leaving=leaving[one.id]) for one in seen.holders.values()},
        reclaims=[
            OpenReclaim(
                number,
                preempt.vcluster_id,
                preempt.request_id,
                preempt.kind,
                preempt.count,
                NOW + 300,
            )
            for number, preempt in enumerate(done.preemptions)
        ],
        requests=[replace(one, reason=told[one.id]) for one in seen.requests if one.id not in gone],
    )


def main() -> None:
    sizes = (
        [(int(sys.argv[1]), int(sys.argv[2]))]
        if len(sys.argv) > 2
        else [(1000, 100), (10_000, 1000), (100_000, 10_000)]
    )
    print("  nodes  requests   first   known  unchanged  MiB  grants  takes  waits")
    for nodes, requests in sizes:
        seen = synthetic(nodes, requests)
        first, done = timed(seen)
        known, _ = timed(seen)
        unchanged, nothing = timed(after(seen, done))
        assert not any((nothing.grants, nothing.reductions, nothing.preemptions, nothing.refusals))
        tracemalloc.start()
        plan(seen, POLICY, ENERGY, NOW)
        peak = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        print(
            f"{nodes:7} {requests:9} {first:6.2f}s {known:6.2f}s {unchanged:9.3f}s {peak:4.0f}"
            f" {len(done.grants):7} {len(done.preemptions):6} {len(done.refusals):6}"
        )


if __name__ == "__main__":
    main()
