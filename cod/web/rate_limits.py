"""How many of the questions that cost the server much each person may ask."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from twisted.internet.defer import DeferredSemaphore

from cod.model import Who
from cod.tokenbucket import Bucket
from cod.web.errors import HttpProblem

RATE, BURST = 1.0, 30.0  # dear questions of one person: a second, at once


class RateLimits:
    """The rate limits of one listening port, in memory. `turn`: such questions are prepared one
    after the other."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, Bucket] = {}
        self.turn = DeferredSemaphore(1)

    def spend(self, who: Who) -> None:
        """Count a dear question of `who`. Raises `HttpProblem` (429) where the ration is used up.
        The local administrator, who could stop the server as well, has no ration."""
        if who.local:
            return
        now = self._clock()
        if len(self._buckets) > 10_000:
            self._buckets = {
                name: bucket for name, bucket in self._buckets.items() if not bucket.is_full(now)
            }
        bucket = self._buckets.setdefault(who.name, Bucket(RATE, BURST, now))
        if not bucket.take(now):
            raise HttpProblem(
                429,
                "slow_down",
                f"this costs the server much: at most {BURST:.0f} at once and "
                f"{RATE:.0f} a "
                "second are answered to one person; try again in some seconds",
                wait=1,
            )

    def headers(self, who: Who) -> dict[str, str]:
        """Return the headers that say what is left of `who`'s ration; none where there is no
        ration, or nothing was asked yet. RateLimit-Reset is the time in seconds until the ration is
        whole."""
        bucket = None if who.local else self._buckets.get(who.name)
        if bucket is None:
            return {}
        level = bucket.level(self._clock())
        return {
            "RateLimit-Limit": f"{BURST:.0f}",
            "RateLimit-Remaining": str(int(level)),
            "RateLimit-Reset": str(ceil((BURST - level) / RATE)),
        }
