"""What the README's commands install: the demo what it runs, the tests their tools too."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def commands(target: str, *options: str) -> str:
    """Return what make would run."""
    return subprocess.run(
        ["make", "-n", "-C", str(ROOT), *options, target],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.parametrize(
    ("target", "tools"), [("demo", False), ("test", True), ("test-fast", True), ("check", True)]
)
def test_development_tools_come_with_the_tests_alone(target: str, tools: bool) -> None:
    """Make as in a new clone: with `pyproject.toml` taken for new, make installs all that the
    target needs."""
    would = commands(target, "-W", "pyproject.toml")
    assert "pip install --quiet -e .\n" in would
    assert ("[dev]" in would) == tools
    assert (".ci/install-system demo test" in would) == (tools and target != "check")


@pytest.mark.parametrize(("target", "less"), [("test", True), ("test-all", False)])
def test_only_test_all_runs_everything(target: str, less: bool) -> None:
    """No test is left out on the night before a release."""
    pytest_run = next(line for line in commands(target).splitlines() if "--dearest" in line)
    assert ("not nightly" in pytest_run) == less
    assert ("--sample" in pytest_run) == less
    assert ("-m " in pytest_run.split("-m pytest")[1]) == less
