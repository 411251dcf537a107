"""Planted faults: the same seed plants the same ones, and what the tests catch is told apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.mutants.by_hand import ByHand, listed
from tests.mutants.plant import Fault, faults, plant

ROOT = Path(__file__).resolve().parents[2]

TINY = '''"""A module of faults."""

import functools
import logging

__all__ = ["bounded"]
LIMIT = 3


def twice(function):
    @functools.wraps(function)
    def wrapped(value: int = 7):
        return 2 * function(value)

    return wrapped


@twice
def bounded(value: "int | None") -> int:
    """Return a value that is not above the limit."""
    logging.info("bounded %d", 5)
    if value > LIMIT:
        value = LIMIT
    if value == 100:
        return 0
    return value


def drained(values: list[int]) -> int:
    while values:
        values.pop()
    return len(values)
'''
TESTS = """import tiny


def test_bounded():
    assert [tiny.bounded(value) for value in (1, 3, 4)] == [2, 6, 6]


def test_drained():
    assert tiny.drained([1, 2]) == 0
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (tmp_path / "tiny.py").write_text(TINY)
    (tmp_path / "test_tiny.py").write_text(TESTS)
    return tmp_path


def _of(path: Path) -> dict[tuple[str, str], Fault]:
    return {(fault.before, fault.kind): fault for fault in faults(path.read_bytes(), path.name)}


def test_the_same_seed_plants_the_same_faults(tiny: Path) -> None:
    files = [tiny / "tiny.py"]
    chosen = plant(files, tiny, seed=1, count=5)
    assert chosen == plant(files, tiny, seed=1, count=5)
    assert chosen != plant(files, tiny, seed=2, count=5)
    assert len({fault.line for fault in chosen}) == 5


def test_a_change_elsewhere_keeps_the_faults(tiny: Path) -> None:
    before = plant([tiny / "tiny.py"], tiny, seed=1, count=5)
    (tiny / "tiny.py").write_text(TINY.replace("LIMIT = 3\n", "LIMIT = 3\nOTHER = 4\n"))
    after = plant([tiny / "tiny.py"], tiny, seed=1, count=5)
    assert [fault.line + 1 for fault in before] == [fault.line for fault in after]


def test_only_code_inside_functions_is_changed(tiny: Path) -> None:
    """Docstrings, annotations, defaults, decorators, logging and what is outside functions stay."""
    assert {fault.before for fault in _of(tiny / "tiny.py").values()} == {
        "return wrapped",
        "return 2 * function(value)",
        "2 * function(value)",
        "2",
        "value > LIMIT",
        "value == 100",
        "100",
        "return 0",
        "0",
        "return value",
        "values",
        "values.pop()",
        "return len(values)",
    }


@pytest.mark.slow
def test_caught_and_surviving_faults_are_told_apart(tiny: Path) -> None:
    possible = _of(tiny / "tiny.py")
    wanted = {
        ("value > LIMIT", "comparison flipped"): "",  # the limit itself stays the same either way
        ("100", "one more"): "",
        ("return value", "returns None"): "test_tiny.py::test_bounded",
        ("2", "one more"): "test_tiny.py::test_bounded",
        ("values.pop()", "statement deleted"): "the time limit",
    }
    work = [
        {
            "fault": asdict(possible[key]),
            "tests": ["test_tiny.py::test_bounded", "test_tiny.py::test_drained"],
            "limit": 2 if caught == "the time limit" else 60,
        }
        for key, caught in wanted.items()
    ]
    (tiny / "work.json").write_text(json.dumps(work))
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.run", "test_tiny.py"],
        cwd=tiny,
        check=True,
        env=os.environ
        | {
            "PYTHONPATH": f"{tiny}:{ROOT}",
            "COD_MUTANTS_WORK": "work.json",
            "COD_MUTANTS_RESULTS": "results.jsonl",
        },
    )
    results = [json.loads(line) for line in (tiny / "results.jsonl").read_text().splitlines()]
    assert {
        (result["fault"]["before"], result["fault"]["kind"]): result["test"] for result in results
    } == wanted
    assert (tiny / "tiny.py").read_text() == TINY


@pytest.mark.parametrize("fault", listed(), ids=lambda fault: fault.name)
def test_faults_by_hand_still_have_their_place(fault: ByHand) -> None:
    """The text that a fault replaces is there once, and so is the file of tests that catches it."""
    assert (ROOT / fault.file).read_text().count(fault.old) == 1
    assert fault.old != fault.new
    assert (ROOT / fault.caught_by.split()[0].split("::")[0]).is_file()
