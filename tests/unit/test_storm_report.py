"""The figures of a storm: what counts as lost, centiles, a machine's share, states over time."""

from __future__ import annotations

from typing import Any

import pytest

from cod.lab.storm import report
from cod.lab.storm.site import PartFigures


def machine(on: float, **ended: float) -> dict[str, Any]:
    return {"on": on, "ended": ended, "took": {}, "boots": 2, "reconnects": 1}


def test_a_machine_without_an_order_is_lost() -> None:
    said = [
        {"machines": [machine(1.0, loader=2.0, order=5.0, work=6.0)], "cpu": 0.5},
        {"machines": [machine(2.0, loader=3.0)], "cpu": 0.25},
    ]
    before = {"edge": PartFigures(1.0, 100, 10, 4)}
    found = report.summary(said, before, {"edge": PartFigures(3.0, 200, 30, 6)})
    assert [found[key] for key in ("machines", "served", "lost", "idle")] == [2, 1, 1, 1]
    assert found["server"] == {"cpu": 1.0, "statements": 10.0, "commits": 1.0}
    assert found["generator_cpu"] == 0.375
    assert found["steps"][report.WHOLE] == {"machines": 1, "p50": 4.0, "p99": 4.0}
    assert (found["boots_again"], found["connections_again"]) == (2, 2)


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_centiles(share: float, value: int) -> None:
    assert report.centile(range(100, 0, -1), share) == value


def test_no_values_have_no_centile() -> None:
    assert report.centile([], 0.5) is None


@pytest.mark.parametrize(
    ("moment", "state"),
    [(1.0, "asks for an address"), (2.0, "loads"), (4.0, "connects"), (9.0, report.IDLE)],
)
def test_states_follow_the_steps(moment: float, state: str) -> None:
    ended = {"loader": 2.0, "secret": 3.0, "welcome": 5.0, "order": 6.0, "work": 9.0}
    assert report.state_at(ended, moment) == state


def test_the_picture_names_every_state() -> None:
    text = report.picture("a storm", [{"machines": [machine(1.0, loader=2.0, order=5.0)]}])
    assert all(f">{state}<" in text for state in (*report.STATES, report.IDLE))
