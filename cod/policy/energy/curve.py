"""A curve: the price of a kWh, or the CO2 emitted for it, by the hour. Pure.

A curve is read from CSV, a line for each value, in order:

    hour,value              an optional header; lines that begin with # are ignored
    2026-12-01T00:00Z,212   from that moment until that of the next line; the last, for an hour
    2026-12-01T01:00Z,198

or, for a curve that is the same every day (UTC), 24 lines of the hours 0 to 23:

    0,212
    1,198
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

HOUR, DAY = 3600.0, 86400.0
MOST_BYTES = 65_000
LARGEST = 1e6  # largest absolute value
CARBON, PRICE = "carbon", "price"
UNITS = {CARBON: "gCO2/kWh", PRICE: "per kWh"}


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over time. Each of `values` holds from the same item of `starts` (seconds since the
    epoch) until the next start, the last until `end`. A daily curve has the starts of the 24 hours
    of a day, and an infinite `end`."""

    starts: tuple[float, ...]
    values: tuple[float, ...]
    end: float = math.inf

    @property
    def daily(self) -> bool:
        """Return whether the curve is the same every day."""
        return self.end == math.inf

    @property
    def usual(self) -> float:
        """Return the mean of all values."""
        return sum(self.values) / len(self.values)

    def at(self, time: float) -> float | None:
        """Return the value at a moment; None if the curve does not cover it."""
        if self.daily:
            return self.values[int(time % DAY // HOUR)]
        place = bisect_right(self.starts, time) - 1
        return self.values[place] if place >= 0 and time < self.end else None

    def changes(self, start: float, end: float) -> list[float]:
        """Return the moments after `start` and before `end` at which the value may change."""
        if self.daily:
            first = (math.floor(start / HOUR) + 1) * HOUR
            return [
                first + number * HOUR for number in range(max(0, math.ceil((end - first) / HOUR)))
            ]
        return [one for one in (*self.starts, self.end) if start < one < end]

    def mean(self, start: float, end: float, unknown: float) -> float:
        """Return the mean between two moments. Times that the curve does not cover count with the
        value `unknown`."""
        if end <= start:
            value = self.at(start)
            return unknown if value is None else value
        days = (end - start) // DAY if self.daily else 0.0
        total, begin = days * DAY * self.usual, start + days * DAY
        for until in (*self.changes(begin, end), end):
            value = self.at(begin)
            total += (until - begin) * (unknown if value is None else value)
            begin = until
        return total / (end - start)

    def cheaper(self, time: float, most: float) -> float | None:
        """Return the next moment within a week at which the value is `most` or less; None: none is
        known."""
        for one in self.changes(time, time + 7 * DAY):
            value = self.at(one)
            if value is not None and value <= most:
                return one
        return None


@lru_cache(maxsize=4)
def read(text: str, of: str = CARBON) -> Curve:
    """Return the curve in a CSV text of the sort `of`. Raises `ValueError` with a message for the
    text's author."""
    starts: list[float] = []
    values: list[float] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        when, _, value = (part.strip() for part in line.partition(","))
        if not starts and value.lower() == "value":
            continue
        try:
            starts.append(_moment(when))
            values.append(_value(value, of))
        except (ValueError, OverflowError) as error:
            raise ValueError(f"line {number}: {error}") from None
        if len(starts) > 1 and not 0 < starts[-1] - starts[-2] <= DAY:
            raise ValueError(
                f"line {number}: an hour should come after the line before, by a day at most"
            )
    if not starts:
        raise ValueError("there is no value in it")
    if starts[-1] >= DAY:
        if starts[0] < DAY:
            raise ValueError("hours of the day and dates should not be mixed")
        return Curve(tuple(starts), tuple(values), starts[-1] + HOUR)
    if len(starts) != 24:
        raise ValueError(f"a curve of a day has 24 hours, 0 to 23, not {len(starts)}")
    return Curve(tuple(starts), tuple(values))


def decoded(content: bytes) -> str:
    """Return a file's content as text. Raises `ValueError` if it is too long or not ASCII."""
    if len(content) > MOST_BYTES:
        raise ValueError(f"it is longer than {MOST_BYTES} bytes")
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError:
        raise ValueError("it is not plain ASCII text") from None
    if "\0" in text:
        raise ValueError("it is not plain ASCII text")
    return text


def _moment(text: str) -> float:
    """Return an hour of the day as seconds of the day, or a date and time as seconds since the
    epoch; without a zone it is UTC."""
    if text.isdecimal() and len(text) <= 2:
        if int(text) > 23:
            raise ValueError(f"there is no hour {text}")
        return int(text) * HOUR
    try:
        found = datetime.fromisoformat(text[:40])
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no hour, such as 17 or 2026-12-01T17:00Z") from None
    at = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    if not DAY <= at < 1e11:
        raise ValueError(f"{text[:40]!r} is too far away")
    return at


def _value(text: str, of: str) -> float:
    try:
        value = float(text[:40])
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no number") from None
    if not abs(value) <= LARGEST:  # true for NaN, too
        raise ValueError(f"{text[:40]} is not a value from -1e6 to 1e6")
    if of == CARBON and value < 0:
        raise ValueError(f"{text[:40]}: emissions cannot be negative")
    return value
