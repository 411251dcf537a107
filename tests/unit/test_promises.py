"""Each promise of several servers names a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_shows_a_promise_is_there() -> None:
    page = (ROOT / "docs/high-availability.md").read_text()
    named = re.findall(r"`(tests/[a-z_/]+\.py)::(test_[a-z_0-9]+)`", page)
    assert len(named) >= 15
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file} has no {name}"
