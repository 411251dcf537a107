"""What newer releases of Slurm say, as recorded from the real daemons of Debian 13 (24.11.5) and
sid (26.05.5); keys that nobody reads are left out of the files in slurm_outputs/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cod.vcm.batch.commands import CommandFailed, NotUnderstood
from cod.vcm.slurm import needs
from cod.vcm.slurm.commands import Slurm
from cod.vcm.slurm.layouts import v22_05, v23_11
from cod.vcm.slurm.layouts.choice import choose
from cod.vcm.slurm.view import JobSize, SlurmNode

OUTPUTS = Path(__file__).parent / "slurm_outputs"
RECORDED = ["24.11.5-v0.0.40", "24.11.5-v0.0.42", "26.05.5-v0.0.42"]
LISTS = {  # of squeue --json=list, both of its outputs
    "22.05.8": "squeue: option '--json' doesn't allow an argument\nTry \"squeue --help\"\n",
    "23.11.10": "Possible data_parser plugins:\ndata_parser/v0.0.40\ndata_parser/v0.0.39\n",
    "24.11.5": "data_parser/v0.0.42\ndata_parser/v0.0.40\ndata_parser/v0.0.41\nPossible …\n",
    "26.05.5": "data_parser/v0.0.43\ndata_parser/v0.0.42\ndata_parser/v0.0.45\n",
}


def recorded(name: str, what: str) -> bytes:
    return (OUTPUTS / f"{name}-{what}.json").read_bytes()


def changed(what: str, **fields: Any) -> bytes:
    """The recorded document with its first entry changed."""
    document = json.loads(recorded(RECORDED[-1], "nodes" if what == "nodes" else "squeue"))
    document[what][0].update(fields)
    return json.dumps(document).encode()


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


# ---------------------------------------------------------------- which layout


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ("22.05.8", "sinfo --all --json"),
        ("23.11.10", "scontrol --all show nodes --json=v0.0.40"),
        ("24.11.5", "scontrol --all show nodes --json=v0.0.42"),
        ("26.05.5", "scontrol --all show nodes --json=v0.0.42"),
    ],
)
def test_each_release_has_its_layout(release: str, command: str) -> None:
    assert " ".join(choose(LISTS[release]).nodes) == command


def a_slurm(folder: Path, listed: str) -> Slurm:
    """Commands that answer as recorded of 24.11.5, and write down what they are asked."""
    answers = {
        "--json=list": f"printf '%s' \"{listed}\"",
        "--version": "echo slurm-wlm 23.02.7",
        "show nodes": f"cat {OUTPUTS}/24.11.5-v0.0.42-nodes.json",
        "show node n2": f"cat {OUTPUTS}/24.11.5-v0.0.42-nodes.json",
        "--json=v0.0.42": f"cat {OUTPUTS}/24.11.5-v0.0.42-squeue.json",
        "reservation": "echo No reservations in the system",
    }
    cases = "".join(f"*'{words}'*) {answer} ;;\n" for words, answer in answers.items())
    for command in ("squeue", "scontrol"):
        (folder / command).write_text(
            f'#!/bin/sh\necho "{command} $*" >> {folder}/asked\ncase "$*" in\n{cases}esac\n'
        )
        (folder / command).chmod(0o755)
    return Slurm("vc", {}, str(folder))


def test_the_layout_is_chosen_once(tmp_path: Path) -> None:
    slurm = a_slurm(tmp_path, LISTS["24.11.5"])
    assert {node.name for node in slurm.view().nodes.values()} == {"n2"}
    assert slurm.node("n2") is not None
    slurm.view()
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked.count("squeue --json=list") == 1
    assert "scontrol --all show node n2 --json=v0.0.42" in asked


def test_the_layout_is_chosen_anew_when_slurm_is_another(tmp_path: Path) -> None:
    slurm = a_slurm(tmp_path, LISTS["24.11.5"])
    slurm.view()
    slurm = a_slurm(tmp_path, LISTS["22.05.8"])
    with pytest.raises(CommandFailed, match="sinfo"):
        slurm.view()
    a_slurm(tmp_path, LISTS["24.11.5"])
    assert slurm.view().nodes


def test_a_release_that_is_not_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        NotUnderstood,
        match=r"slurm-wlm 23.02.7: .*v0.0.39; this VCM reads Slurm 22.05, and 23.11 to",
    ):
        a_slurm(tmp_path, "data_parser/v0.0.39").view()


# ---------------------------------------------------------------- what they say


@pytest.mark.parametrize("name", RECORDED)
def test_jobs(name: str) -> None:
    jobs = {job.id: job for job in v23_11.jobs(recorded(name, "squeue"))}
    assert (jobs[1].state, jobs[1].nodes, jobs[1].waits) == ("RUNNING", ("n2",), False)
    assert jobs[1].size == JobSize()
    task, array = jobs[12], jobs[2]
    assert (task.name, task.array, task.array_tasks) == ("2_1", 2, "")
    assert (array.name, array.array_tasks, array.limit) == ("2", "3,5,7,9%3", 3)
    assert (array.size.tasks, array.size.cpus, array.size.node_cpus) == (2, 4, 2)
    assert array.size.task_gres == ""  # not cpu=2
    assert (jobs[3].size.whole, jobs[3].size.memory) == (True, 500)
    assert jobs[4].size == JobSize(2, 4, 4, 4, 2, 2, cpu_memory=100)
    assert (jobs[6].size.required, jobs[6].size.excluded) == (("n2",), ("pattern",))
    assert (jobs[7].size.node_gres, jobs[7].size.features) == ("gres/gpu:1", "cod&big")
    assert jobs[8].size.job_gres == "gres/gpu:2"
    assert jobs[9].size.task_gres == "gres/gpu=1"
    rules = needs.Rules("vc")
    assert {job.id for job in jobs.values() if needs.counts(job, rules)} - {5} == {2, 3, 4, 7}


@pytest.mark.parametrize("name", RECORDED)
def test_nodes(name: str) -> None:
    assert v23_11.nodes(recorded(name, "nodes")) == {
        "n2": SlurmNode(
            "n2",
            "10.99.0.1",
            "mixed",
            frozenset({"DYNAMIC_NORM"}),
            partitions=frozenset({"vc"}),
            features=frozenset({"cod"}),
            cpus=8,
            cpus_used=5,
            memory=4000,
            gres={"gpu": 2},
            gres_used={"gpu": 0},
        )
    }


@pytest.mark.parametrize(
    ("states", "told"),
    [
        (["COMPLETED", "COMPLETING"], "COMPLETING"),
        (["PENDING", "REQUEUE_HOLD"], "REQUEUE_HOLD"),
        (["RUNNING", "CONFIGURING", "POWER_UP_NODE"], "CONFIGURING"),
        (["PENDING"], "PENDING"),
    ],
)
def test_a_state_of_several_words_is_that_of_22_05(states: list[str], told: str) -> None:
    assert v23_11.jobs(changed("jobs", job_state=states))[0].state == told


def test_a_job_that_is_over() -> None:
    job = v23_11.jobs(changed("jobs", job_state=["TIMEOUT"], end_time=number(1795707760)))[0]
    assert (job.over, job.waits, job.ended - job.started) == (True, False, 49.0)


@pytest.mark.parametrize(
    ("states", "told"),
    [
        (["IDLE", "DRAIN", "PLANNED"], ("idle", {"DRAIN", "PLANNED"})),
        (["DOWN", "NOT_RESPONDING"], ("down", {"NOT_RESPONDING"})),
    ],
)
def test_a_node_s_state_and_flags(states: list[str], told: tuple[str, set[str]]) -> None:
    node = v23_11.nodes(changed("nodes", state=states))["n2"]
    assert (node.state, set(node.flags)) == told


def test_a_pattern_of_nodes_is_none() -> None:
    assert not v23_11.nodes(changed("nodes", state=["FUTURE"]))


@pytest.mark.parametrize(
    "fields",
    [
        {"job_state": []},
        {"job_state": ["DREAMING"]},
        {"job_state": "RUNNING"},
        {"cpus": 1},
        {"cpus": {"set": True}},
        {"tres_per_node": None},
        {"nodes": "n[1-"},
        {"array_task_string": "9-1"},
        {"shared": "none"},
    ],
)
def test_jobs_that_cannot_be_understood_are_not_guessed_at(fields: dict[str, Any]) -> None:
    with pytest.raises(NotUnderstood):
        v23_11.jobs(changed("jobs", **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"state": []},
        {"state": ["ASLEEP"]},
        {"state": ["IDLE", "DOWN"]},
        {"state": "idle"},
        {"cpus": number(4)},
        {"gres": "gpu:a100:many:2"},
    ],
)
def test_nodes_that_cannot_be_understood_are_not_guessed_at(fields: dict[str, Any]) -> None:
    with pytest.raises(NotUnderstood):
        v23_11.nodes(changed("nodes", **fields))


def test_neither_layout_reads_the_other() -> None:
    for what, read in (("squeue", v22_05.jobs), ("nodes", v22_05.nodes)):
        with pytest.raises(NotUnderstood):
            read(recorded(RECORDED[-1], what))
