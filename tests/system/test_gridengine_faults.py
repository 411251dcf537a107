"""What may happen to a Grid Engine pool: its master, its VCM, COD, the network or a node dies at a bad moment. Every
job is run to its end once, nobody's node is lost, and the pool is as empty again as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.system.cell import BINARIES, HEAD
from tests.system.gridlab import GridLab, gridlab
from tests.waiting import until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GridLab]:
    with gridlab(tmp_path_factory.mktemp("faults"), machines=4) as lab:
        lab.hears_quickly()
        yield lab


@pytest.fixture
def lab(shared: GridLab) -> Iterator[GridLab]:
    """The pool, without nodes and jobs, one slot a node; what the VCM said is shown where a story fails."""
    mark = len(shared.cell.log())
    shared.restart_vcm(slots=1, jobs_per_node=2)
    yield shared
    print(shared.cell.log()[mark:][-6000:])
    shared.cell.run("qdel", "-f", "-u", "*", check=False)
    shared.shrunk()


def test_the_master_dies_while_the_pool_grows(lab: GridLab) -> None:
    before = lab.memory()["keys"]
    jobs = lab.submit(6, 0.5)
    lab.remembers(lambda memory: memory["requests"], "nodes are asked for")
    lab.kill_master()
    try:
        lab.says("not so: ")
        lab.remembers(lambda memory: not memory["requests"] and _all_active(memory), "the nodes come all the same")
    finally:
        lab.start_master()
    lab.ended(jobs)
    lab.once(jobs)
    assert 1 <= lab.memory()["keys"] - before <= 3  # nothing was asked for twice


def _all_active(memory: dict[str, Any]) -> bool:
    return all(node["member"]["state"] == "active" for node in memory["nodes"].values())


def _nodes(truth: Callable[[Any], Any]) -> Callable[[Any], bool]:
    return lambda memory: any(truth(node) for node in memory["nodes"].values())


@pytest.mark.parametrize("steps", [
    {"asked": lambda memory: memory["requests"],
     "added": _nodes(lambda node: node["added"] and node["member"]["hostname"] != HEAD),
     "leaving": _nodes(lambda node: node["leaving"])},
    {"granted": _nodes(lambda node: node["member"]["state"] in ("trampoline", "prime", "boot")),
     "adding": _nodes(lambda node: node["member"]["state"] == "active" and not node["added"])},
], ids=" ".join)
def test_its_vcm_dies_again_and_again(lab: GridLab, steps: dict[str, Callable[[Any], Any]]) -> None:
    jobs = lab.submit(6, 0.5)
    for what, truth in steps.items():
        lab.remembers(truth, what)
        lab.restart_vcm(slots=1, jobs_per_node=2)
    lab.ended(jobs)
    lab.once(jobs)


def test_its_vcm_dies_while_nodes_are_reclaimed(lab: GridLab) -> None:
    """It has heard of the reclaim, and answers when it has been started again; it has promised a node, and gives it."""
    jobs = lab.submit(5, 9.0)
    until(lambda: sum(bool(lab.placed(job)) for job in jobs) == 3, "three of them run", 60)
    lab.stand.cod("vcluster", "create", "web", "--size", "1", "--template", "exec", "--group", "top")
    lab.remembers(lambda memory: memory["reclaims"], "it has heard of the reclaim")
    lab.restart_vcm(slots=1, jobs_per_node=2)
    lab.remembers(_nodes(lambda node: node["leaving"]), "a node is leaving")
    lab.restart_vcm(slots=1, jobs_per_node=2)
    until(lambda: lab.active("web") == 1, "the other is there", 60, 0.1)
    reclaim, = lab.stand.cod("reclaim", "list")
    assert (reclaim["given"], reclaim["state"]) == (1, "done")
    causes = [move["cause"] for name in lab.stand.hosts for move in lab.stand.history(name)]
    assert not [cause for cause in causes if cause.startswith("taken for")]
    lab.stand.cod("vcluster", "delete", "web")
    lab.ended(jobs)
    starts = {job: len([line for line in lab.cell.ran(job) if line.startswith("start")]) for job in jobs}
    assert sorted(starts.values()) == [1, 1, 1, 1, 2]


def test_cod_dies_while_the_pool_grows_and_shrinks(lab: GridLab) -> None:
    jobs = lab.submit(6, 0.5)
    lab.remembers(lambda memory: memory["requests"], "nodes are asked for")
    lab.stand.kill()
    lab.stand.serve()
    lab.ended(jobs)
    lab.once(jobs)
    lab.remembers(_nodes(lambda node: node["leaving"]), "nodes are leaving")
    lab.stand.kill()
    lab.stand.serve()


def test_the_head_s_cable_is_pulled_out_for_a_while(lab: GridLab) -> None:
    """Neither COD nor the nodes can be reached, and nobody says so: it is noticed by the silence."""
    jobs = lab.submit(4, 2.0)
    until(lambda: any(lab.placed(job) for job in jobs), "the first runs", 60)
    lab.link("m1", "down")
    try:
        lab.says("COD has fallen silent")
        lab.says("no connection with COD: An error")
    finally:
        lab.link("m1", "up")
    jobs += lab.submit(2, 0.5)
    lab.ended(jobs)
    lab.once(jobs)


def test_a_node_dies_under_a_job(lab: GridLab) -> None:
    """Grid Engine does not hear of it any more: its job is run on another node, and COD gets it back."""
    lab.restart_vcm(slots=1, unheard_limit=1.0)
    job, = lab.submit(1, 12.0)
    until(lambda: lab.placed(job), "it runs", 60)
    dead = lab.placed(job)
    machine = next(name for name in lab.stand.hosts if lab.stand.node(name).hostname == dead)
    released = lab.stand.node(machine).generation
    lab.stand[machine].off()
    until(lambda: [line.split()[0] for line in lab.cell.ran(job)] == ["start", "start"], "it runs again", 60)
    lab.ended([job])
    lab.once([job], {job: 1})
    lab.says(f"{dead} ({machine}) was given back: not heard of for 1 s")
    assert lab.stand.node(machine).generation > released


def test_a_pool_that_cannot_be_understood_is_left_alone(lab: GridLab) -> None:
    """qstat is cut off in the middle: nothing is asked for, nothing goes, and it says so."""
    folder = lab.cell.folder / "commands"
    folder.mkdir()
    for program in BINARIES.iterdir():
        (folder / program.name).symlink_to(program)
    (folder / "qstat").unlink()
    (folder / "qstat").write_text(f'#!/bin/sh\n{BINARIES}/qstat "$@" | head -c 300\n')
    (folder / "qstat").chmod(0o755)
    lab.restart_vcm(slots=1, path=str(folder))
    before = lab.memory()["keys"]
    jobs = lab.submit(2, 0.1)
    lab.says("not so: the pool is looked at: NotUnderstood")
    assert lab.memory()["keys"] == before
    assert lab.free() == 3
    (folder / "qstat").unlink()
    (folder / "qstat").symlink_to(BINARIES / "qstat")
    lab.ended(jobs)
    lab.says("the pool is looked at again")
