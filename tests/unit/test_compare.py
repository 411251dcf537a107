"""Versions in their order; patterns that cost one step a character; numbers with units."""

from __future__ import annotations

import itertools
import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cod.policy.hardware import quantity
from cod.policy.hardware.attributes import BYTES, MHZ, MIB, NUMBER, RATE, TEXT
from cod.policy.hardware.compare import BadPattern, Pattern, is_version, pattern, version

# ---------------------------------------------------------------- versions

ASCENDING = [
    "",
    "0.9",
    "1.0",
    "1.0a",
    "1.0b",
    "1.0.1",
    "1.9",
    "1.10",
    "2",
    "2.0.0.1",
    "2.1a",
    "2.1.1",
    "10",
    "2024.1",
]
VERSIONS = st.text(alphabet="0123ab.-_ ", max_size=12)


@pytest.mark.parametrize(("low", "high"), list(itertools.pairwise(ASCENDING)))
def test_versions_ascend(low: str, high: str) -> None:
    assert version(low) < version(high)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2.1", "2.1.0"),
        ("2.1", "2.01"),
        ("v2.1", "V2.1"),
        ("2.1-3", "2.1.3"),
        ("2.1-3", "2.1_3"),
        ("1a2", "1.a.2"),
        ("0", ""),
        ("1.0.0", "1"),
    ],
)
def test_versions_that_are_the_same(one: str, other: str) -> None:
    assert version(one) == version(other)


@given(VERSIONS, VERSIONS, VERSIONS)
def test_versions_are_in_a_total_order(a: str, b: str, c: str) -> None:
    x, y, z = version(a), version(b), version(c)
    assert (x < y) + (x == y) + (y < x) == 1
    assert not (x <= y <= z) or x <= z


@given(VERSIONS, st.integers(1, 99))
def test_a_further_number_is_newer(text: str, more: int) -> None:
    assert version(f"{text}.{more}") > version(text)


@given(st.lists(st.integers(0, 30), max_size=5), st.lists(st.integers(0, 30), max_size=5))
def test_dotted_numbers_compare_part_by_part(one: list[int], other: list[int]) -> None:
    padded = [each + [0] * (5 - len(each)) for each in (one, other)]
    texts = [".".join(map(str, each)) for each in (one, other)]
    assert (version(texts[0]) < version(texts[1])) == (padded[0] < padded[1])


def test_what_has_no_number_is_no_version() -> None:
    assert is_version("A12")
    assert not is_version("unknown")
    assert not is_version("\u0664")
    assert not is_version("1" * 201)
    assert version("9" * 200) > version("8" * 200)


# ---------------------------------------------------------------- patterns


