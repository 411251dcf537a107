"""The calendar of nodes: vclusters that hold nodes, until when, and nodes that change hands at a
known time.

Vclusters of groups that the reader may not see have bars without names. Nodes that nobody holds or
has reserved are shown by type. Every reader sees all maintenance windows.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from cod.core import snapshot
from cod.model import Refused, Request, Site
from cod.policy.reservations import free_nodes
from cod.states import VclusterState, WindowState
from cod.store.engine import Tx
from cod.store.people import groups as group_rows
from cod.store.scheduler import maintenance, reclaims, requests, starts, vclusters

AHEAD = 7 * 86400.0  # seconds that a calendar covers where no end is named
LONGEST = 366 * 86400.0


@dataclass(frozen=True, slots=True)
class Bar:
    """Nodes of a vcluster from `start` to `end` (None: the lease has no end).

    kind     'held': until the lease's end; 'draining': held after that; 'reserved': in advance;
             'expected': of a waiting request, from its expected start; 'moving': nodes that another
             vcluster gives by `start`; 'leaving': nodes that this vcluster gives back by `end`
    request  id of the request that the nodes are for; None for nodes that are held already, or if
             the reader may not see the request
    """

    kind: str
    nodes: int
    start: float
    end: float | None
    request: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A vcluster in the calendar. `group` and `vcluster` are None if the reader may not see the
    vcluster. `types`: nodes held now, by the type's name ('' for nodes without a type)."""

    group: str | None
    vcluster: str | None
    preemptible: bool
    types: Mapping[str, int]
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class FreeSpan:
    """Nodes of a type that can be reserved from `start` to `end`, beside all leases and
    reservations."""

    start: float
    end: float
    nodes: int


