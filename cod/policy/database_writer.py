"""Choice of the writer, the one host of a database cluster that all servers of a site write to.

A row of the database, the lease, names the writer. Each process of each server renews the lease at
that host once a second, by a write: a host that accepts the write is part of the cluster, and has
everything that was committed before. After it began its last renewal, the process may read and
write there for half of the lease's time.

A process that cannot renew the lease asks all hosts. If the lease's host accepts its write, the
process goes on there. Otherwise it waits until no process has renewed the lease for the lease's
whole time, and then takes the lease over for a host that answers, with the next epoch. So no
process still writes to the old host when another begins at the new one. A process whose own link is
cut sees the others' renewals at another host, and waits. Each process measures times by its own
clock only: no two clocks are compared, and setting a clock does no harm.

A host whose lease has an older epoch than the newest known one is never used: it lacks what was
committed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cod.model import DatabaseLease

LEASE_SECONDS = 6.0
RENEWAL_PERIOD = 1.0  # seconds
NOBODY = DatabaseLease("", 0, 0, 0.0)
"""The lease of a database that no process has written to yet."""


@dataclass(frozen=True, slots=True)
class WriterView:
    """A process's knowledge of the writer. Times are by its own monotonic clock.

    host     the writer; '': none is known
    epoch    epoch of the lease that the process has renewed there
    until    when the process has to stop reading and writing at the host
    newest   the newest lease that the process has seen
    since    when it saw that lease first
    """

    host: str = ""
    epoch: int = 0
    until: float = 0.0
    newest: DatabaseLease = NOBODY
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """A database host's answer about itself.

    lease     the lease as stored at the host; None: the database there has no tables yet
    writable  whether the host accepts writes, and so is no replica
    """

    host: str
    lease: DatabaseLease | None
    writable: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """The process must not write now, and asks the hosts again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Renew:
    """The process renews the lease of this epoch at its host."""

    host: str
    epoch: int


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The process takes the lease over for `host`. `lease`: the present lease, as stored there."""

    host: str
    lease: DatabaseLease


@dataclass(frozen=True, slots=True)
class UseWithoutLease:
    """The process uses the host without a lease, to create the tables there."""

    host: str


def may_write(view: WriterView, now: float) -> bool:
    """Return whether the process may read, decide and commit at the view's host."""
    return bool(view.host) and now < view.until


def is_writer(view: WriterView, host: str, epoch: int) -> bool:
    """Return whether work that began at a host under an epoch may go on. `cod init` and `cod db
    upgrade` begin without a lease (epoch 0), and create the table for the first lease (epoch 1)."""
    return host == view.host and (epoch == view.epoch or (epoch, view.epoch) == (0, 1))


def renewed(view: WriterView, host: str, epoch: int, begun: float) -> WriterView:
    """Return the view after a renewal or takeover that began at the time `begun` and that the host
    has committed."""
    if epoch > view.newest.epoch:  # remember the epoch, so that the former writer is not used again
        # beat -1: any beat that a host reports is newer
        view = replace(view, newest=DatabaseLease(host, epoch, -1, LEASE_SECONDS), since=begun)
    return replace(view, host=host, epoch=epoch, until=begun + LEASE_SECONDS / 2)


def seen(view: WriterView, answers: Sequence[HostAnswer], now: float) -> WriterView:
    """Return the view updated by the hosts' answers: with the newest lease, and when it was first
    seen."""
    newest = max(
        [view.newest, *(each.lease for each in answers if each.lease)],
        key=lambda lease: (lease.epoch, lease.beat),
    )
    if view.since and (newest.epoch, newest.beat) == (view.newest.epoch, view.newest.beat):
        return view
    return replace(view, newest=newest, since=now)


def next_step(
    view: WriterView, answers: Sequence[HostAnswer], now: float
) -> Renew | TakeOver | UseWithoutLease | Wait:
    """Return the next action of a process. `view` includes the answers (`seen`); `answers` are in
    the order in which the site prefers the hosts."""
    newest = view.newest
    if not answers:
        return Wait("no host of the database answers")
    if not newest.epoch and all(each.lease is None for each in answers):
        found = next((each.host for each in answers if each.writable), "")
        return UseWithoutLease(found) if found else Wait("all hosts that answer are read-only")
    current = [each for each in answers if each.lease and each.lease.epoch == newest.epoch]
    usable = {each.host: each.lease for each in current if each.writable and each.lease}
    if newest.host in usable:
        return Renew(newest.host, newest.epoch)
    if not current:
        return Wait(
            f"{', '.join(each.host for each in answers)} lack what was committed at"
            f" {newest.host}, the writer of epoch {newest.epoch}"
        )
    if not usable:
        return Wait(f"{', '.join(each.host for each in current)} are read-only")
    if newest.host and now < view.since + max(newest.seconds, LEASE_SECONDS):
        return Wait(f"the lease of {newest.host}, which does not answer here, has not expired")
    host, lease = next(iter(usable.items()))
    return TakeOver(host, lease)
