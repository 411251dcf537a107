"""A log that limits repeated lines about the same fault."""

from __future__ import annotations

import logging
from collections.abc import Callable

QUIET = 60.0  # seconds between two lines about the same thing
MOST_KNOWN = 1000  # things that are remembered to have been said

Thing = tuple[str, str]


class QuietLog:
    """Log lines about peers. The first line about a thing, (who, what), is logged; repetitions
    within a minute are only counted.

    clock  any seconds that do not run backwards
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log, self._clock = log, clock
        self._logged: dict[Thing, list[float]] = {}  # when, and how often since

    def warning(self, thing: Thing, sentence: str) -> None:
        """Log a warning, unless the same thing was logged a moment ago."""
        self._say(logging.WARNING, thing, sentence)

    def info(self, thing: Thing, sentence: str) -> None:
        """Log an ordinary event, within the same limit."""
        self._say(logging.INFO, thing, sentence)

    def _say(self, level: int, thing: Thing, sentence: str) -> None:
        known = self._logged.get(thing)
        if known is not None:
            known[1] += 1
            return
        if len(self._logged) >= MOST_KNOWN:
            self._forget(next(iter(self._logged)))
        self._logged[thing] = [self._clock(), 0]
        # what a peer says must not look like another line
        self._log.log(level, "%s", " ".join(sentence.split()))

    def flush(self) -> None:
        """Log how often things were repeated whose minute is over."""
        now = self._clock()
        for thing in [thing for thing, (at, _) in self._logged.items() if now >= at + QUIET]:
            self._forget(thing)

    def _forget(self, thing: Thing) -> None:
        _, again = self._logged.pop(thing)
        if again:
            self._log.warning("%s: %s, %d times more", *thing, again)
