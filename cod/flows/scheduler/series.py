"""Reservations that recur: a virtual cluster is reserved for each start of a series.

The first cluster is reserved with the series; if it is refused, so is the series. The manager
reserves the clusters of the next four weeks (`due`, `reserve`). Each start is decided once: its
cluster is reserved like any other, or the start is refused and the group is told. A refused start
is tried again until its time comes, and the group is told if its cluster is reserved after all.
Reserved clusters stay when the series ends. The flow that creates a vcluster is passed in.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from cod import notice_texts
from cod.core import notices
from cod.model import (
    AskedTuple,
    AskedVcluster,
    AskedVolume,
    FlowContext,
    Occurrence,
    OccurrenceView,
    Refused,
    Result,
    Role,
    Series,
    SeriesView,
    Site,
    Who,
)
from cod.policy.reservations import series as policy
from cod.store.engine import Tx
from cod.store.people import groups
from cod.store.scheduler import series as rows

Create = Callable[..., Result[Any]]
"""`flows.scheduler.vclusters.create`."""
_COLUMNS = ("name", "group", "lease", "starts_at")  # fields of `AskedVcluster` with own columns


def create(
    tx: Tx,
    context: FlowContext,
    asked: AskedVcluster,
    *,
    zone: str,
    days: Sequence[str],
    count: int | None,
    last: float | None,
    create: Create,
) -> Result[SeriesView]:
    """Create a series and reserve its first cluster; return the series. Raises `Refused`.

    asked  describes each cluster; its `name` is the series' name, `starts_at` the first start
    zone   the time zone of the starts' local time
    days   days of the week; none: the day of `starts_at`
    count  number of starts; None: no limit
    last   time after which no start is; None: no limit
    """
    now, name, starts_at = context.now, asked.name, asked.starts_at
    if starts_at is None or asked.lease is None:
        raise Refused(
            "invalid",
            "a series has a first start, and a length of its leases",
            "starts_at" if starts_at is None else "lease",
        )
    clock = policy.zone(zone)
    owner = groups.named(tx, asked.group, "group")
    if rows.named(tx, name) is not None:
        raise Refused("conflict", f"there is a series {name!r} already", "name")
    series = rows.add(
        tx,
        name=name,
        group_id=owner.id,
        asked=json.dumps(
            {key: value for key, value in asdict(asked).items() if key not in _COLUMNS}
        ),
        starts_at=starts_at,
        duration=asked.lease,
        zone=zone,
        days=policy.on_days(days, starts_at, clock),
        count=count,
        ends_at=last,
        created_at=now,
    )
    first = policy.starts(series, now, max(now, starts_at) + 8 * 86400.0)
    if starts_at <= now or not first:
        raise Refused("invalid", "no start of the series is to come", "starts_at")
    nobody = replace(context.who, user_id=None)  # later clusters have no user, either
    made = create(
        tx,
        FlowContext(context.site, now, nobody),
        _cluster(series, first[0], asked.group),
        possible=True,
    )
    one = Occurrence(series.id, first[0], policy.vcluster_name(series, first[0]))
    rows.decide(tx, one, now - policy.KEPT)
    return Result(show(tx, name=name, now=now), made.effects)


def every(tx: Tx, *, groups: frozenset[int] | None, now: float) -> list[SeriesView]:
    """Return the series of these groups (None: of all)."""
    return _views(tx, rows.of_groups(tx, groups), now)


def show(tx: Tx, *, name: str, now: float) -> SeriesView:
    """Return a series with its starts that were decided. Raises `Refused`."""
    found = rows.of_groups(tx, None, name)
    if not found:
        raise Refused("not_found", f"there is no series {name!r}", "name")
    return _views(tx, found, now, found[0][0].id)[0]


def _views(
    tx: Tx, found: Sequence[tuple[Series, str]], now: float, series_id: int | None = None
) -> list[SeriesView]:
    """Return views of the series `found`, which come with their groups' names. `series_id`: the id
    of the series if there is one alone."""
    since = now - policy.KEPT
    clusters = rows.clusters(tx, since, series_id)
    starts: dict[int, list[OccurrenceView]] = defaultdict(list)
    for one in rows.occurrences(tx, since, series_id):
        state, began = clusters.get((one.series_id, one.vcluster), (None, False))
        became = policy.outcome(one, state, began, now)
        starts[one.series_id].append(
            OccurrenceView(one.starts_at, one.vcluster, one.refused, became)
        )
    asked = {series.id: json.loads(series.asked) for series, _ in found}
    return [
        SeriesView(
            series,
            group,
            asked[series.id]["size"] + sum(one["count"] for one in asked[series.id]["also"]),
            asked[series.id]["template"],
            tuple(one for one in starts[series.id] if one.starts_at > now),
            tuple(one for one in starts[series.id] if one.starts_at <= now),
            policy.next_start(series, now),
        )
        for series, group in found
    ]


def end(tx: Tx, *, name: str, now: float) -> SeriesView:
    """End the series; clusters that are reserved stay. Return it as it was. Raises `Refused`."""
    found = show(tx, name=name, now=now)
    rows.remove(tx, found.series.id)
    return found


def due(tx: Tx, now: float, again: bool = False) -> list[tuple[int, float]]:
    """Return the starts to decide, as (series id, time); (series id, 0.0) for a series without
    further starts. `again`: include starts that were refused."""
    decided = {
        (one.series_id, one.starts_at)
        for one in rows.occurrences(tx, now)
        if not (again and one.refused)
    }
    found = []
    for series in rows.every(tx):
        starts = policy.starts(series, now, now + policy.AHEAD)
        found += [(series.id, at) for at in starts if (series.id, at) not in decided]
        if series.starts_at < now and not starts:
            found.append((series.id, 0.0))
    return found


def reserve(
    tx: Tx, *, series_id: int, start: float, create: Create, site: Site, now: float
) -> Result[None]:
    """Decide a start that `due` returned: reserve its cluster, or tell the group once why it is
    refused. Do nothing if the series has ended or the cluster is reserved already."""
    series = rows.locked(tx, series_id)
    if series is None:
        return Result(None)
    if policy.next_start(series, now) is None:
        rows.remove(tx, series_id)
        return Result(None)
    decided = {one.starts_at: one for one in rows.occurrences(tx, now, series_id)}
    before = decided.get(start)
    if start <= now or (before is not None and not before.refused):
        return Result(None)
    owner = groups.get(tx, series.group_id)
    cluster = _cluster(series, start, owner.name)
    one = Occurrence(series_id, start, cluster.name)
    context = FlowContext(site, now, Who("manager", roles={owner.id: Role.VIEWER}))
    try:
        made = rows.apart(tx, lambda part: create(part, context, cluster, possible=True))
    except Refused as refusal:
        rows.decide(tx, replace(one, refused=refusal.sentence), now - policy.KEPT)
        if before is None:
            notice = notice_texts.series_refused(series.name, one.vcluster, start, refusal.sentence)
            notices.add(tx, **notice, group_id=owner.id, now=now)
        return Result(None)
    rows.decide(tx, one, now - policy.KEPT)
    if before is not None:
        notice = notice_texts.series_reserved(series.name, one.vcluster, start)
        notices.add(tx, **notice, group_id=owner.id, now=now)
    return Result(None, made.effects)


def _cluster(series: Series, start: float, group: str) -> AskedVcluster:
    """Return what the cluster of that start is created with."""
    asked: dict[str, Any] = json.loads(series.asked)
    asked["also"] = [AskedTuple(**one) for one in asked["also"]]
    asked["mounts"] = [AskedVolume(**one) for one in asked["mounts"]]
    return AskedVcluster(
        **asked,
        name=policy.vcluster_name(series, start),
        group=group,
        lease=series.duration,
        starts_at=start,
    )
