"""The Grid Engine pool's policy, and reading what qstat says; the real qstat is asked in
tests/system."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.vcm.batch import resize
from cod.vcm.batch.commands import NotUnderstood, task_ranges
from cod.vcm.batch.resize import PoolChange
from cod.vcm.batch.system import Host as BatchHost
from cod.vcm.batch.system import Job, Wants
from cod.vcm.gridengine.settings import GridEngineTable
from cod.vcm.gridengine.system import GridEngineSystem
from cod.vcm.gridengine.view import Host, Running, View, Waiting, read

NOW = 10_000.0
DOCUMENT = """<?xml version='1.0'?>
<job_info>
  <queue_info>
    <Queue-List><name>all.q@head</name><slots_used>0</slots_used><slots_total>1</slots_total><state>du</state></Queue-List>
    <Queue-List><name>other.q@n1</name><slots_used>0</slots_used><slots_total>9</slots_total><arch>x</arch></Queue-List>
    <Queue-List><name>all.q@n1.pool.cod.test</name><slots_used>1</slots_used><slots_total>2</slots_total>
      <load_avg>0.1</load_avg><arch>lx-amd64</arch>
      <job_list state="running"><JB_job_number>21</JB_job_number><state>r</state>
        <JAT_start_time>2026-11-20T07:55:39</JAT_start_time><slots>1</slots><tasks>3</tasks></job_list>
    </Queue-List>
  </queue_info>
  <job_info>
    <job_list state="pending"><JB_job_number>22</JB_job_number><state>qw</state><slots>4</slots>
      <requested_pe name="smp">4</requested_pe><hard_request name="mem_total">2G</hard_request></job_list>
    <job_list state="pending"><JB_job_number>23</JB_job_number><state>hqw</state><slots>1</slots>
      <tasks>1-9:2,20</tasks></job_list>
  </job_info>
