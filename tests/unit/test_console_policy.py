"""Whose a stretch of a console is, which nodes are followed, and how long a lost one is left
alone."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.choices import PowerDriverKind
from cod.consolefiles import _NAME
from cod.model import ConsoleRules
from cod.policy.nodes import console

ON = ConsoleRules(record=True)
HOLDERS = st.tuples(
    st.none() | st.integers(1, 2**40), st.floats(0, 4e9).map(lambda at: round(at, 3))
)


@given(HOLDERS, HOLDERS)
def test_no_two_tenures_are_called_the_same(
    one: tuple[int | None, float], other: tuple[int | None, float]
) -> None:
    """Not even the same vcluster's, when it gets the node again: of the time between it may read
    nothing."""
    same = one[0] == other[0] and (one[0] is None or one[1] == other[1])
    assert (console.tenure(*one) == console.tenure(*other)) is same


@given(HOLDERS)
def test_a_tenure_is_part_of_a_file_name(holder: tuple[int | None, float]) -> None:
    found = _NAME.fullmatch(f"{0:016d}.{console.tenure(*holder)}.log")
    assert found is not None
    assert found[2] == console.tenure(*holder)


def test_nobodys_time_is_nobodys() -> None:
    assert console.tenure(None, None) == console.FREE
    assert console.tenure(None, 5.0) == console.FREE
    assert console.tenure(7, 1763667000.1234) == "v7-1763667000123"


def test_consoles_are_recorded_where_the_site_wants_it() -> None:
    assert console.unrecorded(ON, "n1", "ipmi") == ""
    assert console.unrecorded(ON, "n1", "lab") == ""
    assert "records no consoles" in console.unrecorded(ConsoleRules(), "n1", "ipmi")
    assert console.unrecorded(ConsoleRules(record=True, match="rack1-*"), "rack1-7", "ipmi") == ""
    assert "'rack1-*'" in console.unrecorded(
        ConsoleRules(record=True, match="rack1-*"), "rack2-7", "ipmi"
    )


@pytest.mark.parametrize("driver", PowerDriverKind)
def test_every_driver_has_a_console_or_a_sentence_why_not(driver: PowerDriverKind) -> None:
    assert bool(driver.can.console) != bool(driver.can.no_console)
    about = console.unrecorded(ON, "n1", driver.value)
    assert bool(about) is not bool(driver.can.console)
    assert not about or re.match(r"[a-z].*[^.]$", about), "it is the end of a sentence"


def test_a_driver_that_nobody_knows_has_none() -> None:
    assert console.unrecorded(ON, "n1", "abacus") == "the driver abacus has no consoles"


def test_a_console_that_is_lost_is_tried_again_ever_more_seldom() -> None:
    pauses = [console.pause(failures, lasting=False) for failures in range(1, 30)]
    assert pauses[:4] == [5.0, 10.0, 20.0, 40.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == console.LONGEST_PAUSE


def test_what_cannot_be_mended_is_left_alone_for_an_hour() -> None:
    """BMCs lock accounts that fail too often."""
    assert console.pause(1, lasting=True) == console.pause(9, lasting=True) == 3600.0
