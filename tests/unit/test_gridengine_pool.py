"""The Grid Engine pool's four functions on a cell of the test's own, and how what its commands say
is taken: each of the pitfalls that the real ones have (tests/system/test_gridengine.py has the real
ones)."""

from __future__ import annotations

import logging
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from cod.vcm.batch.commands import CommandFailed, NotUnderstood
from cod.vcm.batch.pool import LEAVING, BatchPool
from cod.vcm.gridengine import needs
from cod.vcm.gridengine.commands import GridEngine
from cod.vcm.gridengine.needs import NodeOffer
from cod.vcm.gridengine.settings import GridEngineTable
from cod.vcm.gridengine.system import GridEngineSystem
from cod.vcm.gridengine.view import Host, Running, View, Waiting, amount, offered, read
from cod.vcm.pool import ANY, Demand, GivenUp, Member, NotYet, Recalling
from cod.wire.nmp.bodies import Named, Reclaim


class Cell:
    """A cell that does as it is told, and remembers what that was."""

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {"n1": Host("n1", 1, 0, "du", False)}
        self.waiting: tuple[Waiting, ...] = ()
        self.said: list[str] = []
        self.stuck = False  # do jobs stay whatever is said to them?
        self.shows: dict[str, str] = {}

    def view(self) -> View:
        return View(dict(self.hosts), self.waiting)

    def prepare(self, placeholder: str) -> None:
        self.said.append(f"prepare {placeholder}")
        self.hosts.setdefault(placeholder, Host(placeholder, 1, 0, "du", False))

    def master(self) -> str:
        return "master"

    def admit(self, host: str) -> None:
        self.said.append(f"admit {host}")

    def join(self, host: str, slots: int) -> None:
        self.said.append(f"join {host} {slots}")
        self.hosts.setdefault(host, Host(host, slots, 0, "u", False))

    def disable(self, host: str) -> None:
        self.said.append(f"disable {host}")
        there = self.hosts[host]
        self.hosts[host] = replace(there, states="d" + there.states.replace("d", ""))

    def enable(self, host: str) -> None:
        self.said.append(f"enable {host}")
        self.hosts[host] = replace(
            self.hosts[host], states=self.hosts[host].states.replace("d", "")
        )

    def reschedule(self, job: int, task: int) -> None:
        self.said.append(f"reschedule {job}.{task}")
        for name, host in self.hosts.items():
            left = tuple(one for one in host.running if one.job != job or self.stuck)
            self.hosts[name] = replace(host, running=left, used=sum(one.slots for one in left))

    def delete(self, job: int, task: int) -> None:
        self.reschedule(job, task)
        self.said[-1] = f"delete {job}.{task}"

    def stop_daemon(self, host: str) -> None:
        self.said.append(f"stop {host}")

    def expel(self, host: str) -> None:
        self.said.append(f"expel {host}")
        self.hosts.pop(host, None)

    def offered(self, members: Any) -> dict[str, str]:
        return self.shows

    def relops(self) -> dict[str, str]:
        return {"num_proc": "=="}

    def whole_environments(self) -> frozenset[str]:
        return frozenset({"smp"})


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Ground:
    """A pool on such a cell."""

    rules: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        table = {"keep": ["n1"], "idle_limit": 60.0, "calm": 0.0, **self.rules}
        self.time, self.cell = Time(), Cell()
        read = GridEngineTable.model_validate(table)
        self.pool = BatchPool(read, GridEngineSystem(read, self.cell), clock=self.time)
        self.members: dict[str, Member] = {"n1": member("n1")}

    def has(self, name: str, *started: float, states: str = "", job_state: str = "r") -> None:
        """A host of ours, with a job that began at each of `started`; jobs are numbered as they
        stand."""
        running = tuple(
            Running(10 * int(name[1:]) + number, 0, 1, at, job_state)
            for number, at in enumerate(started)
        )
        self.cell.hosts[name] = Host(name, 1, len(running), states, True, running)
        self.members[name] = member(name)

    def look(self, seconds: float = 10.0, coming: int = 0) -> Any:
        self.time.now += seconds
        return self.pool.look(self.members, Counter({"": coming}), self.time.now)


def member(name: str) -> Member:
    return Member(f"m{name[1:]}", name, "10.77.128.9", "active", "exec@1")


