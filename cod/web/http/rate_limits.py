"""Rate limits of each person's costly requests, and of changes."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from twisted.internet.defer import DeferredSemaphore

from cod.model import Who
from cod.tokenbucket import Bucket
from cod.web.http.errors import HttpProblem

RATE, BURST = 1.0, 30.0  # costly requests of one person: per second, and at once


class RateLimits:
    """The rate limits of one listening port, in memory. `turn` is a lock: costly requests are
    prepared one at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, Bucket] = {}
        self._changes: dict[str, Bucket] = {}
        self.turn = DeferredSemaphore(1)

    def spend(self, who: Who) -> None:
        """Count a costly request of `who`. Raises `HttpProblem` (429) if the ration is used up. The
        local administrator, who could stop the server as well, has no ration."""
        if who.local:
            return
        if not self._took(self._buckets, who.name, RATE, BURST):
            raise HttpProblem(
                429,
                "slow_down",
                f"this costs the server much: at most {BURST:.0f} at once and {RATE:.0f} a second"
                " are answered to one person; try again in some seconds",
                wait=1,
            )

    def change(self, who: Who, a_minute: int) -> None:
        """Count a change of `who`, who is a person with all their tokens, or a token of the site.
        Raises `HttpProblem` (429) beyond `a_minute` changes a minute (0: no limit). Callers who
        have not signed in are limited by other rules."""
        person = who.name if who.user_id is None else str(who.user_id)
        if who.local or person == "nobody" or not a_minute:
            return
        if not self._took(self._changes, f"{person} {a_minute}", a_minute / 60, a_minute):
            raise HttpProblem(
                429,
                "slow_down",
                f"one person makes at most {a_minute} changes in a minute here; try again in some"
                " seconds",
                wait=ceil(60 / a_minute),
            )

    def _took(self, buckets: dict[str, Bucket], name: str, rate: float, burst: float) -> bool:
        now = self._clock()
        if len(buckets) > 10_000:
            for each in [each for each, bucket in buckets.items() if bucket.is_full(now)]:
                del buckets[each]
        return buckets.setdefault(name, Bucket(rate, burst, now)).take(now)

    def headers(self, who: Who) -> dict[str, str]:
        """Return the headers that say what is left of `who`'s ration; no headers if `who` has no
        ration, or has sent no costly request yet. RateLimit-Reset is the time in seconds until the
        ration is whole."""
        bucket = None if who.local else self._buckets.get(who.name)
        if bucket is None:
            return {}
        level = bucket.level(self._clock())
        return {
            "RateLimit-Limit": f"{BURST:.0f}",
            "RateLimit-Remaining": str(int(level)),
            "RateLimit-Reset": str(ceil((BURST - level) / RATE)),
        }
