"""A token bucket: limits an amount at once, and its rate per second."""

from __future__ import annotations


class Bucket:
    """A bucket that holds at most `burst` tokens and gains `rate` a second. At first it is full."""

    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._level, self._at = burst, now

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Take `amount` tokens, if the bucket has so many; return whether they were taken."""
        if self.level(now) < amount:
            return False
        self._level -= amount
        return True

    def spend(self, now: float, amount: float) -> None:
        """Take `amount` tokens. The bucket's level may become negative."""
        self._level = self.level(now) - amount

    def level(self, now: float) -> float:
        """Return the number of tokens in the bucket."""
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        return self._level

    def is_full(self, now: float) -> bool:
        """Return whether the bucket is full."""
        return self.level(now) >= self._burst


class Buckets:
    """A bucket for each of any number of names. When there are many, full ones are deleted: a new
    one would be full, too. They are looked through when there are twice as many as were kept last,
    so that a name costs the same however many there are."""

    MANY = 10_000

    def __init__(self) -> None:
        self._by_name: dict[str, Bucket] = {}
        self._most = self.MANY

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def of(self, name: str, now: float, rate: float, burst: float) -> Bucket:
        """Return the bucket of that name; a new one gains `rate` a second and holds `burst`."""
        if len(self._by_name) > self._most:
            kept = {each: one for each, one in self._by_name.items() if not one.is_full(now)}
            self._by_name, self._most = kept, max(self.MANY, 2 * len(kept))
        return self._by_name.setdefault(name, Bucket(rate, burst, now))
