"""The table of attacks, as `make attack` prints it: each promise is kept, and each test that it
names is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack import cases, table

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
# a server that meets a full disk is a test of its own
PLAYED = [case for case in cases.CASES if case.name != cases.FULL_DISK and case.most is not None]


@pytest.mark.parametrize("case", PLAYED, ids=lambda case: f"{case.name}, {case.measures}")
def test_what_is_promised_is_kept(case: cases.Case) -> None:
    value = case.play()
    assert table.is_kept(case, value), value


def test_the_tests_that_the_table_names_are_there() -> None:
    named = {test for case in cases.CASES for test in case.also}
    assert [test for test in sorted(named) if not (ROOT / test).is_file()] == []


def test_without_evidence_an_impostor_is_believed_where_any_machine_is() -> None:
    assert cases.free_without_evidence(auto_approve=True) == 1


def test_an_agent_of_a_machine_that_is_on_is_welcomed() -> None:
    assert cases.welcomed("on") > 0
