"""Choice of the host of a database cluster that COD writes to: one at a time, for all servers of a
site.

A row of the database, the lease, names the host. Each process of each server renews the lease at
that host once a second, by a write: a host that accepts the write is part of the cluster, and has
everything that was committed before. The process may read and write there for half of the lease's
time after it began its last renewal.

A process that cannot renew asks all hosts. Where the lease's host accepts its write, the process
goes on there. Otherwise it waits until nobody has renewed the lease for the lease's whole time,
and then takes it over for a host that answers, with the next epoch. So no process still writes at
the old host when one begins at the new one, and a process whose own link is cut sees the others'
renewals at another host and waits. Lengths of time are counted by each observer from what it saw
itself: no two clocks are compared, and a clock that is set does no harm.

A host whose lease has an older epoch than one that was seen is never used: it has missed what was
committed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cod.model import DatabaseLease

LEASE_SECONDS = 6.0
RENEWAL_PERIOD = 1.0  # seconds
NOBODY = DatabaseLease("", 0, 0, 0.0)
"""The lease of a database whose hosts nobody has written to yet."""


@dataclass(frozen=True, slots=True)
class WriterView:
    """A process's knowledge of the writer. Times are by its own clock, which nobody sets.

    host     the writer; '': none is known
    epoch    of the lease that the process has renewed there
    until    the process may read and write at the host until then
    newest   the newest lease that it has seen
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

    lease     as the host has it; None: the database there has no tables yet
    writable  it accepts writes: it is no replica
    """

    host: str
    lease: DatabaseLease | None
    writable: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing may be written: ask the hosts again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lease of this epoch at its host."""

    host: str
    epoch: int


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Take over that lease, as the host has it, for the host."""

    host: str
    lease: DatabaseLease


@dataclass(frozen=True, slots=True)
class UseWithoutLease:
    """Use the host without a lease: the tables are to be made there."""

    host: str


def may_write(view: WriterView, now: float) -> bool:
    """Return whether the process may read, decide and commit at the view's host."""
    return bool(view.host) and now < view.until


def is_writer(view: WriterView, host: str, epoch: int) -> bool:
    """Return whether what began at that host under that epoch may go on. `cod init` and `cod db
    upgrade` begin without a lease (0), and make the table that the first is then taken in."""
    return host == view.host and (epoch == view.epoch or (epoch, view.epoch) == (0, 1))


def renewed(view: WriterView, host: str, epoch: int, begun: float) -> WriterView:
    """Return the view after a renewal, or a take-over, which was begun at that time and which the
    host has committed."""
    if epoch > view.newest.epoch:  # or the host that it was taken from would be used again
        # any beat that a host tells is newer: it is seen from then on
        view = replace(view, newest=DatabaseLease(host, epoch, -1, LEASE_SECONDS), since=begun)
    return replace(view, host=host, epoch=epoch, until=begun + LEASE_SECONDS / 2)


def seen(view: WriterView, answers: Sequence[HostAnswer], now: float) -> WriterView:
    """Return the view after asking the hosts: the newest lease of all, and since when."""
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
    """Return what a process does whose view has just `seen` those answers, in the order in which
    the site prefers the hosts."""
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
