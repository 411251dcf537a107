"""Outcomes of jobs, counted by priority, group, queue and user."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from cod.sim.demand.job import SimJob

Label = tuple[str, str]  # a kind, such as 'group', and a name
OUTCOMES = ("done", "rejected", "cut")


class JobFigures:
    """Figures of the jobs of one label.

    counts  'submitted', 'started', each of `OUTCOMES`, and 'restarts' of interrupted jobs
    waits   seconds from submission to the first start, of jobs that started
    used    node-seconds in which jobs ran, interrupted ones included
    good    node-seconds that finished jobs needed, without repeated or cut work
    """

    __slots__ = ("counts", "good", "used", "waits")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.waits: list[float] = []
        self.good = self.used = 0.0


class TrackedJob:
    """A job from its submission to its end. `starts`: how often it has started; `since`: the time
    up to which its use is counted, None while it does not run."""

    __slots__ = ("_all", "_figures", "job", "labels", "since", "starts")

    def __init__(self, job: SimJob, labels: tuple[Label, ...], everything: JobStats) -> None:
        self.job, self.labels, self.starts = job, labels, 0
        self.since: float | None = None
        self._all = everything
        self._figures = [everything.figures[label] for label in labels]
        self._count("submitted")

    def start(self, now: float) -> None:
        """Record that the job runs from `now` on."""
        if self.starts:
            self._count("restarts")
        else:
            self._count("started")
            wait = now - self.job.at
            for figures in self._figures:
                figures.waits.append(wait)
        self.starts += 1
        self.since = now

    def sum_up(self, now: float) -> None:
        """Count the job's use of nodes until `now`, if it runs."""
        if self.since is not None:
            used, self.since = self.job.size * (now - self.since), now
            for figures in self._figures:
                figures.used += used

    def interrupt(self, now: float) -> None:
        """Record that the job no longer runs and must begin again."""
        self.sum_up(now)
        self.since = None

    def end(self, outcome: str, now: float) -> None:
        """Record that the job has ended: as done, rejected, or cut by the end of its lease."""
        self.interrupt(now)
        self._count(outcome)
        if outcome == "done":
            for figures in self._figures:
                figures.good += self.job.size * self.job.runtime
        del self._all.open[self]

    def _count(self, what: str) -> None:
        for figures in self._figures:
            figures.counts[what] += 1


class JobStats:
    """The figures of all jobs by their labels. `open`: jobs that have been submitted and have not
    ended.

    sources  demands that have more jobs to submit
    """

    def __init__(self) -> None:
        self.figures: defaultdict[Label, JobFigures] = defaultdict(JobFigures)
        self.open: dict[TrackedJob, None] = {}
        self.sources = 0

    def submit(self, job: SimJob, group: str, priority: int, queue: str) -> TrackedJob:
        """Track a job. `queue`: the name of the demand, used if the job names no queue."""
        labels: tuple[Label, ...] = (
            ("priority", str(priority)),
            ("group", group),
            ("queue", job.queue or queue),
        )
        if job.user:
            labels += (("user", job.user),)
        tracked = TrackedJob(job, labels, self)
        self.open[tracked] = None
        return tracked

    def of(self, kind: str, name: object) -> JobFigures:
        """Return the figures of a label, such as a priority."""
        return self.figures[kind, str(name)]

    def names(self, kind: str) -> list[str]:
        """Return the names of that kind that occur, in order."""
        return sorted((name for of_kind, name in self.figures if of_kind == kind), key=natural)

    def finished(self) -> bool:
        """Return whether all jobs have ended and none will be submitted."""
        return not self.sources and not self.open

    def sum_up(self, now: float) -> None:
        """Count the use of nodes by running jobs until `now`."""
        for tracked in self.open:
            tracked.sum_up(now)

    def waiting(self, now: float) -> dict[Label, list[float]]:
        """Return, by label, how long jobs without a start have waited so far, in seconds."""
        made: dict[Label, list[float]] = defaultdict(list)
        for tracked in self.open:
            if not tracked.starts:
                for label in tracked.labels:
                    made[label].append(now - tracked.job.at)
        return made


def natural(name: str) -> list[tuple[str, int]]:
    """Return a key that sorts 'q-2' before 'q-10'."""
    return [(text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name)]
