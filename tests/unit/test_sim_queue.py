"""Batch queues in simulations: which job starts next, what the queue asks for, and what it gives
back."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cod.sim.cluster import Cluster, SimMachine
from cod.sim.demand import queue
from cod.sim.demand.job import SimJob
from cod.sim.demand.profile import FreeProfile
from cod.sim.demand.queue import QueueOwner
from cod.sim.randomness import arrivals, stream
from cod.sim.run import Simulation
from cod.sim.scenario.records import Arrivals
from tests.unit.sim_site import EXACT, audit, scenario
from tests.unit.swf_lines import line

DAY = 86400.0
# machines that take no time: what is left is the manager's look
AT_ONCE = dict.fromkeys(EXACT, 0.0)


def replayed(
    folder: Path,
    *jobs: tuple[float, float, int, int],
    nodes: int = 4,
    days: float = 2.0,
    times: Any = None,
    policy: dict[str, Any] | None = None,
    **rule: Any,
) -> Simulation:
    """Replay jobs of (submit, run time, nodes, user), exactly estimated."""
    lines = [
        line(number, at, runtime=runtime, procs=size, asked=runtime, user=user)
        for number, (at, runtime, size, user) in enumerate(jobs, 1)
    ]
    (folder / "log.swf").write_text("\n".join(lines) + "\n")
    return _replay(folder, nodes, days, times, policy, **rule)


def _replay(
    folder: Path,
    nodes: int = 4,
    days: float = 2.0,
    times: Any = None,
    policy: dict[str, Any] | None = None,
    **rule: Any,
) -> Simulation:
    """Replay the trace of that folder."""
    demand = {
        "name": "log",
        "group": "low",
        "model": "trace",
        "file": str(folder / "log.swf"),
        **rule,
    }
    kinds = [{"name": "node", "blocks": [nodes], "times": times or AT_ONCE}]
    simulation = Simulation(scenario(types=kinds, demand=[demand], days=days, policy=policy))
    simulation.advance(simulation.end)
    assert not audit(simulation.world)
    return simulation


def waits(simulation: Simulation) -> list[float]:
    """The waits of all jobs, in the order of their starts."""
    return simulation.world.stats.jobs.of("priority", 0).waits


@pytest.mark.slow
def test_short_jobs_do_not_wait_beside_free_nodes(tmp_path: Path) -> None:
    """Ten jobs of one node wait behind a job of eight, while another user holds three of ten
    nodes."""
    short = [(20.0, 500.0, 1, 2)] * 10
    done = replayed(
        tmp_path,
        (0, 40_000, 3, 1),
        (10, 1000, 8, 2),
        *short,
        nodes=10,
        times=EXACT,
        by="user",
        days=1,
    )
    of_short = sorted(waits(done))[:11][1:]
    assert len(waits(done)) == 12
    assert max(of_short) < 900
    assert done.world.stats.assigned < 30  # 102 when what idled was given back and asked for again
    assert done.result()["jobs"]["0"]["done"] == 12


# Five jobs of (submit, run time, nodes) on four nodes, and by hand how long each waits.
BY_HAND = ((0, 1000, 3), (10, 1000, 4), (20, 500, 1), (30, 3000, 1), (40, 100, 1))
WAITS = {
    "fifo": (0, 990, 1980, 1970, 1960),
    "first-fit": (0, 3510, 0, 490, 960),
    "easy": (0, 990, 0, 1970, 480),
    "conservative": (0, 990, 0, 1970, 480),
    "fixed": (0, 990, 0, 1970, 480),
}


@pytest.mark.slow
@pytest.mark.parametrize("discipline", list(WAITS))
def test_disciplines_wait_as_by_hand(tmp_path: Path, discipline: str) -> None:
    done = replayed(
        tmp_path, *((at, run, size, 1) for at, run, size in BY_HAND), least=4, discipline=discipline
    )
    by_start = sorted(
        zip(WAITS[discipline], BY_HAND, strict=True),
        key=lambda one: (one[0] + one[1][0], one[1][0]),
    )
    assert waits(done) == pytest.approx([wait for wait, _ in by_start], abs=5)


@pytest.mark.slow
@pytest.mark.parametrize(("hold_after", "discipline"), [(1, "easy"), (0, "first-fit")])
def test_the_manager_itself_waits_as_by_hand(
    tmp_path: Path, hold_after: float, discipline: str
) -> None:
    """Each job is a virtual cluster, so that the manager's own policy decides which one starts."""
    jobs = [(at, run, size, 1) for at, run, size in BY_HAND]
    done = replayed(tmp_path, *jobs, by="job", policy={"hold_after": hold_after, "age_step": 1})
    assert sorted(waits(done)) == pytest.approx(sorted(WAITS[discipline]), abs=15)


