"""A Slurm partition as a batch system, on a stand-in for Slurm's books; the real ones are in
tests/system."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from cod.vcm.batch.commands import CommandFailed
from cod.vcm.batch.pool import BatchPool
from cod.vcm.batch.resize import victims
from cod.vcm.batch.system import Downtime, Job
from cod.vcm.pool import ANY, Demand, GivenUp, Member, Nodeset, NotYet
from cod.vcm.settings import BadSettings, load
from cod.vcm.slurm.commands import PLANNED, Reservation, Slurm, StillPlanned, View
from cod.vcm.slurm.needs import Rules
from cod.vcm.slurm.settings import SlurmSettings, SlurmTable
from cod.vcm.slurm.system import LEAVES, READY, RULES_LAST, SlurmSystem
from cod.vcm.slurm.view import JobSize, SlurmJob, SlurmNode, task_ids

VC = frozenset({"vc"})
COD = frozenset({"cod"})


class Killed(BaseException):
    """The VCM is killed before its next command."""


class Books(Slurm):
    """What Slurm remembers: each command changes it at once. `kill_at`: the command at which the
    VCM dies."""

    def __init__(self) -> None:
        super().__init__("vc", {})
        self.nodes: dict[str, SlurmNode] = {}
        self.jobs: dict[str, SlurmJob] = {}
        self.bookings: dict[str, Reservation] = {}
        self.windows: set[str] = set()  # reservations for maintenance windows, by name
        self.said: list[tuple[Any, ...]] = []
        self.busy: set[str] = set()
        self.kill_at = 0
        self.over: list[SlurmJob] = []
        self.limits = False  # does accounting enforce limits?

    def _change(self, *words: Any) -> None:
        self.said.append(words)
        if len(self.said) == self.kill_at:
            raise Killed

    def view(self) -> View:
        kept = {name for one in self.bookings.values() for name in one.nodes}
        shown = {
            name: replace(node, flags=node.flags | {"RESERVED"}) if name in kept else node
            for name, node in self.nodes.items()
        }
        return View(shown, list(self.jobs.values()), dict(self.bookings), list(self.over))

    def node(self, name: str) -> SlurmNode | None:
        return self.view().nodes.get(name)

    def reservations(self) -> dict[str, Reservation]:
        return dict(self.bookings)

    def rules(self, limit: int) -> Rules:
        return Rules("vc", limit=limit, limits=self.limits)

    def resume(self, name: str) -> None:
        self._change("resume", name)
        self.nodes[name] = replace(
            self.nodes[name], flags=self.nodes[name].flags - {"DRAIN"}, reason=""
        )

    def drain(self, name: str, reason: str) -> None:
        self._change("drain", name, reason)
        if name in self.nodes:
            self.nodes[name] = replace(
                self.nodes[name], flags=self.nodes[name].flags | {"DRAIN"}, reason=reason
            )

    def down(self, name: str, reason: str) -> None:
        self._change("down", name)
        self.busy.discard(name)

    def set_features(self, name: str, features: Collection[str]) -> None:
        self._change("features", name, ",".join(sorted(features)))
        self.nodes[name] = replace(self.nodes[name], features=frozenset(features))

    def delete(self, name: str) -> None:
        if name in self.nodes and PLANNED in self.nodes[name].flags:
            raise StillPlanned
        self._change("delete", name)
        kept = [one for one in self.windows if f"-{name}-" in one]
        if name in self.busy or kept or any(name in one.nodes for one in self.bookings.values()):
            raise NotYet
        self.nodes.pop(name, None)

    def requeue(self, job: str) -> bool:
        self._change("requeue", job)
        known = self.jobs[job]
        if known.batch:
            self.jobs[job] = replace(
                known, state="PENDING", reason="BeginTime", nodes=(), restarts=known.restarts + 1
            )
        return known.batch

    def cancel(self, job: str) -> None:
        self._change("cancel", job)
        self.jobs.pop(job)

    def reserve(self, reservation: Reservation, user: str) -> None:
        self._change("reserve", reservation.name, user)
        assert all(self.nodes[name].closed for name in reservation.nodes)
        self.bookings[reservation.name] = reservation

    def keep_free(self, reservation: Reservation, begins: float, ends: float) -> None:
        self._change("keep free", reservation.name, begins, ends)
        self.windows.add(reservation.name)

    def all_reservations(self) -> set[str]:
        return {*self.bookings, *self.windows}

    def bind(self, job: str, reservation: str) -> None:
        self._change("bind", job, reservation)
        array, _, task = job.partition("_")
        if task and job not in self.jobs:  # a task is split off when it is changed
            self.jobs[job] = replace(self.jobs[array], name=job, array_tasks="")
            rest = [
                str(each) for each in task_ids(self.jobs[array].array_tasks) if str(each) != task
            ]
            self.jobs[array] = replace(self.jobs[array], array_tasks=",".join(rest))
        self.jobs[job] = replace(self.jobs[job], reservation=reservation)

    def release(self, reservation: str) -> None:
        self._change("release", reservation)
        if reservation in self.windows:
            self.windows.remove(reservation)
            return
        assert all(
            self.nodes[name].closed
            for name in self.bookings[reservation].nodes
            if name in self.nodes
        )
        assert not [job for job in self.jobs.values() if job.reservation == reservation]
        self.bookings.pop(reservation, None)

    # ------------------------------------------------------------ what else happens

    def registers(self, number: int, **fields: Any) -> None:
        name = f"n{number}"
        self.nodes[name] = SlurmNode(
            **{
                "name": name,
                "address": f"10.0.0.{number}",
                "state": "idle",
                "partitions": VC,
                "features": COD,
                "cpus": 2,
                "flags": frozenset({"DRAIN", "DYNAMIC_NORM"}),
                "memory": 1000,
                **fields,
            }
        )

    def submitted(self, number: int, **fields: Any) -> None:
        name = str(number)
        self.jobs[name] = SlurmJob(
            number, "PENDING", "Resources", name, partitions=VC, user="ann", **fields
        )

    def schedule(self) -> None:
        """Start what can be started, as Slurm does: only in its reservation a job that asks for
        one."""
        for name, job in self.jobs.items():
            if job.state != "PENDING":
                continue
            kept = {each for one in self.bookings.values() for each in one.nodes}
            held = (
                self.bookings[job.reservation].nodes if job.reservation else set(self.nodes) - kept
            )
            free = [
                each
                for each in sorted(held)
                if not self.nodes[each].closed and self.nodes[each].cpus_used == 0
            ]
            if len(free) >= job.size.least:
                on = tuple(free[: job.size.least])
                self.jobs[name] = replace(
                    job, state="RUNNING", nodes=on, started=float(len(self.said))
                )
                self.nodes.update({each: replace(self.nodes[each], cpus_used=1) for each in on})


def member(number: int, **fields: Any) -> Member:
    return Member(f"m{number}", f"n{number}", f"10.0.0.{number}", "active", "exec", **fields)


def system(books: Books, **keys: Any) -> SlurmSystem:
    return SlurmSystem(SlurmTable.model_validate(keys), books)


@pytest.fixture
def books() -> Books:
    return Books()


# ---------------------------------------------------------------- joining


def test_a_record_with_another_address_is_struck_off_and_the_node_s_own_stays(books: Books) -> None:
    books.registers(2, address="10.0.0.9", flags=frozenset())
    books.submitted(7)
    books.schedule()
    system(books).begin(member(2))
    assert not books.nodes
    # one that should not run again, too
    assert books.said == [("requeue", "7"), ("down", "n2"), ("delete", "n2")]
    books.registers(2)
    books.said.clear()
    system(books).begin(member(2))
    system(books).begin(member(3))
    assert books.nodes
    assert not books.said


def test_a_node_that_has_left_is_struck_off_again_when_a_killed_controller_brings_it_back(
    books: Books,
) -> None:
    pool = system(books)
    books.registers(2, flags=frozenset())
    pool.expel("n2", lost=False)
    pool.look([], Counter())
    books.submitted(7)
    for coming, flags in (
        (Counter[str](), frozenset[str]()),
        (Counter({"": 1}), frozenset({"NOT_RESPONDING"})),
    ):
        books.registers(2, flags=flags)
        books.jobs["7"] = replace(books.jobs["7"], state="RUNNING", nodes=("n2",))
        pool.look([], coming)
        assert not books.nodes
        assert books.jobs["7"].state == "PENDING"
    books.registers(2, flags=frozenset())
    pool.look([], Counter({"": 1}))  # it may be the one that is coming
    pool.begin(member(2))
    pool.look(["n2"], Counter())
    pool.look([], Counter())
    assert books.nodes


def test_a_node_gets_the_features_of_its_nodeset_and_is_opened(books: Books) -> None:
    pool = system(books, nodesets=[{"name": "small"}, {"name": "gpu", "features": ["gpu", "a100"]}])
    books.registers(2)
    pool.open(member(2, nodeset="gpu"))
    assert books.said == [("features", "n2", "a100,cod,gpu"), ("resume", "n2")]
    pool.open(member(2, nodeset="gpu"))
    assert len(books.said) == 2


@pytest.mark.parametrize(
    ("has", "says"),
    [
        ({"cpus": 4}, "it has 4 CPUs, less than its nodeset large"),
        ({"memory": 500}, "it has 500 MiB, less"),
        ({"gres": {"gpu": 1}}, "it has gpu:1, less"),
    ],
)
def test_a_node_that_is_less_than_its_nodeset_is_given_up(
    books: Books, has: dict[str, Any], says: str
) -> None:
    """The job that it was asked for would wait on, and the pool would grow by one more at each
    look."""
    pool = system(books, nodesets=[{"name": "large", "cpus": 8, "memory": 1000, "gres": "gpu:2"}])
    books.registers(2, **{"cpus": 8, "gres": {"gpu": 2}, **has})
    with pytest.raises(GivenUp, match=says):
        pool.open(member(2, nodeset="large"))
    pool.open(member(2))  # one that was not asked for by the VCM is what it is
    books.registers(3, cpus=8, gres={"gpu": 2})
    pool.open(member(3, nodeset="large"))


def test_a_node_outside_the_partition_is_given_up_with_what_to_do(books: Books) -> None:
    books.registers(2, partitions=frozenset())
    with pytest.raises(GivenUp, match=r"not in the partition vc.*slurmd -Z --conf 'Feature=cod'"):
        system(books).open(member(2))
    with pytest.raises(NotYet):
        system(books).open(member(3))


def test_a_controller_that_forgot_to_open_a_node_is_told_again(books: Books) -> None:
    books.registers(2)
    books.registers(3, reason="bad disk")  # an administrator's
    books.registers(4)  # not yet joined
    SlurmSystem(SlurmTable.model_validate({}), books, dry_run=True).look(["n2", "n3"], Counter())
    assert not books.said
    system(books).look(["n2", "n3"], Counter())
    assert books.said == [("resume", "n2")]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_join_does_not_ask_for_the_queue(
    books: Books, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    """With 10,200 waiting jobs squeue takes seconds, and much memory."""
    monkeypatch.setattr(books, "view", lambda: pytest.fail("the queue is asked for"))
    known = {}
    monkeypatch.setattr(books, "node", lambda name: known.get(name))
    pool = BatchPool(SlurmTable.model_validate({"fresh": fresh}), system(books, fresh=fresh))
    with pytest.raises(NotYet):
        pool.add(member(2))
    books.registers(2)
    known.update(books.nodes)
    pool.add(member(2))
    assert [words[0] for words in books.said] == ["drain" if fresh else "resume"]


# ---------------------------------------------------------------- looking


def test_the_configuration_is_read_again(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator changes it, and says `scontrol reconfigure`."""
    now = 0.0
    table = SlurmTable.model_validate({})
    pool = SlurmSystem(table, books, clock=lambda: now)
    for number in (7, 8):
        books.submitted(number)
    books.registers(2, flags=frozenset())
    assert pool.look(["n2"], Counter())[1].nodes == {}  # both fit on its two CPUs
    monkeypatch.setattr(books, "rules", lambda limit: Rules("vc", alone=True, limit=limit))
    now += RULES_LAST
    assert pool.look(["n2"], Counter())[1].nodes == {ANY: 1}


