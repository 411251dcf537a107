"""Comparison of texts as versions, and matching of texts against patterns in linear time.

**Versions** ('2.10.3', 'A12b', 'U30 v2.36') are runs of digits and runs of letters, separated by
any other characters. They are compared run by run: numbers by their value, letters by the alphabet
without regard to case. A missing run counts as the number 0. Letters come after 0 and before every
other number. So 2.9 < 2.10, 2.1 = 2.1.0, 2.1 < 2.1a < 2.1.1. This is a total order.

**Patterns** are like those for file names. They match the whole text, without regard to case:

    ``*``         any text
    ``?``         any one character
    ``[a-f0-9]``  one of these characters
    ``[!a-f]``    one character that is none of these
    ``|``         separates alternatives

A pattern is matched by simulating an automaton whose states are the bits of one integer (Shift-And,
Baeza-Yates and Gonnet 1992). Each character of the text takes one step, without backtracking.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

LONGEST = 200  # characters of a pattern or version

# ---------------------------------------------------------------- versions

_RUN = re.compile(r"[0-9]+|[a-z]+")
Rank = tuple[int, int, str]


def is_version(text: str) -> bool:
    """Return whether the text can be compared as a version: it contains a digit, and is not longer
    than `LONGEST`."""
    return len(text) <= LONGEST and any(c in "0123456789" for c in text)


def version(text: str) -> tuple[Rank, ...]:
    """Return a key that orders versions."""
    ranks = [_rank(run) for run in _RUN.findall(text.lower())]
    while ranks and ranks[-1] == _ZERO:
        ranks.pop()
    return tuple(ranks)


_ZERO: Rank = (0, 0, "")


def _rank(run: str) -> Rank:
    if run.isalpha():
        return (1, 0, run)
    return (2, int(run), "") if int(run) else _ZERO


# ---------------------------------------------------------------- patterns


class BadPattern(ValueError):
    """The text is no valid pattern; the message says why."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """An automaton. A pattern is a sequence of items, and bit i stands for the state before item i.

    takes  by character: the states whose items match this character
    other  the states whose items match characters that are not in `takes`
    stays  the states that any character leaves unchanged (``*``)
    first  the states at the beginning of the text
    last   the states that accept at the end of the text
    """

    takes: dict[str, int]
    other: int
    stays: int
    first: int
    last: int

    def fits(self, text: str) -> bool:
        """Return whether the pattern matches the whole text."""
        states = self.first
        for character in text.lower():
            states = (states & self.takes.get(character, self.other)) << 1 | states & self.stays
            if not states:
                return False
        return bool(states & self.last)


@lru_cache(maxsize=1024)
def pattern(text: str) -> Pattern:
    """Return the automaton of a pattern. Raises `BadPattern`."""
    if not 0 < len(text) <= LONGEST:
        raise BadPattern(f"a pattern has 1 to {LONGEST} characters, not {len(text)}")
    made = _Maker()
    at, lowered = 0, text.lower()
    while at < len(lowered):
        at = made.add(lowered, at)
    made.end_alternative()
    return made.pattern()


class _Maker:
    """Reader of a pattern, item by item. An item is (characters, whether it matches all characters
    except these)."""

    def __init__(self) -> None:
        self._items: list[tuple[frozenset[str], bool]] = []
        self._stays = self._last = 0
        self._first = 1

        self._empty = True

    def add(self, text: str, at: int) -> int:
        """Add the item that begins at index `at`, and return the index of the next item."""
        character = text[at]
        if character == "|":
            self.end_alternative()
            self._first |= 1 << len(self._items)
            self._empty = True
            return at + 1
        self._empty = False
        if character == "*":
            self._stays |= 1 << len(self._items)
            return at + 1
        if character == "[":
            all_but = text[at + 1 : at + 2] == "!"
            begin = at + 1 + all_but
            end = text.find("]", begin + 1)
            if end < 0:
                raise BadPattern("a [ has no ] after it")
            self._items.append((_characters(text[begin:end]), all_but))
            return end + 1
        self._items.append(
            (frozenset(), True) if character == "?" else (frozenset(character), False)
        )
        return at + 1

    def end_alternative(self) -> None:
        """End an alternative. Its accepting state, after its last item, is an item of its own that
        matches no character."""
        if self._empty:
            raise BadPattern("an alternative is empty")
        self._last |= 1 << len(self._items)
        self._items.append((frozenset(), False))

    def pattern(self) -> Pattern:
        """Return the automaton."""
        named = frozenset().union(*(characters for characters, _ in self._items))
        takes = {
            c: sum(
                1 << i
                for i, (characters, all_but) in enumerate(self._items)
                if (c in characters) != all_but
            )
            for c in named
        }
        other = sum(1 << i for i, (_, all_but) in enumerate(self._items) if all_but)
        return Pattern(takes, other, self._stays, self._first, self._last)


def _characters(inner: str) -> frozenset[str]:
    found: set[str] = set()
    at = 0
    while at < len(inner):
        if inner[at + 1 : at + 2] == "-" and at + 2 < len(inner):
            low, high = ord(inner[at]), ord(inner[at + 2])
            if not low <= high < 128:
                raise BadPattern(
                    f"{inner[at : at + 3]!r} is no range of plain characters, lowest first"
                )
            found.update(map(chr, range(low, high + 1)))
            at += 3
        else:
            found.add(inner[at])
            at += 1
    return frozenset(found)
