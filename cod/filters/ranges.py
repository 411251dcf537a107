"""Ranges of names: 'n[001-003,010]' is n001, n002, n003 and n010."""

from __future__ import annotations

import re
from itertools import chain, product, zip_longest
from math import prod
from typing import NamedTuple

_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


class RangeFault(ValueError):
    """A range that cannot be read. `place` is the index in the text of the first character at
    fault."""

    def __init__(self, sentence: str, place: int) -> None:
        super().__init__(sentence)
        self.place = place


class _Numbers(NamedTuple):
    """The numbers from `first` to `last`, written with at least `width` digits."""

    first: int
    last: int
    width: int


def expanded(text: str, most: int) -> list[str]:
    """Return the names that `text` stands for, in its order; `text` itself if it has no brackets.
    Raises `RangeFault`, also for more than `most` names, before it makes them."""
    fixed: list[str] = []
    ranges: list[list[_Numbers]] = []
    place = 0
    while (opening := text.find("[", place)) >= 0:
        closing = text.find("]", opening)
        if closing < 0:
            raise RangeFault("a range ends with ]", len(text))
        fixed.append(_plain(text, place, opening))
        ranges.append(_numbers(text[opening + 1 : closing], opening + 1))
        place = closing + 1
    fixed.append(_plain(text, place, len(text)))
    if prod(sum(part.last - part.first + 1 for part in each) for each in ranges) > most:
        raise RangeFault(f"a range stands for at most {most:,} names", 0)
    numbers = [
        [f"{number:0{part.width}}" for part in each for number in range(part.first, part.last + 1)]
        for each in ranges
    ]
    return [
        "".join(chain.from_iterable(zip_longest(fixed, each, fillvalue="")))
        for each in product(*numbers)
    ]


def _plain(text: str, start: int, end: int) -> str:
    if (closing := text.find("]", start, end)) >= 0:
        raise RangeFault("a range begins with [", closing)
    return text[start:end]


def _numbers(text: str, place: int) -> list[_Numbers]:
    """Return the parts of the text between brackets. The text begins at `place`."""
    found = []
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise RangeFault("expected numbers such as 1-64 or 001-064,070", place)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise RangeFault(f"{last} is less than {first}", place)
        found.append(_Numbers(int(first), int(last), len(first) if first[0] == "0" else 0))
        place += len(part) + 1
    return found