@pytest.mark.parametrize(("asked", "expected"), [(900, [0, 0, 990]), (2000, [0, 990, 1980])])
def test_estimates_decide_what_is_backfilled(
    tmp_path: Path, asked: float, expected: list[float]
) -> None:
    """A job of one node and 500 s fits before the job of four starts, and is passed over if its
    user asks for more."""
    made = [
        line(number, at, runtime=run, procs=size, asked=run if number < 3 else asked)
        for number, (at, run, size) in enumerate(BY_HAND[:3], 1)
    ]
    (tmp_path / "log.swf").write_text("\n".join(made) + "\n")
    demand = {
        "name": "log",
        "group": "low",
        "model": "trace",
        "file": str(tmp_path / "log.swf"),
        "least": 4,
        "discipline": "easy",
    }
    done = Simulation(
        scenario(types=[{"name": "node", "blocks": [4], "times": AT_ONCE}], days=1, demand=[demand])
    )
    done.advance(done.end)
    assert waits(done) == pytest.approx(expected, abs=5)


def test_a_job_without_a_time_limit_is_estimated_by_the_rule() -> None:
    assert SimJob(0.0, 1, 500.0).estimate(4.0) == 2000
    assert SimJob(0.0, 1, 500.0, lease=600.0).estimate(4.0) == 600


@pytest.mark.slow
@pytest.mark.parametrize("discipline", list(WAITS))
def test_two_queues_do_not_keep_what_the_other_waits_for(tmp_path: Path, discipline: str) -> None:
    """Each of two users holds half of the site when their jobs of eight nodes come."""
    jobs = [(at, 1000, size, user) for at, size in ((0, 5), (10, 8), (20, 8)) for user in (1, 2)]
    done = replayed(tmp_path, *jobs, nodes=10, times=EXACT, by="user", discipline=discipline)
    assert done.result()["jobs"]["0"]["done"] == 6


@pytest.mark.slow
@pytest.mark.parametrize("discipline", list(WAITS))
def test_what_idles_is_kept_while_a_job_waits_that_could_use_it(
    tmp_path: Path, discipline: str
) -> None:
    """Three of four nodes idle for longer than the limit, until the fourth is free for a job of
    four."""
    done = replayed(
        tmp_path,
        (0, 100, 3, 1),
        (0, 5000, 1, 1),
        (10, 100, 4, 1),
        times=EXACT,
        idle_limit=300,
        discipline=discipline,
    )
    assert done.world.stats.assigned == 4
    assert done.result()["jobs"]["0"]["done"] == 3


Jobs = st.lists(
    st.tuples(st.floats(0, 40_000), st.floats(10, 9000), st.integers(1, 9), st.integers(1, 3)),
    min_size=1,
    max_size=25,
)


