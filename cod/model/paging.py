"""Lists in pages. A list is sorted by one key, and rows with equal values of it by a unique key. A
cursor is the pair of these values in the last row of a page. So no row is skipped or repeated when
rows are added or removed between two pages."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from cod.model.results import Refused

T = TypeVar("T")
COUNTED = 10_000  # most rows that are counted; the length of a longer list is not returned
LONGEST = 1000  # most rows in one page


@dataclass(frozen=True, slots=True)
class Page:
    """Selection of one page of a list.

    limit  most rows of the page
    sort   the key to sort by, with '-' before it in descending order; '': the list's default
    after  the cursor of the previous page; '': the first page
    q      only rows that contain this text; '': all rows
    """

    limit: int = 100
    sort: str = ""
    after: str = ""
    q: str = ""

    def key(self, default: str) -> tuple[str, bool]:
        """Return (key to sort by, whether in descending order)."""
        wanted = self.sort or default
        return wanted.removeprefix("-"), wanted.startswith("-")


ALL = Page(limit=1_000_000)


class Listed(list[T]):
    """A page of a list. `next`: the cursor for the next page, None after the last; `total`: rows of
    the whole list, None if they were not counted."""

    def __init__(
        self, items: Iterable[T] = (), next: str | None = None, total: int | None = None
    ) -> None:
        super().__init__(items)
        self.next, self.total = next, total

    def each(self, shape: Callable[[T], Any]) -> Listed[Any]:
        """Return the page with `shape(row)` in place of each row."""
        return Listed(map(shape, self), self.next, self.total)


def cursor(sort: str, value: object, unique: object) -> str:
    """Return the cursor after a row with that `value` of the key `sort` and that `unique` key."""
    text = json.dumps([sort, value, unique], separators=(",", ":"))
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def place(page: Page, default: str) -> tuple[Any, Any] | None:
    """Return (value, unique key) of the row that `page` begins after; None: the page is the first.
    Raises `Refused` if the cursor is not of this list in this order."""
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
    """Return a page of a list that is short enough to be in memory. Raises `Refused`.

    keys     functions that return the values to sort by, by the key's name
    default  the key of the list's default order
    unique   returns a row's unique key
    texts    returns a row's texts, which are searched for `page.q` without regard to case
    """
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