</job_info>"""


def test_what_qstat_says() -> None:
    view = read(DOCUMENT.encode(), "all.q")
    assert set(view.hosts) == {"head", "n1"}
    assert view.hosts["head"] == Host("head", 1, 0, "du", False)
    assert not view.hosts["head"].usable
    (running,) = view.hosts["n1"].running
    assert (running.job, running.task, running.slots, running.state) == (21, 3, 1, "r")
    assert view.waiting == (
        Waiting(22, "qw", 4, 1, "smp", {"mem_total": "2G"}),
        Waiting(23, "hqw", 1, 6),
    )
    assert [job.ready for job in view.waiting] == [True, False]


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"error: commlib error: got select error (Connection refused)",
        b"<job_info/>",
        b"<qhost/>",
        DOCUMENT[:400].encode(),
        DOCUMENT.replace("<slots_total>2", "<slots_total>two").encode(),
        DOCUMENT.replace("<slots_total>2</slots_total>", "").encode(),
        DOCUMENT.replace("2026-11-20T07:55:39", "yesterday").encode(),
        DOCUMENT.replace("1-9:2,20", "9-1").encode(),
        DOCUMENT.replace("1-9:2,20", "1-2:0").encode(),
        DOCUMENT.replace("1-9:2,20", "all of them").encode(),
        DOCUMENT.replace("<state>qw</state>", "").encode(),
    ],
)
def test_output_that_cannot_be_understood_is_not_guessed_at(output: bytes) -> None:
    with pytest.raises(NotUnderstood):
        read(output, "all.q")


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), ("4,5", 2), ("1-5", 5), ("1-10:3", 4), ("1-3:1,7", 4)]
)
def test_tasks_of_an_array(text: str, count: int) -> None:
    assert sum(map(len, task_ranges(text))) == count


# ---------------------------------------------------------------- growing


def host(name: str, *started: float, states: str = "", heard: bool = True) -> Host:
    return Host(
        name,
        2,
        len(started),
        states,
        heard,
        tuple(Running(n, 0, 1, at, "r") for n, at in enumerate(started)),
    )


class Cell:
    """A cell with nothing in it but what qstat says, and an environment whose jobs have to fit on
    one host."""

    def __init__(self, view: View) -> None:
        self.seen = view

    def view(self) -> View:
        return self.seen

    def offered(self, members: Any) -> dict[str, str]:
        return {"arch": "lx-amd64", "mem_total": "4G"}

    def relops(self) -> dict[str, str]:
        return {}

    def whole_environments(self) -> frozenset[str]:
        return frozenset({"smp"})


def look(
    waiting: list[Waiting], hosts: list[Host], coming: int, table: GridEngineTable, names: list[str]
) -> tuple[Mapping[str, BatchHost], Wants]:
    cell = Cell(View({each.name: each for each in hosts}, tuple(waiting)))
    system = GridEngineSystem(table, cell, prepare=False)
    return system.look(names, Counter({"": coming}))


def change(
    waiting: list[Waiting],
    hosts: list[Host] | None = None,
    *,
    coming: int = 0,
    idle_since: dict[str, float] | None = None,
    grown_at: float = 0.0,
    rules: dict[str, int] | None = None,
    members: list[str] | None = None,
) -> PoolChange:
    table = GridEngineTable.model_validate({"slots": 2, **(rules or {})})
    names = [each.name for each in hosts or []] if members is None else members
    seen, wants = look(waiting, hosts or [], coming, table, names)
    idle = {name: (idle_since or {}).get(name, NOW) for name in names if seen[name].idle}
    at = dict.fromkeys(names, grown_at)
    return resize.resize(len(names), 0, Counter({"": coming}), wants, idle, at, table, NOW)


def grows(done: PoolChange) -> int:
    return sum(done.grow.values())


@pytest.mark.parametrize(
    ("waiting", "rules", "grow"),
    [
        ([], {}, 0),
        ([Waiting(1, "qw")], {}, 1),
        ([Waiting(n, "qw") for n in range(7)], {"jobs_per_node": 3}, 3),
        ([Waiting(1, "qw", tasks=10)], {"jobs_per_node": 4}, 3),
        ([Waiting(1, "hqw"), Waiting(2, "Eqw"), Waiting(3, "dqw")], {}, 0),
        ([Waiting(1, "Rq")], {}, 1),
        ([Waiting(1, "qw", slots=5, parallel="mpi")], {"jobs_per_node": 10}, 3),
        ([Waiting(1, "qw", slots=4, parallel="smp")], {}, 0),
        ([Waiting(1, "qw", slots=2, parallel="smp")], {}, 1),
        ([Waiting(1, "qw", resources={"mem_total": "3.5G"})], {}, 1),
        ([Waiting(1, "qw", resources={"mem_total": "5G"})], {}, 0),
        ([Waiting(1, "qw", resources={"arch": "lx-arm64|lx-amd64"})], {}, 1),
        ([Waiting(1, "qw", resources={"arch": "sol-sparc"})], {}, 0),
        ([Waiting(1, "qw", resources={"gpu": "1"})], {}, 0),
        ([Waiting(1, "qw", tasks=1000)], {"maximum": 5}, 5),
        ([], {"minimum": 2}, 2),
        ([], {"reserve": 1}, 1),
    ],
)
def test_growth_from_nothing(waiting: list[Waiting], rules: dict[str, int], grow: int) -> None:
    assert grows(change(waiting, rules=rules)) == grow


def test_jobs_that_no_node_of_ours_could_run_are_named() -> None:
    waiting = [Waiting(7, "qw", resources={"gpu": "1"}), Waiting(8, "qw", slots=4, parallel="smp")]
    never = look(waiting, [], 0, GridEngineTable.model_validate({"slots": 2}), [])[1].never
    assert never == (
        "job 7: wants gpu=1, which a node of this pool is not known to offer",
        "job 8: wants 4 slots on one host, a node has 2",
    )


def test_a_queue_asks_once() -> None:
    waiting = [Waiting(n, "qw") for n in range(4)]
    assert grows(change(waiting)) == 4
    assert grows(change(waiting, coming=4)) == 0
    assert grows(change(waiting, [host("n1")], coming=2)) == 1  # the idle one will take a job
    # a disabled one will not
    assert grows(change(waiting, [host("n1", states="d")], coming=2)) == 2


# ---------------------------------------------------------------- shrinking


def test_the_longest_idle_go_back_down_to_the_reserve() -> None:
    hosts = [host("n1"), host("n2", 5.0), host("n3"), host("n4")]
    idle = {"n1": NOW - 400, "n3": NOW - 900, "n4": NOW - 100}
    assert change([], hosts, idle_since=idle).leave == ("n3", "n1")
    assert change([], hosts, idle_since=idle, rules={"reserve": 2}).leave == ("n3",)
    assert change([], hosts, idle_since=idle, rules={"minimum": 3}).leave == ("n3",)
    assert change([], hosts, idle_since=idle, rules={"minimum": 4}).leave == ()


def test_nobody_leaves_while_jobs_wait_or_just_after_growth() -> None:
    hosts, idle = [host("n1"), host("n2")], {"n1": 0.0, "n2": 0.0}
    assert change([Waiting(1, "qw")], hosts, idle_since=idle) == PoolChange()
    assert change([], hosts, idle_since=idle, grown_at=NOW - 30) == PoolChange()
    # a held job needs nothing now
    assert change([Waiting(1, "hqw")], hosts, idle_since=idle).leave == ("n1", "n2")


def test_hosts_that_were_added_by_hand_are_not_touched() -> None:
    hosts, idle = [host("byhand"), host("n1")], {"byhand": 0.0, "n1": 0.0}
    assert change([], hosts, idle_since=idle, members=["n1"]).leave == ("n1",)


@given(
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(0, 6),
    st.integers(0, 4),
)
def test_a_change_never_goes_past_the_limits(
    jobs: int, size: int, reserve: int, minimum: int, more: int, coming: int
) -> None:
    hosts = [host(f"n{n}") for n in range(size)]
    rules = {"reserve": reserve, "minimum": minimum, "maximum": minimum + more}
    done = change(
        [Waiting(n, "qw") for n in range(jobs)],
        hosts,
        coming=coming,
        rules=rules,
        idle_since=dict.fromkeys((each.name for each in hosts), 0.0),
    )
    assert not (grows(done) and done.leave)
    assert grows(done) == 0 or size + coming + grows(done) <= rules["maximum"]
    assert len(done.leave) == 0 or (
        size - len(done.leave) >= minimum and size - len(done.leave) >= reserve
    )


# ---------------------------------------------------------------- giving up


def busy(name: str, **jobs: float) -> BatchHost:
    return BatchHost(
        name, "", True, False, True, tuple(Job(id, started) for id, started in jobs.items())
    )


def test_idle_ones_go_first_then_who_loses_least() -> None:
    hosts = {
        each.name: each
        for each in (
            busy("n1", a=100.0, b=300.0),
            busy("n2", c=200.0),
            busy("n3"),
            busy("n4"),
            busy("n5", d=400.0, e=50.0),
        )
    }
    assert resize.victims(hosts, hosts, {"n3": 50.0, "n4": 20.0}, 5) == [
        "n4",
        "n3",
        "n5",
        "n1",
        "n2",
    ]
    assert resize.victims(hosts, ["n1", "n2"], {}, 1) == ["n1"]
    assert resize.victims(hosts, ["n1"], {}, 3) == ["n1"]
    assert resize.victims(hosts, ["gone", "n2"], {}, 1) == ["gone"]


def test_the_nodes_of_a_job_on_several_go_together() -> None:
    """The job is lost with the first of them."""
    hosts = {
        each.name: each
        for each in (
            busy("n1", wide=300.0),
            busy("n2", wide=300.0),
            busy("n3", late=250.0),
            busy("n4", wide=300.0, early=10.0),
        )
    }
    assert resize.victims(hosts, hosts, {}, 3) == ["n1", "n2", "n3"]
    assert resize.victims(hosts, hosts, {}, 4) == ["n1", "n2", "n3", "n4"]
