"""Jobs that ask for a signal before their end, in the pool of a batch system that knows such
wishes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from threading import Event, Thread

import pytest

from cod.vcm.batch.pool import LEAVING, BatchPool
from cod.vcm.batch.settings import BatchTable
from cod.vcm.batch.system import EndSignals, Host, Job, Wants
from cod.vcm.pool import Ending, Member, NotYet, Reclaim

NOW = 1000.0


@dataclass
class System:
    """A batch system whose jobs want a signal by `wishes`; it remembers what it was told."""

    wishes: Mapping[str, float]
    there: dict[str, Host] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def hosts(self) -> Mapping[str, Host]:
        return dict(self.there)

    def look(self, ours: Collection[str], coming: Counter[str]) -> tuple[Mapping[str, Host], Wants]:
        return self.hosts(), Wants()

    def begin(self, member: Member) -> None:
        self.said.append(f"begin {member.hostname}")

    def open(self, member: Member) -> None:
        self.said.append(f"open {member.hostname}")

    def close(self, host: Host, lost: bool) -> None:
        self.there[host.name] = Host(host.name, "", True, True, False, host.jobs)

    def requeue(self, job: Job) -> None:
        self.said.append(f"requeue {job.id}")
        for name, host in self.there.items():
            self.there[name] = Host(
                name, "", True, True, False, tuple(one for one in host.jobs if one != job)
            )

    def stop(self, name: str) -> None:
        pass

    def expel(self, name: str, lost: bool) -> None:
        self.there.pop(name, None)

    def notice(self, job: Job) -> float:
        return self.wishes.get(job.id, 0.0)

    def warn(self, job: Job) -> None:
        self.said.append(f"warn {job.id}")


class Pool:
    """A pool with a clock that is moved by hand. `hosts`: the jobs of each. A reclaim's deadline is
    300 s ahead."""

    def __init__(self, wishes: Mapping[str, float], drain: bool = False, **hosts: str) -> None:
        self.system = System(wishes)
        for name, jobs in hosts.items():
            self.system.there[name] = Host(
                name, "", True, False, True, tuple(Job(one, 1.0) for one in jobs.split())
            )
        self.members = {
            name: Member(f"node-{name}", name, "10.0.0.1", "active", "exec") for name in hosts
        }
        self.now = NOW
        self.drain = drain
        self.pool = self.again()

    def again(self) -> BatchPool:
        self.pool = BatchPool(
            BatchTable.model_validate({"drain": self.drain}), self.system, clock=lambda: self.now
        )
        return self.pool

    def reclaim(self, count: int = 1) -> Mapping[str, float]:
        reclaim = Reclaim(1, count, self.now + 300.0, "somebody wants it")
        return {one.node: one.within for one in self.pool.choose(reclaim, self.members, self.now)}

    def at(self, second: float, *names: str) -> list[str]:
        """Return what the batch system is told when these nodes are to go, so many seconds after
        the beginning."""
        self.now = NOW + second
        before = len(self.system.said)
        for name in names:
            with pytest.raises(NotYet):
                self.pool.remove(self.members[name], False)
        return self.system.said[before:]


def test_a_busy_node_stays_for_as_long_as_its_jobs_want_to_be_told_before() -> None:
    pool = Pool({"1": 60.0, "2": 20.0}, n2="1 2 3")
    assert pool.reclaim() == {"n2": 60.0}
    assert [pool.at(second, "n2") for second in (0, 39, 41, 59)] == [["warn 1"], [], ["warn 2"], []]
    assert pool.at(61, "n2") == ["requeue 1", "requeue 2", "requeue 3"]


def test_jobs_that_ask_for_nothing_go_at_once() -> None:
    pool = Pool({}, n2="1")
    assert pool.reclaim() == {"n2": 1.0}
    assert pool.at(0, "n2") == ["requeue 1"]


def test_the_deadline_bounds_what_jobs_ask_for() -> None:
    pool = Pool({"1": 4000.0}, n2="1")
    assert pool.reclaim() == {"n2": 300.0 - LEAVING}
    assert pool.at(0, "n2") == ["warn 1"]
    assert pool.at(300 - LEAVING, "n2") == ["requeue 1"]


def test_where_jobs_may_end_by_themselves_they_are_told_before_the_deadline() -> None:
    pool = Pool({"1": 60.0}, True, n2="1 2")
    assert pool.reclaim() == {"n2": 300.0 - LEAVING}
    assert [pool.at(second, "n2") for second in (0, 209, 211, 269)] == [[], [], ["warn 1"], []]
    assert pool.at(270, "n2") == ["requeue 1", "requeue 2"]


def test_a_job_on_several_nodes_that_leave_is_told_once() -> None:
    pool = Pool({"1": 60.0}, n2="1", n3="1")
    assert pool.reclaim(2) == {"n2": 60.0, "n3": 60.0}
    assert pool.at(0, "n2", "n3") == ["warn 1"]


def test_a_node_that_is_too_old_tells_nobody_and_one_that_is_idle_goes() -> None:
    pool = Pool({"1": 60.0}, n2="1", n3="")
    assert pool.reclaim() == {"n3": 1.0}
    pool.pool.recall({"n2": float("inf")})
    assert pool.at(1e6, "n2") == []


def test_a_job_whose_node_stays_after_all_is_told_again_the_next_time() -> None:
    pool = Pool({"1": 60.0}, n2="1")
    pool.reclaim()
    assert pool.at(0, "n2") == ["warn 1"]
    pool.pool.add(pool.members["n2"])
    assert pool.system.said[-1] == "open n2"
    pool.now += 500.0
    assert pool.reclaim() == {"n2": 60.0}
    assert pool.at(500, "n2") == ["warn 1"]


def test_a_vcm_that_is_started_anew_keeps_the_time_that_it_has_promised() -> None:
    pool = Pool({"1": 60.0}, n2="1")
    pool.reclaim()
    pool.at(0, "n2")
    pool.again().recall({"n2": NOW + 60.0})
    assert pool.at(30, "n2") == ["warn 1"], "once more: that it was told before is not remembered"
    assert pool.at(61, "n2") == ["requeue 1"]
    assert isinstance(pool.system, EndSignals)
    assert pool.pool.choose(Reclaim(1, 1, 0.0, ""), {}, pool.now) == []


def test_jobs_are_told_that_the_lease_ends_and_go_on() -> None:
    pool = Pool({"1": 60.0, "2": 20.0}, n2="1 3", n3="2")
    for left, said in ((61.0, []), (60.0, ["warn 1"]), (45.0, []), (0.0, ["warn 2"]), (0.0, [])):
        before = len(pool.system.said)
        pool.pool.ending(left, pool.members)
        assert pool.system.said[before:] == said
    assert isinstance(pool.pool, Ending)


def test_a_job_that_two_threads_would_tell_at_a_time_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node leaves while the lease ends: the second thread comes while the first sends the
    signal."""
    pool = Pool({"1": 60.0}, n2="1")
    pool.reclaim()
    sending, sent, come = Event(), Event(), Event()

    def warn(job: Job) -> None:
        pool.system.said.append(f"warn {job.id}")
        sending.set()
        assert sent.wait(60)

    def ending() -> None:
        come.set()
        pool.pool.ending(30.0, pool.members)

    monkeypatch.setattr(pool.system, "warn", warn)
    threads = [Thread(target=pool.at, args=(0, "n2")), Thread(target=ending)]
    threads[0].start()
    assert sending.wait(60)
    threads[1].start()
    assert come.wait(60)
    threads[1].join(0.2)
    sent.set()
    for thread in threads:
        thread.join(60)
    assert pool.system.said == ["warn 1"]
