"""The figures of a slice of hours on a real Slurm; the slice itself is run by
tests/net/test_bench_smoke.py."""

from __future__ import annotations

import pytest

from tests.bench import bench_slice
from tests.bench.slurm_qos import Fate, TimedJob


def test_waits_are_those_of_the_demand_with_jobs_that_never_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four jobs on two nodes in half an hour: one is begun anew and one never starts."""
    monkeypatch.setattr(bench_slice, "HOURS", 0.5)
    monkeypatch.setattr(bench_slice, "NODES", 2)
    jobs = [
        TimedJob("large", 0.0, 600.0),
        TimedJob("large", 0.0, 600.0),
        TimedJob("small", 300.0, 600.0),
        TimedJob("large", 600.0, 600.0),
    ]
    fates = [
        Fate([1.0], 11.0, "n1"),
        Fate([1.0, 13.0], 23.0, "n1"),
        Fate([6.0], 16.0, "n2"),
        Fate(),
    ]
    made = bench_slice.figures(jobs, fates)
    assert made["large"] == pytest.approx(
        {"wait": (60 + 60 + 1200) / 3, "longest": 1200, "done": 2}
    )
    assert made["small"] == pytest.approx({"wait": 60, "longest": 60, "done": 1})
    assert (made["anew"], made["goodput"]) == (1, pytest.approx(3 * 600 / (2 * 1800)))
    assert made["between"] == pytest.approx(60 * 2)


@pytest.mark.slow
def test_slurm_and_the_simulator_are_given_the_same_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_slice, "HOURS", 2.0)
    jobs = bench_slice.jobs(1)
    assert jobs == sorted(jobs, key=lambda job: job.at)
    for changes in bench_slice.SIMULATED.values():
        simulation = bench_slice.demand(1, changes)
        simulation.advance(simulation.end)
        for name, group in simulation.result()["by"]["group"].items():
            assert group["jobs"]["submitted"] == sum(job.group == name for job in jobs)
