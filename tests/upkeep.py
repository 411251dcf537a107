"""Stands that several tests share: before each test, each stand that is open looks at itself.

A stand adds itself to `open_stands` when it begins, and takes itself out when it ends. What it
mends is its own affair: a server that no longer answers, leftovers of a test that failed.
"""

from __future__ import annotations

from typing import Protocol

import pytest


class Stand(Protocol):
    """Something that tests share."""

    def tend(self) -> None:
        """Bring the stand back to what a test begins with. Raises any error when that fails."""


open_stands: list[Stand] = []
_broken: list[Stand] = []


def tend(test: str, after: str) -> None:
    """Tend the open stands before `test`, which follows the test `after`. A stand that cannot be
    mended fails one test; the tests after it are expected to fail and do not run."""
    for stand in open_stands:
        if any(stand is each for each in _broken):
            pytest.xfail("an earlier test left the stand broken")
        try:
            stand.tend()
        except Exception as error:
            _broken.append(stand)
            pytest.fail(f"{test}: {after} left the stand broken: {error}", pytrace=False)
