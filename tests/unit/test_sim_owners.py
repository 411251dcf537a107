"""Who asks for nodes in simulations: jobs, batch queues and farms; and the numbers that they are
made of."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from cod.sim import randomness
from cod.sim.clock import Clock
from cod.sim.demand.owners import parts
from cod.sim.results.jobstats import JobFigures
from cod.sim.results.stats import by_priority, spread
from cod.sim.run import Simulation, simulate
from cod.sim.scenario.records import Arrivals, Runtime
from cod.states import NodeState
from tests.unit.sim_site import BOOT, EXACT, LOOK, PRIME, RESET, WIPE, audit, scenario
from tests.unit.swf_lines import line

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

DAY = 86400.0
START = LOOK + PRIME + BOOT  # from asking for a warm node to its system


def ran(
    demand: dict[str, Any] | list[dict[str, Any]], nodes: int = 4, days: float = 1.0, **more: Any
) -> Simulation:
    listed = demand if isinstance(demand, list) else [demand]
    made = scenario(
        nodes,
        demand=[{"name": f"d{n}", "group": "low", **one} for n, one in enumerate(listed)],
        days=days,
        **more,
    )
    simulation = Simulation(made)
    simulation.advance(simulation.end)
    assert not audit(simulation.world)
    return simulation


def figures(done: Simulation) -> JobFigures:
    """The figures of the jobs of priority 0."""
    return done.world.stats.jobs.of("priority", 0)


def traced(
    tmp_path: Path,
    *jobs: str,
    nodes: int = 4,
    by: str = "queue",
    days: float = 1.0,
    header: str = "",
    **more: Any,
) -> Simulation:
    (tmp_path / "log.swf").write_text(header + "\n".join(jobs) + "\n")
    return ran({"model": "trace", "file": str(tmp_path / "log.swf"), "by": by, **more}, nodes, days)


# ---------------------------------------------------------------- draws


def test_streams_are_their_seeds_and_names() -> None:
    first, again, other = (
        randomness.stream(1, "a"),
        randomness.stream(1, "a"),
        randomness.stream(1, "b"),
    )
    numbers = [first.random() for _ in range(5)]
    assert numbers == [again.random() for _ in range(5)]
    assert numbers != [other.random() for _ in range(5)]
    assert numbers != [randomness.stream(2, "a").random() for _ in range(5)]


def test_durations_lie_around_their_median() -> None:
    random = randomness.stream(1, "durations")
    assert randomness.about(random, 60.0, 0.0) == 60.0
    drawn = [randomness.about(random, 60.0, 0.5) for _ in range(4000)]
    assert statistics.median(drawn) == pytest.approx(60.0, rel=0.05)
    assert min(drawn) > 0
    rule = Runtime(median=100, spread=2.0, least=50, most=200)
    cut = [randomness.runtime(random, rule) for _ in range(500)]
    assert (min(cut), max(cut)) == (50, 200)


@pytest.mark.parametrize(
    ("burst", "day", "week"), [(1.0, 0.0, 0.0), (6.0, 0.9, 0.0), (1.0, 0.5, 0.5)]
)
def test_arrivals_have_their_rate(burst: float, day: float, week: float) -> None:
    rule = Arrivals(per_day=200.0, burst=burst, day_wave=day, week_wave=week, peak_hour=14.0)
    made = list(randomness.arrivals(randomness.stream(3, burst), rule, 70 * DAY))
    assert [at for at, _ in made] == sorted(at for at, _ in made)
    total = sum(count for _, count in made)
    assert total == pytest.approx(200 * 70 * (1 - week * 2 / 7), rel=0.1)
    hours = [int(at / 3600) % 24 for at, _ in made]
    if day:
        assert sum(11 <= hour < 17 for hour in hours) > 2 * sum(
            hour < 5 or hour >= 23 for hour in hours
        )
    if burst > 1:
        assert statistics.mean(count for _, count in made) == pytest.approx(burst, rel=0.1)


def test_nothing_arrives_where_nothing_is_asked_for() -> None:
    assert list(randomness.arrivals(randomness.stream(1), Arrivals(per_day=0.0), DAY)) == []


def test_the_wave_has_its_peak_and_its_weekend() -> None:
    noon, night, saturday = 14 * 3600.0, 2 * 3600.0, 5 * DAY + 14 * 3600
    assert randomness.wave(noon, 0.8, 0.0, 14.0) == pytest.approx(1.8)
    assert randomness.wave(night, 0.8, 0.0, 14.0) == pytest.approx(0.2)
    assert randomness.wave(saturday, 0.0, 0.4, 14.0) == pytest.approx(0.6)
    assert randomness.wave(saturday + 2 * DAY, 0.0, 0.4, 14.0) == 1.0


def test_many_nodes_are_asked_for_in_halves() -> None:
    assert parts(13) == [7, 3, 2, 1]
    assert parts(1) == [1]
    assert parts(0) == []
    assert all(sum(parts(count)) == count for count in range(100))


def test_samples_are_summed_up() -> None:
    assert spread([])["mean"] is None
    assert spread([4.0, 1.0, 3.0, 2.0]) == {
        "count": 4,
        "mean": 2.5,
        "median": 2.0,
        "p95": 4.0,
        "p99": 4.0,
        "max": 4.0,
    }
    assert spread(list(map(float, range(1, 101))))["p95"] == 95.0
    assert list(by_priority({0: [1.0], 10: [3.0], 5: []})) == ["10", "5", "0", "all"]


# ---------------------------------------------------------------- jobs


def test_one_job_waits_for_its_node_and_runs(tmp_path: Path) -> None:
    done = traced(tmp_path, line(1, 0, runtime=500, procs=2), by="job")
    result = done.result()
    assert result["waiting"]["jobs"]["0"]["mean"] == START
    assert result["jobs"]["0"] == {
        "submitted": 1,
        "done": 1,
        "rejected": 0,
        "cut": 0,
        "started": 1,
        "never_started": 0,
    }
    assert result["utilisation"]["active"] == pytest.approx(2 * 500 / (4 * DAY), abs=1e-6)


def test_jobs_wait_for_each_other(tmp_path: Path) -> None:
    done = traced(
        tmp_path, line(1, 0, runtime=500, procs=4), line(2, 100, runtime=50, procs=4), by="job"
    )
    waits = figures(done).waits
    back = START + 500 + RESET + WIPE
    assert waits == [START, back + START - 100]


def test_processors_become_nodes(tmp_path: Path) -> None:
    done = traced(tmp_path, line(1, 0, procs=9), line(2, 5000, procs=33), by="job", cores=8)
    assert figures(done).counts["done"] == 1  # two nodes of eight
    assert figures(done).counts["rejected"] == 1  # five nodes, the site has four


def test_a_job_whose_lease_ends_is_cut_unless_it_extends() -> None:
    rule = {
        "model": "jobs",
        "arrivals": {"per_day": 15},
        "runtime": {"median": 5000, "spread": 0},
        "estimate": 0.3,
    }
    policy = {"lease_warnings": [600]}
    cut = ran({**rule, "extends": False}, policy=policy).result()["jobs"]["0"]
    assert cut["cut"] >= cut["started"] - 1 > 5
    assert cut["done"] == 0
    kept = ran({**rule, "extends": True}, policy=policy).result()["jobs"]["0"]
    assert kept["cut"] == 0
    assert kept["done"] >= kept["started"] - 1 > 5


def test_a_job_begins_anew_when_a_node_breaks() -> None:
    types = [{"name": "node", "blocks": [4], "times": EXACT, "mtbf": 20, "repair": 0.5}]
    done = ran(
        {
            "model": "jobs",
            "nodes": [2],
            "arrivals": {"per_day": 20},
            "runtime": {"median": 6000, "spread": 0},
        },
        days=5,
        types=types,
    )
    result = done.result()
    assert result["failures"] > 5
    assert 0 < result["jobs"]["restarts"] <= result["failures"]
    assert result["jobs"]["0"]["done"] > 50


# ---------------------------------------------------------------- queues


def test_a_queue_grows_by_demand_and_shrinks_when_idle(tmp_path: Path) -> None:
    jobs = [line(n, 1000, runtime=1000, procs=1) for n in range(3)]
    done = traced(tmp_path, *jobs, interval=60, idle_limit=300)
    result = done.result()
    assert result["jobs"]["0"]["done"] == 3
    (cluster,) = done.world.clusters.values()
    assert len(cluster.held) == cluster.size == 1  # down to its creation size
    waits = sorted(figures(done).waits)
    assert waits[0] == START - LOOK  # on the node that it was founded with, before the first look
    # a look at the queue later
    assert waits[1:] == pytest.approx([START, START], abs=60 + 2 * LOOK)


def test_fewer_nodes_for_each_job() -> None:
    rule = {
        "model": "queue",
        "arrivals": {"per_day": 200, "burst": 10},
        "runtime": {"median": 600, "spread": 0},
    }
    most = ran({**rule, "jobs_per_node": 1.0}, nodes=12).result()
    least = ran({**rule, "jobs_per_node": 4.0}, nodes=12).result()
    assert least["reallocation"]["node_hours_held"] < most["reallocation"]["node_hours_held"]
    assert least["waiting"]["jobs"]["0"]["mean"] > most["waiting"]["jobs"]["0"]["mean"]


def test_a_wide_job_gets_all_its_nodes(tmp_path: Path) -> None:
    done = traced(tmp_path, line(1, 100, runtime=100, procs=4), line(2, 101, runtime=100, procs=1))
    assert figures(done).counts["done"] == 2
    assert figures(done).waits[0] < figures(done).waits[1]  # in their order


def test_a_job_wider_than_the_site_is_rejected(tmp_path: Path) -> None:
    done = traced(tmp_path, line(1, 0, procs=5), line(2, 10, procs=4))
    assert figures(done).counts["rejected"] == 1
    assert figures(done).counts["done"] == 1


@pytest.mark.parametrize(("by", "queues"), [("queue", 2), ("user", 3), ("group", 1)])
def test_traces_are_split(tmp_path: Path, by: str, queues: int) -> None:
    jobs = [
        line(1, 0, procs=1, queue=1, user=1),
        line(2, 5, procs=1, queue=2, user=2),
        line(3, 9, procs=1, queue=2, user=3),
    ]
    done = traced(tmp_path, *jobs, by=by)
    assert len(done.world.clusters) == queues
    assert figures(done).counts["done"] == 3


def test_who_is_asked_for_nodes_gives_up_what_idles_then_the_youngest_job() -> None:
    done = ran(
        [
            {
                "model": "queue",
                "arrivals": {"per_day": 300},
                "runtime": {"median": 1200, "spread": 0},
                "answer": 5,
            },
            {"model": "farm", "group": "high", "low": 1, "high": 3, "interval": 600, "noise": 0.5},
        ],
        nodes=4,
    )
    result = done.result()
    assert result["reallocation"]["taken"] > 10
    assert result["reallocation"]["given_back"] == result["reallocation"]["taken"]
    assert result["reallocation"]["seized"] == 0
    assert 0 < result["jobs"]["restarts"] <= result["reallocation"]["taken"]
    assert result["jobs"]["0"]["done"] > 50


def test_figures_by_group_queue_and_user(tmp_path: Path) -> None:
    """Two users in two queues; one group for each queue."""
    jobs = [
        line(1, 0, runtime=3600, procs=2, queue=1, user=1),
        line(2, 0, runtime=7200, procs=1, queue=2, user=1),
        line(3, 0, runtime=1800, procs=1, queue=2, user=2),
    ]
    done = traced(tmp_path, *jobs, nodes=8)
    made = done.result()["by"]
    assert {kind: list(rows) for kind, rows in made.items()} == {
        "group": ["low-1", "low-2"],
        "queue": ["d0-1", "d0-2"],
        "user": ["d0-1", "d0-2"],
    }
    assert {name: row["used_node_hours"] for name, row in made["user"].items()} == {
        "d0-1": 4.0,
        "d0-2": 0.5,
    }
    assert {name: row["used_node_hours"] for name, row in made["queue"].items()} == {
        "d0-1": 2.0,
        "d0-2": 2.5,
    }
    assert made["queue"]["d0-2"]["share"] == pytest.approx(2.5 / (8 * 24), abs=1e-6)
    assert made["user"]["d0-1"]["jobs"]["done"] == made["user"]["d0-1"]["wait"]["count"] == 2
    low = made["group"]["low-1"]
    assert low["used_node_hours"] == 2.0 < low["held_node_hours"]
    assert low["nodes_held"] == pytest.approx(low["held_node_hours"] / 24, abs=1e-4)
    assert sum(row["held_node_hours"] for row in made["group"].values()) == pytest.approx(
        done.world.pool.held / 3600, abs=1e-2
    )


def test_jobs_that_never_start_count_with_their_wait_so_far(tmp_path: Path) -> None:
    done = traced(tmp_path, line(1, 0, runtime=1e6, procs=4), line(2, 3600, runtime=60, procs=4))
    row = done.result()["by"]["group"]["low-2"]
    assert row["jobs"]["never_started"] == row["wait"]["so_far"] == 1
    assert row["wait"]["max"] == DAY - 3600
    assert row["used_node_hours"] == pytest.approx(4 * 24, rel=0.01)  # the other runs still
    assert row["good_node_hours"] == row["goodput"] == 0.0
    with_all = done.result()["waiting"]["jobs"]
    assert with_all["0"] == with_all["all"] == row["wait"]


def test_work_that_was_interrupted_was_used_too(tmp_path: Path) -> None:
    types = [{"name": "node", "blocks": [2], "times": EXACT, "mtbf": 10, "repair": 0.1}]
    done = ran(
        {
            "model": "jobs",
            "nodes": [1],
            "arrivals": {"per_day": 10},
            "runtime": {"median": 6000, "spread": 0},
        },
        days=5,
        types=types,
    )
    row = done.result()["by"]["queue"]["d0"]
    assert done.result()["jobs"]["restarts"] > 5
    assert row["used_node_hours"] > row["jobs"]["done"] * 6000 / 3600
    assert row["good_node_hours"] == pytest.approx(row["jobs"]["done"] * 6000 / 3600, abs=1e-3)
    assert row["goodput"] == done.result()["utilisation"]["goodput"]
    assert row["goodput"] == pytest.approx(row["good_node_hours"] / (2 * 5 * 24), abs=1e-5)


# ---------------------------------------------------------------- farms


def test_a_farm_follows_the_day() -> None:
    done = ran(
        {"model": "farm", "low": 2, "high": 10, "noise": 0.0, "interval": 300, "peak_hour": 12.0},
        nodes=12,
        days=2,
    )
    by_hour = {round(one["time"] / 3600): one["active"] for one in done.series}
    assert by_hour[12] == by_hour[36] == 10
    assert by_hour[24] <= 3
    farm = done.result()["farms"]["0"]
    assert 0.97 < farm["share"] < 1.0
    assert farm["wanted_node_hours"] == pytest.approx(2 * 24 * 6, rel=0.02)
    row = done.result()["by"]["group"]["low"]
    assert farm["delivered_node_hours"] <= row["used_node_hours"] < row["held_node_hours"]
    assert row["good_node_hours"] == row["used_node_hours"]
    assert row["goodput"] == done.result()["utilisation"]["goodput"]


def test_a_farm_that_cannot_grow_is_served_in_part() -> None:
    done = ran(
        {"model": "farm", "low": 2, "high": 10, "noise": 0.0, "interval": 300}, nodes=4, days=2
    )
    assert done.result()["farms"]["0"]["share"] < 0.8


def test_a_farm_that_does_not_answer_is_seized() -> None:
    farm = {"model": "farm", "low": 1, "high": 6, "noise": 0.4, "interval": 600}
    silent = ran([farm, {**farm, "group": "high"}], nodes=6).result()["reallocation"]
    assert silent["seized"] > 0
    assert silent["given_back"] < silent["taken"]
    prompt = ran([{**farm, "answer": 1}, {**farm, "group": "high"}], nodes=6).result()[
        "reallocation"
    ]
    assert prompt["seized"] == 0
    assert prompt["given_back"] == prompt["taken"] > 0


# ---------------------------------------------------------------- against theory


def test_nodes_are_held_as_long_as_their_jobs_need_them(tmp_path: Path) -> None:
    """From the grant to the end: priming, booting, running; nothing is lost between."""
    sizes, times = (1, 3, 2), (100.0, 250.0, 4000.0)
    jobs = [
        line(n, n * 500, runtime=time, procs=size)
        for n, (size, time) in enumerate(zip(sizes, times, strict=True))
    ]
    done = traced(tmp_path, *jobs, nodes=8, by="job")
    done.result()
    held = sum(size * (PRIME + BOOT + time) for size, time in zip(sizes, times, strict=True))
    assert done.world.pool.held == pytest.approx(held)
    back = sum(sizes) * (RESET + WIPE)
    spent = done.world.pool.spent
    assert spent[NodeState.ACTIVE] == pytest.approx(
        sum(s * t for s, t in zip(sizes, times, strict=True))
    )
    assert spent[NodeState.TRAMPOLINE] + spent[NodeState.WIPE] == pytest.approx(back)


def test_lots_of_small_jobs_need_little_more_than_their_work() -> None:
    """Little's law: nodes held on average = jobs that come a second, times how long each holds its
    node."""
    done = ran(
        {"model": "jobs", "arrivals": {"per_day": 500}, "runtime": {"median": 1800, "spread": 0}},
        nodes=40,
        days=4,
    )
    result = done.result()
    submitted = result["jobs"]["0"]["submitted"]
    expected = submitted / (4 * DAY) * (1800 + PRIME + BOOT)
    assert result["utilisation"]["held"] * 40 == pytest.approx(expected, rel=0.02)


# ---------------------------------------------------------------- the clock


def test_events_come_in_order_of_time_and_then_of_their_making() -> None:
    clock, seen = Clock(), list[tuple[float, str]]()
    for name, at in (("c", 5.0), ("a", 2.0), ("d", 5.0), ("b", 2.0), ("late", 11.0)):
        clock.at(at, lambda name: seen.append((clock.now, name)), name)
    clock.run(10.0)
    assert seen == [(2.0, "a"), (2.0, "b"), (5.0, "c"), (5.0, "d")]
    assert (clock.now, clock.events) == (10.0, 4)


def test_what_is_due_in_the_past_happens_now() -> None:
    clock, seen = Clock(), list[float]()
    clock.run(10.0)
    clock.at(3.0, lambda: seen.append(clock.now))
    clock.after(0.0, lambda: clock.after(1.0, lambda: seen.append(clock.now)))
    clock.run(10.5)
    assert seen == [10.0]
    clock.run(11.0)
    assert seen == [10.0, 11.0]


# ---------------------------------------------------------------- runs


def test_the_figures_add_up() -> None:
    result = ran(
        [
            {"model": "jobs", "nodes": [1, 3], "arrivals": {"per_day": 60}},
            {"model": "farm", "group": "high", "low": 1, "high": 3},
        ],
        nodes=6,
        energy={"manage": True},
    ).result()
    used = result["utilisation"]
    assert sum(used[one] for one in ("active", "moving", "warm", "cold", "aside")) == pytest.approx(
        1.0, abs=1e-5
    )
    assert used["active"] <= used["held"]
    for row in result["requests"].values():
        assert (
            row["submitted"] == row["granted"] + row["rejected"] + row["withdrawn"] + row["waiting"]
        )
    power = result["power"]
    assert power["kwh_always_on"] == pytest.approx(power["kwh"] + power["kwh_saved"], abs=0.002)
    assert sum(power["kwh_by_group"].values()) < power["kwh"]
    hours = result["reallocation"]["node_hours_held"]
    assert hours == pytest.approx(used["held"] * 6 * 24, rel=1e-4)


def test_demand_does_not_depend_on_the_policy() -> None:
    """Runs with other rules are asked for the same jobs at the same times."""
    rule = {"model": "jobs", "nodes": [1, 2, 3], "arrivals": {"per_day": 50}}
    first, second = (
        ran(rule, nodes=9, policy={"age_step": step}, energy={"manage": manage})
        for step, manage in ((600, False), (1, True))
    )
    assert figures(first).counts["submitted"] == figures(second).counts["submitted"] > 30
    assert first.result()["power"] != second.result()["power"]


def test_advancing_in_steps_is_advancing_at_once() -> None:
    made = scenario(
        6,
        demand=[{"name": "d", "group": "low", "model": "jobs", "arrivals": {"per_day": 100}}],
        days=1,
    )
    whole = simulate(made)
    stepped = Simulation(made)
    for part in range(1, 98):
        stepped.advance(stepped.end * part / 97)
    assert stepped.result() == whole
