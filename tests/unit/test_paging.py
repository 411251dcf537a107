"""Parts of lists in memory, and cursors: together they are the list, whatever comes and goes
meanwhile."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.model import Listed, Page, Refused
from cod.model.paging import cursor, part, place

KEYS: dict[str, Any] = {"name": itemgetter("name"), "size": itemgetter("size")}
ROWS = st.lists(
    st.fixed_dictionaries(
        {"name": st.text("abcÄ", min_size=1, max_size=4), "size": st.integers(0, 3)}
    ),
    unique_by=itemgetter("name"),
    max_size=20,
)
SORTS = ["", "name", "-name", "size", "-size"]


def get(rows: list[Any], page: Page) -> Listed[Any]:
    return part(rows, page, KEYS, "name", KEYS["name"], lambda row: [row["name"]])


def walk(rows: list[Any], sort: str, limit: int) -> list[Any]:
    found: list[Any] = []
    after: str | None = ""
    while after is not None:
        shown = get(rows, Page(limit, sort, after))
        assert len(shown) <= limit
        assert shown.total == len(rows)
        found += shown
        after = shown.next
    return found


@given(ROWS, st.sampled_from(SORTS), st.integers(1, 7))
def test_parts_together_are_the_list(rows: list[Any], sort: str, limit: int) -> None:
    key = KEYS[sort.removeprefix("-") or "name"]
    ordered = sorted(rows, key=lambda row: (key(row), row["name"]), reverse=sort.startswith("-"))
    assert walk(rows, sort, limit) == ordered


@given(ROWS, st.sampled_from(SORTS), st.data())
def test_what_stays_is_neither_skipped_nor_repeated(
    rows: list[Any], sort: str, data: st.DataObject
) -> None:
    first = get(rows, Page(3, sort))
    gone = data.draw(st.sets(st.sampled_from([row["name"] for row in rows]))) if rows else set()
    left = [row for row in rows if row["name"] not in gone]
    rest = [] if first.next is None else list(get(left, Page(1000, sort, first.next)))
    seen = [row["name"] for row in [*first, *rest]]
    assert len(seen) == len(set(seen))
    assert {row["name"] for row in left} <= set(seen)


def test_a_search_whatever_the_case() -> None:
    rows = [{"name": "Alpha", "size": 1}, {"name": "beta", "size": 1}]
    assert [row["name"] for row in get(rows, Page(q="ALPH"))] == ["Alpha"]
    assert get(rows, Page(q="x")) == []


def test_a_cursor_is_of_one_order() -> None:
    made = cursor("size", 3, "a")
    assert place(Page(sort="size", after=made), "name") == (3, "a")
    assert place(Page(), "name") is None
    for sort in ("", "-size", "name"):
        with pytest.raises(Refused, match="no cursor"):
            place(Page(sort=sort, after=made), "name")


def encoded(value: object) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode()


@pytest.mark.parametrize(
    "after",
    [
        "x",
        "ä",
        "====",
        encoded(7),
        encoded([]),
        encoded(["name", None, 1]),
        encoded(["name", [], {}]),
        encoded(["name", 10**30, 1]),
        encoded(["name", float("inf"), 1]),
        encoded(["name", "\x00", "a"]),
        encoded(["name", "\ud800", "a"]),
        encoded(["other", "a", "a"]),
        "W10" * 200,
    ],
)
def test_what_is_no_cursor_is_refused(after: str) -> None:
    with pytest.raises(Refused, match="no cursor") as caught:
        place(Page(after=after), "name")
    assert caught.value.field == "after"


def test_a_cursor_of_another_sort_of_values_is_refused() -> None:
    with pytest.raises(Refused, match="no cursor"):
        get([{"name": "a", "size": 1}], Page(after=cursor("name", 7, 7)))


def test_a_part_with_something_else_in_it_is_still_that_part() -> None:
    assert Listed([1, 2], "x", 9).each(str) == ["1", "2"]
    assert (Listed([1], "x", 9).each(str).next, Listed([1], "x", 9).each(str).total) == ("x", 9)
