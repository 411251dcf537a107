"""Rate limits: so many actions in a span of time, at once or spread over it. Pure.

A single number, the mark, is stored (generic cell rate algorithm, ITU-T I.371): the time at which
all past actions are forgotten. Each action moves the mark on by the time in which one action is
forgotten. The mark may not be further ahead of the present than the span.
"""

from __future__ import annotations


def done_once(mark: float | None, now: float, most: float, span: float) -> tuple[float, float]:
    """Return (the mark after one more action, seconds to wait before the action is allowed; 0.0: it
    is allowed now).

    mark  None: there were no actions before
    most  actions that are allowed in `span` seconds
    """
    # so far ahead only if the clock was set back meanwhile
    if mark is None or mark > now + 2 * span:
        mark = now
    after = max(now, mark) + span / most
    wait = after - (now + span)
    return after, wait if wait > 1e-6 else 0.0