def grows(demand: Demand) -> int:
    """Return the nodes that a pool of like nodes wants more."""
    assert set(demand.grow) <= {ANY}
    return sum(demand.grow.values())


RECLAIM = Reclaim(5, 2, 1300.0, "somebody goes first")


# ---------------------------------------------------------------- what is wanted


def test_an_empty_pool_has_a_placeholder_that_is_neither_used_nor_counted() -> None:
    """While a queue has no host, qsub fails for everybody."""
    ground = Ground({"keep": [], "placeholder": "head"})
    ground.members = {}
    assert grows(ground.look()) == 0
    assert ground.cell.said == ["prepare head"]
    ground.look()
    assert ground.cell.said == ["prepare head"]
    del ground.cell.hosts["head"]  # somebody has taken it out
    ground.look()
    assert ground.cell.said == ["prepare head"] * 2
    none_named = Ground({"keep": []})
    none_named.look()
    assert none_named.cell.said == ["prepare master"]


def test_requests_not_needed_any_more_are_withdrawn_but_for_the_reserve() -> None:
    ground = Ground({"maximum": 10})
    ground.cell.waiting = (Waiting(1, "qw"),)
    assert ground.look(coming=4).withdraw == {"": 3}
    ground.cell.waiting = ()
    assert ground.look(coming=4).withdraw == {"": 4}
    reserve = Ground({"reserve": 2})
    assert grows(reserve.look()) == 2
    assert reserve.look(coming=2) == reserve.look(coming=2)
    assert reserve.look(coming=2).withdraw == {}


def test_a_host_that_falls_silent_goes_when_it_has_been_silent_for_long() -> None:
    """Also one that somebody has taken out of the queue by hand. A master that starts anew has
    heard of none at first.
    """
    ground = Ground({"unheard_limit": 30.0})
    ground.has("n2", 1.0, states="u")
    ground.has("n3", 1.0)
    ground.members["n4"] = member("n4")
    assert ground.look().leave == ()
    assert ground.look(20.0).leave == ()
    ground.has("n2", 1.0)
    assert ground.look(10.0).leave == ("n4",)
    ground.has("n2", 1.0, states="u")
    assert ground.look(5.0).leave == ("n4",)
    assert ground.look(30.0).leave == ("n2", "n4")


def test_a_job_that_no_node_could_run_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    ground = Ground()
    ground.cell.waiting = (Waiting(7, "qw", resources={"gpu": "1"}),)
    with caplog.at_level(logging.WARNING, "cod.vcm"):
        assert [grows(ground.look()) for _ in range(3)] == [0, 0, 0]
    assert caplog.messages == [
        "no node of this pool could run job 7: wants gpu=1, which a node of this pool is not known"
        " to offer"
    ]
    offering = Ground({"offers": {"gpu": "2"}})
    offering.cell.waiting = (Waiting(7, "qw", resources={"gpu": "1"}),)
    assert grows(offering.look()) == 1


def test_a_parallel_job_that_the_largest_pool_could_not_run_makes_nothing_grow() -> None:
    """Such a job would have all of the nodes, and keep them for ever."""
    ground = Ground({"maximum": 3, "slots": 2})
    ground.cell.waiting = (Waiting(7, "qw", slots=7, parallel="mpi"),)
    assert grows(ground.look()) == 0
    ground.cell.hosts["byhand"] = Host("byhand", 1, 0, "", True)
    assert grows(ground.look()) == 3


def test_what_hosts_have_shown_is_remembered_when_they_are_gone() -> None:
    ground = Ground()
    ground.cell.waiting = (Waiting(7, "qw", resources={"mem_total": "2G"}),)
    assert grows(ground.look()) == 0
    ground.cell.shows = {"mem_total": "4G"}
    assert grows(ground.look()) == 1
    ground.cell.shows = {}
    assert grows(ground.look()) == 1