@dataclass(frozen=True, slots=True)
class FreeType:
    """A type of nodes, and how many of its nodes are free when."""

    type: str
    spans: tuple[FreeSpan, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """A maintenance window: `nodes` nodes, those of `what`, go to no lease from `start` to `end`
    (None: unknown)."""

    window: int
    what: str
    reason: str
    nodes: int
    start: float
    end: float | None


@dataclass(frozen=True, slots=True)
class Calendar:
    """Rows with bars between `since` and `until`; vclusters that the reader may see come first.

    omitted      number of further rows
    free         free nodes from now on, by type
    maintenance  windows, by their beginning
    """

    since: float
    until: float
    rows: tuple[Row, ...]
    omitted: int
    free: tuple[FreeType, ...]
    maintenance: tuple[Closed, ...]


def show(
    tx: Tx,
    *,
    since: float | None = None,
    until: float | None = None,
    limit: int = 200,
    groups: frozenset[int] | None,
    site: Site,
    now: float,
) -> Calendar:
    """Return the calendar from `since` (None: now) to `until` (None: a week later), as the groups
    in `groups` (None: all) see it. Raises `Refused`."""
    since = now if since is None else since
    until = since + AHEAD if until is None else until
    if since >= until:
        raise Refused("invalid", "'from' should be before 'to'", "from")
    if until - since > LONGEST:
        raise Refused("invalid", "a calendar covers at most 366 days", "to")
    live = {one.id: one for one in vclusters.live(tx)}
    seen = {one.id for one in live.values() if groups is None or one.group_id in groups}
    held = vclusters.held_by_type(tx)
    types: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for vcluster_id, type_name, count, _ in held:
        types[vcluster_id][type_name or ""] += count
    names = group_rows.names(tx)
    rows = []
    for vcluster_id, bars in _bars(tx, held, live, seen, now).items():
        one, named = live[vcluster_id], vcluster_id in seen
        bars = [bar for bar in bars if bar.start <= until and (bar.end is None or bar.end >= since)]
        if bars:
            rows.append(
                Row(
                    names[one.group_id] if named else None,
                    one.name if named else None,
                    one.preemptible,
                    dict(sorted(types[vcluster_id].items())),
                    tuple(sorted(bars, key=lambda bar: bar.start)),
                )
            )
    rows.sort(key=_order)
    free = _free(tx, since, until, site, now)
    closed = _closed(tx, since, until)
    return Calendar(since, until, tuple(rows[:limit]), max(0, len(rows) - limit), free, closed)


def _bars(
    tx: Tx,
    held: Iterable[tuple[int, str | None, int, float | None]],
    live: Mapping[int, vclusters.Live],
    seen: Set[int],
    now: float,
) -> dict[int, list[Bar]]:
    """Return the bars of live vclusters, by their ids; of those in `seen`, also the bars of waiting
    requests and of reclaims."""
    bars: defaultdict[int, list[Bar]] = defaultdict(list)
    nodes: Counter[int] = Counter()
    first: dict[int, float] = {}
    for vcluster_id, _, count, assigned_at in held:
        nodes[vcluster_id] += count
        start = now if assigned_at is None else assigned_at
        first[vcluster_id] = min(first.get(vcluster_id, start), start)
    for vcluster_id, start in first.items():
        if vcluster_id in live:
            bars[vcluster_id] += _held(live[vcluster_id], nodes[vcluster_id], start, now)
    for request in requests.dated(tx):
        if (one := live.get(request.vcluster_id)) is not None:
            shown = request.id if one.id in seen else None
            bars[one.id] += _coming(request, one.expires_at, shown, now)
    for waiting in starts.expected(tx):
        if waiting.vcluster_id in seen:
            bars[waiting.vcluster_id].append(_expected(waiting, live[waiting.vcluster_id], now))
    for reclaim in reclaims.open_(tx):
        if reclaim.vcluster_id in seen:
            due = max(reclaim.deadline, now)
            leaving = Bar("leaving", reclaim.count - reclaim.given, due, due)
            bars[reclaim.vcluster_id].append(leaving)
    return bars


def _free(tx: Tx, since: float, until: float, site: Site, now: float) -> tuple[FreeType, ...]:
    """Return the types that have nodes, by name, with their free nodes."""
    seen = snapshot.look(tx, site, now, times=True).site
    steps = free_nodes.of_types(seen, site.policy, now, until)
    found = []
    for kind in sorted(seen.types.values(), key=lambda kind: kind.name):
        own = steps.get(kind.id, [])
        ends = [*(time for time, _ in own[1:]), until]
        spans = [
            FreeSpan(max(start, since), end, nodes)
            for (start, nodes), end in zip(own, ends, strict=False)
            if end > since
        ]
        if seen.site.get(kind.id):
            found.append(FreeType(kind.name, tuple(spans)))
    return tuple(found)


def _closed(tx: Tx, since: float, until: float) -> tuple[Closed, ...]:
    """Return the maintenance windows between two times, with the nodes that are still in them."""
    nodes: Counter[int] = Counter()
    windows = [
        one
        for one in maintenance.every(tx, since)
        if one.state != WindowState.CANCELLED
        and one.since <= until
        and (one.ends_at is None or one.ends_at > max(one.since, since))
    ]
    for count in maintenance.counts(tx, [one.id for one in windows]):
        nodes[count.window_id] += count.nodes
    return tuple(
        Closed(one.id, one.what, one.reason, nodes[one.id], one.since, one.ends_at)
        for one in sorted(windows, key=lambda one: (one.since, one.id))
    )


def _held(one: vclusters.Live, nodes: int, start: float, now: float) -> list[Bar]:
    """Return the bars of nodes that a vcluster holds now."""
    if one.state != VclusterState.ACTIVE:
        return [Bar("draining", nodes, start, now)]
    if one.drain_until is None:
        return [
            Bar("held", nodes, start, None if one.expires_at is None else max(one.expires_at, now))
        ]
    over = now if one.expires_at is None else max(start, min(one.expires_at, now))
    held = [Bar("held", nodes, start, over)] if over > start else []
    return [*held, Bar("draining", nodes, over, max(one.drain_until, now))]


def _coming(request: Request, lease_end: float | None, shown: int | None, now: float) -> list[Bar]:
    """Return the bar of a reservation in advance, or of the nodes that a move has yet to bring; no
    bar for a move that has brought all nodes."""
    count = sum(one.count for one in request.tuples) - request.granted
    if request.starts_at is not None:
        start = max(request.starts_at, now)
        return [Bar("reserved", count, start, start + (request.duration or 0.0), shown)]
    start = max(request.deadline or now, now)
    return (
        [Bar("moving", count, start, None if lease_end is None else max(lease_end, start), shown)]
        if count
        else []
    )


def _expected(waiting: starts.Expected, one: vclusters.Live, now: float) -> Bar:
    """Return the bar of a waiting request. The bar ends with its vcluster's lease, which, for a
    pending vcluster, begins with the bar."""
    start = max(waiting.at, now)
    end = one.expires_at
    if one.state == VclusterState.PENDING:
        end = start + one.lease_time
    end = None if end is None else max(end, start)
    return Bar("expected", waiting.nodes, start, end, waiting.request_id)


def _order(row: Row) -> tuple[bool, str, str, float]:
    """Return the key that rows are sorted by: first rows with a vcluster's name, by group and name,
    then rows without, by the end of their first bar."""
    end = row.bars[0].end
    return (
        row.vcluster is None,
        row.group or "",
        row.vcluster or "",
        math.inf if end is None else end,
    )
