"""What a chaos run counts for a fault, and what for the next one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.chaos.checks import ClaimSeen
from tests.chaos.faults import ChaosFault
from tests.chaos.run import ChaosOutcome, SeenFault, count


def counted(
    faults: list[tuple[str, float, float]], claims: list[float], signs: list[float]
) -> ChaosOutcome:
    """Count faults of the managing server by kind, begin and end. `claims`: when one began."""
    outcome = ChaosOutcome(1)
    seen = [SeenFault(ChaosFault(k, "s1", b - a, hits="s1"), a, b, "s1") for k, a, b in faults]
    taken = [ClaimSeen(each, "", number) for number, each in enumerate([0.0, *claims])]
    watch: Any = SimpleNamespace(claims=taken, signs=signs)
    count(outcome, seen, watch, [0.0, 1.0], 1000.0)
    return outcome


def test_a_take_over_counts_for_the_fault_before_it_alone() -> None:
    outcome = counted([("link cut", 100.0, 112.0), ("server killed", 120.0, 150.0)], [136.0], [])
    assert outcome.faults["link cut"].takeovers == []
    assert outcome.faults["server killed"].takeovers == [16.0]


def test_the_time_without_a_manager_goes_on_into_the_next_fault() -> None:
    signs = [99.0, 135.0, 141.0]
    faults = counted([("link cut", 100.0, 112.0), ("part killed", 120.0, 120.0)], [], signs).faults
    assert (faults["link cut"].count, faults["link cut"].unmanaged) == (1, 21.0)
    assert faults["part killed"].unmanaged == 36.0


def test_a_stopped_manager_is_fenced_that_wakes_after_the_claim_of_another() -> None:
    assert counted([("manager stopped", 100.0, 130.0)], [116.0], []).fenced == 1
    assert counted([("manager stopped", 100.0, 110.0)], [116.0], []).fenced == 0
