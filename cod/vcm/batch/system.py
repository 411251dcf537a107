"""The interface of a batch system: reading its hosts and jobs, admitting hosts, and removing them.

Each function may block, and sets a state, so a repeated call does no harm. They raise
`CommandFailed` if a command fails, and `NotUnderstood` if its output cannot be read: a pool that
cannot be read must not be changed.
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
    started  seconds on the batch system's own clock: times are only compared with each other
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
    jobs     the jobs running there; a job on several hosts is listed for each of them
    planned  the batch system's scheduler has planned a waiting job on it, so it is given up later
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
        """Return the pool's hosts by short name, including hosts that COD did not give."""
        ...

    def look(self, ours: Collection[str], coming: Counter[str]) -> tuple[Mapping[str, Host], Wants]:
        """Return hosts and demand of one moment.

        ours    hosts that COD gave and that have joined
        coming  nodes requested, or granted and not yet joined, by the nodeset's name
        """
        ...

    def begin(self, member: Member) -> None:
        """Register a node, closed, before its daemon reports. Delete the records of an earlier node
        with the same name and another address."""
        ...

    def open(self, member: Member) -> None:
        """Let a node take jobs: its daemon has reported."""
        ...

    def close(self, host: Host, lost: bool) -> None:
        """Let a host take no more jobs. `lost`: the host is gone, and its jobs no longer run."""
        ...

    def requeue(self, job: Job) -> None:
        """Put a job back into the queue because its host leaves, even if the job's owner has
        forbidden it to run again."""
        ...

    def stop(self, name: str) -> None:
        """Shut the host's daemon down."""
        ...

    def expel(self, name: str, lost: bool) -> None:
        """Delete all records of the host. Raises `NotYet` while jobs are still ending there."""
        ...


@runtime_checkable
class EndSignals(Protocol):
    """Methods of a batch system whose jobs can ask for a signal before their end."""

    def notice(self, job: Job) -> float:
        """Return how many seconds before its end a job requests a signal; 0 if it requests none."""
        ...

    def warn(self, job: Job) -> None:
        """Send a job the signal that it requests before its end."""
        ...


@dataclass(frozen=True, slots=True)
class Downtime:
    """The time for which a maintenance window takes a host. Jobs there have ended by `begins`.
    Times are seconds since the epoch; `ends` is infinite if it is not known."""

    window: int
    host: str
    begins: float
    ends: float


@runtime_checkable
class Foresees(Protocol):
    """Methods of a batch system that can keep jobs from running into a downtime."""

    def foresee(self, downtimes: Collection[Downtime], now: float) -> float:
        """Let no job start that would run into one of the downtimes, and undo preparations for
        other downtimes. Return how many seconds before its downtime a host has to be closed: 0 if
        the batch system itself starts only jobs that end before."""
        ...


@runtime_checkable
class OneHost(Protocol):
    """Optional method of a batch system that can cheaply read one host."""

    def host(self, name: str) -> Host | None:
        """Return a host without its jobs; None if the batch system does not know it."""
        ...
