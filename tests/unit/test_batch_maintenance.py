"""Maintenance windows in the pool of a batch system: what is closed when, and what may stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest

from cod.vcm.batch.pool import LEAVING, BatchPool
from cod.vcm.batch.settings import BatchTable
from cod.vcm.batch.system import Downtime, EndSignals, Foresees, Host, Job
from cod.vcm.gridengine.settings import GridEngineTable
from cod.vcm.gridengine.system import GridEngineSystem
from cod.vcm.pool import Maintained, Member, Named, NotYet, Reclaim, Window
from tests.unit.test_batch_end_signals import NOW, System

BEGINS = NOW + 10_000.0


@dataclass
class Foreseeing(System):
    """A batch system that is told of downtimes. `closed_for`: how long before it closes hosts."""

    closed_for: float = 0.0
    told: list[Downtime] = field(default_factory=list)

    def foresee(self, downtimes: Collection[Downtime], now: float) -> float:
        self.told = list(downtimes)
        return self.closed_for


class Pool:
    """A pool of hosts n1 to n3 with these jobs, and a clock that is moved by hand."""

    def __init__(
        self, wishes: Mapping[str, float] | None = None, closed_for: float = 0.0, **settings: Any
    ) -> None:
        self.system = Foreseeing(wishes or {}, closed_for=closed_for)
        for name, jobs in {"n1": "1", "n2": "2", "n3": ""}.items():
            self.system.there[name] = Host(
                name, "", True, False, True, tuple(Job(one, 1.0) for one in jobs.split())
            )
        self.members = {
            name: Member(f"node-{name}", name, "10.0.0.1", "active", "exec")
            for name in self.system.there
        }
        self.now = NOW
        self.pool = BatchPool(
            BatchTable.model_validate(settings), self.system, clock=lambda: self.now
        )

    def at(self, now: float, *windows: Window) -> Mapping[str, float]:
        self.now = now
        return self.pool.maintain(windows, self.members, now)


def window(*names: str, begins: float = BEGINS, drain: bool = False, number: int = 3) -> Window:
    ends = begins + 3600.0 if begins else 0.0
    return Window(number, begins, ends, drain, "power feed", tuple(map(Named, names)))


def test_a_batch_pool_can_be_told_of_maintenance_and_so_can_its_systems() -> None:
    pool = Pool()
    assert isinstance(pool.pool, Maintained)
    assert isinstance(pool.system, Foresees)
    assert isinstance(pool.system, EndSignals)
    assert not isinstance(System({}), Foresees)


def test_the_batch_system_is_told_when_hosts_have_to_be_empty_and_nothing_leaves_yet() -> None:
    pool = Pool()
    assert pool.at(NOW, window("n1", "n3", "elsewhere")) == {}
    assert pool.system.told == [
        Downtime(3, "n1", BEGINS - LEAVING, BEGINS + 3600),
        Downtime(3, "n3", BEGINS - LEAVING, BEGINS + 3600),
    ]
    pool.at(NOW, window("n1", begins=BEGINS + 500))
    assert [one.begins for one in pool.system.told] == [BEGINS + 500 - LEAVING]
    pool.at(NOW)
    assert pool.system.told == []


def test_hosts_leave_so_early_that_jobs_are_back_in_the_queue_when_it_begins() -> None:
    pool = Pool(save="/bin/true", save_time=100)
    last = BEGINS - LEAVING - 100
    assert pool.at(last - 1, window("n1")) == {}
    assert pool.at(last, window("n1")) == {"n1": last}


def test_a_host_that_leaves_before_its_time_is_empty_in_time() -> None:
    """The next look would come too late."""
    pool = Pool()
    last = BEGINS - LEAVING
    pool.now = last - 10
    assert pool.pool.maintain([window("n1")], pool.members, last + 5) == {"n1": last}
    for late, said in ((-5, []), (0, ["requeue 1"])):
        pool.now = last + late
        with pytest.raises(NotYet):
            pool.pool.remove(pool.members["n1"], False)
        assert pool.system.said == said


def test_jobs_get_the_signal_that_they_want_in_time() -> None:
    pool = Pool({"1": 600.0})
    last = BEGINS - LEAVING
    assert pool.at(last - 601, window("n1", "n2")) == {}
    assert pool.at(last - 600, window("n1", "n2")) == {"n1": last}
    pool.now = last - 599
    with pytest.raises(NotYet):
        pool.pool.remove(pool.members["n1"], False)
    assert pool.system.said == ["warn 1"]
    pool.now = last
    with pytest.raises(NotYet):
        pool.pool.remove(pool.members["n1"], False)
    assert pool.system.said == ["warn 1", "requeue 1"]


def test_a_system_that_knows_no_time_limits_is_closed_ahead_and_its_jobs_end() -> None:
    pool = Pool(closed_for=5000.0)
    last = BEGINS - LEAVING
    assert pool.at(last - 5001, window("n1")) == {}
    assert pool.at(last - 5000, window("n1")) == {"n1": last}
    with pytest.raises(NotYet):
        pool.pool.remove(pool.members["n1"], False)
    assert pool.system.there["n1"].closed
    assert pool.system.said == []
    pool.system.there["n1"] = Host("n1", "", True, True, False)  # its job has ended
    pool.now += 60
    pool.pool.remove(pool.members["n1"], False)
    assert "n1" not in pool.system.there


def test_a_host_that_leaves_for_maintenance_counts_among_the_most_that_a_pool_has() -> None:
    """A host's jobs may go on for a day."""
    pool = Pool(closed_for=5000.0, maximum=3, minimum=3)
    pool.at(BEGINS - 3000, window("n1"))
    staying = {name: pool.members[name] for name in ("n2", "n3")}
    assert not pool.pool.look(staying, Counter(), pool.now).grow
    pool.at(BEGINS - 3000)
    assert pool.pool.look(staying, Counter(), pool.now).grow


