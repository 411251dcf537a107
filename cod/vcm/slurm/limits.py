"""Jobs that a limit of accounting keeps from starting, although Slurm may say that they wait for
room.

While the partition has no node, Slurm's reason for such a job is Resources; once a node is there it
is AssocGrpCpuLimit or the like. A pool that believed the first reason would install node after node
on which nothing ever runs. Therefore, if nodes were requested for a job, and a limit stops the job
once the nodes are there, the job and its association are remembered. While the partition has no
node, such jobs do not count until a pause is over; then one of them counts, as a trial. Each failed
trial doubles the pause.

An association that is not known to be limited could cause many requests before its first pause. If
the site enforces limits, an association whose jobs have not run here yet is therefore `untried`,
and gets a few nodes at first (`cod.vcm.slurm.needs.FIRST_NODES`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from cod.vcm.batch.pool import MOST_LOGGED
from cod.vcm.slurm.view import SlurmJob

PREFIXES = ("Assoc", "QOS")  # of the reasons that are limits
FIRST_PAUSE, LONGEST_PAUSE = 600.0, 4 * 3600.0  # seconds
# seconds for which the partition must have had a node before Slurm's reasons are believed
SETTLED = 60.0

log = logging.getLogger("cod.vcm")

Key = tuple[str, ...]  # of a job, of an account's user, or of a whole account


@dataclass(slots=True)
class Pause:
    """A pause in which a job or an association is not counted: its length, and its end."""

    length: float
    until: float


class AccountingLimits:
    """Jobs and associations that accounting limits have stopped. The clock is in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pauses: dict[Key, Pause] = {}
        self._wanted: set[int] = set()  # jobs that were counted
        self._unlimited: set[Key] = set()  # associations that no limit keeps from every node
        self._nodes_since = inf  # since when there has been a node at every look

    def believed(
        self,
        jobs: Sequence[SlurmJob],
        partition: str,
        counts: Callable[[SlurmJob], bool],
        nodes: bool,
    ) -> list[SlurmJob]:
        """Return the jobs without those that a limit would stop if the partition had a node.

        counts  whether a job waits for room, by Slurm's reason
        nodes   whether the partition has a node that takes jobs
        """
        now = self._clock()
        self._nodes_since = min(self._nodes_since, now) if nodes else inf
        settled = now >= self._nodes_since + SETTLED
        here = [job for job in jobs if partition in job.partitions]
        self._notice([job for job in here if job.waits and job.reason.startswith(PREFIXES)], now)
        for job in here:
            if job.nodes or (settled and counts(job)):
                for key in _keys(job):
                    self._pauses.pop(key, None)
            if job.nodes or (settled and job.reason == "Resources"):
                self._unlimited |= set(_keys(job)[1:])
        found, tried = list[SlurmJob](), set[Key]()
        for job in sorted(jobs, key=lambda job: (-job.priority, job.id)):
            if counts(job):
                paused = [key for key in _keys(job) if key in self._pauses]
                if tried & set(paused) or any(now < self._pauses[key].until for key in paused):
                    continue
                tried |= set(paused)
                self._wanted.add(job.id)
            found.append(job)
        present = {job.id for job in jobs}
        self._wanted &= present
        gone = [key for key in self._pauses if key[0] == "job" and int(key[1]) not in present]
        for key in gone:
            del self._pauses[key]
        return found

    def ran(self, jobs: Sequence[SlurmJob], partition: str) -> None:
        """Remember the associations of jobs that are over and had nodes."""
        for job in jobs:
            if job.nodes and partition in job.partitions:
                self._unlimited |= set(_keys(job)[1:])

    def untried(self, job: SlurmJob) -> list[Key]:
        """Return those of the job's associations whose jobs have not run on a node yet."""
        return [key for key in _keys(job)[1:] if key not in self._unlimited]

    def _notice(self, kept: Sequence[SlurmJob], now: float) -> None:
        """Remember jobs that limits stop although nodes were requested for them. A pause begins
        when its job was last seen so."""
        for job in kept:
            for key in _remembered(job):
                if pause := self._pauses.get(key):
                    pause.until = now + pause.length
        in_vain = [job for job in kept if job.id in self._wanted]
        self._wanted -= {job.id for job in in_vain}
        for key in {key for job in in_vain for key in _remembered(job)}:
            before = self._pauses.get(key)
            self._unlimited.discard(key)
            length = min(before.length * 2, LONGEST_PAUSE) if before else FIRST_PAUSE
            self._pauses[key] = Pause(length, now + length)
        for job in in_vain[:MOST_LOGGED]:
            one, others = _remembered(job)
            log.warning(
                "job %s waits for a limit (%s), not for nodes: without a node in the partition"
                " none is asked for %s for %.0f min",
                job.name,
                job.reason,
                " ".join(others),
                self._pauses[one].length / 60,
            )


def _keys(job: SlurmJob) -> tuple[Key, ...]:
    return (
        ("job", str(job.id)),
        ("user", job.user, "of account", job.account or "-"),
        ("account", job.account or "-"),
    )


def _remembered(job: SlurmJob) -> tuple[Key, Key]:
    """Return the keys of the job and of the association that its limit applies to."""
    one, user, account = _keys(job)
    return one, account if "Grp" in job.reason else user
