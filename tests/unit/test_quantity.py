"""Lengths of time and amounts of bytes: one grammar and one wording, in which nothing is lost."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cod import quantity

SCRIPT = Path(__file__).resolve().parents[2] / "web/assets/live.js"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("30s", 30),
        ("45min", 2700),
        ("15 m", 900),
        ("8h", 28800),
        ("1.5h", 5400),
        ("3 days", 259200),
        ("1 week", 604800),
        ("2w", 1209600),
        ("2h30m", 9000),
        ("1 d 12 Hours", 129600),
    ],
)
def test_people_write_lengths_of_time(text: str, seconds: float) -> None:
    assert quantity.read_span(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h",
        "-1h",
        "1y",
        "nan",
        "inf",
        "1e11",
        "1.2.3",
        "3 4",
        "1h 5",
        "9" * 400,
        "9" * 400 + "h",
    ],
)
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(ValueError, match="should"):
        quantity.read_span(text)


def test_lengths_of_time_for_people() -> None:
    """9,000 seconds were 2 h, 2 h 30 min, 2 hours and 2.5 h."""
    shown = {0: "0 s", 59.6: "1 min", 125: "2 min 5 s", 9000: "2 h 30 min", 172799: "1 d 23 h"}
    assert {each: quantity.span(each) for each in shown} == shown
    whole = {0: "0 s", 1.5: "1.5 s", 9000: "2 h 30 min", 100_000: "1 d 3 h 46 min 40 s"}
    assert {each: quantity.exact_span(each) for each in whole} == whole


@given(
    st.integers(0, 10**11).map(lambda tenths: tenths / 10)
    | st.integers(0, 10**12).map(lambda nanoseconds: nanoseconds / 10**9)
)
@example(1e-05)
def test_a_length_that_was_set_is_read_again_as_it_was(seconds: float) -> None:
    assert quantity.read_span(quantity.exact_span(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4096", 4096),
        ("500 GB", 5 * 10**11),
        ("1.5TiB", 3 * 2**39),
        ("2T", 2**41),
        ("500m", 500 * 2**20),
        ("7 b", 7),
    ],
)
def test_people_write_amounts(text: str, count: int) -> None:
    assert quantity.read_size(text) == count


LONG = ("9" * 4290 + " PB", "1" + " " * 200_000 + "!")


@pytest.mark.parametrize(
    "text", ["", "GB", "-1", "1 XB", "inf", "1e999 GB", "nan", "1 GB 2", *LONG], ids=range(10)
)
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="such as 500 GB"):
        quantity.read_size(text)


@given(
    st.integers(0, 2**60)
    | st.builds(
        lambda number, unit: number * unit // 10,
        st.integers(0, 9000),
        st.sampled_from(sorted(quantity.SIZES.values())),
    )
)
def test_an_amount_that_was_set_is_read_again_as_it_was(count: int) -> None:
    assert quantity.read_size(quantity.exact_size(count)) == count


def test_pages_scripts_have_the_same_units() -> None:
    found = re.search(r"UNITS = (\[\[.*\]\]);", SCRIPT.read_text())
    assert found is not None
    assert dict(json.loads(found[1])) == quantity.SPANS
    found = re.search(r"const units = (\[.*\]);", SCRIPT.read_text())
    assert found is not None
    shown = [quantity.size(2 ** (10 * place)).split(" ")[1] for place in range(6)]
    assert json.loads(found[1]) == shown


def test_a_list_is_cut_short() -> None:
    assert quantity.first_few(["a", "b"], 2) == "a, b"
    assert quantity.first_few(["a", "b", "c", "d"], 2) == "a, b and 2 more"
    assert quantity.first_few(["a b", "c", "d"], 1, "; ") == "a b; and 2 more"