def test_new_nodes_are_taken_to_be_like_those_that_have_joined(books: Books) -> None:
    pool = system(books)
    for number in range(4):
        books.submitted(number)
    assert pool.look([], Counter())[1].nodes == {ANY: 4}
    books.submitted(4, size=JobSize(1, 1, 1, 3, node_cpus=3))
    assert pool.look([], Counter())[1].never == ()
    books.registers(2, flags=frozenset())
    wants = pool.look(["n2"], Counter())[1]
    assert (wants.nodes, wants.never) == (
        {ANY: 1},
        ("job 4: wants 3 CPUs on a node, a node has 2",),
    )
    del books.nodes["n2"]
    assert pool.look([], Counter({"": 1}))[1].nodes == {ANY: 2}


def test_before_the_first_node_joins_one_is_asked_for_to_see_what_it_has(books: Books) -> None:
    """Else a job for two CPUs would wait until somebody submits one for one."""
    pool = system(books)
    books.submitted(4, size=JobSize(1, 1, 2, 2, node_cpus=2))
    assert pool.look([], Counter())[1].nodes == {ANY: 1}
    assert pool.look([], Counter({"": 1}))[1].nodes == {ANY: 1}
    books.registers(2, flags=frozenset(), cpus_used=1)
    assert pool.look(["n2"], Counter())[1].nodes == {ANY: 1}


