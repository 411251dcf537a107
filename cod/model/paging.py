"""Lists in parts. A list is in the order of one key and, where that is the same, of a unique one; a
cursor is the pair that the last part ended with, so that rows that come and go meanwhile make no
part skip or repeat one."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from cod.model.results import Refused

T = TypeVar("T")
COUNTED = 10_000  # rows that are counted at most; of a longer list nobody is told how long it is
LONGEST = 1000  # rows in one part


@dataclass(frozen=True, slots=True)
class Page:
    """Selection of one page of a list.

    limit  rows at most
    sort   a key, with '-' before it the other way round; '': as the list has it
    after  the cursor that the part before ended with; '': from the beginning
    q      only what has this in one of its texts; '': everything
    """

    limit: int = 100
    sort: str = ""
    after: str = ""
    q: str = ""

    def key(self, default: str) -> tuple[str, bool]:
        """(key, downwards?)"""
        wanted = self.sort or default
        return wanted.removeprefix("-"), wanted.startswith("-")


ALL = Page(limit=1_000_000)


class Listed(list[T]):
    """A part of a list. `next`: the cursor of the next one, None after the last; `total`: rows of
    all parts, None where that was not counted."""

    def __init__(
        self, items: Iterable[T] = (), next: str | None = None, total: int | None = None
    ) -> None:
        super().__init__(items)
        self.next, self.total = next, total

    def each(self, shape: Callable[[T], Any]) -> Listed[Any]:
        """Return the same part, with something else for each row."""
        return Listed(map(shape, self), self.next, self.total)


def cursor(sort: str, value: object, unique: object) -> str:
    """Return the cursor after a row with that value and unique key, in that order."""
    text = json.dumps([sort, value, unique], separators=(",", ":"))
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def place(page: Page, default: str) -> tuple[Any, Any] | None:
    """(value, unique key) that `page` begins after; None: at the beginning. Raises `Refused`."""
    if not page.after:
        return None
    wrong = Refused(
        "invalid", "this is no cursor of this list in this order: begin anew without it", "after"
    )
    try:
        sort, value, unique = json.loads(
            urlsafe_b64decode(page.after + "=" * (-len(page.after) % 4))
        )
    except (ValueError, TypeError, RecursionError):
        raise wrong from None
    if sort != (page.sort or default) or not (_plain(value) and _plain(unique)):
        raise wrong
    return value, unique


def _plain(value: object) -> bool:
    """Return whether a database can compare the value."""
    if isinstance(value, str):
        return value.isprintable()
    return isinstance(value, int | float) and abs(value) < 2**62


def part(
    rows: Iterable[T],
    page: Page,
    keys: Mapping[str, Callable[[T], Any]],
    default: str,
    unique: Callable[[T], Any],
    texts: Callable[[T], Iterable[str]],
) -> Listed[T]:
    """Return a part of a list that is short enough to be in memory. `keys`: what it can be ordered
    by; `texts` are searched for `page.q`, whatever the case. Raises `Refused`."""
    name, down = page.key(default)
    wanted = page.q.casefold()
    found = [
        row for row in rows if not wanted or any(wanted in text.casefold() for text in texts(row))
    ]

    def pair(row: T) -> tuple[Any, Any]:
        return keys[name](row), unique(row)

    ordered = sorted(found, key=pair, reverse=down)
    start = place(page, default)
    if start is not None:
        try:
            ordered = [row for row in ordered if (pair(row) < start if down else pair(row) > start)]
        except TypeError:
            raise Refused("invalid", "this is no cursor of this list", "after") from None
    shown = ordered[: page.limit]
    more = len(ordered) > page.limit
    return Listed(
        shown, cursor(page.sort or default, *pair(shown[-1])) if more else None, len(found)
    )