def test_a_burst_of_short_jobs_does_not_thrash() -> None:
    """Ten minutes of jobs that come by fits and starts, and are over before the next look."""
    ground = Ground({"maximum": 4, "idle_limit": 60.0, "calm": 60.0})
    moves, size = 0, 0
    for turn in range(60):
        ground.cell.waiting = tuple(Waiting(n, "qw") for n in range(6 * (turn % 3 == 0)))
        demand = ground.look()
        for _ in range(grows(demand)):
            size += 1
            ground.has(f"n{size + 1}")
        for name in demand.leave:
            del ground.cell.hosts[name], ground.members[name]
            size -= 1
        moves += grows(demand) + len(demand.leave)
    assert moves == 4
    ground.cell.waiting = ()
    ground.look(70.0)
    assert len(ground.look(70.0).leave) == 4


# ---------------------------------------------------------------- joining


def test_a_node_is_enabled_when_it_has_reported() -> None:
    ground = Ground({"slots": 4})
    with pytest.raises(NotYet):
        ground.pool.add(member("n2"))
    with pytest.raises(NotYet):
        ground.pool.add(member("n2"))
    # an execd of no admin host is turned away
    assert ground.cell.said == ["admit n2", "join n2 4", "disable n2"]
    ground.cell.hosts["n2"] = Host("n2", 4, 0, "d", True)
    ground.pool.add(member("n2"))
    assert ground.cell.said[3:] == ["enable n2"]
    ground.pool.add(member("n1"))  # the head
    assert len(ground.cell.said) == 4


def test_a_node_that_does_not_report_is_given_up_after_its_time() -> None:
    ground = Ground({"join_time": 30.0})
    with pytest.raises(NotYet):
        ground.pool.add(member("n2"))
    ground.time.now += 31
    with pytest.raises(GivenUp, match="has not reported within 30 s"):
        ground.pool.add(member("n2"))
    ground.pool.remove(member("n2"), False)
    assert ground.cell.said[-2:] == ["stop n2", "expel n2"]
    with pytest.raises(NotYet):  # it may come again, and has its whole time then
        ground.pool.add(member("n2"))


def test_the_command_that_starts_a_daemon_is_run_once_a_try_and_its_failure_told() -> None:
    ground = Ground({"start": "sh -c 'echo no such host {hostname} {address} >&2; exit 3'"})
    with pytest.raises(CommandFailed, match=r"no such host n2 10\.77\.128\.9"):
        ground.pool.add(member("n2"))
    ground.time.now += 1000
    with pytest.raises(GivenUp):  # not for ever
        ground.pool.add(member("n2"))
    missing = Ground({"start": "/no/such/program"})
    with pytest.raises(CommandFailed, match="No such file"):
        missing.pool.add(member("n2"))


# ---------------------------------------------------------------- giving up, and leaving


def test_idle_nodes_go_first_then_who_loses_least_never_the_head() -> None:
    ground = Ground()
    ground.has("n2", 500.0)
    ground.has("n3", 700.0)
    ground.has("n4")
    ground.look()
    named = ground.pool.choose(RECLAIM, ground.members, ground.time.now)
    assert named == [Named("n4", 1.0), Named("n3", 1.0)]
    assert len(ground.pool.choose(replace(RECLAIM, count=9), ground.members, ground.time.now)) == 3


def test_jobs_may_end_where_the_site_wants_that_and_the_deadline_allows() -> None:
    ground = Ground({"drain": True})
    ground.has("n2", 500.0)
    (named,) = ground.pool.choose(replace(RECLAIM, count=1), ground.members, 1000.0)
    assert named == Named("n2", 300.0 - LEAVING)
    with pytest.raises(NotYet):
        ground.pool.remove(member("n2"), False)
    assert ground.cell.said == ["disable n2"]
    ground.time.now += 300.0 - LEAVING
    with pytest.raises(NotYet):
        ground.pool.remove(member("n2"), False)
    ground.pool.remove(member("n2"), False)
    assert ground.cell.said == ["disable n2", "reschedule 20.0", "stop n2", "expel n2"]


def test_they_may_do_so_too_when_the_vcm_was_started_anew() -> None:
    for table, said in (({"drain": True}, ["disable n2"]), ({}, ["disable n2", "reschedule 20.0"])):
        ground = Ground(table)
        ground.has("n2", 500.0)
        ground.pool.recall({"n2": ground.time.now + 50.0})
        with pytest.raises(NotYet):
            ground.pool.remove(member("n2"), False)
        assert ground.cell.said == said
    assert isinstance(ground.pool, Recalling)