def test_nodes_without_a_job_are_of_the_first_nodeset(books: Books) -> None:
    table = {"nodesets": [{"name": "small"}, {"name": "gpu"}], "reserve": 2}
    pool = BatchPool(SlurmTable.model_validate(table), system(books, **table))
    assert pool.look({}, Counter(), 0.0).grow == {Nodeset("small"): 2}
    assert pool.look({}, Counter({"small": 2}), 0.0) == Demand()


def test_a_node_that_registered_before_it_is_added_is_counted_once(books: Books) -> None:
    """Else requests for others would be withdrawn, and made again a moment later."""
    pool = system(books)
    for number in (7, 8):
        books.submitted(number, size=JobSize(whole=True))
    pool.begin(member(2))
    books.registers(2, flags=frozenset())
    assert pool.look([], Counter({"": 2}))[1].nodes == {ANY: 2}
    pool.open(member(2))
    assert pool.look(["n2"], Counter({"": 1}))[1].nodes == {ANY: 1}
    pool.expel("n2", lost=False)
    books.registers(2, flags=frozenset(), address="10.0.0.77")  # somebody else's
    assert pool.look([], Counter({"": 1}))[1].nodes == {ANY: 1}


def test_hosts_and_what_runs_there(books: Books) -> None:
    books.registers(2, flags=frozenset(), cpus_used=2)
    books.registers(3, reason=LEAVES)
    books.jobs = {}
    books.submitted(7, nodes=("n2", "n3"), started=5.0)
    books.jobs["7"] = replace(books.jobs["7"], state="RUNNING", name="7_4")
    hosts = system(books).hosts()
    assert hosts["n2"].jobs == hosts["n3"].jobs == (Job("7_4", 5.0, "RUNNING"),)
    assert (hosts["n2"].usable, hosts["n3"].usable, hosts["n3"].closed) == (True, False, True)
    assert hosts["n2"].address == "10.0.0.2"