def test_a_drained_host_leaves_at_once_when_its_jobs_have_ended() -> None:
    pool = Pool()
    assert pool.at(NOW, window("n1", "n3", begins=0.0, drain=True)) == {"n1": inf, "n3": inf}
    assert pool.system.told == []
    pool.at(NOW, window("n1", drain=True))
    assert pool.at(NOW, window("n1", drain=True)) == {"n1": BEGINS - LEAVING}


def test_the_earliest_of_two_windows_counts_and_hosts_of_no_pool_are_left_alone() -> None:
    pool = Pool(keep=("n2",), closed_for=5000.0)
    both = (window("n1", "n2"), window("n1", begins=BEGINS - 900, number=4))
    assert pool.at(BEGINS - 1000, *both) == {"n1": BEGINS - 900 - LEAVING}
    assert {one.host for one in pool.system.told} == {"n1"}


def test_a_host_that_stayed_waits_for_no_window_when_it_leaves_for_something_else() -> None:
    """COD takes the last node of a vcluster back from nobody, and its window may be withdrawn."""
    pool = Pool(closed_for=5000.0)
    assert "n1" in pool.at(BEGINS - 3000, window("n1"))
    assert pool.at(BEGINS - 2900) == {}
    with pytest.raises(NotYet, match="put back"):
        pool.pool.remove(pool.members["n1"], False)
    assert pool.system.said == ["requeue 1"]


def test_a_time_that_a_reclaim_gives_outlives_the_window_s_end() -> None:
    pool = Pool({"1": 600.0, "2": 600.0}, drain=True)
    pool.at(BEGINS - 600, window("n1", "n2"))
    member = pool.members.pop("n1")
    pool.pool.choose(Reclaim(7, 1, pool.now + 300.0, "for others"), {"n1": member}, pool.now)
    assert pool.at(pool.now + 1) == {}
    with pytest.raises(NotYet, match="by themselves"):
        pool.pool.remove(member, False)


def test_grid_engine_closes_hosts_as_long_before_as_its_setting_says() -> None:
    table = GridEngineTable.model_validate({"maintenance_notice": 7200})
    assert GridEngineSystem(table).foresee([Downtime(3, "n1", BEGINS, inf)], NOW) == 7200
