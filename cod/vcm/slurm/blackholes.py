"""Nodes on which every job fails at once, for example because the clock is wrong or a file system
is missing. Such a node empties the queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cod.vcm.slurm.view import SlurmJob

JOBS = 5  # jobs that have to fail on a node one after the other
QUICK = 10.0  # seconds within which each of them fails
FAILURES = frozenset({"FAILED", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"})


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that has ended. `quick`: it failed within seconds."""

    user: str
    quick: bool


class BlackHoles:
    """Results of the last jobs of each node."""

    def __init__(self) -> None:
        self._last: dict[str, deque[Ended]] = {}  # by node, since it was found last
        self._known: set[tuple[str, float]] = set()

    def found(self, over: Sequence[SlurmJob], ours: Collection[str]) -> list[str]:
        """Return our nodes whose last jobs all failed within seconds, if the jobs' owner is not to
        blame: the jobs had several owners, or a job of the same owner on another node did not fail
        so. Jobs on several nodes do not count. Once a node has been returned, only later jobs count
        for it."""
        seen = {(job.name, job.started) for job in over}
        for job in sorted(over, key=lambda job: job.ended):
            if (job.name, job.started) not in self._known and len(job.nodes) == 1 and job.started:
                quick = job.state in FAILURES and job.ended - job.started <= QUICK
                last = self._last.setdefault(job.nodes[0], deque(maxlen=JOBS))
                last.append(Ended(job.user, quick))
        self._known = seen
        self._last = {name: last for name, last in self._last.items() if name in ours}
        holes = [name for name in self._last if self._is_hole(name)]
        for name in holes:
            del self._last[name]
        return holes

    def _is_hole(self, name: str) -> bool:
        last = self._last[name]
        if sum(job.quick for job in last) < JOBS:
            return False
        users = {job.user for job in last}
        return len(users) > 1 or any(
            job.user in users and not job.quick
            for other, jobs in self._last.items()
            for job in jobs
            if other != name
        )