def test_a_job_that_waits_keeps_the_hosts_where_it_could_run(books: Books) -> None:
    books.registers(2, flags=frozenset(), cpus_used=2)
    books.registers(3, flags=frozenset(), cpus=1)
    books.submitted(7, size=JobSize(1, 1, 1, 2, node_cpus=2))
    wants = system(books).look(["n2", "n3"], Counter())[1]
    assert (wants.kept, wants.nodes, wants.jobs) == (frozenset({"n2"}), {ANY: 1}, 1)


# ---------------------------------------------------------------- leaving


def test_an_interactive_job_ends_with_its_node(books: Books) -> None:
    books.submitted(7, batch=False)
    system(books).requeue(Job("7", 1.0, "RUNNING"))
    assert books.said == [("requeue", "7"), ("cancel", "7")]
    system(books).requeue(Job("8", 1.0, "COMPLETING"))
    assert len(books.said) == 2


def test_jobs_of_a_lost_node_are_put_back_before_it_is_down(books: Books) -> None:
    """Slurm would let a job end that was submitted with --no-requeue."""
    books.registers(2, flags=frozenset())
    books.submitted(7, nodes=("n2",))
    books.jobs["7"] = replace(books.jobs["7"], state="RUNNING")
    pool = system(books)
    pool.close(pool.hosts()["n2"], lost=True)
    pool.expel("n2", lost=True)
    assert [words[0] for words in books.said] == ["requeue", "down", "down", "delete"]
    pool.expel("n2", lost=True)