def test_a_host_is_not_taken_out_while_its_jobs_are_still_there() -> None:
    """Taken out at once after they were rescheduled, it would go on running them where nobody
    looks."""
    ground = Ground()
    ground.has("n2", 500.0, 600.0)
    with pytest.raises(NotYet):
        ground.pool.remove(member("n2"), False)
    assert ground.cell.said == ["disable n2", "reschedule 20.0", "reschedule 21.0"]
    ground.pool.remove(member("n2"), False)
    assert ground.cell.said[3:] == ["stop n2", "expel n2"]
    ground.pool.remove(member("n2"), False)  # said again
    assert ground.cell.said[5:] == ["stop n2", "expel n2"]


def test_jobs_rescheduled_to_this_node_are_rescheduled_again_those_on_their_way_are_not() -> None:
    for state, said in (
        ("Rr", "reschedule 20.0"),
        ("t", "reschedule 20.0"),
        ("dr", "delete 20.0"),
        ("Rq", None),
    ):
        ground = Ground()
        ground.has("n2", 500.0, job_state=state)
        with pytest.raises(NotYet):
            ground.pool.remove(member("n2"), False)
        assert ground.cell.said[1:] == [said] * (said is not None), state


def test_jobs_that_do_not_go_end_with_the_daemon(caplog: pytest.LogCaptureFixture) -> None:
    ground = Ground()
    ground.has("n2", 500.0)
    ground.cell.stuck = True
    with pytest.raises(NotYet):
        ground.pool.remove(member("n2"), False)
    ground.time.now += LEAVING
    ground.pool.remove(member("n2"), False)
    assert ground.cell.said[-2:] == ["stop n2", "expel n2"]
    assert caplog.messages == ["jobs on n2 do not go: they end with its daemon"]


def test_jobs_of_a_lost_node_are_put_back_however_long_it_takes() -> None:
    """Put jobs back that have no daemon to end with: those that the master believes to run there
    run nowhere."""
    ground = Ground({"drain": True})
    ground.has("n2", 500.0, states="u")
    ground.pool.choose(RECLAIM, ground.members, 1000.0)
    ground.cell.stuck = True
    for _ in range(3):
        ground.time.now += LEAVING
        with pytest.raises(NotYet):
            ground.pool.remove(member("n2"), True)
    assert ground.cell.said == ["disable n2", *["reschedule 20.0"] * 3]
    ground.cell.stuck = False
    with pytest.raises(NotYet):
        ground.pool.remove(member("n2"), True)
    ground.pool.remove(member("n2"), True)
    assert ground.cell.said[-2:] == ["reschedule 20.0", "expel n2"]


def test_a_node_that_was_to_leave_and_stayed_has_its_whole_time_when_it_leaves() -> None:
    ground = Ground()
    ground.has("n2", 500.0)
    with pytest.raises(NotYet):
        ground.pool.remove(member("n2"), False)
    ground.pool.add(member("n2"))
    ground.has("n2", 1000.0)
    ground.time.now += 2 * LEAVING
    with pytest.raises(NotYet):
        ground.pool.remove(member("n2"), False)
    assert ground.cell.said[-2:] == ["disable n2", "reschedule 20.0"]


def test_a_node_that_is_lost_is_struck_off_without_speaking_to_it() -> None:
    ground = Ground({"stop": "false"})
    ground.has("n2", states="u")
    ground.pool.remove(member("n2"), True)
    assert ground.cell.said == ["disable n2", "expel n2"]
    ground.pool.remove(member("n3"), True)  # one that never joined
    ground.pool.remove(member("n1"), False)  # the head is not touched
    assert ground.cell.said[2:] == ["expel n3"]


def test_a_node_that_is_old_takes_no_more_jobs_and_goes_when_those_that_it_has_are_over() -> None:
    """Also after the VCM was started anew. A reclaim does not wait for them."""
    ground = Ground({"lifetime": 60.0})
    ground.has("n2", 500.0)
    ground.members["n2"] = replace(member("n2"), since=ground.time.now)
    assert ground.look(59.0).drain == ()
    assert ground.look(1.0).drain == ("n2",)
    again = Ground({"lifetime": 60.0})
    again.has("n2", 500.0)
    again.pool.recall({"n2": inf})
    for one in (ground, again):
        for _ in range(3):
            one.time.now += 1e6
            with pytest.raises(NotYet, match="may end by themselves"):
                one.pool.remove(member("n2"), False)
        assert one.cell.said[-1] == "disable n2"
    again.pool.choose(replace(RECLAIM, count=1), again.members, again.time.now)
    with pytest.raises(NotYet, match="put back"):
        again.pool.remove(member("n2"), False)
    ground.has("n2")
    ground.time.now += 5.0
    ground.pool.remove(member("n2"), False)
    assert ground.cell.said[-2:] == ["stop n2", "expel n2"]