@pytest.mark.parametrize(
    ("text", "fits", "fails"),
    [
        ("xeon", ["Xeon", "XEON"], ["xeo", "xeons", ""]),
        ("*", ["", "anything at all"], []),
        ("?", ["x", "ß"], ["", "xy"]),
        ("a*b", ["ab", "axxb", "aab", "abb"], ["a", "abc", "b"]),
        ("a*b*c", ["abc", "a1b2c", "abbcbc"], ["acb", "ab"]),
        ("*gold 6[0-9]??*", ["Xeon Gold 6130 @ 2GHz", "Gold 6130"], ["Gold 5130", "Gold 613"]),
        ("[!0-9]*", ["x1", "é"], ["1x", ""]),
        ("[*]", ["*"], ["x"]),
        ("[]x]", ["]", "x"], ["a"]),
        ("[!]]", ["x"], ["]"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("a|b*|??c", ["a", "b", "bxx", "xxc"], ["ab", "c", "ax"]),
        ("*[|]*", ["a|b", "|"], ["ab"]),
        ("**a**", ["a", "xax"], ["x"]),
    ],
)
def test_what_a_pattern_fits(text: str, fits: list[str], fails: list[str]) -> None:
    assert [each for each in fits if not pattern(text).fits(each)] == []
    assert [each for each in fails if pattern(text).fits(each)] == []


@pytest.mark.parametrize(
    "text", ["", "a||b", "|a", "a|", "[", "[]", "[!]", "[b-a]", "[a-é]", "x" * 201]
)
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(BadPattern):
        pattern(text)


@example("*[!a]?", "b[")
@given(st.text(alphabet="ab*?", min_size=1, max_size=12), st.text(alphabet="abc", max_size=12))
def test_patterns_agree_with_the_file_systems(text: str, found: str) -> None:
    assert pattern(text).fits(found) == fnmatchcase(found, text)


@given(
    st.lists(st.text(alphabet="ab*?", min_size=1, max_size=6), min_size=1, max_size=4),
    st.text(alphabet="abc", max_size=8),
)
def test_alternatives_are_alternatives(texts: list[str], found: str) -> None:
    assert pattern("|".join(texts)).fits(found) == any(fnmatchcase(found, text) for text in texts)


def test_a_pattern_costs_one_step_a_character() -> None:
    """Counted: look-ups in the automaton's table. A backtracking matcher needs 2^50 steps for
    these."""

    class Counting(dict[str, int]):
        steps = 0

        def get(self, key: str, default: int = 0) -> int:  # type: ignore[override]
            Counting.steps += 1
            return super().get(key, default)

    text = "a" * 200
    for evil in ("*a" * 99 + "b", "a*" * 100, "*?" * 100, "|".join(["*a*b"] * 40), "[ab]*" * 40):
        made = pattern(evil)
        counted = Pattern(Counting(made.takes), made.other, made.stays, made.first, made.last)
        Counting.steps = 0
        assert counted.fits(text) == bool(re.search("[?]|^[^b]*$|\\[", evil))
        assert Counting.steps == len(text)


# ---------------------------------------------------------------- quantities


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("4096", MIB, 4096),
        ("4GiB", MIB, 4096),
        ("4 GiB", MIB, 4096),
        ("1048576 KiB", MIB, 1024),
        ("2.5", MIB, 2.5),
        ("1TiB", MIB, 2**20),
        ("1PiB", MIB, 2**30),
        ("2000MB", MIB, 2e9 / 2**20),
        ("20GB", BYTES, 20e9),
        ("512B", BYTES, 512),
        ("1kB", BYTES, 1000),
        ("1.5TB", BYTES, 1.5e12),
        ("1PB", BYTES, 1e15),
        ("2.4GHz", MHZ, 2400),
        ("2400000kHz", MHZ, 2400),
        ("2400000000 Hz", MHZ, 2400),
        ("25Gb/s", RATE, 25000),
        ("1Tb/s", RATE, 1e6),
        ("2500000 kb/s", RATE, 2500),
        ("7", NUMBER, 7),
        ("7", TEXT, 7),
        ("7", None, 7),
        ("4 gib", MIB, None),
        ("4GHz", MIB, None),
        ("4  GiB", MIB, None),
        ("GiB", MIB, None),
        ("4GiB", NUMBER, None),
        ("4GiB", None, None),
        ("-4", MIB, None),
        ("1e3", MIB, None),
        ("0x10", MIB, None),
        ("1" * 16, MIB, None),
        ("\u0664", MIB, None),
        ("1.1234567", MIB, None),
        ("4\n", MIB, None),
        ("", MIB, None),
    ],
)
def test_what_a_quantity_is_worth(text: str, kind: str | None, value: float | None) -> None:
    assert quantity.value(text, kind) == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        ("4096", MIB, "4096 MiB"),
        ("2100", MHZ, "2100 MHz"),
        ("10000", RATE, "10000 Mb/s"),
        ("4", NUMBER, "4"),
        ("960197124096", BYTES, "960.197 GB"),
        ("20000000000000", BYTES, "20 TB"),
        ("1500000", BYTES, "1.5 MB"),
        ("999", BYTES, "999 B"),
        ("4GiB", MIB, "4GiB"),
        ("much", MIB, "much"),
        ("7", TEXT, "7"),
        ("7", None, "7"),
    ],
)
def test_quantities_for_people(text: str, kind: str | None, shown: str) -> None:
    assert quantity.readable(text, kind) == shown


@pytest.mark.parametrize(
    ("text", "wanted", "kind", "shown"),
    [
        ("268435456", "512MiB", BYTES, "256 MiB"),
        ("268435456", "512MB", BYTES, "268.435 MB"),
        ("268435456", "2TiB", BYTES, "256 MiB"),
        ("960197124096", "2TB", BYTES, "960.197 GB"),
        ("960197124096", "1024", BYTES, "960.197 GB"),
        ("2199023255552", "512 GiB", BYTES, "2048 GiB"),
        ("100", "512GiB", BYTES, "0.0976562 KiB"),
        ("4096", "8GiB", MIB, "4 GiB"),
        ("3965", "4GiB", MIB, "3.87207 GiB"),
        ("2100", "2.4GHz", MHZ, "2.1 GHz"),
        ("1000", "25Gb/s", RATE, "1 Gb/s"),
        ("0", "25Gb/s", RATE, "0 Mb/s"),
        ("4", "8", NUMBER, "4"),
        ("much", "8GiB", MIB, "much"),
        ("", "8GiB", MIB, ""),
        ("x", "y", TEXT, "x"),
    ],
)
def test_what_is_found_has_the_unit_of_what_is_wanted(
    text: str, wanted: str, kind: str, shown: str
) -> None:
    assert quantity.beside(text, wanted, kind) == shown


@given(st.integers(1, 10**15 - 1), st.sampled_from([MIB, MHZ, RATE, NUMBER, BYTES]))
def test_what_is_no_complaint_has_a_value(number: int, kind: str) -> None:
    assert quantity.complaint(str(number), kind) == ""
    assert quantity.value(str(number), kind) == number
