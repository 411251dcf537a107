"""Each operator's test by itself, its phrase, and what contradicts what."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.policy.hardware.attributes import BYTES, MIB, NUMBER, PARTS, TEXT, VERSION
from cod.policy.hardware.operators import PHRASES, complaint, holds, phrase, words


@pytest.mark.parametrize(
    ("operator", "wanted", "kind", "fits", "fails"),
    [
        ("equal", "4GiB", MIB, ["4096", "4096.0"], ["4095", "4GiB ", "", "x"]),
        ("equal", "x86_64", TEXT, ["x86_64"], ["X86_64", "x86"]),
        ("equal", "010", TEXT, ["010", "10"], ["8"]),  # numbers are numbers, whatever the attribute
        ("min", "20GB", BYTES, ["20000000000", "20000000001"], ["19999999999", "much", ""]),
        ("max", "20GB", BYTES, ["20000000000", "0"], ["20000000001", "much", ""]),
        ("one-of", "2 4GiB 8192", MIB, ["2", "4096", "8192"], ["4", "8", ""]),
        (
            "one-of",
            "R640 | PowerEdge R740",
            TEXT,
            ["R640", "PowerEdge R740"],
            ["PowerEdge", "R740", "|"],
        ),
        ("like", "*gold*|*platinum*", TEXT, ["Xeon Gold 6130", "PLATINUM"], ["Silver", ""]),
        (
            "version-min",
            "2.10",
            VERSION,
            ["2.10", "2.10.0", "2.11", "10"],
            ["2.9", "2", "none", ""],
        ),
        ("version-max", "2.10", VERSION, ["2.10", "2.9", "0"], ["2.10.1", "2.10a", "none", ""]),
        ("newer", "2.10", VERSION, ["2.10.1", "2.10a"], ["2.10", "2.10.0", "2.9"]),
        ("older", "2.10", VERSION, ["2.9", "2.9z"], ["2.10", "2.11", "none"]),
        ("present", "yes", TEXT, ["", "x"], []),
        ("unheard-of", "x", TEXT, [], ["x"]),
    ],
)
def test_what_holds(
    operator: str, wanted: str, kind: str, fits: list[str], fails: list[str]
) -> None:
    assert [found for found in fits if not holds(operator, wanted, found, kind)] == []
    assert [found for found in fails if holds(operator, wanted, found, kind)] == []


@pytest.mark.parametrize(
    ("operator", "wanted", "kind", "said"),
    [
        ("min", "4096", MIB, "at least 4096 MiB"),
        ("min", "4GiB", MIB, "at least 4GiB"),
        ("one-of", "2048 4096", MIB, "one of 2048 MiB, 4096 MiB"),
        ("equal", "x", TEXT, "x"),
        ("max", "20000000000", BYTES, "at most 20 GB"),
        ("newer", "2.1", VERSION, "newer than version 2.1"),
        ("unheard-of", "x", TEXT, "unheard-of x"),
    ],
)
def test_phrases(operator: str, wanted: str, kind: str, said: str) -> None:
    assert phrase(operator, wanted, kind) == said


def test_the_values_of_one_of() -> None:
    assert words(" a  b ") == ["a", "b"]
    assert words("a b|c") == ["a b", "c"]
    assert words("a|") == ["a", ""]


# ---------------------------------------------------------------- contradictions

SMALL = [str(number) for number in range(1, 5)]


@given(
    st.dictionaries(st.sampled_from(["min", "max", "equal"]), st.sampled_from(SMALL), min_size=1)
)
def test_numbers_contradict_each_other_exactly_when_no_number_meets_them_all(
    asked: dict[str, str],
) -> None:
    possible = any(
        all(holds(key, value, found, NUMBER) for key, value in asked.items()) for found in SMALL
    )
    assert (complaint(asked, NUMBER) == "") == possible


@given(
    st.dictionaries(
        st.sampled_from(["version-min", "version-max", "newer", "older", "equal"]),
        st.sampled_from(SMALL),
        min_size=1,
    )
)
def test_versions_contradict_each_other_exactly_when_no_version_meets_them_all(
    asked: dict[str, str],
) -> None:
    # there is always one in between
    between = [*SMALL, *(f"{number}.5" for number in SMALL), "0.5", "9"]
    possible = any(
        all(holds(key, value, found, VERSION) for key, value in asked.items()) for found in between
    )
    assert (complaint(asked, VERSION) == "") == possible


KINDS = (PARTS, TEXT, NUMBER, MIB, VERSION, None)


@pytest.mark.parametrize(("operator", "kind"), list(itertools.product(PHRASES, KINDS)))
def test_every_operator_has_an_answer_for_every_attribute(operator: str, kind: str | None) -> None:
    for value in ("7", "4GiB", "a*", "[", "2.1", "yes", "x" * 201, ""):
        said = complaint({operator: value}, kind)
        assert said == said.strip()
        assert not said.endswith(".")
        if not said and operator in ("min", "max") and kind == NUMBER:
            assert value in ("7", "2.1")


def test_what_has_parts_takes_no_operator_but_present() -> None:
    assert [operator for operator in PHRASES if not complaint({operator: "yes"}, PARTS)] == [
        "present"
    ]