def test_jobs_are_saved_once_before_they_are_put_back_and_a_node_that_joins_is_restored(
    tmp_path: Path,
) -> None:
    ground = Ground(
        {
            "save": f"sh -c 'echo {{hostname}} {{address}} {{jobs}} >> {tmp_path}/saved; exit 1'",
            "restore": (
                f"sh -c 'echo {{hostname}} >> {tmp_path}/restored; test -e {tmp_path}/there'"
            ),
        }
    )
    ground.has("n2", 500.0, 600.0)
    ground.cell.stuck = True
    for _ in range(2):
        with pytest.raises(NotYet):
            ground.pool.remove(member("n2"), False)
    assert (tmp_path / "saved").read_text() == "n2 10.77.128.9 20,21\n"
    assert ground.cell.said[1] == "reschedule 20.0"  # although it failed
    ground.has("n3")
    with pytest.raises(CommandFailed):
        ground.pool.add(member("n3"))
    assert "enable n3" not in ground.cell.said
    (tmp_path / "there").touch()
    ground.pool.add(member("n3"))
    assert ground.cell.said[-1] == "enable n3"
    (tmp_path / "there").unlink()
    with pytest.raises(CommandFailed):
        ground.pool.add(member("n3"))
    ground.time.now += 1000.0
    with pytest.raises(GivenUp):  # not for ever
        ground.pool.add(member("n3"))


# ---------------------------------------------------------------- what could a node of ours run?


OFFER = NodeOffer(
    2,
    {
        "mem_total": "4G",
        "num_proc": "4",
        "h_rt": "infinity",
        "arch": "lx-amd64",
        "s_rt": "01:00:00",
    },
    relops={"num_proc": "=="},
)


@pytest.mark.parametrize(
    ("resources", "why"),
    [
        ({"mem_total": "4G"}, ""),
        ({"mem_total": "4.1G"}, "a node has 4G"),
        ({"num_proc": "4"}, ""),
        ({"num_proc": "2"}, "a node has 4"),  # this one has to be equal
        ({"h_rt": "3600"}, ""),
        ({"h_rt": "24:00:00"}, ""),
        ({"s_rt": "3600"}, ""),
        ({"s_rt": "3601"}, "a node has 01:00:00"),
        ({"arch": "lx-*"}, ""),
        ({"arch": "sol*|LX-AMD64"}, ""),
        ({"hostname": "n7"}, "a new node is another"),
        ({"hostname": "n*"}, ""),
    ],
)
def test_requests_are_compared_as_grid_engine_does(resources: dict[str, str], why: str) -> None:
    found = needs.lacking(Waiting(1, "qw", resources=resources), OFFER)
    assert found.endswith(why)
    assert bool(found) == bool(why)


@pytest.mark.parametrize(
    ("queues", "can"),
    [
        ((), True),
        (("all.q",), True),
        (("*",), True),
        (("other.q", "all.*"), True),
        (("all.q@@cod",), True),
        (("other.q",), False),
        (("all.q@n7",), False),
        (("all.q@@theirs",), False),
    ],
)
def test_a_job_of_another_queue_is_no_reason_to_grow(queues: tuple[str, ...], can: bool) -> None:
    assert bool(needs.lacking(Waiting(1, "qw", queues=queues), OFFER)) != can


def test_a_job_whose_time_has_not_come_is_no_reason_to_grow() -> None:
    assert needs.sorted_out([Waiting(1, "qw", considered=False)], OFFER) == ([], ())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5K", 1536),
        ("2k", 2000),
        ("1:30:00", 5400),
        ("::5", None),
        ("0:0:5", 5),
        ("INFINITY", float("inf")),
        ("lx", None),
    ],
)
def test_amounts(text: str, value: float | None) -> None:
    assert amount(text) == value


