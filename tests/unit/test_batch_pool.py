"""The pool of a batch system in hard cases: races, outages, many nodes at once. The cell is that of
Grid Engine."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from cod.vcm.batch.commands import CommandFailed
from cod.vcm.batch.pool import LEAVING, MOST_LOGGED, STALE
from cod.vcm.gridengine.view import Running, View, Waiting
from cod.vcm.pool import GivenUp, NotYet
from cod.wire.nmp.bodies import Reclaim
from tests.unit.test_gridengine_pool import Ground, grows, member


def ages(ground: Ground, *names: str) -> None:
    """Let nodes be as old as the ground's clock."""
    for name in names:
        ground.members[name] = replace(member(name), since=ground.time.now)


# ---------------------------------------------------------------- what is wanted


def test_a_pool_grows_while_nodes_become_too_old_or_silent() -> None:
    ground = Ground({"lifetime": 60.0, "unheard_limit": 60.0})
    ground.has("n2", 500.0)
    ground.has("n3", 500.0, states="u")
    ages(ground, "n2")
    ground.cell.waiting = (Waiting(1, "qw"), Waiting(2, "qw"))
    ground.look(0.0)
    demand = ground.look(60.0)
    assert (demand.drain, demand.leave, grows(demand)) == (("n2",), ("n3",), 2)
    assert (
        demand.why == "not heard of for 60 s; it has been here for 60 s; "
        "2 jobs wait, 0 nodes are idle, 0 are coming"
    )


def test_nodes_that_leave_count_among_the_most_that_a_pool_has() -> None:
    """Else a pool whose nodes become too old together would have twice as many."""
    ground = Ground({"lifetime": 60.0, "maximum": 3})
    for name in ("n2", "n3"):
        ground.has(name, 500.0)
    ages(ground, "n2", "n3")
    ground.cell.waiting = tuple(Waiting(number, "qw") for number in range(9))
    assert grows(ground.look(60.0)) == 1
    for name in ("n2", "n3"):
        del ground.members[name]  # they drain
    assert grows(ground.look()) == 1
    del ground.cell.hosts["n2"]
    ground.pool.remove(member("n2"), False)
    assert grows(ground.look()) == 2


def test_very_many_jobs_that_no_node_could_run_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ground = Ground()
    ground.cell.waiting = tuple(
        Waiting(number, "qw", resources={"gpu": "1"}) for number in range(1000)
    )
    for _ in range(2):
        ground.look()
    assert len(caplog.messages) == MOST_LOGGED + 1
    assert caplog.messages[-1] == "no node of this pool could run 900 jobs more"


# ---------------------------------------------------------------- joining


def test_a_batch_system_that_is_away_is_no_fault_of_a_node_that_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ground = Ground({"join_time": 30.0})
    with pytest.raises(NotYet):
        ground.pool.add(member("n2"))
    view = ground.cell.view

    def away() -> View:
        raise CommandFailed("no answer")

    monkeypatch.setattr(ground.cell, "view", away)
    for _ in range(3):
        ground.time.now += 20.0
        with pytest.raises(CommandFailed):
            ground.pool.add(member("n2"))
    monkeypatch.setattr(ground.cell, "view", view)
    with pytest.raises(NotYet):
        ground.pool.add(member("n2"))
    ground.time.now += 30.0
    with pytest.raises(GivenUp):
        ground.pool.add(member("n2"))


# ---------------------------------------------------------------- leaving


def test_a_job_that_starts_before_its_node_is_closed_is_put_back() -> None:
    ground = Ground()
    ground.has("n2")
    disable = ground.cell.disable

    def starts_first(host: str) -> None:
        ground.cell.hosts[host] = replace(
            ground.cell.hosts[host], used=1, running=(Running(7, 0, 1, 900.0, "r"),)
        )
        disable(host)

    ground.cell.disable = starts_first  # type: ignore[method-assign]
    with pytest.raises(NotYet):
        ground.pool.remove(member("n2"), False)
    assert ground.cell.said == ["disable n2", "reschedule 7.0"]


def test_a_silent_node_is_not_kept_for_jobs_that_cannot_end() -> None:
    ground = Ground({"lifetime": 60.0, "unheard_limit": 30.0})
    ground.has("n2", 500.0)
    ages(ground, "n2")
    assert ground.look(60.0).drain == ("n2",)
    with pytest.raises(NotYet, match="may end by themselves"):
        ground.pool.remove(member("n2"), False)
    ground.has("n2", 500.0, states="du")
    del ground.members["n2"]  # it leaves
    for _ in range(4):
        assert ground.look(10.0).leave == ()
    with pytest.raises(NotYet, match="put back"):
        ground.pool.remove(member("n2"), False)
    ground.pool.remove(member("n2"), False)
    assert ground.cell.said[-3:] == ["reschedule 20.0", "stop n2", "expel n2"]


def test_nodes_that_drain_are_looked_at_together_and_not_each_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ground, asked = Ground({"lifetime": 3600.0}), [0]
    names = [f"n{number}" for number in range(2, 12)]
    for name in names:
        ground.has(name, 500.0, states="d")
    ground.pool.recall(dict.fromkeys(names, inf))
    view = ground.cell.view

    def counted() -> View:
        asked[0] += 1
        return view()

    monkeypatch.setattr(ground.cell, "view", counted)
    for _ in range(int(2 * STALE)):
        ground.time.now += 1.0
        for name in names:
            with pytest.raises(NotYet):
                ground.pool.remove(member(name), False)
    assert asked[0] <= 2 + len(names)


def test_jobs_have_their_time_to_go_after_a_long_save(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Ground({"save": "save {jobs}", "save_time": 50.0, "drain": True})
    ground.has("n2", 500.0)
    ground.cell.stuck = True
    (named,) = ground.pool.choose(
        Reclaim(1, 1, ground.time.now + 100.0, ""), ground.members, ground.time.now
    )
    assert named.within == 100.0 - LEAVING - 50.0

    def slow(*_: Any, **__: Any) -> subprocess.CompletedProcess[bytes]:
        ground.time.now += 50.0
        return subprocess.CompletedProcess([], 0, b"", b"")

    monkeypatch.setattr("cod.vcm.batch.commands.subprocess.run", slow)
    ground.time.now += named.within
    for seconds in (0.0, LEAVING - 1.0):
        ground.time.now += seconds
        with pytest.raises(NotYet, match="put back"):
            ground.pool.remove(member("n2"), False)
    assert ground.time.now == 1000.0 + 100.0 - 1.0
