"""The calendar feed: leases, reservations in advance and maintenance, as entries of a calendar.

An entry's sequence number is computed from its content, so that changes need not be counted: the
end of a lease only becomes later, and a lease that has ended does not change any more. Maintenance
may move to earlier and later times, so a window has a revision.
"""

from __future__ import annotations

from dataclasses import dataclass

from cod.model import MaintenanceWindow, Site, Who
from cod.quantity import counted
from cod.states import UNDECIDED, RequestState, WindowState
from cod.store.engine import Tx
from cod.store.people import groups as group_rows
from cod.store.scheduler import calendar_feed, maintenance
from cod.store.scheduler.calendar_feed import Booked, LeasedVcluster

KEPT = 30 * 86400.0  # seconds for which an entry that has ended or was cancelled stays in the feed
MOST = 2000  # vclusters in the feed, and reservations: the newest
LAST = 2**30  # the sequence of an entry that does not change any more


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a calendar.

    uid        stays the same for as long as the entry is about the same thing
    start, end   seconds since the epoch; end None: not known
    sequence   rises with each change of the times, and when the entry is cancelled
    changed    when the entry was changed last, as far as that is known
    url        of the page about it; '': none
    cancelled  the event will not take place
    """

    uid: str
    title: str
    about: str
    start: float
    end: float | None
    sequence: int
    changed: float
    url: str = ""
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Feed:
    """A calendar's name, and its entries."""

    name: str
    entries: tuple[Entry, ...]


def read(tx: Tx, *, who: Who, base: str, site: Site, now: float) -> Feed:
    """Return the feed for the token of `who`: of the token's group, of all groups of its user, or,
    for an administrator's token, of the site. `base`: the address of the portal."""
    since = now - KEPT
    vclusters = {one.id: one for one in calendar_feed.leased(tx, who.groups, since, MOST)}
    entries = [
        _lease(one, one.began, base, site.domain)
        for one in vclusters.values()
        if one.began is not None
    ]
    for one in calendar_feed.booked(tx, who.groups, since, MOST):
        vcluster = vclusters.get(one.vcluster_id)
        if vcluster is not None and not (one.kind == "create" and vcluster.began):
            entries.append(_reservation(one, vcluster, base, site.domain))
    windows = maintenance.every(tx, since)
    counts = maintenance.counts(tx, [one.id for one in windows])
    own = {one.window_id for one in counts if one.vcluster_id in vclusters}
    entries += [
        _maintenance(one, base, site.domain)
        for one in windows
        if who.groups is None or one.site or one.id in own
    ]
    only = "" if who.only is None else group_rows.get(tx, who.only).name
    name = f"{site.name}: {only}" if only else site.name
    return Feed(name, tuple(sorted(entries, key=lambda one: (one.start, one.uid))))


def _lease(one: LeasedVcluster, start: float, base: str, domain: str) -> Entry:
    end = one.expires_at if one.ended_at is None else one.ended_at
    lasts = 1 + max(0, int((one.expires_at or start) - start))
    return Entry(
        _uid(one, domain),
        f"{one.name}: {counted(one.size, 'node')}",
        f"Lease of vcluster {one.name} of group {one.group}.",
        start,
        end,
        min(lasts, LAST - 1) if one.ended_at is None else LAST,
        one.ended_at or start,
        f"{base}/vclusters/{one.name}" if one.ended_at is None else "",
    )


def _reservation(one: Booked, vcluster: LeasedVcluster, base: str, domain: str) -> Entry:
    """Return the entry of a reservation. The entry for a vcluster's first nodes later becomes the
    entry of its lease."""
    first = one.kind == "create"
    granted = one.state == RequestState.GRANTED
    cancelled = not granted and one.state not in UNDECIDED
    cancelled |= first and vcluster.ended_at is not None
    start = max(one.starts_at, one.decided_at or 0.0) if granted else one.starts_at
    more = "" if first else " more"
    return Entry(
        _uid(vcluster, domain) if first else f"request-{one.id}@{domain}",
        f"{vcluster.name}: {counted(one.nodes, 'node')}{more} reserved",
        f"Reservation in advance for vcluster {vcluster.name} of group {vcluster.group}.",
        start,
        start + one.duration,
        LAST if cancelled else int(granted),
        one.decided_at or one.submitted_at,
        f"{base}/requests/{one.id}",
        cancelled,
    )


def _maintenance(window: MaintenanceWindow, base: str, domain: str) -> Entry:
    """Return the entry of a maintenance window, which may be moved to earlier or later times."""
    cancelled = window.state == WindowState.CANCELLED
    ended = cancelled or window.state == WindowState.OVER
    return Entry(
        f"maintenance-{window.id}@{domain}",
        f"Maintenance: {window.what}",
        f"Nodes are out of service: {window.reason}",
        window.since,
        window.ends_at,
        LAST if ended else window.revision,
        window.created_at,
        f"{base}/maintenance/{window.id}",
        cancelled,
    )


def _uid(vcluster: LeasedVcluster, domain: str) -> str:
    return f"vcluster-{vcluster.id}@{domain}"