# Where a job behind the first one needs fewer nodes than are there: -4 nodes were asked for.
ENOUGH_FOR_THE_SECOND = [
    (5.960464477539063e-08, 7974.332339459522, 7, 3),
    (0.0, 6183.9375658475965, 1, 1),
    (0.3333333333333333, 1928.316877503554, 7, 3),
    (38073.066237470375, 1226.664872058951, 1, 1),
    (32732.214511172053, 3600.0, 8, 3),
    (11685.308377305577, 1112.6953309467383, 2, 3),
    (30005.53172918214, 3568.4691983028174, 3, 2),
    (1.7701218953622481e-261, 1208.6283747192463, 6, 2),
    (19338.370116756712, 1520.7157838198532, 1, 3),
    (22105.57861074864, 7782.041498700855, 1, 2),
    (1.5890119769763004e-60, 1491.9444116119935, 5, 2),
    (34888.251520078295, 4335.381027638001, 5, 2),
    (40000.0, 2498.1348644864297, 3, 3),
    (36051.49998454707, 8805.178718201601, 7, 3),
    (36974.600742124545, 8453.553151223568, 1, 3),
    (8222.42673372082, 8645.793582181175, 4, 3),
    (28644.663416735788, 8999.999999999998, 5, 2),
]


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@example(jobs=ENOUGH_FOR_THE_SECOND, discipline="easy", per_node=1.0)
@given(jobs=Jobs, discipline=st.sampled_from(sorted(WAITS)), per_node=st.sampled_from([1.0, 3.0]))
def test_queues_ask_for_no_more_than_jobs_need_and_keep_what_they_could_use(
    tmp_path_factory: pytest.TempPathFactory,
    jobs: list[tuple[float, float, int, int]],
    discipline: str,
    per_node: float,
) -> None:
    wrong: list[str] = []

    class Watched(QueueOwner):
        def _look(self) -> None:
            super()._look()
            asked = sum(request.count for request in self._requests.values())
            need = max(0, self._waiting.nodes - self._ready())
            if self._cluster is not None and self._cluster.held and asked > need:
                wrong.append(f"{asked} nodes asked for, {need} needed")
            if asked and asked + len(self._cluster.held if self._cluster else ()) > self.rule.most:
                wrong.append("more asked for than the rule allows")

        def _let_go(self, cluster: Cluster, machines: list[SimMachine]) -> None:
            own, head = len(cluster.held), self._waiting.next()
            sizes = [one.size for one in self._waiting.in_order()]
            if machines and sizes and discipline != "fifo" and min(sizes) <= own:
                wrong.append(
                    f"{len(machines)} of {own} nodes given back while jobs of {sizes} wait"
                )
            if machines and head and head.size <= own:
                wrong.append(f"{len(machines)} of {own} nodes given back before {head.size} start")
            super()._let_go(cluster, machines)

    folder = tmp_path_factory.mktemp("log")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cod.sim.run.QueueOwner", Watched)
        done = replayed(
            folder,
            *jobs,
            nodes=12,
            times=EXACT,
            by="user",
            discipline=discipline,
            days=20,
            jobs_per_node=per_node,
        )
    assert not wrong
    assert done.result()["jobs"]["0"]["done"] + done.result()["jobs"]["0"]["rejected"] == len(jobs)


def one_node(per_day: float, seconds: float, jobs: int, seed: int) -> Simulation:
    """Run a queue of one node: Poisson arrivals, equal run times."""
    rule = {
        "name": "one",
        "group": "low",
        "model": "queue",
        "most": 1,
        "interval": DAY,
        "arrivals": {"per_day": per_day},
        "runtime": {"median": seconds, "spread": 0},
    }
    types = [{"name": "node", "blocks": [1], "times": AT_ONCE}]
    simulation = Simulation(
        scenario(types=types, demand=[rule], days=jobs / per_day, period=DAY, seed=seed)
    )
    simulation.advance(simulation.end)
    return simulation


def test_one_node_waits_job_by_job_as_in_lindleys_recursion() -> None:
    """Each job waits as long as the one before it, and its run time, less the time between the
    two."""
    done = one_node(19.2, 3600.0, 2000, seed=1)
    wait, before, expected = 0.0, 0.0, list[float]()
    for at, _ in arrivals(stream(1, "arrivals", "one"), Arrivals(per_day=19.2), done.end):
        wait = max(0.0, wait + 3600.0 - (at - before)) if expected else 0.0
        before = at
        expected.append(wait)
    assert len(waits(done)) > 1900
    assert waits(done) == pytest.approx(expected[: len(waits(done))], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("per_day", "seconds", "runs"), [(19.2, 3600.0, 4), (72.0, 600.0, 1)])
def test_one_node_waits_as_an_m_d_1_queue(per_day: float, seconds: float, runs: int) -> None:
    """Pollaczek and Khinchine's mean wait, within 3 %; the fuller the node, the more jobs it takes
    to see it."""
    waited = [
        wait
        for seed in range(1, runs + 1)
        for wait in waits(one_node(per_day, seconds, 50_000, seed))
    ]
    load = per_day / DAY * seconds
    assert statistics.mean(waited) == pytest.approx(load * seconds / (2 * (1 - load)), rel=0.03)


