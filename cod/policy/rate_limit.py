"""Rate limits: so often in a span of time, all at once or one after the other. Pure.

One number remembers it (the generic cell rate algorithm, ITU-T I.371): the time at which all that
was done would be forgotten. Each deed moves it on by the time in which one is forgotten; further
ahead than the span it may not be.
"""

from __future__ import annotations


def done_once(mark: float | None, now: float, most: float, span: float) -> tuple[float, float]:
    """Return (the mark after one deed more, seconds to wait before it may be done; 0.0: at once).

    mark  None: nothing was done before
    most  deeds in `span` seconds
    """
    # so far ahead it is only when the clock was set back meanwhile
    if mark is None or mark > now + 2 * span:
        mark = now
    after = max(now, mark) + span / most
    wait = after - (now + span)
    return after, wait if wait > 1e-6 else 0.0
