"""The pool over time, in spans: which a minute belongs to, how long each is kept, which answer a
question. Pure."""

from __future__ import annotations

from collections.abc import Iterator

MINUTES, HOURS, DAYS = 300, 3600, 86400
# seconds; each the multiple of the one before; they begin at multiples of themselves
SPANS = (MINUTES, HOURS, DAYS)
KEPT = {MINUTES: 86400.0, HOURS: 32 * 86400.0}  # seconds; days are kept for ever
UNKNOWN = 900.0
"""Seconds after which nobody knows what was between two counts: nothing is put down."""
LONGEST = 400 * DAYS


def pieces(since: float, until: float) -> Iterator[tuple[int, int, float]]:
    """Yield (span, its start, seconds) for the time between two counts; none where it is too long,
    or the clock went back."""
    if not 0 < until - since <= UNKNOWN:
        return
    for span in SPANS:
        start = int(since // span) * span
        while start < until:
            yield span, start, min(until, start + span) - max(since, start)
            start += span


def span_for(since: float, until: float, now: float) -> int:
    """Return the span to show that time in: some fifty of them, if they are kept so long."""
    for span, most in ((MINUTES, 4 * HOURS), (HOURS, 2 * DAYS)):
        if until - since <= most and since >= now - KEPT[span]:
            return span
    return DAYS


def starts(since: float, until: float, span: int) -> list[int]:
    """Return where the spans begin that the time between touches."""
    first = int(since // span) * span
    last = int(-(-until // span)) * span
    return list(range(first, max(last, first + span), span))
