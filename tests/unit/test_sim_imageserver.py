"""Priming that contends in simulations: turns, a rate that is divided, and what happens when a node
goes away."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.sim.clock import Clock
from cod.sim.cluster import SimMachine
from cod.sim.imageserver import ImageServer
from cod.sim.run import Simulation, simulate
from tests.unit.sim_site import BOOT, EXACT, LOOK, PRIME, audit, scenario


class Primed:
    """An image server, and when each node was done."""

    def __init__(
        self, size: float = 1000.0, at_once: int | None = None, rate: float | None = None
    ) -> None:
        self.clock = Clock()
        self.server = ImageServer(self.clock, size, at_once, rate)
        self.ends: dict[SimMachine, float] = {}
        self.machines: list[SimMachine] = []

    def prime(self, at: float, seconds: float) -> SimMachine:
        """Prime another machine at that time, which would take `seconds` alone."""
        machine = object.__new__(SimMachine)
        self.machines.append(machine)
        self.clock.at(
            at,
            self.server.prime,
            machine,
            seconds,
            lambda one: self.ends.__setitem__(one, self.clock.now),
        )
        return machine

    def run(self, until: float = 1e7) -> list[float]:
        """Return when the machines are done, in the order of their orders."""
        self.clock.run(until)
        return [self.ends[one] for one in self.machines if one in self.ends]


def primed(*orders: tuple[float, float], **rules: Any) -> list[float]:
    """Return when each of the nodes is done that are primed by orders of (time, seconds alone)."""
    site = Primed(**rules)
    for at, seconds in orders:
        site.prime(at, seconds)
    return site.run()


def test_without_a_limit_each_is_alone() -> None:
    assert primed((0, 10), (0, 20), (5, 10)) == [10, 20, 15]


def test_only_so_many_at_once() -> None:
    assert primed((0, 10), (0, 20), (0, 10), (1, 5), at_once=2) == [10, 20, 20, 25]


def test_a_rate_is_divided_evenly() -> None:
    """100 MB/s for images of 1,000 MB: two nodes that could take 100 MB/s each get half of it."""
    assert primed((0, 10), rate=100) == [10]
    assert primed((0, 10), (0, 10), rate=100) == pytest.approx([20, 20])
    # The first has half of its image when the second comes; the second has three quarters when the
    # first is done.
    assert primed((0, 10), (5, 10), rate=100) == pytest.approx([15, 20])


def test_what_a_slow_node_cannot_take_is_left_to_the_others() -> None:
    """The slow one takes 20 MB/s, so that the fast one has 80."""
    assert primed((0, 50), (0, 10), rate=100) == pytest.approx([50, 12.5])


def test_turns_and_a_rate_together() -> None:
    assert primed((0, 10), (0, 10), (0, 10), at_once=2, rate=100) == pytest.approx([20, 20, 30])


@pytest.mark.parametrize("rules", [{}, {"at_once": 1}, {"rate": 100.0}])
def test_a_node_that_goes_away_leaves_its_part_to_the_others(rules: dict[str, Any]) -> None:
    site = Primed(**rules)
    gone = site.prime(0, 10)
    site.prime(0, 10)
    site.clock.at(4, site.server.drop, gone)
    site.clock.at(4.5, site.server.drop, gone)
    ends = {(): 10.0, ("at_once",): 14.0, ("rate",): 12.0}
    assert site.run() == pytest.approx([ends[tuple(rules)]])
    assert len(site.server.took) == 1


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(1, 60)), min_size=1, max_size=12),
    st.none() | st.integers(1, 5),
    st.none() | st.floats(10, 5000),
)
def test_nothing_is_sent_faster_than_the_server_or_the_node_can(
    orders: list[tuple[float, float]],
    at_once: int | None,
    rate: float | None,
) -> None:
    site = Primed(at_once=at_once, rate=rate)
    for at, seconds in orders:
        site.prime(at, seconds)
    ends = site.run()
    assert len(ends) == len(orders) == len(site.server.took)
    assert all(end >= at + seconds - 1e-3 for end, (at, seconds) in zip(ends, orders, strict=True))
    assert site.server.most <= (at_once or len(orders))
    if rate is not None:
        sent = 1000.0 * len(orders)
        assert max(ends) - min(at for at, _ in orders) >= sent / rate - 1e-3
    # A server that serves one at a time at its whole rate is never slower than what idles in
    # between.
    slowest = sum(max(seconds, 1000.0 / rate if rate else 0.0) for _, seconds in orders)
    assert max(ends) <= max(at for at, _ in orders) + slowest + 1e-3


def burst(**top: Any) -> dict[str, Any]:
    """Simulate one job of eight nodes, and return the figures."""
    jobs = {
        "name": "burst",
        "group": "low",
        "model": "jobs",
        "nodes": [8],
        "arrivals": {"per_day": 20},
        "runtime": {"median": 600, "spread": 0},
    }
    return simulate(scenario(8, demand=[jobs], days=2, **top))


@pytest.mark.slow
def test_a_burst_waits_for_the_server() -> None:
    alone, shared, turns = burst(), burst(image_mb_per_s=40.0), burst(image_at_once=2)
    assert alone["priming"]["max"] == PRIME
    assert alone["priming"]["most_at_once"] == 8
    assert alone["waiting"]["ready"]["all"]["median"] == pytest.approx(LOOK + PRIME + BOOT)
    # Eight images of 1,000 MB at 40 MB/s; four turns of two.
    assert shared["priming"]["max"] == pytest.approx(200)
    assert turns["priming"]["max"] == pytest.approx(4 * PRIME)
    assert turns["priming"]["most_at_once"] == 2
    assert shared["waiting"]["ready"]["all"]["median"] >= LOOK + 200 + BOOT


@pytest.mark.slow
def test_nodes_that_are_taken_or_break_while_they_are_primed_do_no_harm() -> None:
    types = [
        {
            "name": "node",
            "blocks": [8],
            "times": {**EXACT, "prime": 900.0},
            "mtbf": 5,
            "repair": 0.1,
        }
    ]
    demand: list[dict[str, Any]] = [
        {"name": "low", "group": "low", "model": "queue", "arrivals": {"per_day": 400}},
        {"name": "high", "group": "high", "model": "farm", "low": 1, "high": 6, "noise": 0.5},
    ]
    simulation = Simulation(
        scenario(types=types, demand=demand, days=2, image_at_once=3, image_mb_per_s=3.0)
    )
    simulation.advance(simulation.end)
    assert not audit(simulation.world)
    result = simulation.result()
    assert result["failures"] > 20
    assert result["reallocation"]["taken"] > 5
    assert result["priming"]["most_at_once"] == 3