def test_a_node_whose_jobs_do_not_end_is_down_at_the_second_attempt(books: Books) -> None:
    books.registers(2, reason=LEAVES)
    books.busy.add("n2")
    pool = system(books)
    with pytest.raises(NotYet):
        pool.expel("n2", lost=False)
    pool.expel("n2", lost=False)
    assert not books.nodes


def test_a_planned_node_is_waited_for_and_never_taken_for_lost(books: Books) -> None:
    pool = system(books)
    books.registers(2, reason=LEAVES, flags=frozenset({"DRAIN", PLANNED}))
    for _ in range(3):
        with pytest.raises(NotYet):
            pool.expel("n2", lost=False)
    assert books.said == []
    books.registers(2, reason=LEAVES)
    pool.expel("n2", lost=False)
    assert books.said == [("delete", "n2")]


def test_a_reclaim_takes_nodes_that_are_not_planned_first(books: Books) -> None:
    books.registers(2, flags=frozenset({PLANNED}))
    books.registers(3, flags=frozenset())
    hosts = system(books).hosts()
    assert victims(hosts, hosts, {"n2": 5.0, "n3": 9.0}, 2) == ["n3", "n2"]


def test_a_node_that_left_and_joins_again_is_not_struck_off(books: Books) -> None:
    pool = system(books)
    books.registers(2, flags=frozenset())
    pool.expel("n2", lost=False)
    books.registers(2)
    pool.open(member(2))
    pool.look(["n2"], Counter())
    assert "n2" in books.nodes


# ---------------------------------------------------------------- a node for one job


def test_a_fresh_node_takes_its_job_and_no_other(books: Books) -> None:
    pool = system(books, fresh=True)
    books.submitted(7)
    books.submitted(8)
    assert pool.look([], Counter())[1].nodes == {ANY: 2}  # though both would fit on one
    books.registers(2)
    pool.open(member(2))
    assert books.nodes["n2"].reason == READY
    assert pool.hosts()["n2"].idle
    books.schedule()
    assert all(job.waits for job in books.jobs.values())
    pool.look(["n2"], Counter())
    books.schedule()
    assert (books.jobs["7"].nodes, books.jobs["8"].nodes) == (("n2",), ())
    assert not pool.hosts()["n2"].idle
    assert pool.look(["n2"], Counter())[1].spent == ()
    del books.jobs["7"]
    assert pool.look(["n2"], Counter())[1].spent == ("n2",)
    books.schedule()
    assert books.jobs["8"].waits
    pool.expel("n2", lost=False)
    assert not books.nodes


def test_a_fresh_node_that_registered_open_is_given_up(books: Books) -> None:
    books.registers(2, flags=frozenset())
    with pytest.raises(GivenUp, match="State=DRAIN"):
        system(books, fresh=True).open(member(2))


def test_a_reclaim_of_a_fresh_node_frees_its_job_for_another(books: Books) -> None:
    pool = system(books, fresh=True)
    books.submitted(7, size=JobSize(2, 2, 2, 2))
    for number in (2, 3):
        books.registers(number)
        pool.open(member(number))
    pool.look(["n2", "n3"], Counter())
    books.schedule()
    assert books.jobs["7"].nodes == ("n2", "n3")
    pool.close(pool.hosts()["n2"], lost=False)
    pool.requeue(pool.hosts()["n2"].jobs[0])
    pool.expel("n2", lost=False)
    wants = pool.look(["n3"], Counter())[1]
    # n3 has run it: it is not fresh any more
    assert (wants.nodes, wants.spent) == ({ANY: 2}, ("n3",))
    books.schedule()
    assert books.jobs["7"].waits


