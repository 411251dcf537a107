"""Tests that share what is dear to make are run by one worker: pytest-xdist has to see their
groups."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("seen")
def test_groups_are_seen(request: pytest.FixtureRequest) -> None:
    """pytest-xdist shows a group in its tests' names, by which it deals them out. Where it does
    not, nothing fails: every module's stand or rack is made once for each worker, and they get into
    each other's way."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("runs with --dist loadgroup only, as `make test` does")
    assert request.node.nodeid.endswith("@seen")