FULL = """<job_info><queue_info>
<Queue-List><name>all.q@head</name><state>du</state>
  <resource name="h_rt" type="qf">infinity</resource><resource name="arch" type="hl">nonsense</resource></Queue-List>
<Queue-List><name>all.q@n2.pool.cod.test</name><arch>lx-amd64</arch>
  <resource name="mem_free" type="hl">1.5G</resource><resource name="arch" type="hl">lx-amd64</resource></Queue-List>
<Queue-List><name>all.q@n3</name><arch>lx-amd64</arch><resource name="mem_free" type="hl">3G</resource></Queue-List>
<Queue-List><name>all.q@byhand</name><arch>lx-amd64</arch><resource name="mem_free" type="hl">900G</resource>
</Queue-List>
<Queue-List><name>other.q@n2</name><arch>x</arch><resource name="mem_free" type="hl">99G</resource></Queue-List>
</queue_info><job_info/></job_info>"""


def test_what_our_own_hosts_offer_is_the_most_of_any() -> None:
    assert offered(FULL.encode(), "all.q", ["n2", "n3"]) == {
        "h_rt": "infinity",
        "mem_free": "3G",
        "arch": "lx-amd64",
    }
    with pytest.raises(NotUnderstood):
        offered(FULL[:200].encode(), "all.q", [])


def test_of_pending_jobs_queues_and_priorities_are_read() -> None:
    job = (
        "<job_list"
        " state='pending'><JB_job_number>{}</JB_job_number><JAT_prio>{}</JAT_prio><state>qw</state>"
        "<slots>1</slots>{}</job_list>"
    )
    document = (
        "<job_info><queue_info/><job_info>"
        + job.format(1, "0.00000", "")
        + job.format(2, "0.55500", "<hard_req_queue>other.q</hard_req_queue>")
        + "</job_info></job_info>"
    )
    first, second = read(document.encode(), "all.q").waiting
    assert (first.ready, second.ready, second.queues) == (False, True, ("other.q",))


# ---------------------------------------------------------------- commands that say no with status
# 0, and yes with 1


Said = tuple[int, str]


class Commands(GridEngine):
    """Answers as Grid Engine's commands were seen to: by their first words; the rest is silence
    with status 0."""

    answers: dict[str, Said]
    ran: list[str]

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        words = " ".join(command)
        self.ran.append(words)
        status, said = next(
            (said for start, said in self.answers.items() if words.startswith(start)), (0, "")
        )
        return subprocess.CompletedProcess(list(command), status, said.encode(), b"")


def cell(**answers: Said) -> Commands:
    made = Commands("all.q", "@cod")
    object.__setattr__(
        made,
        "answers",
        {key.replace("_", " ").replace(" minus ", " -"): said for key, said in answers.items()},
    )
    object.__setattr__(made, "ran", [])
    return made


def test_status_is_no_verdict() -> None:
    fine = cell(
        qmod_minus_e=(0, 'Queue instance "all.q@n2" is already in the specified state: enabled'),
        qmod_minus_f=(0, "Forced rescheduling of job 8 on host n1"),
        qconf_minus_ah=(1, 'administrative host "n2" already exists'),
    )
    fine.enable("n2")
    fine.reschedule(8, 0)
    fine.admit("n2")
    denied = cell(
        qmod_minus_d=(0, 'denied: "bob" is not operator'),
        qmod_minus_f=(0, "The job 8 is not restartable"),
    )
    with pytest.raises(CommandFailed, match="denied"):
        denied.disable("n2")
    with pytest.raises(CommandFailed, match="not restartable"):
        denied.reschedule(8, 3)
    assert denied.ran[-1] == "qmod -f -rj 8.3"