def test_a_fresh_node_whose_job_does_not_end_is_given_back(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm does not end a reservation in which a job runs."""
    pool = system(books, fresh=True)
    books.submitted(7)
    books.registers(2)
    pool.open(member(2))
    pool.look(["n2"], Counter())
    books.schedule()
    release = books.release

    def in_use(reservation: str) -> None:
        if "down" not in [words[0] for words in books.said]:
            raise NotYet
        books.jobs.clear()
        release(reservation)

    monkeypatch.setattr(books, "release", in_use)
    with pytest.raises(NotYet):
        pool.expel("n2", lost=False)
    pool.expel("n2", lost=False)
    assert not books.nodes


def test_the_tasks_of_an_array_have_nodes_each_for_itself(books: Books) -> None:
    pool = system(books, fresh=True)
    books.submitted(7, array=7, array_tasks="3-4")
    books.registers(2)
    pool.open(member(2))
    pool.look(["n2"], Counter())
    books.schedule()
    assert books.jobs["7_3"].nodes == ("n2",)
    assert pool.look(["n2"], Counter())[1].nodes == {ANY: 1}  # for the other one


def _story(books: Books, ours: list[str]) -> None:
    """Two nodes join, and two jobs get one each; what was done before is done again. `ours` is what
    the VCM remembers.
    """
    pool = system(books, fresh=True)
    for number in (2, 3):
        if f"n{number}" not in ours:
            pool.open(member(number))
            ours.append(f"n{number}")
    pool.look(ours, Counter())


@pytest.mark.parametrize("kill_at", range(1, 9))
def test_a_vcm_that_is_killed_at_any_step_goes_on_where_it_was(books: Books, kill_at: int) -> None:
    books.registers(2)
    books.registers(3)
    books.submitted(7)
    books.submitted(8)
    books.kill_at = kill_at
    ours: list[str] = []
    with pytest.raises(Killed):
        _story(books, ours)
    books.kill_at = 0
    books.schedule()
    _story(books, ours)
    books.schedule()
    assert {books.jobs["7"].nodes, books.jobs["8"].nodes} == {("n2",), ("n3",)}
    assert {books.jobs[one].reservation for one in ("7", "8")} == {"cod-vc-7", "cod-vc-8"}
    assert system(books, fresh=True).look(ours, Counter())[1].spent == ()


def test_reservations_of_others_are_theirs(books: Books) -> None:
    """An administrator's may have nodes of the pool, and another pool's jobs wait, too."""
    books.submitted(51)
    books.registers(2, reason=READY)
    books.registers(3, flags=frozenset())
    books.bookings = {
        name: Reservation(name, ("n2", "n3")) for name in ("cod-upgrade", "cod-51", "cod-other-51")
    }
    wants = system(books, fresh=True).look(["n2"], Counter())[1]
    assert not books.said
    assert (wants.nodes, wants.spent) == ({ANY: 1}, ())


def test_a_job_that_is_held_gives_its_node_back(books: Books) -> None:
    pool = system(books, fresh=True)
    books.submitted(7)
    books.registers(2)
    pool.open(member(2))
    pool.look(["n2"], Counter())
    books.jobs["7"] = replace(books.jobs["7"], reason="JobHeldUser")
    assert pool.look(["n2"], Counter())[1].spent == ("n2",)
    assert (books.bookings, books.jobs["7"].reservation) == ({}, "")


def test_a_job_that_cannot_be_bound_stops_no_other(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = system(books, fresh=True)
    for number in (7, 8):
        books.submitted(number)
    books.jobs["7"] = replace(books.jobs["7"], user="")
    reserve = books.reserve

    def of_known_users(reservation: Reservation, user: str) -> None:
        if not user:
            raise CommandFailed("scontrol create reservation: Invalid user")
        reserve(reservation, user)

    monkeypatch.setattr(books, "reserve", of_known_users)
    for number in (2, 3):
        books.registers(number)
        pool.open(member(number))
    wants = pool.look(["n2", "n3"], Counter())[1]
    assert wants.never == ("job 7: scontrol create reservation: Invalid user",)
    books.schedule()
    assert books.jobs["8"].nodes == ("n3",)

    def away() -> View:
        raise CommandFailed("no answer")

    pool, view = system(books, fresh=True), books.view
    pool.look([], Counter())
    answers = iter([view, away])
    monkeypatch.setattr(books, "view", lambda: next(answers)())
    with pytest.raises(CommandFailed, match="no answer"):
        pool.look(["n2", "n3"], Counter())


# ---------------------------------------------------------------- settings


HEAD = 'vcluster = "batch"\nservers = ["10.77.0.1:8071"]\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[slurm]\npartitoin = 'x'", "slurm.partitoin: no such key; did you mean 'partition'?"),
        (
            "[[slurm.nodesets]]\nname = 'a'\ncpu = 2",
            "slurm.nodesets.0.cpu: no such key; did you mean 'cpus'?",
        ),
        (
            "[[slurm.nodesets]]\nname = 'a'\n[[slurm.nodesets]]\nname = 'a'",
            "two nodesets have the same name",
        ),
        (
            "[[slurm.nodesets]]\nname = 'a'\ngres = 'two gpus'",
            "'two gpus' is not of the form 'gpu:2'",
        ),
        ("[[slurm.nodesets]]\nname = 'a'\nrequires = '<requires>'", "requires: is not XML"),
        ("[[slurm.nodesets]]\ncpus = 2", "slurm.nodesets.0.name: is missing"),
        ("[slurm]\nfresh = 'maybe'", "slurm.fresh: "),
    ],
)
def test_settings_that_could_not_work_are_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "vcm.toml").write_text(HEAD + text + "\n")
    with pytest.raises(BadSettings) as refused:
        load(tmp_path / "vcm.toml", SlurmSettings)
    assert says in str(refused.value)


# ---------------------------------------------------------------- maintenance


def downtime(host: str, begins: float = 5000.0, window: int = 3) -> Downtime:
    return Downtime(window, host, begins, inf)


def test_nodes_are_reserved_for_their_windows_and_once(books: Books) -> None:
    """Also by a VCM that was started anew; a reservation of another pool's, or of an
    administrator's, is left alone."""
    books.windows = {"cod-window-3-n2-5000-inf.other", "weekend"}
    pool = system(books)
    for one in (pool, pool, system(books)):
        assert one.foresee([downtime("n2"), downtime("n3", window=4)], 1000.0) == 0.0
    assert books.said == [
        ("keep free", "cod-window-3-n2-5000-inf.vc", 5000.0, inf),
        ("keep free", "cod-window-4-n3-5000-inf.vc", 5000.0, inf),
    ]
    books.said.clear()
    pool.foresee([downtime("n2", begins=6000.0)], 1000.0)  # one was moved, the other withdrawn
    assert sorted(word[0] for word in books.said) == ["keep free", "release", "release"]
    pool.foresee([], 1000.0)
    assert books.windows == {"cod-window-3-n2-5000-inf.other", "weekend"}
    monitored = len(books.said)
    pool.foresee([], 1000.0)
    assert len(books.said) == monitored


def test_nodes_leave_in_time_though_slurm_refuses_a_reservation(
    books: Books, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keep_free = books.keep_free

    def refuses(reservation: Reservation, begins: float, ends: float) -> None:
        if reservation.nodes == ("n2",):
            raise CommandFailed("scontrol create reservation: no")
        keep_free(reservation, begins, ends)

    monkeypatch.setattr(books, "keep_free", refuses)
    assert system(books).foresee([downtime("n2"), downtime("n3")], 1000.0) == 0.0
    assert books.windows == {"cod-window-3-n3-5000-inf.vc"}
    assert "jobs on n2 may run into its maintenance" in caplog.text


def test_a_window_that_has_begun_is_not_reserved_and_its_reservation_stays(books: Books) -> None:
    pool = system(books)
    pool.foresee([downtime("n2")], 1000.0)
    pool.foresee([downtime("n2"), downtime("n3", begins=2000.0)], 5001.0)
    assert books.windows == {"cod-window-3-n2-5000-inf.vc"}


def test_a_node_leaves_although_it_is_reserved_for_a_window(books: Books) -> None:
    """Slurm deletes no node that a reservation has."""
    books.registers(2)
    books.registers(22)
    system(books).foresee([downtime("n2"), downtime("n22")], 1000.0)
    system(books).expel("n2", lost=False)  # one that was started anew knows of no window yet
    assert set(books.nodes) == {"n22"}
    assert books.windows == {"cod-window-3-n22-5000-inf.vc"}


def test_a_job_that_is_too_long_for_its_node_makes_the_pool_grow(books: Books) -> None:
    now = 0.0
    pool = SlurmSystem(SlurmTable.model_validate({}), books, clock=lambda: now)
    books.registers(2, flags=frozenset())
    books.submitted(7, lasts=3000.0)
    assert sum(pool.look(["n2"], Counter())[1].nodes.values()) == 0
    pool.foresee([downtime("n2")], 1000.0)
    assert sum(pool.look(["n2"], Counter())[1].nodes.values()) == 0
    now = 1001.0
    _, wants = pool.look(["n2"], Counter())
    assert sum(wants.nodes.values()) == 1
    assert not wants.kept, "it does not stay for that job"
