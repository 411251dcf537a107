"""Nodes on which every job fails at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from cod.vcm.slurm.blackholes import JOBS, QUICK, BlackHoles
from cod.vcm.slurm.commands import View
from cod.vcm.slurm.view import SlurmJob
from tests.unit.test_slurm_pool import Books, system

OURS = ["n2", "n3"]


def jobs(
    node: str,
    count: int,
    *,
    user: str = "ann",
    lasts: float = 1.0,
    state: str = "FAILED",
    at: int = 0,
) -> list[SlurmJob]:
    """So many jobs that ended on a node one after the other."""
    return [
        SlurmJob(
            at + number,
            state,
            name=str(at + number),
            nodes=(node,),
            started=1000.0 + 10 * (at + number),
            ended=1000.0 + 10 * (at + number) + lasts,
            user=user,
        )
        for number in range(count)
    ]


ELSEWHERE = jobs("n3", 1, state="COMPLETED", at=100)


def test_a_node_that_fails_the_jobs_of_an_owner_that_run_elsewhere_is_found() -> None:
    assert BlackHoles().found(jobs("n2", JOBS) + ELSEWHERE, OURS) == ["n2"]
    assert BlackHoles().found(jobs("n2", JOBS) + ELSEWHERE, ["n3"]) == []


def test_a_node_that_fails_the_jobs_of_several_owners_is_found() -> None:
    ended = jobs("n2", JOBS - 1) + jobs("n2", 1, user="bob", at=50)
    assert BlackHoles().found(ended, OURS) == ["n2"]


@pytest.mark.parametrize(
    "ended",
    [
        jobs("n2", JOBS),  # an owner's mistake
        jobs("n2", JOBS) + jobs("n3", JOBS, at=50),  # on all nodes
        jobs("n2", JOBS - 1) + ELSEWHERE,
        jobs("n2", JOBS, lasts=QUICK + 1) + ELSEWHERE,
        jobs("n2", JOBS, state="COMPLETED") + ELSEWHERE,
        jobs("n2", JOBS, state="CANCELLED") + ELSEWHERE,
        jobs("n2", JOBS) + jobs("n2", 1, state="COMPLETED", at=50) + ELSEWHERE,
    ],
)
def test_other_nodes_are_not(ended: list[SlurmJob]) -> None:
    assert BlackHoles().found(ended, OURS) == []


def test_jobs_are_counted_over_several_looks_and_once() -> None:
    holes = BlackHoles()
    first, last = jobs("n2", 2), jobs("n2", JOBS - 2, at=10)
    for _ in range(JOBS):
        assert holes.found(first + ELSEWHERE, OURS) == []
    assert holes.found(last, OURS) == ["n2"]
    assert holes.found(last, OURS) == []  # somebody has mended it


def test_a_node_that_is_found_is_drained_and_stays(
    books: Books, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = jobs("n2", JOBS) + ELSEWHERE
    for number in (2, 3):
        books.registers(number, flags=frozenset())
    view = books.view
    monkeypatch.setattr(books, "view", lambda: View(view().nodes, view().jobs, {}, ended))
    pool = system(books)
    for _ in range(2):
        pool.look(OURS, Counter())
    assert [words[:2] for words in books.said] == [("drain", "n2")]
    assert books.nodes["n2"].reason == "cod: its last 5 jobs all failed within 10 s"
    assert "Look at its clock" in caplog.text
    assert pool.hosts()["n2"].closed


@pytest.mark.parametrize(("nodes", "most"), [(2, 1), (7, 1), (8, 2), (13, 3)])
def test_jobs_that_fail_on_purpose_drain_a_quarter_of_the_nodes_at_most(
    books: Books,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    most: int,
) -> None:
    """Two owners fail five jobs on each node, again and again, as somebody opens no node."""
    ours = [f"n{number}" for number in range(2, 2 + nodes)]
    for number in range(2, 2 + nodes):
        books.registers(number, flags=frozenset())
    ended: list[SlurmJob] = []
    view = books.view
    monkeypatch.setattr(books, "view", lambda: View(view().nodes, view().jobs, {}, ended))
    pool = system(books)
    for turn in range(3):
        for place, name in enumerate(ours):
            at = 1000 * turn + 10 * place
            ended += jobs(name, JOBS - 1, at=at) + jobs(name, 1, user="bob", at=at + JOBS)
        pool.look(ours, Counter())
    drained = [name for name in ours if pool.hosts()[name].closed]
    assert len(drained) == most
    assert f"{most} of {nodes} nodes are drained for that already" in caplog.text
    books.nodes[drained[0]] = replace(  # somebody has looked at it
        books.nodes[drained[0]], flags=frozenset(), reason=""
    )
    ended += jobs(ours[-1], JOBS - 1, at=5000) + jobs(ours[-1], 1, user="bob", at=5000 + JOBS)
    pool.look(ours, Counter())
    assert pool.hosts()[ours[-1]].closed


@pytest.fixture
def books() -> Books:
    return Books()
