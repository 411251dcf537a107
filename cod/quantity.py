"""Lengths of time and amounts of bytes, as people read and write them, and shortened lists: one
grammar and one wording for the API's clients, commands, pages and notices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

SPANS = {"d": 86400, "h": 3600, "min": 60, "s": 1}
"""Units in which lengths of time are shown, in seconds."""
SIZES = {
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "PiB": 2**50,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
}
"""Units of amounts, in bytes."""

_WRITTEN = {
    1: " s sec secs second seconds",
    60: "m min mins minute minutes",
    3600: "h hour hours",
    86400: "d day days",
    604800: "w week weeks",
}
_LENGTHS = {unit: length for length, units in _WRITTEN.items() for unit in units.split(" ")}
_PART = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*(?:([a-z]+)\s*)?", re.ASCII)
_LETTERS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_BYTES = {unit.lower(): count for unit, count in SIZES.items()} | _LETTERS


# ---------------------------------------------------------------- lengths of time


def span(seconds: float) -> str:
    """Return a length of time in its one or two largest units, without the rest: '2 d 3 h', '12
    min', '3 min 5 s'."""
    parts: list[str] = []
    left = max(0, round(seconds))
    for unit, length in SPANS.items():
        if left >= length and len(parts) < 2:
            parts.append(f"{left // length} {unit}")
            left = 0 if unit == "min" and left >= 600 else left % length
        elif parts:
            break
    return " ".join(parts) or "0 s"


def exact_span(seconds: float) -> str:
    """Return a length of time that somebody has set, exact to the nanosecond: '1 d 3 h 46 min 40
    s', '1.5 s'. `read_span` reads this form."""
    parts: list[str] = []
    left = round(Decimal(str(seconds)), 9)
    for unit, length in SPANS.items():
        if unit == "s":
            if left or not parts:
                parts.append(f"{left.normalize():f} s")
        elif left >= length:
            parts.append(f"{left // length:.0f} {unit}")
            left %= length
    return " ".join(parts)


def read_span(text: str) -> float:
    """Return the seconds of a length of time as people write it: '90', '45min', '12 h', '3 days',
    '1 week', '1d 12h'. Raises ValueError."""
    parts = _PART.findall(text.strip().lower())
    whole = _PART.sub("", text.strip().lower()) == ""
    if not parts or not whole or any(unit not in _LENGTHS for _, unit in parts):
        raise ValueError("should be a length of time such as 45min, 12h or 3 days")
    if len(parts) > 1 and any(not unit for _, unit in parts):
        raise ValueError("should have a unit behind each number, such as 1d 12h")
    return float(sum(Fraction(number) * _LENGTHS[unit] for number, unit in parts))


# ---------------------------------------------------------------- bytes


def size(count: float) -> str:
    """Return an amount of bytes as text: '1.5 GiB'."""
    number, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(number) < 1024 or unit == "PiB":
            break
        number /= 1024
    return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"


def exact_size(count: int) -> str:
    """Return an amount of bytes that somebody has set, without rounding: '200 GB', '1.5 TiB'.
    `read_size` reads this form."""
    for unit, bytes_ in sorted(SIZES.items(), key=lambda one: -one[1]):
        if count >= bytes_ and 100 * count % bytes_ == 0:
            whole, hundredths = divmod(100 * count // bytes_, 100)
            return f"{whole}.{hundredths:02}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{count} B"


def read_size(text: str) -> int:
    """Return the bytes of an amount as people write it: '500 GB', '1.5TiB', '2T' (of 1024), '4096'.
    Raises ValueError."""
    match = _PART.fullmatch(text.strip().lower())
    unit = (match[2] or "") if match else None
    if match is None or unit not in _BYTES:
        raise ValueError("should be an amount such as 500 GB or 1.5 TiB")
    return round(Fraction(match[1]) * _BYTES[unit])


# ---------------------------------------------------------------- lists


def counted(number: int, one: str) -> str:
    """Return '1 node', '2 nodes'; `one`: the word for a single thing."""
    return f"{number} {one}{'' if number == 1 else 's'}"


def first_few(words: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first `most` words, and the number of the others: 'n1, n2 and 3 more'."""
    more = f"{between.rstrip(', ')} and {len(words) - most} more" if len(words) > most else ""
    return between.join(words[:most]) + more
