"""Fixtures of the tests that start foreign programs and machines."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short name: a socket's path has 108 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="cod-") as place:
        yield Path(place)