@pytest.mark.parametrize("saves", [False, True])
def test_a_job_that_saves_itself_goes_on_where_it_was(tmp_path: Path, saves: bool) -> None:
    """By hand: one of two jobs has done 4000 s of its 10,000 when its node is wanted. Saving takes
    the 30 s of the answer."""
    logs = {"low": [(0, 10_000, 1), (0, 10_000, 1)], "high": [(0, 1, 1), (4000, 1000, 2)]}
    for name, jobs in logs.items():
        lines = [
            line(number, at, runtime=runtime, procs=size, asked=runtime, user=1)
            for number, (at, runtime, size) in enumerate(jobs, 1)
        ]
        (tmp_path / f"{name}.swf").write_text("\n".join(lines) + "\n")
    demand: list[dict[str, Any]] = [
        {"name": name, "group": name, "model": "trace", "file": str(tmp_path / f"{name}.swf")}
        for name in logs
    ]
    demand[0] |= {"saves": saves, "answer": 30.0, "preemptible": True, "idle_limit": 60.0}
    demand[1] |= {"by": "job"}
    kinds = [{"name": "node", "blocks": [3], "times": AT_ONCE}]
    simulation = Simulation(scenario(types=kinds, demand=demand, days=1.0))
    simulation.advance(simulation.end)
    assert not audit(simulation.world)
    low = simulation.world.stats.jobs.of("priority", 0)
    assert (low.counts["done"], low.counts["restarts"]) == (2, 1)
    assert low.used == pytest.approx((20_000 if saves else 24_000) + 30, abs=70)


# Four jobs of (submit, run time, nodes) on four nodes: EASY lets the last one delay the third.
THIRD_DELAYED = ((0, 1000, 3), (10, 1000, 3), (20, 500, 4), (30, 3000, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("discipline", "waited"),
    [
        ("easy", {0: 0, 10: 990, 20: 3010, 30: 0}),
        ("conservative", {0: 0, 10: 990, 20: 1980, 30: 2470}),
    ],
)
def test_conservative_backfill_delays_nobody(
    tmp_path: Path, discipline: str, waited: dict[int, float]
) -> None:
    jobs = [(at, runtime, size, 1) for at, runtime, size in THIRD_DELAYED]
    done = replayed(tmp_path, *jobs, least=4, discipline=discipline)
    starts = sorted((at + wait, wait) for at, wait in waited.items())
    assert waits(done) == pytest.approx([wait for _, wait in starts], abs=5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("discipline", "waited"), [("conservative", (0, 990, 490)), ("fixed", (0, 0, 1990))]
)
def test_fixed_places_do_not_move_up(
    tmp_path: Path, discipline: str, waited: tuple[float, ...]
) -> None:
    """The first job ends after half of its time limit; the third joins after that."""
    text = [
        line(number, at, runtime=runtime, procs=size, asked=asked, user=1)
        for number, (at, runtime, size, asked) in enumerate(
            [(0, 1000, 3, 2000), (10, 1000, 4, 1000), (1510, 480, 2, 480)], 1
        )
    ]
    (tmp_path / "log.swf").write_text("\n".join(text) + "\n")
    done = _replay(tmp_path, least=4, discipline=discipline)
    assert waits(done) == pytest.approx(list(waited), abs=5)


def test_a_job_behind_those_that_have_places_changes_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator looks at a long queue when nodes idle, not for each job that joins it."""
    looks: list[float] = []

    def look(now: float, free: int, ends: list[tuple[float, int]]) -> FreeProfile:
        looks.append(now)
        return FreeProfile(now, free, ends)

    monkeypatch.setattr(queue, "RESERVED", 2)
    monkeypatch.setattr(queue, "FreeProfile", look)
    wide = [(at, 1000, 3, 1) for at in (0, 10, 20)]
    short = [(30 + number, 10, 1, 1) for number in range(20)]
    done = replayed(tmp_path, *wide, *short, least=4, discipline="conservative")
    assert looks
    assert min(looks) >= 1000  # the first job's end
    assert len(waits(done)) == len(wide) + len(short)


@settings(deadline=None)
@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), max_size=5),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 9)), max_size=8),
)
def test_places_are_the_earliest_and_never_overlap(
    free: int, ends: list[tuple[int, int]], jobs: list[tuple[int, int]]
) -> None:
    """Against a count of the free nodes of each second."""
    last = 200
    seconds = [free + sum(count for at, count in ends if at <= t) for t in range(last)]
    profile = FreeProfile(0, free, ends)
    for size, duration in jobs:
        fits = (t for t in range(last - duration) if min(seconds[t : t + duration]) >= size)
        start = next(fits, None)
        assert profile.earliest(size, duration) == (math.inf if start is None else start)
        if start is not None:
            profile.take(start, size, duration)
            seconds[start : start + duration] = [
                one - size for one in seconds[start : start + duration]
            ]
