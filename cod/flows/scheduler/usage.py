"""The site's nodes over time, counted once a minute: by state, and by the group that held them.

As for the energy accounts, a server first reads and computes, then moves the watermark and
writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cod.model import Refused
from cod.policy import usage_buckets
from cod.store import replies, watermarks
from cod.store.engine import Tx
from cod.store.scheduler import usage

KEPT_REPLIES = 86400.0  # seconds that answers to API calls with an Idempotency-Key are kept


@dataclass(frozen=True, slots=True)
class Count:
    """Numbers of nodes by holder, type and state, from `before` (None: this is the first count)
    until `now`."""

    before: float | None
    now: float
    rows: tuple[tuple[int, int, str, int], ...]


def count(tx: Tx, now: float) -> Count | None:
    """Return the present numbers of nodes; None if they were counted for this time already."""
    before = watermarks.at(tx, watermarks.POOL)
    if before is not None and before == now:
        return None
    return Count(before, now, tuple(usage.counts(tx)))


def note(tx: Tx, counted: Count) -> bool:
    """Add the numbers to the history, and delete numbers that are too old. Return False if another
    server has added its own."""
    if not watermarks.move(tx, watermarks.POOL, counted.before, counted.now):
        return False
    if counted.before is not None:
        usage.add(tx, counted.rows, list(usage_buckets.pieces(counted.before, counted.now)))
    for span, kept in usage_buckets.KEPT.items():
        usage.forget(tx, span, counted.now - kept)
    replies.forget(tx, counted.now - KEPT_REPLIES)
    return True


# ---------------------------------------------------------------- for people


@dataclass(frozen=True, slots=True)
class Series:
    """Average numbers of nodes, for each of a chart's spans. `key`: the name of the series; None:
    all that are shown together."""

    key: str | None
    nodes: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over the same spans of time: each span begins at one of `starts` and lasts `span`
    seconds."""

    by: str
    span: int
    starts: tuple[int, ...]
    series: tuple[Series, ...]
    counted_until: float | None


def held(
    tx: Tx,
    *,
    since: float | None,
    until: float | None,
    by: str,
    limit: int,
    groups: frozenset[int] | None,
    group: str = "",
    vcluster: str = "",
    type: str = "",
    now: float,
) -> Chart:
    """Return how many nodes the holders of these groups (None: of all) held: the `limit` largest by
    name, the rest together. Without times, of the last day. Raises `Refused`."""
    span, starts = _spans(since, until, now)
    rows = usage.held(
        tx, span, starts[0], starts[-1], by, groups, group=group, vcluster=vcluster, type=type
    )
    return Chart(
        by,
        span,
        tuple(starts),
        tuple(_series(rows, span, starts, limit)),
        watermarks.at(tx, watermarks.POOL),
    )


def states(
    tx: Tx, *, since: float | None, until: float | None, type: str = "", now: float
) -> Chart:
    """Return the numbers of nodes by state; only nodes of one type, if it is named. Raises
    `Refused`."""
    span, starts = _spans(since, until, now)
    rows = usage.by_state(tx, span, starts[0], starts[-1], type)
    series = tuple(_series(rows, span, starts, len(rows)))
    return Chart("state", span, tuple(starts), series, watermarks.at(tx, watermarks.POOL))


def _spans(since: float | None, until: float | None, now: float) -> tuple[int, list[int]]:
    until = now if until is None else until
    since = until - usage_buckets.DAYS if since is None else since
    if since > until:
        raise Refused("invalid", "'from' should not be after 'to'", "from")
    if until - since > usage_buckets.LONGEST:
        raise Refused(
            "invalid",
            f"at most {usage_buckets.LONGEST // usage_buckets.DAYS} days at a time",
            "from",
        )
    span = usage_buckets.span_for(since, until, now)
    return span, usage_buckets.starts(since, until, span)


def _series(
    rows: Iterable[tuple[str, int, float]], span: int, starts: Sequence[int], limit: int
) -> Iterable[Series]:
    """Yield the `limit` largest series, the largest first, and then the sum of all others."""
    places = {start: place for place, start in enumerate(starts)}
    found: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * len(starts))
    for key, start, seconds in rows:
        found[key][places[start]] += seconds / span
    order = sorted(found, key=lambda key: (-sum(found[key]), key))
    for key in order[:limit]:
        yield Series(key, tuple(found[key]))
    if len(order) > limit:
        rest = [found[key] for key in order[limit:]]
        yield Series(None, tuple(map(sum, zip(*rest, strict=True))))