def test_a_host_is_removed_everywhere_in_the_order_that_grid_engine_wants() -> None:
    there = cell(
        qconf_minus_shgrp=(0, "n2.pool.cod.test byhand"),
        qconf_minus_sel=(0, "n2.pool.cod.test\n"),
        qconf_minus_sh=(0, "n2\n"),
        qconf_minus_sconfl=(0, "n2\n"),
        qconf_minus_dattr=(0, 'root modified "@cod" in host group list'),
        qconf_minus_purge=(0, 'root modified "all.q" in cluster queue list'),
        qconf_minus_de=(0, 'removed "n2" from execution host list'),
        qconf_minus_dh=(0, 'removed "n2" from administrative host list'),
        qconf_minus_dconf=(0, 'removed "n2" from configuration list'),
    )
    there.expel("n2")
    changes = [words.split()[1] for words in there.ran if not words.startswith("qconf -s")]
    assert changes == ["-dattr", "-purge", "-de", "-dh", "-dconf"]


def test_a_host_that_still_has_a_job_is_not_gone() -> None:
    busy = cell(
        qconf_minus_shgrp=(0, "byhand"),
        qconf_minus_sel=(0, "n2\n"),
        qconf_minus_purge=(0, "modified"),
        qconf_minus_de=(1, 'Host object "n2" is still referenced in cluster queue "all.q".'),
    )
    with pytest.raises(CommandFailed, match="still referenced"):
        busy.expel("n2")


def test_a_master_that_does_not_answer_is_no_empty_pool() -> None:
    away = cell(qstat=(1, "error: commlib error: got select error (Connection refused)"))
    with pytest.raises(CommandFailed, match="Connection refused"):
        away.view()
    rubbish = cell(qstat=(0, "<?xml version='1.0'?><job_info><queue_info>"))
    with pytest.raises(NotUnderstood):
        rubbish.view()


EMPTY = "<job_info><queue_info>{}</queue_info><job_info/></job_info>"
INSTANCE = (
    "<Queue-List><name>all.q@{}</name><slots_used>0</slots_used><slots_total>1</slots_total>"
    "<state>{}</state>{}</Queue-List>"
)


def test_the_placeholder_is_queued_disabled_and_a_working_host_is_left_alone() -> None:
    done = {
        "qconf_minus_shgrpl": (0, "@cod\n"),
        "qconf_minus_aattr": (0, "root modified it"),
        "qmod_minus_d": (0, "changed state of it (disabled)"),
    }
    fresh = cell(qstat=(0, EMPTY.format("")), **done)
    fresh.prepare("head")
    assert fresh.ran == [
        "qconf -shgrpl",
        "qconf -aattr queue hostlist @cod all.q",
        "qstat -f -r -u * -xml",
        "qconf -aattr hostgroup hostlist head @cod",
        "qmod -d all.q@head",
    ]
    half = cell(qstat=(0, EMPTY.format(INSTANCE.format("head", "u", ""))), **done)
    half.prepare("head")
    assert half.ran[3:] == ["qmod -d all.q@head"]
    working = cell(
        qstat=(0, EMPTY.format(INSTANCE.format("head", "", "<arch>lx-amd64</arch>"))), **done
    )
    working.prepare("head")
    assert working.ran[3:] == []


@pytest.mark.parametrize("name", [b"\xff\xc3(", b"\x01\x1b", b"\xef\xbf\xbf"])
def test_a_job_s_name_may_be_any_bytes(name: bytes) -> None:
    """Else any user could blind the VCM."""
    job = (
        "<job_list"
        " state='pending'><JB_job_number>7</JB_job_number><JB_name>NAME</JB_name><state>qw</state>"
        "<slots>1</slots></job_list>"
    )
    document = f"<job_info><queue_info/><job_info>{job}</job_info></job_info>".encode().replace(
        b"NAME", name
    )
    assert [one.job for one in read(document, "all.q").waiting] == [7]


def test_rules_of_environments_and_relations_are_read() -> None:
    told = cell(
        qconf_minus_spl=(0, "smp\nmpi\n"),
        qconf_minus_sc=(
            0,
            (
                "#name shortcut type relop requestable\n#---\narch a STRING == YES\nmem_free mf"
                " MEMORY <= YES\n"
            ),
        ),
    )
    told.answers.update(
        {
            "qconf -sp smp": (0, "pe_name smp\nallocation_rule    $pe_slots\n"),
            "qconf -sp mpi": (0, "pe_name mpi\nallocation_rule    $round_robin\n"),
        }
    )
    told.answers["qconf -spl"] = told.answers.pop("qconf -spl")
    assert told.whole_environments() == {"smp"}
    assert told.relops() == {"arch": "==", "mem_free": "<="}
