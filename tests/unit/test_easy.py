"""Requests with `hold_after` of a second are served as EASY backfilling serves jobs: the queue's
head has a time at which it begins at the latest, by the ends of leases, and others run before it if they
are over by then or use nodes that are left then."""

from __future__ import annotations

import random

import pytest

from cod.model import Policy
from tests.unit.stream import STEP, Job, Stream

NODES = 16


def easy(jobs: list[Job], until: float) -> dict[int, float]:
    """Return how long jobs wait, by their number, by the algorithm as it was published (Lifka 1995;
    Mu'alem and Feitelson 2001), at the same moments as the stream."""
    coming = dict(enumerate(sorted(jobs, key=lambda job: job.at), 1))
    queue: list[int] = []
    running: list[tuple[float, float, int]] = []  # (end of the lease, end, nodes)
    waits: dict[int, float] = {}
    now = 0.0

    def start(number: int) -> None:
        job = coming[number]
        running.append((now + job.lease, now + job.runs, job.count))
        waits[number] = now - job.at
        queue.remove(number)

    while now < until:
        now += STEP
        queue += [number for number, job in coming.items() if now - STEP < job.at <= now]
        running = [one for one in running if one[1] > now]
        free = NODES - sum(one[2] for one in running)
        while queue and coming[queue[0]].count <= free:
            free -= coming[queue[0]].count
            start(queue[0])
        if not queue:
            continue
        there, shadow = free, now
        for end in sorted({one[0] for one in running}):
            there = free + sum(one[2] for one in running if one[0] <= end)
            shadow = end
            if there >= coming[queue[0]].count:
                break
        extra = there - coming[queue[0]].count
        for number in queue[1:]:
            job = coming[number]
            if job.count > free:
                continue
            if now + job.lease <= shadow:
                free -= job.count
                start(number)
            elif job.count <= extra:
                free -= job.count
                extra -= job.count
                start(number)
    return waits


def workload(seed: int, sizes: list[int], longest: float, early: float, load: float) -> list[Job]:
    """Return jobs of a day and a half that want `load` of the nodes."""
    dice = random.Random(seed)
    jobs: list[Job] = []
    at = 30.0
    while at < 1.5 * 86400:
        lease = 60.0 * round(dice.uniform(5, longest))
        runs = 60.0 * max(1, round(lease / 60.0 * dice.uniform(early, 1.0)))
        count = dice.choice(sizes)
        jobs.append(Job(at, count, lease, runs))
        # no two at once: of requests of one age as many as possible are served
        at += 60.0 * max(1, round(count * runs / (NODES * load) / 60.0 * dice.uniform(0.2, 1.8)))
    return jobs


@pytest.mark.parametrize(
    ("seed", "sizes", "longest", "early", "load"),
    [
        (1, [1, 1, 2, 4, 12], 150, 1.0, 0.9),
        (2, [1, 2, 3, 5, 8, 16], 240, 0.5, 0.85),
        (3, [1, 1, 1, 1, 10], 90, 0.3, 0.95),
        (4, [2, 4, 6, 8], 200, 0.8, 0.9),
    ],
)
@pytest.mark.slow
def test_waits_are_those_of_easy(
    seed: int, sizes: list[int], longest: float, early: float, load: float
) -> None:
    jobs = workload(seed, sizes, longest, early, load)
    until = 4 * 86400.0
    stream = Stream([NODES], jobs, Policy(hold_after=1.0, drain_grace=0.0, age_step=0.0))
    for _ in stream.run(until):
        pass
    assert stream.waits == easy(jobs, until)
