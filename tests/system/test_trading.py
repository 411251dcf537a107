"""Pools of two batch systems trade the machines of one site: the office's is Grid Engine's, the
nightly one Slurm's and of lower priority. Real servers and daemons of both, real VCMs; the machines
are stand-ins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench import bench_trading
from tests.bench import trading_stages as stages
from tests.bench.trading_day import LOADS, NIGHTLY, OFFICE, Pools, pools
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.in_turn(3), pytest.mark.xdist_group("trading")]
SHARED = 3


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pools]:
    with pools(tmp_path_factory.mktemp("trading"), SHARED) as made:
        yield made


def test_a_morning_and_an_evening_of_two_batch_systems(site: Pools) -> None:
    """Jobs wait for gates, so each step follows from the one before, however fast the host is."""
    office, nightly = (site.cells[load.name] for load in LOADS)
    night, day = (cell.jobs / "gate" for cell in (nightly, office))

    def running(*numbers: int) -> None:
        """Wait until so many jobs run in the office, and in the nightly pool."""
        until(
            lambda: (office.counts()[1], nightly.counts()[1]) == numbers and site.held() == numbers,
            lambda: f"{numbers} run: {office.counts()}, {nightly.counts()}, {site.held()}",
            180,
            0.2,
        )

    slurm_jobs = [nightly.submit(night) for _ in range(5)]
    running(0, SHARED)
    grid_engine_jobs = [office.submit(day) for _ in range(2)]
    running(2, 1)
    given = sum(one["given"] for one in site.stand.cod("reclaim", "list"))
    assert given == 2
    assert nightly.counts() == (4, 1)  # what ran on the nodes that went waits again

    day.touch()
    running(0, SHARED)
    night.touch()
    until(site.settled, lambda: f"all nodes are back: {site.held()}", 180, 0.2)

    said = {
        load.name: [[line.split()[0] for line in site.cells[load.name].ran(job)] for job in jobs]
        for load, jobs in ((OFFICE, grid_engine_jobs), (NIGHTLY, slurm_jobs))
    }
    assert said[OFFICE.name] == [["start", "end"]] * 2
    assert [events.count("end") for events in said[NIGHTLY.name]] == [1] * 5
    assert sum(events.count("start") for events in said[NIGHTLY.name]) == 5 + given
    logs = {load.name: stages.said(site.log(load.name)) for load in LOADS}
    traded = {
        pool: {machine for machine, _, _ in stages.memberships(lines)}
        for pool, lines in logs.items()
    }
    assert len(traded[NIGHTLY.name]) == SHARED
    assert len(traded[OFFICE.name] & traded[NIGHTLY.name]) == given
    seen = bench_trading.ways(site)  # of the benchmark's longer day
    assert {way["pool"] for way in seen["joins"]} == {OFFICE.name, NIGHTLY.name}
    assert sum(count for _, _, count in seen["all_reclaims"]) == given
    assert len(seen["reclaims"]) == given
    assert seen["in_two_pools"] == []
