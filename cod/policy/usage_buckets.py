"""The spans of time in which the pool's usage is recorded: the spans that a time belongs to, how
long they are kept, and which spans to show. Pure."""

from __future__ import annotations

from collections.abc import Iterator

MINUTES, HOURS, DAYS = 300, 3600, 86400
# lengths in seconds, each a multiple of the one before; a span begins at a multiple of its length
SPANS = (MINUTES, HOURS, DAYS)
KEPT = {MINUTES: 86400.0, HOURS: 32 * 86400.0}  # seconds; days are kept for ever
UNKNOWN = 900.0
"""If more seconds are between two counts, the time between them is unknown and is not recorded."""
LONGEST = 400 * DAYS


def pieces(since: float, until: float) -> Iterator[tuple[int, int, float]]:
    """Yield (length of a span, its start, seconds in it) for the time between two counts; nothing
    if that time is longer than `UNKNOWN`, or the clock was set back."""
    if not 0 < until - since <= UNKNOWN:
        return
    for span in SPANS:
        start = int(since // span) * span
        while start < until:
            yield span, start, min(until, start + span) - max(since, start)
            start += span


def span_for(since: float, until: float, now: float) -> int:
    """Return the length of the spans in which to show a time: the shortest that gives about fifty
    of them and is kept long enough."""
    for span, most in ((MINUTES, 4 * HOURS), (HOURS, 2 * DAYS)):
        if until - since <= most and since >= now - KEPT[span]:
            return span
    return DAYS


def starts(since: float, until: float, span: int) -> list[int]:
    """Return the starts of the spans that overlap the time from `since` to `until`."""
    first = int(since // span) * span
    last = int(-(-until // span)) * span
    return list(range(first, max(last, first + span), span))
