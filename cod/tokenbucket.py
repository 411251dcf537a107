"""A bucket of tokens: so many at once, and so many a second."""

from __future__ import annotations


class Bucket:
    """Holds `burst` tokens at most, gains `rate` a second; starts full."""

    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._level, self._at = burst, now

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Take so many, if they are there."""
        if self.level(now) < amount:
            return False
        self._level -= amount
        return True

    def spend(self, now: float, amount: float) -> None:
        """Take so many, also where that leaves it in debt."""
        self._level = self.level(now) - amount

    def level(self, now: float) -> float:
        """Return how many there are."""
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        return self._level

    def is_full(self, now: float) -> bool:
        """Return whether the bucket is full."""
        return self.level(now) >= self._burst
