"""What may happen to a Grid Engine pool: its master, its VCM, COD or the network dies at a bad
moment. Every job is run to its end once, nobody's node is lost, and the pool comes to rest
again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.system.gridlab import GridLab, gridlab
from tests.system.poollab import asked, leaving, some_node
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_turn(3, first=2, together=True),
    pytest.mark.xdist_group("gridengine-faults"),
]
ONE_SLOT = {"slots": 1, "jobs_per_node": 2}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GridLab]:
    with gridlab(tmp_path_factory.mktemp("faults"), machines=4) as lab:
        yield lab


@pytest.fixture
def lab(shared: GridLab) -> Iterator[GridLab]:
    """The pool, without nodes and jobs, one slot a node; what the VCM said is shown where a story
    fails."""
    shared.fresh(**ONE_SLOT)
    yield shared
    print(shared.said()[-6000:])


@pytest.mark.nightly
def test_the_master_dies_while_the_pool_grows(lab: GridLab) -> None:
    before, gate = lab.memory()["keys"], lab.gate()
    jobs = lab.submit(6, gate)
    lab.remembers(asked, "nodes are asked for")
    lab.kill_master()
    try:
        lab.says("not so: ")
        lab.remembers(
            lambda memory: not memory["requests"] and _all_active(memory),
            "the nodes come all the same",
        )
    finally:
        lab.start_master()
    gate.touch()
    lab.ended(jobs)
    lab.once(jobs)
    assert 1 <= lab.memory()["keys"] - before <= 3  # nothing was asked for twice


def _all_active(memory: dict[str, Any]) -> bool:
    return all(node["member"]["state"] == "active" for node in memory["nodes"].values())


@pytest.mark.parametrize(
    "steps",
    [
        {
            "asked": asked,
            "added": some_node(lambda node: node["added"]),
            "leaving": lambda memory: (
                len(memory["nodes"]) == 1 or some_node(lambda node: node["leaving"])(memory)
            ),
        },
        {
            "granted": some_node(lambda node: True),
            "adding": some_node(lambda node: node["member"]["state"] == "active"),
        },
    ],
    ids=" ".join,
)
@pytest.mark.nightly
def test_its_vcm_dies_again_and_again(lab: GridLab, steps: dict[str, Callable[[Any], Any]]) -> None:
    gate = lab.gate()
    jobs = lab.submit(6, gate)
    for what, truth in steps.items():
        if what == "leaving":
            gate.touch()
        lab.remembers(truth, what)
        lab.restart_vcm(**ONE_SLOT)
    gate.touch()
    lab.ended(jobs)
    lab.once(jobs)


@pytest.mark.nightly
def test_its_vcm_dies_while_nodes_are_reclaimed(lab: GridLab) -> None:
    """Answer the reclaim that the VCM has heard of when it has been started again, and give the
    node promised."""
    gate = lab.gate()
    jobs = lab.submit(5, gate)
    until(lambda: sum(bool(lab.placed(job)) for job in jobs) == 3, "three of them run", 180)
    lab.stand.cod(
        "vcluster", "create", "web", "--size", "1", "--template", "exec", "--group", "top"
    )
    lab.remembers(
        lambda memory: memory["reclaims"] or leaving(memory, 4), "it has heard of the reclaim"
    )
    lab.restart_vcm(**ONE_SLOT)
    lab.remembers(lambda memory: leaving(memory, 4), "a node is leaving")
    lab.restart_vcm(**ONE_SLOT)
    until(lambda: lab.active("web") == 1, "the other is there", 180, 0.1)
    (reclaim,) = lab.stand.cod("reclaim", "list")
    assert (reclaim["given"], reclaim["state"]) == (1, "done")
    causes = [move["cause"] for name in lab.stand.hosts for move in lab.stand.history(name)]
    assert not [cause for cause in causes if cause.startswith("taken for")]
    lab.stand.cod("vcluster", "delete", "web")
    gate.touch()
    lab.ended(jobs)
    starts = {
        job: len([line for line in lab.cell.ran(job) if line.startswith("start")]) for job in jobs
    }
    assert sorted(starts.values()) == [1, 1, 1, 1, 2]


def test_cod_dies_while_the_pool_grows_and_shrinks(lab: GridLab) -> None:
    gate = lab.gate()
    jobs = lab.submit(6, gate)
    lab.remembers(asked, "nodes are asked for")
    lab.stand.kill()
    lab.stand.serve()
    gate.touch()
    lab.ended(jobs)
    lab.once(jobs)
    lab.remembers(lambda memory: leaving(memory, 4), "nodes are leaving")
    lab.stand.kill()
    lab.stand.serve()


def test_the_head_s_cable_is_pulled_out_for_a_while(lab: GridLab) -> None:
    """Neither COD nor the nodes can be reached, and nobody says so: it is noticed by the
    silence."""
    jobs = lab.submit(4, 2.0)
    until(lambda: any(lab.placed(job) for job in jobs), "the first runs", 180)
    lab.link("m1", "down")
    try:
        lab.says("COD has fallen silent")
        lab.says("no connection with COD: An error")
    finally:
        lab.link("m1", "up")
    jobs += lab.submit(2, 0.5)
    lab.ended(jobs)
    lab.once(jobs)
