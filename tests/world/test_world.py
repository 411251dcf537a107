"""The server's own code in worlds by seed: nothing is lost, nobody is served twice, and planted
faults are found."""

from __future__ import annotations

import pytest

from tests.world.world import live

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [1, 4, 10, 20])
def test_a_world_comes_to_rest_with_nothing_wrong(seed: int) -> None:
    outcome = live(seed)
    assert not outcome.troubles, "\n".join(outcome.story)
    assert outcome.steps >= 300


def test_the_same_seed_gives_the_same_world() -> None:
    assert live(11).story == live(11).story
