"""Plugin of pytest that writes which test executes which line, and what each test costs.

Each process of pytest-xdist writes a data file of coverage.py with the test's name as the context,
and a JSON file with the seconds of processor time of each test that passed, its fixtures and
children included. Wall time would be that of the machine's other work.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

OUT = Path(os.environ["COD_MUTANTS_MAP"])
FOLDERS = os.environ["COD_MUTANTS_FOLDERS"].split()
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")

_measuring = coverage.Coverage(
    data_file=str(OUT / "lines"), data_suffix=WORKER, config_file=False, source=FOLDERS
)
_measuring.start()
_seconds = dict[str, float]()
_failed = set[str]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Name the test in all lines that it executes, with those of its fixtures."""
    _measuring.switch_context(item.nodeid)
    before = sum(os.times()[:4])
    try:
        return (yield)
    finally:
        _seconds[item.nodeid] = sum(os.times()[:4]) - before
        _measuring.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember tests that failed or were skipped."""
    if report.outcome != "passed":
        _failed.add(report.nodeid)


def pytest_unconfigure() -> None:
    """Write what was measured."""
    _measuring.stop()
    _measuring.save()
    passed = {test: round(taken, 3) for test, taken in _seconds.items() if test not in _failed}
    (OUT / f"seconds.{WORKER}.json").write_text(json.dumps(passed))
