"""A batch system as its pool sees it: it is looked at, lets hosts in, and gives them up.

Each function may block, and says what shall be: done twice, it does no harm. They raise
`CommandFailed` where a command fails, and `NotUnderstood` where its output cannot be read: who
cannot read a pool must not change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from cod.vcm.pool import ANY, Member, Nodeset


@dataclass(frozen=True, slots=True)
class Job:
    """A job that runs on a host, or one task of an array.

    id       as the batch system's commands name it
    started  seconds, on a clock of the batch system's own: only compared with each other
    state    as the batch system writes it
    """

    id: str
    started: float
    state: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """A host that the batch system knows.

    address  as the batch system knows it; '' if it knows names only
    heard    its daemon reports
    closed   it was told to take no more jobs
    usable   it takes jobs
    jobs     the jobs running there; a job on several hosts is found at each
    planned  the batch system's scheduler counts on it for a waiting job: it leaves later
    """

    name: str
    address: str
    heard: bool
    closed: bool
    usable: bool
    jobs: tuple[Job, ...] = ()
    planned: bool = False

    @property
    def idle(self) -> bool:
        """Return whether the host takes jobs, and has none."""
        return self.usable and not self.jobs


@dataclass(frozen=True, slots=True)
class Wants:
    """The demand of the waiting jobs.

    nodes  by nodeset, nodes beyond the present ones; nodes on their way are included
    jobs   jobs that could start on a node of this pool
    kept   hosts on which a waiting job could start, now or after their present work
    spent  hosts that were for one job, which is over
    never  a sentence for each job that no node of this pool could run
    spare  the nodeset of nodes requested without a job: for `minimum` and `reserve`
    """

    nodes: Mapping[Nodeset, int] = field(default_factory=dict)
    jobs: int = 0
    kept: frozenset[str] = frozenset()
    spent: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    spare: Nodeset = ANY


class BatchSystem(Protocol):
    """A queue, or a partition, and the hosts in it."""

    def hosts(self) -> Mapping[str, Host]:
        """Return the pool's hosts by short name, those among them that COD did not give."""
        ...

    def look(self, ours: Collection[str], coming: Counter[str]) -> tuple[Mapping[str, Host], Wants]:
        """Return hosts and demand of one moment.

        ours    hosts that COD gave and that have joined
        coming  nodes asked for, or granted and not yet joined, by the nodeset's name
        """
        ...

    def begin(self, member: Member) -> None:
        """Make a node known, closed, before its daemon reports. What is known of an earlier node of
        its name at another address is struck off."""
        ...

    def open(self, member: Member) -> None:
        """Let a node take jobs: its daemon has reported."""
        ...

    def close(self, host: Host, lost: bool) -> None:
        """Let a host take no more jobs. `lost`: it is gone, and what ran there runs nowhere."""
        ...

    def requeue(self, job: Job) -> None:
        """Put a job back into the queue, also one whose owner said that it should not run again:
        its host is going."""
        ...

    def stop(self, name: str) -> None:
        """Shut the host's daemon down."""
        ...

    def expel(self, name: str, lost: bool) -> None:
        """Remove every trace of the host. Raises `NotYet` while jobs are still ending there."""
        ...


@runtime_checkable
class EndSignals(Protocol):
    """Methods of a batch system whose jobs can ask for a signal before their end."""

    def notice(self, job: Job) -> float:
        """Return how many seconds before its end a job wants its signal; 0: it wants none."""
        ...

    def warn(self, job: Job) -> None:
        """Send a job the signal that it wants before its end."""
        ...


@dataclass(frozen=True, slots=True)
class Downtime:
    """The time in which a maintenance window has a host: jobs there have ended by `begins`. Both in
    seconds since the epoch; `ends` is infinite where nobody knows it."""

    window: int
    host: str
    begins: float
    ends: float


@runtime_checkable
class Foresees(Protocol):
    """Methods of a batch system that can keep jobs from running into a downtime."""

    def foresee(self, downtimes: Collection[Downtime], now: float) -> float:
        """Let no job start that would run into one of these; what was done for others is undone.
        Return how many seconds before its downtime a host has to be closed for that: 0 where the
        batch system lets in jobs that end before."""
        ...


@runtime_checkable
class OneHost(Protocol):
    """The further functions of a batch system that can be asked cheaply about one host."""

    def host(self, name: str) -> Host | None:
        """Return what the batch system knows of a host, without its jobs; None for nothing."""
        ...
