"""Curves of price or carbon: what is read, what is refused, and means over time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.cli.nodes import energy
from cod.policy.energy.curve import CARBON, DAY, HOUR, MOST_BYTES, PRICE, Curve, decoded, read

DAILY = "".join(f"{hour},{100 + 10 * hour}\n" for hour in range(24))
DEC = 1_796_083_200.0  # 2026-12-01T00:00Z


def test_a_curve_of_a_day_repeats() -> None:
    curve = read("hour,value\n# night is cheap\n" + DAILY)
    assert curve.daily
    assert [curve.at(DEC + 5 * DAY + hour * HOUR + 1) for hour in (0, 5, 23)] == [100, 150, 330]
    assert curve.mean(DEC + HOUR / 2, DEC + 2.5 * HOUR, 0.0) == pytest.approx(
        (0.5 * 100 + 110 + 0.5 * 120) / 2
    )
    assert curve.mean(DEC, DEC + 3 * DAY, 0.0) == pytest.approx(curve.usual)


def test_a_curve_of_dates_says_nothing_beyond_its_ends() -> None:
    curve = read("2026-12-01T00:00Z,200\n2026-12-01T01:00+00:00, 100\n2026-12-01T02:15,-5", PRICE)
    assert (curve.at(DEC - 1), curve.at(DEC), curve.at(DEC + HOUR)) == (None, 200, 100)
    assert (curve.at(DEC + 2.25 * HOUR), curve.end) == (-5, DEC + 3.25 * HOUR)
    assert curve.at(curve.end) is None
    assert curve.mean(DEC - HOUR, DEC + HOUR, 50.0) == pytest.approx(125.0)
    assert curve.cheaper(DEC, 100.0) == DEC + HOUR
    assert curve.cheaper(DEC, -6.0) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no value"),
        ("hour,value\n", "no value"),
        ("1,2", "24 hours"),
        (DAILY + "24,1", "line 25: there is no hour 24"),
        ("0,1\n0,1", "line 2: an hour should come after"),
        ("2026-12-01,1\n2026-12-03T00:01Z,1", "by a day at most"),
        (DAILY + "2026-12-01,1", "line 25"),
        ("0,1\n1,nan", "line 2: nan is not a value"),
        ("0,inf", "line 1: inf"),
        ("0,1e999", "line 1: 1e999"),
        ("0,-1", "cannot be negative"),
        ("0", "line 1: '' is no number"),
        ("0,1,2", "line 1: '1,2' is no number"),
        ("<html>,1", "line 1: '<html>' is no hour"),
        ("1970-01-01T01:00Z,1", "too far away"),
        ("0001-01-01T00:00+14:00,1", "line 1"),
        ("9" * 5000 + ",1", "line 1"),
        ("1," + "9" * 5000, "line 1"),
    ],
)
def test_what_is_no_curve_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("(", r"\(")) as caught:
        read(text, CARBON)
    assert len(str(caught.value)) < 200, "what a stranger wrote is not told at length"


def test_a_command_says_no_unit_where_there_is_no_value() -> None:
    found = {"of": "carbon", "unit": "gCO2/kWh", "value": None, "read_at": 0.0, "fault": ""}
    assert energy.curve(found).startswith("carbon: no value for now, read ")
    assert energy.curve({**found, "value": 212.0}).startswith("carbon: now 212 gCO2/kWh, read ")


def test_content_that_is_no_text_is_refused() -> None:
    for content in (b"\xff\xfe0,1", "٣,1".encode(), b"0,1\0", b"0,1\n" * MOST_BYTES):
        with pytest.raises(ValueError, match="it is"):
            decoded(content)
    assert decoded(b"0,1\r\n") == "0,1\r\n"


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_curve_or_a_sentence(content: bytes) -> None:
    try:
        curve = read(decoded(content))
    except ValueError:
        return
    assert all(math.isfinite(value) for value in curve.values)


@given(
    st.lists(st.floats(0, 1000), min_size=24, max_size=24),
    st.floats(0, 3 * DAY),
    st.floats(0, 3 * DAY),
    st.floats(0, 3 * DAY),
)
def test_means_add_up(values: list[float], one: float, two: float, three: float) -> None:
    """The mean over a span is that of its parts, weighted."""
    curve = Curve(tuple(hour * HOUR for hour in range(24)), tuple(values))
    start, middle, end = sorted((one, two, three))
    parts = curve.mean(start, middle, 0) * (middle - start) + curve.mean(middle, end, 0) * (
        end - middle
    )
    assert curve.mean(start, end, 0) * (end - start) == pytest.approx(parts, abs=1e-3)
