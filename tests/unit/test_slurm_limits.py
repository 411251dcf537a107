"""Jobs that a limit of accounting keeps, on a stand-in for Slurm: without a node the reason is
Resources, with one it is the limit, as measured with 22.05.8."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from cod.vcm.slurm.limits import FIRST_PAUSE, LONGEST_PAUSE, SETTLED
from cod.vcm.slurm.needs import FIRST_NODES
from cod.vcm.slurm.settings import SlurmTable
from cod.vcm.slurm.system import SlurmSystem
from cod.vcm.slurm.view import JobSize
from tests.unit.test_slurm_pool import Books

INTERVAL, IDLE = 15.0, 60.0  # seconds between looks, and after which an idle node leaves


@dataclass
class Site:
    """A pool of one node at most, whose node comes at the next look and leaves when it is idle for
    long. `limited`: by job, the reason that Slurm gives once a node is there; `maximum`: the
    pool's, where the size of its requests is looked at."""

    books: Books = field(default_factory=Books)
    limited: dict[str, str] = field(default_factory=dict)
    now: float = 0.0
    installs: list[float] = field(default_factory=list)
    maximum: int = 1

    def __post_init__(self) -> None:
        self.system = SlurmSystem(
            SlurmTable.model_validate({"maximum": self.maximum}), self.books, clock=lambda: self.now
        )
        self._idle_since = 0.0

    def waits(
        self, number: int, user: str = "ann", account: str = "physics", why: str = ""
    ) -> None:
        self.books.submitted(number)
        name = str(number)
        self.books.jobs[name] = replace(self.books.jobs[name], user=user, account=account)
        if why:
            self.limited[name] = why

    def runs_for(self, seconds: float) -> None:
        """Let looks go on for so long."""
        end = self.now + seconds
        while self.now < end:
            self._look()
            self.now += INTERVAL

    def _look(self) -> None:
        there = bool(self.books.nodes)
        for name, job in self.books.jobs.items():
            if job.waits:
                reason = self.limited.get(name, "Resources") if there else "Resources"
                self.books.jobs[name] = replace(job, reason=reason)
        ours = ["n2"] if there else []
        wants = self.system.look(ours, Counter())[1]
        if wants.nodes and not there:
            self.installs.append(self.now)
            self.books.registers(2, flags=frozenset())
            self._idle_since = self.now
        elif there and self.now >= self._idle_since + IDLE and not wants.kept:
            self.books.nodes.clear()


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.slow
def test_a_job_under_a_limit_makes_no_endless_loop(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.waits(7, why="AssocGrpCpuLimit")
    site.waits(8, user="bob", why="AssocGrpCpuLimit")
    site.runs_for(1800.0)
    assert 2 <= len(site.installs) <= 3
    assert caplog.messages[0] == (
        "job 7 waits for a limit (AssocGrpCpuLimit), not for nodes: without a node in the partition"
        " none is asked for account physics for 10 min"
    )
    site.runs_for(48 * 3600.0)
    gaps = [later - first for first, later in zip(site.installs, site.installs[1:], strict=False)]
    assert gaps[0] >= FIRST_PAUSE
    assert all(gap >= LONGEST_PAUSE for gap in gaps[6:])
    assert len(gaps) > 8  # it is tried for ever
    for number in range(9, 20):  # a new job is no news
        site.waits(number, why="AssocGrpCpuLimit")
    before = len(site.installs)
    site.runs_for(1800.0)
    assert len(site.installs) <= before + 1


def test_others_have_nodes_meanwhile(site: Site) -> None:
    site.waits(7, why="AssocMaxJobsLimit")
    site.runs_for(300.0)
    assert len(site.installs) == 1
    site.waits(8, user="bob")
    site.runs_for(INTERVAL)
    assert len(site.installs) == 2


def test_where_nodes_are_slurm_is_believed(site: Site) -> None:
    """A user at a limit, one of whose jobs ends, has the next job start."""
    site.waits(7, why="AssocGrpCpuLimit")
    site.runs_for(300.0)
    site.books.registers(3, flags=frozenset(), cpus_used=2)
    for reason, nodes in (("AssocGrpCpuLimit", 0), ("Resources", 1)):
        site.books.jobs["7"] = replace(site.books.jobs["7"], reason=reason)
        for _ in range(2):
            wants = site.system.look([], Counter())[1]
            site.now += SETTLED
        assert sum(wants.nodes.values()) == nodes


def test_a_job_that_starts_ends_the_pause(site: Site) -> None:
    site.waits(7, why="QOSMaxCpuPerUserLimit")
    site.waits(8, why="QOSMaxCpuPerUserLimit")
    site.runs_for(300.0)
    site.books.submitted(3, nodes=("x1",))  # those of another partition use the limit up
    job = site.books.jobs.pop("3")
    elsewhere = {"state": "RUNNING", "partitions": frozenset({"other"}), "user": "ann"}
    site.books.jobs["3"] = replace(job, account="physics", **elsewhere)
    site.runs_for(300.0)
    assert len(site.installs) == 1
    site.books.jobs["8"] = replace(site.books.jobs["8"], state="RUNNING", nodes=("n2",))
    site.runs_for(INTERVAL)
    del site.books.jobs["8"]
    site.waits(9)
    site.runs_for(INTERVAL)
    assert len(site.installs) == 2


def test_a_job_that_has_gone_is_forgotten_and_its_account_is_not(site: Site) -> None:
    site.waits(7, why="AssocGrpCpuLimit")
    site.runs_for(300.0)
    del site.books.jobs["7"]
    site.runs_for(INTERVAL)
    assert list(site.system._limits._pauses) == [("account", "physics")]


# ---------------------------------------------------------------- an association's first nodes


@pytest.fixture
def large() -> Site:
    """Return a pool whose site enforces limits, with five jobs of one association."""
    site = Site(maximum=20)
    site.books.limits = True
    for number in range(1, 6):
        site.waits(number)
        site.books.jobs[str(number)] = replace(
            site.books.jobs[str(number)], size=JobSize(whole=True)
        )
    return site


def wanted(site: Site, *ours: str, coming: int = 0) -> int:
    """Return how many nodes beside those that are there the pool wants now."""
    site.now += INTERVAL
    return sum(site.system.look(ours, Counter({"": coming}))[1].nodes.values())


def test_an_association_that_ran_nothing_yet_gets_few_nodes_at_first(large: Site) -> None:
    assert wanted(large) == FIRST_NODES
    assert wanted(large, coming=2) == FIRST_NODES
    large.waits(6, user="bob")  # the account's limit may be the same
    assert wanted(large) == FIRST_NODES


def test_another_account_has_its_own_first_nodes(large: Site) -> None:
    large.waits(7, user="cy", account="maths")
    large.books.jobs["7"] = replace(large.books.jobs["7"], size=JobSize(whole=True))
    assert wanted(large) == FIRST_NODES + 1


def test_nodes_that_are_there_are_among_the_first(large: Site) -> None:
    for number in (2, 3, 4):
        large.books.registers(number, flags=frozenset())
    assert wanted(large, "n2", "n3", "n4") == 0


@pytest.mark.parametrize("over", [False, True])
def test_a_job_that_runs_gives_its_association_all_it_wants(large: Site, over: bool) -> None:
    """Also one so short that no look saw it run."""
    large.books.registers(2, flags=frozenset(), cpus_used=2)
    ran = replace(large.books.jobs.pop("1"), state="COMPLETED" if over else "RUNNING")
    ran = replace(ran, nodes=("n2",))
    assert wanted(large, "n2") == FIRST_NODES
    if over:
        large.books.over.append(ran)
    else:
        large.books.jobs["1"] = ran
    assert wanted(large, "n2") == 4


def test_what_slurm_says_once_a_node_was_there_for_long_is_believed(large: Site) -> None:
    large.books.registers(2, flags=frozenset(), cpus_used=2)
    assert wanted(large, "n2") == FIRST_NODES
    large.now += SETTLED
    assert wanted(large, "n2") == 5


def test_an_association_that_has_come_to_its_limit_begins_anew(large: Site) -> None:
    large.books.registers(2, flags=frozenset(), cpus_used=2)
    ran = replace(large.books.jobs["1"], state="RUNNING", nodes=("n2",))
    large.books.jobs["1"] = ran
    assert wanted(large, "n2") == 4
    del large.books.jobs["1"]
    large.books.jobs["2"] = replace(large.books.jobs["2"], reason="AssocGrpCPUMinutesLimit")
    wanted(large, "n2")
    large.books.nodes.clear()
    assert wanted(large) == 0
    large.now += FIRST_PAUSE
    large.books.jobs = {"9": replace(ran, name="9", id=9, state="PENDING", nodes=())}
    for number in range(10, 15):
        large.books.jobs[str(number)] = replace(large.books.jobs["9"], name=str(number), id=number)
    assert wanted(large) == 1


def test_a_job_of_many_nodes_has_them(large: Site) -> None:
    large.books.jobs["9"] = replace(
        large.books.jobs["1"], id=9, name="9", priority=9, size=JobSize(5, 5, tasks=5, cpus=5)
    )
    assert wanted(large) == 5


def test_a_site_without_enforced_limits_sees_no_change(large: Site) -> None:
    large.books.limits = False
    assert wanted(large) == 5
