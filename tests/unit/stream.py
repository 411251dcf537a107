"""A stream of requests of one priority over one type of nodes, decided by the manager's policy,
minute by minute.

Every vcluster lasts as long as its lease says (or less), and its nodes are free again at once: what
is looked at is who waits how long, and how many nodes stand empty.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cod.model import Policy
from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.snapshot import (
    Allocation,
    Decision,
    FreeNodes,
    NodeKind,
    PendingRequest,
    SiteSnapshot,
    VclusterHolder,
)
from tests.unit.policy_sites import SMALL, kind, request, site

STEP = 60.0


@dataclass(frozen=True)
class Job:
    """`count` nodes wanted from `at` on, for a lease of `lease` seconds; it is over `runs` after it
    began."""

    at: float
    count: int
    lease: float
    runs: float


@dataclass
class Stream:
    """Blocks of so many nodes, and the jobs that come. `waits`: how long those waited that were
    granted, by number."""

    blocks: Sequence[int]
    jobs: Sequence[Job]
    policy: Policy
    now: float = 0.0
    waits: dict[int, float] = field(default_factory=dict)
    used: float = 0.0
    _pending: dict[int, PendingRequest] = field(default_factory=dict)
    _running: dict[int, tuple[float, float, Counter[NodeKind]]] = field(default_factory=dict)

    def run(self, until: float) -> Iterator[tuple[SiteSnapshot, Decision]]:
        """Each minute's site, and what is decided."""
        coming = dict(enumerate(sorted(self.jobs, key=lambda job: job.at), 1))
        while self.now < until:
            self.now += STEP
            for number, job in coming.items():
                if self.now - STEP < job.at <= self.now:
                    self._pending[number] = request(
                        number, job.count, submitted_at=job.at, lease=job.lease
                    )
            self._running = {one: row for one, row in self._running.items() if row[1] > self.now}
            seen = self._snapshot()
            done = decide(seen, self.policy, self.now)
            for grant in done.grants:
                job = coming[grant.request_id]
                self.waits[grant.request_id] = self.now - job.at
                held: Counter[NodeKind] = Counter()
                for share in grant.shares:
                    held[share.free_nodes.kind] += share.count
                self._running[grant.request_id] = self.now + job.lease, self.now + job.runs, held
                del self._pending[grant.request_id]
            self.used += sum(held.total() for *_, held in self._running.values()) * STEP
            yield seen, done

    def withdraw(self, number: int) -> None:
        """Withdraw a job that is not wanted any more."""
        del self._pending[number]

    def _snapshot(self) -> SiteSnapshot:
        free = Counter({kind(SMALL, block): count for block, count in enumerate(self.blocks, 1)})
        for *_, held in self._running.values():
            free -= held
        return site(
            free_nodes=[FreeNodes(one, 0, count) for one, count in free.items()],
            requests=list(self._pending.values()),
            holders=[
                VclusterHolder(
                    1000 + one, f"v{one}", 0, held.total(), held.total(), expires_at=ends
                )
                for one, (ends, _, held) in self._running.items()
            ],
            allocations=[
                Allocation(1000 + one, where, count, 0)
                for one, (*_, held) in self._running.items()
                for where, count in held.items()
            ],
            site={SMALL: sum(self.blocks)},
        )

    @property
    def utilisation(self) -> float:
        """The share of all nodes' time that was used."""
        return self.used / (sum(self.blocks) * self.now)


def crowd(
    seed: int, days: float, nodes: int, large: Sequence[tuple[float, int]], early: float = 1.0
) -> list[Job]:
    """Small jobs, somewhat more than there are nodes for, and (at, nodes) of large ones among them.

    early  vclusters are over after this share of their lease, at the soonest
    """
    dice = random.Random(seed)
    jobs, at = [], 0.0
    while at < days * 86400:
        at += dice.expovariate(1.08 * nodes / (2 * 5400))  # twice a node, for an hour and a half
        lease = dice.uniform(1800, 9000)
        jobs.append(Job(at, dice.choice((1, 1, 2, 4)), lease, lease * dice.uniform(early, 1.0)))
    return jobs + [Job(at, count, 7200.0, 7200.0) for at, count in large]
