"""A Slurm pool that follows its queue: real slurmctld and slurmd, real COD server, real VCM over
TLS; the machines are hosts in namespaces (tests/system/slurmcell.py). The stories share one stand;
each begins with a pool at rest."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.system.slurmlab import SlurmLab, slurmlab
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_turn(3, first=2, together=True),
    pytest.mark.xdist_group("slurm"),
]
KNOBS = {"maximum": 5}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    with slurmlab(tmp_path_factory.mktemp("slurm"), machines=6) as lab:
        yield lab


@pytest.fixture
def lab(shared: SlurmLab) -> Iterator[SlurmLab]:
    """The pool, without nodes and jobs; what the VCM said is shown where a story fails."""
    shared.fresh(**KNOBS)
    yield shared
    print(shared.said()[-6000:])


def test_three_jobs_get_three_nodes_which_are_given_back(lab: SlurmLab) -> None:
    """The pool knows no node, and no size of one."""
    before, gate = lab.grants(), lab.gate()
    jobs = lab.submit(3, gate, "--hold")
    lab.release(jobs)
    until(lambda: lab.active("pool") == 4, "three nodes are active", 180, 0.1)
    began = time.monotonic()
    until(lambda: all(lab.placed(job) for job in jobs), "all run", 180, 0.1)
    # 10 s are asked for, on a host of its own
    print(f"all run after {time.monotonic() - began:.1f} s")
    assert len({lab.placed(job) for job in jobs}) == 3
    gate.touch()
    lab.ended(jobs)
    lab.once(jobs)
    lab.shrunk()
    assert not lab.cell.nodes()
    assert lab.free() == 5
    assert lab.grants() - before == 3


def test_a_job_on_four_nodes_gets_four(lab: SlurmLab) -> None:
    before = lab.grants()
    (job,) = lab.submit(1, 0.5, "-N4")
    lab.ended([job])
    lab.once([job])
    lab.shrunk()
    assert lab.grants() - before == 4


def test_an_array_gets_nodes_for_the_tasks_that_may_run(lab: SlurmLab) -> None:
    """Ten at a time, on nodes with two CPUs each: five, however long the queue is."""
    lab.fresh(**{**KNOBS, "maximum": 9, "nodesets": [{"name": "two", "cpus": 2}]})
    lab.cell.nodes_are(2)
    before = lab.grants()
    (array,) = lab.submit(1, 0.5, "--array=1-100%10")
    until(
        lambda: all(lab.cell.ended(array, str(task)) for task in range(1, 101)),
        "all tasks have ended",
        300,
        0.5,
    )
    assert all(
        [line.split()[0] for line in lab.cell.ran(array, str(task))] == ["start", "end"]
        for task in range(1, 101)
    )
    assert 1 <= lab.grants() - before <= 5
    lab.shrunk()


def test_jobs_that_could_not_start_are_no_reason_to_grow(lab: SlurmLab) -> None:
    lab.restart_vcm(**{**KNOBS, "nodesets": [{"name": "small"}]})
    before = lab.grants()
    (held,) = lab.submit(1, 0.1, "--hold")
    lab.submit(1, 0.1, "--begin=now+1hour")
    (after,) = lab.submit(1, 0.1, f"--dependency=afterok:{held}")
    lab.submit(1, 0.1, "--constraint=big")
    lab.says("wants the features big, a node has cod")
    time.sleep(3)  # several looks
    assert lab.grants() == before
    assert not lab.memory()["requests"]
    lab.cell.run("scontrol", "release", str(held))  # its time has come, and then the other's
    lab.ended([held, after])
    lab.shrunk()
    assert lab.grants() > before


def test_nodesets(lab: SlurmLab) -> None:
    """A job that wants a feature gets a node of the nodeset that has it; the VCM gives it to the
    node."""
    lab.restart_vcm(
        **{**KNOBS, "nodesets": [{"name": "small"}, {"name": "large", "features": ["big"]}]}
    )
    gate = lab.gate()
    (job,) = lab.submit(1, gate, "--constraint=big")
    until(lambda: lab.placed(job), "it runs", 180)
    assert lab.cell.nodes()[lab.placed(job)]["active_features"] == "big,cod"
    gate.touch()
    lab.ended([job])


def test_a_cluster_that_does_not_answer_is_left_alone(lab: SlurmLab) -> None:
    """squeue says then that there are no jobs: nothing goes, although all seems idle."""
    lab.restart_vcm(**KNOBS)
    gate = lab.gate()
    jobs = lab.submit(2, gate)
    until(lambda: all(lab.placed(job) for job in jobs), "they run", 180)
    lab.remembers(
        lambda memory: sum(node["added"] for node in memory["nodes"].values()) == 3,
        "their nodes take part",
    )
    lab.saved()
    lab.kill_master()
    lab.says("slurmctld does not answer")
    time.sleep(3)
    assert lab.active("pool") == 3
    assert not any(node["leaving"] for node in lab.memory()["nodes"].values())
    lab.start_master()
    gate.touch()
    lab.ended(jobs)
    lab.once(jobs)


def test_each_job_has_fresh_nodes_for_itself(lab: SlurmLab) -> None:
    """Nodes have two CPUs, jobs want one each. The VCM dies while some run, and one is put back by
    its owner."""
    knobs = {**KNOBS, "fresh": True}
    lab.fresh(**knobs)
    lab.cell.nodes_are(2, drained=True)
    before = lab.grants()
    gate = lab.gate()
    jobs = [*lab.submit(2, gate), *lab.submit(1, 0.5, "-N2")]
    (array,) = lab.submit(1, 0.5, "--array=1-2")
    until(lambda: all(lab.placed(job) for job in jobs), "three run", 180)
    lab.restart_vcm(**knobs)
    lab.cell.run("scontrol", "requeue", str(jobs[0]))  # it runs again where nothing else has run
    until(lambda: len(lab.cell.ran(jobs[0])) == 2, "it runs again", 180)
    gate.touch()
    lab.ended(jobs)
    until(
        lambda: all(lab.cell.ended(array, str(task)) for task in (1, 2)),
        "both tasks have ended",
        180,
    )
    lab.once(jobs, {jobs[0]: 1})
    lab.shrunk()
    assert lab.grants() - before == 6
    said = [line.split() for job in jobs for line in lab.cell.ran(job)]
    assert len({host for what, host, _ in said if what == "start"}) >= 3
    assert not lab.cell.nodes()
    assert "No reservations" in lab.cell.run("scontrol", "show", "reservation").stdout
