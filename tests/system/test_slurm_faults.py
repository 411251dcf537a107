"""What may happen to a Slurm pool: nodes are reclaimed or lose power under jobs, slurmctld, VCM or
COD dies at a bad moment, nodes grow too old. Every job is run to its end once, and the pool comes
to rest again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from tests.system.poollab import asked, leaving, some_node
from tests.system.slurmlab import SlurmLab, slurmlab
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_turn(3, first=1, together=True),
    pytest.mark.xdist_group("slurm-faults"),
]
JOBS = 200
LIFETIME, LONGEST = 6.0, 1.0  # seconds: of a node, and of a job


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    with slurmlab(tmp_path_factory.mktemp("faults"), machines=6) as lab:
        yield lab


@pytest.fixture
def lab(shared: SlurmLab) -> Iterator[SlurmLab]:
    """The pool, which each story begins with `fresh`; what the VCM said is shown where it fails."""
    yield shared
    print(shared.said()[-6000:])


def test_a_reclaim_takes_idle_nodes_then_those_whose_jobs_started_last(lab: SlurmLab) -> None:
    """Two nodes of five go; the job that started last may not run again by its owner's wish, and
    does all the same."""
    lab.fresh(maximum=5, idle_limit=600.0)
    gate = lab.gate()
    jobs: list[int] = []
    for options in ([], ["--no-requeue"], [], ["--no-requeue"]):
        jobs += lab.submit(1, gate, *options)
        lab.started(jobs[-1:])
        time.sleep(1.0 - time.time() % 1)  # Slurm knows when a job started to the second
    (brief,) = lab.submit(1, 0.1)
    lab.ended([brief])
    before = {job: lab.placed(job) for job in [*jobs, brief]}
    assert len(set(before.values())) == 5
    lab.stand.cod(
        "vcluster", "create", "web", "--size", "2", "--template", "exec", "--group", "top"
    )
    lab.remembers(
        lambda memory: memory["reclaims"] or leaving(memory, 6), "it has heard of the reclaim"
    )
    heard = time.monotonic()
    lab.says("reclaim 1 is answered", 60)
    # 2 s are asked for, on a host of its own
    print(f"answered after {time.monotonic() - heard:.1f} s")
    until(
        lambda: lab.hosts() == {before[job] for job in jobs[:3]},
        lambda: f"two have left: {lab.hosts()}",
        60,
    )
    until(lambda: lab.active("web") == 2, "the other is there", 180, 0.1)
    (reclaim,) = lab.stand.cod("reclaim", "list")
    assert (reclaim["given"], reclaim["state"]) == (2, "done")
    _nothing_was_seized(lab)
    lab.stand.cod("vcluster", "delete", "web")
    gate.touch()
    lab.ended(jobs)
    lab.once([*jobs, brief], {jobs[3]: 1})


def _nothing_was_seized(lab: SlurmLab) -> None:
    causes = [move["cause"] for name in lab.stand.hosts for move in lab.stand.history(name)]
    assert not [cause for cause in causes if cause.startswith("taken for")]


@pytest.mark.parametrize("vcm", ["lives", "is dead meanwhile", "is dead and forgets everything"])
def test_a_node_loses_power_under_a_job_and_another_gets_its_name(lab: SlurmLab, vcm: str) -> None:
    """Nobody can switch the dead one, so its address is held back: the other has the name with
    another address."""
    lab.fresh(maximum=1)
    gate = lab.gate()
    (job,) = lab.submit(1, gate, "--no-requeue")
    lab.started([job])
    name, address = lab.placed(job), lab.cell.nodes()[lab.placed(job)]["address"]
    machine = next(one for one in lab.stand.hosts if lab.stand.node(one).hostname == name)
    if vcm != "lives":
        lab.cell.kill_vcm()
    with _dead(lab, machine):
        until(lambda: lab.active("pool") == 2, "another is there", 180)
        if vcm == "is dead and forgets everything":
            (lab.cell.folder / "vcm/state.json").unlink()
        if vcm != "lives":
            lab.start_vcm(maximum=1)
        until(
            lambda: len(lab.cell.ran(job)) == 2, lambda: f"it runs again: {lab.cell.queue()}", 180
        )
    node = lab.cell.nodes()[name]
    assert lab.placed(job) == name
    assert node["address"] != address
    assert [one["nodes"] for one in lab.cell.queue().values()] == [name]
    gate.touch()
    lab.ended([job])
    lab.once([job], {job: 1})
    until(lambda: not lab.waits(), lambda: f"no ghost is left: {lab.cell.queue()}", 60)


@contextmanager
def _dead(lab: SlurmLab, machine: str) -> Iterator[None]:
    """Cut a machine's power; nobody can switch it, and it is taken out of service. In the end it is
    mended."""
    lab.stand.cod("node", "set", machine, "--power-driver", "none")
    lab.stand[machine].off()
    lab.stand.cod("node", "quarantine", machine, "--reason", "its power supply burnt out")
    try:
        yield
    finally:
        lab.stand.cod("node", "set", machine, "--power-driver", "lab")
        lab.stand.cod("node", "restore", machine)
        lab.stand[machine].on()


STEPS: dict[str, Callable[[Any], Any]] = {
    "asked": asked,
    "granted": some_node(lambda node: True),
    "active": some_node(lambda node: node["member"]["state"] == "active"),
    "added": some_node(lambda node: node["added"]),
}


@pytest.mark.nightly
def test_everybody_dies_at_every_step_and_no_job_is_lost(lab: SlurmLab) -> None:
    """A third of the jobs for each of the three: VCM, slurmctld, COD. No job ends while slurmctld
    is killed: it writes down what it does within five seconds, and would run again what has ended
    since."""
    lab.fresh(maximum=5, unheard_limit=5.0)
    lab.cell.nodes_are(4)
    jobs: list[int] = []
    with _no_name_twice(lab):
        for number, kill in enumerate((lab.die_vcm, lab.die_master, lab.die_cod)):
            before, gate = lab.memory()["keys"], lab.gate()
            share = lab.submit_many(JOBS * (number + 1) // 3 - len(jobs), gate)
            jobs += share
            for what, truth in STEPS.items():
                lab.remembers(truth, f"{what}, before {kill.__name__}")
                kill()
            lab.started(share, 1)
            kill()
            gate.touch()
            lab.ended(share)
            lab.remembers(lambda memory: leaving(memory, 6), "nodes are leaving")
            kill()
            # nothing was asked for twice
            assert lab.memory()["keys"] - before <= 5 or kill == lab.die_master
            lab.shrunk()
    ends = {job: sum(line.startswith("end") for line in lab.cell.ran(job)) for job in jobs}
    assert len(ends) == JOBS
    assert [job for job, count in ends.items() if count != 1] == []


@contextmanager
def _no_name_twice(lab: SlurmLab) -> Iterator[None]:
    """Look again and again whether a host of the pool is two machines."""
    ending, twice = threading.Event(), list[str]()

    def watch() -> None:
        while not ending.wait(0.2):
            names = [
                node.hostname for node in map(lab.stand.node, lab.stand.hosts) if node.hostname
            ]
            twice.extend(name for name in set(names) if names.count(name) > 1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
    assert not twice


def test_nodes_go_back_when_they_are_too_old_though_jobs_always_wait(lab: SlurmLab) -> None:
    lab.fresh(maximum=2, lifetime=LIFETIME, idle_limit=600.0)
    since = time.time()
    jobs = lab.submit_many(60, LONGEST)
    until(
        lambda: len(_stays(lab, since)) >= 4,
        lambda: f"four went back: {_stays(lab, since)}",
        180,
        0.1,
    )
    assert lab.cell.queue(), "jobs still wait"

    def said() -> list[str]:
        return [line for line in lab.said().splitlines() if "was given back" in line]

    given_back = until(lambda: said() if len(said()) >= 4 else None, said)
    assert all(f"it has been here for {LIFETIME:.0f} s" in line for line in given_back)
    # scancel reads which jobs wait, then ends them one by one: none may begin meanwhile
    lab.cell.run("scontrol", "update", "PartitionName=vc", "State=DOWN")
    lab.cell.run("scancel", "--user=alice", "--state=PENDING")
    lab.cell.run("scontrol", "update", "PartitionName=vc", "State=UP")
    began = [job for job in jobs if lab.cell.ran(job)]
    lab.ended(began)
    lab.once(began)
    stays = _stays(lab, since)
    print(f"stays of {stays} s")
    assert min(stays) >= LIFETIME


def _stays(lab: SlurmLab, since: float) -> list[float]:
    """Return for how long each node was active that came after `since` and has gone."""
    stays = []
    for name in lab.stand.hosts:
        moves = lab.stand.history(name)
        stays += [
            after["at"] - move["at"]
            for move, after in pairwise(moves)
            if move["to_state"] == "active" and move["at"] > since
        ]
    return stays
