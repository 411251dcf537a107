"""What the README's commands install: the demo what it runs, the tests their tools too."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("target", "tools"), [("demo", False), ("test", True), ("test-fast", True), ("check", True)]
)
def test_development_tools_come_with_the_tests_alone(target: str, tools: bool) -> None:
    """Make as in a new clone: with `pyproject.toml` taken for new, make installs all that the
    target needs."""
    would = subprocess.run(
        ["make", "-n", "-C", str(ROOT), "-W", "pyproject.toml", target],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "pip install --quiet -e .\n" in would
    assert ("[dev]" in would) == tools
    assert (".ci/install-system demo test" in would) == (tools and target != "check")
