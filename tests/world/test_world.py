"""The server's own code in worlds by seed: nothing is lost, nobody is served twice, and planted
faults are found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from cod.flows.nodes import deadlines
from cod.states import Disk
from cod.store.nodes import holding
from tests.world.world import live

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [1, 4, 10, 20])
def test_a_world_comes_to_rest_with_nothing_wrong(seed: int) -> None:
    outcome = live(seed)
    assert not outcome.troubles, "\n".join(outcome.story)
    assert outcome.steps >= 300


def test_the_same_seed_gives_the_same_world() -> None:
    assert live(11).story == live(11).story


def _no_deadlines(*_: Any) -> list[Any]:
    raise ValueError("a bug")


@pytest.mark.parametrize(
    ("room", "name", "planted", "found"),
    [
        pytest.param(
            holding,
            "Disk",
            SimpleNamespace(**dict(Disk.__members__) | {"DIRTY": Disk.CLEAN}),
            "not wiped since its disks were written",
            id="a released node counts as clean",
        ),
        pytest.param(deadlines, "run", _no_deadlines, "a bug", id="a flow raises"),
    ],
)
def test_a_planted_fault_is_found(room: Any, name: str, planted: Any, found: str) -> None:
    with patch.object(room, name, planted):
        outcome = live(4)
    assert any(found in trouble for trouble in outcome.troubles), outcome.troubles
