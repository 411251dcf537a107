"""Charts of spans: clipped to a window, with headings and a mark."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from lxml import etree

from cod.svg import COLOURS, LABEL, WIDE_LEFT, WIDTH, Axis, Line, Span, areas, lines, spans

NAMES = {"s": "http://www.w3.org/2000/svg"}
BAR = Span(-50.0, 50.0, "held", "from before the window", "7")
OPEN = Span(20.0, math.inf, "reserved", "beyond the window")


def found(drawn: etree._Element, path: str) -> list[Any]:
    made: Any = drawn.xpath(path, namespaces=NAMES)
    return list(made)


def test_spans_end_at_the_window() -> None:
    """A span that goes on ends in a point, one from before begins at the edge, and nothing is drawn
    outside."""
    drawn = etree.fromstring(
        spans(
            "",
            [("group", None), ("x" * 40, [BAR, OPEN])],
            Axis("UTC", [(50.0, "noon")]),
            window=(0.0, 100.0),
            mark=(10.0, "now"),
            sorts=["held", "reserved"],
        )
    )
    (bar,) = found(drawn, "//s:rect[s:title='from before the window']")
    assert float(bar.get("x")) == WIDE_LEFT
    (tip,) = found(drawn, "//s:path[s:title='beyond the window']")
    assert "H740.0l6 8" in tip.get("d")
    texts = found(drawn, "//s:text/text()")
    assert {"group", "now", "noon", "7", "x" * (LABEL - 1) + "…"} <= set(texts)
    assert (
        max(float(one.get("x")) for one in found(drawn, "//s:line|//s:rect[@x]") if one.get("x"))
        < WIDTH
    )


def test_what_has_a_class_is_coloured_by_the_page() -> None:
    points = [(0.0, 1.0), (1.0, 2.0)]
    drawn = etree.fromstring(
        areas("", [("free", points), ("rest", points)], Axis(""), Axis(""), {"free": "good"})
    )
    made = found(drawn, "//s:polygon|//s:rect[@width='12']")
    assert [one.get("class") for one in made] == ["good", None, "good", None]
    assert [one.get("fill") for one in made] == [*COLOURS[:2]] * 2


def test_what_has_one_colour_has_one_square_in_the_legend() -> None:
    moves = [Span(at, at + 1, word, word) for at, word in enumerate(("a", "b", "c"))]
    drawn = spans("", [("", moves)], Axis(""), classes={"a": "busy", "c": "busy"})
    assert re.findall(">([abc, ]+)</text>", drawn) == ["a, c", "b"]


def test_a_span_that_is_short_has_no_text_and_is_seen() -> None:
    drawn = etree.fromstring(
        spans(
            "",
            [("", [Span(10.0, 10.0, "leaving", "a moment", "12")])],
            Axis(""),
            window=(0.0, 1000.0),
        )
    )
    (bar,) = found(drawn, "//s:rect[s:title='a moment']")
    assert float(bar.get("width")) == 3.0
    assert "12" not in found(drawn, "//s:text/text()")


def test_a_pointer_shows_the_numbers_at_its_place() -> None:
    axis = Axis("day", label_of=lambda x: f"day {x:g}")
    drawn = areas(
        "", [("a<b", [(1, 2), (2, 4), (4, 1)]), ("c", [(1, 1.5), (2, 0), (4, 0)])], axis, Axis("n")
    )
    columns = re.findall(
        r'class="numbers" x="([0-9.]+)".*? width="([0-9.]+)".*?<title>(.*?)</title>', drawn, re.S
    )
    assert [words for _, _, words in columns] == [
        "day 1\na&lt;b: 2\nc: 1.5",
        "day 2\na&lt;b: 4\nc: 0",
        "day 4\na&lt;b: 1\nc: 0",
    ]
    ends = [float(x) + float(width) for x, width, _ in columns]
    assert ends[:-1] == pytest.approx([float(x) for x, _, _ in columns[1:]], abs=0.11), "no gaps"
    assert "numbers" not in areas("", [("a", [(1, 2), (2, 4)])], Axis("day"), Axis("n"))


def test_the_numbers_are_in_the_drawing_for_a_page_that_draws_it_anew() -> None:
    """A line without a number at a place has none there; names cannot end the attribute."""
    axis = Axis("UTC", label_of=str)
    drawn = etree.fromstring(
        lines("", [Line('a"<b', [(1, 2.12345), (3, 4)]), Line("c", [(3, 5)])], axis, Axis("MB/s"))
    )
    (numbers,) = found(drawn, "//s:g/@data-plot")
    assert json.loads(numbers) == {
        "x": [1, 3],
        "series": [['a"<b', [2.123, 4]], ["c", [None, 5]]],
        "unit": "MB/s",
        "least": None,
        "stacked": False,
        "moments": False,
    }
    assert "data-plot" not in areas("", [("a", [(1, 2)])], Axis(""), Axis("")), "nobody asks"


def test_an_axis_of_whole_things_reaches_one_though_a_mean_is_small() -> None:
    drawn = etree.fromstring(
        areas("", [("a", [(1, 0.002), (2, 0.004)])], Axis("day"), Axis("nodes", least=1))
    )
    assert "1" in [each.text for each in found(drawn, "//s:text")]
