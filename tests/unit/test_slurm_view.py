"""Reading what squeue and sinfo of Slurm 22.05 say; the real ones are asked in tests/system."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cod.vcm.batch.commands import CommandFailed, NotUnderstood
from cod.vcm.slurm import view
from cod.vcm.slurm.layouts import v22_05

JOB: dict[str, Any] = {
    "job_id": 7,
    "job_state": "PENDING",
    "state_reason": "Resources",
    "partition": "vc",
    "array_job_id": 0,
    "array_task_id": None,
    "array_task_string": "",
    "array_max_tasks": 0,
    "nodes": "",
    "start_time": 0,
    "end_time": 0,
    "submit_time": 1795162150,
    "eligible_time": 1795162150,
    "last_sched_evaluation": 1795162150,
    "restart_cnt": 0,
    "batch_flag": True,
    "priority": 4294901759,
    "user_name": "ann",
    "account": "physics",
    "resv_name": "",
    "node_count": 1,
    "max_nodes": 0,
    "tasks": 1,
    "cpus": 1,
    "tasks_per_node": 0,
    "minimum_cpus_per_node": 1,
    "memory_per_node": None,
    "memory_per_cpu": None,
    "tres_per_node": "",
    "tres_per_task": "",
    "tres_per_job": "",
    "features": "",
    "shared": None,
    "required_nodes": "",
    "excluded_nodes": "",
    "time_limit": None,
}
NODE: dict[str, Any] = {
    "name": "n2",
    "address": "10.77.3.2",
    "state": "mixed",
    "state_flags": ["DYNAMIC_NORM"],
    "reason": "",
    "partitions": ["vc"],
    "active_features": "cod,big",
    "cpus": 4,
    "cores": 2,
    "threads": 2,
    "alloc_cpus": 1,
    "real_memory": 1000,
    "alloc_memory": 0,
    "gres": "gpu:a100:2(S:0-1),nvme:1",
    "gres_used": "gpu:a100:1(IDX:0),nvme:0",
    "weight": 1,
}


def squeue(*jobs: dict[str, Any], **also: Any) -> bytes:
    return json.dumps(
        {"meta": {}, "errors": [], "jobs": [{**JOB, **job} for job in jobs], **also}
    ).encode()


def sinfo(*nodes: dict[str, Any], **also: Any) -> bytes:
    return json.dumps(
        {"meta": {}, "errors": [], "nodes": [{**NODE, **node} for node in nodes], **also}
    ).encode()


def test_jobs() -> None:
    running, waiting, over, array, task = v22_05.jobs(
        squeue(
            {
                "job_state": "RUNNING",
                "nodes": "n[2-3,07],gpu1",
                "start_time": 1795162254,
                "batch_flag": False,
            },
            {
                "job_id": 8,
                "shared": "none",
                "memory_per_cpu": 500,
                "features": "big",
                "tasks": 4,
                "cpus": 8,
            },
            {"job_id": 9, "job_state": "COMPLETED", "start_time": 90, "end_time": 95},
            {
                "job_id": 10,
                "array_job_id": 10,
                "array_task_string": "1-9:2,20%3",
                "array_max_tasks": 3,
            },
            {
                "job_id": 11,
                "array_job_id": 10,
                "array_task_id": 4,
                "job_state": "COMPLETING",
                "partition": "vc,other",
            },
        )
    )
    assert running.nodes == ("n2", "n3", "n07", "gpu1")
    assert (running.waits, running.batch, running.started) == (False, False, 1795162254.0)
    assert waiting.waits
    assert (over.over, over.waits, over.ended - over.started) == (True, False, 5.0)
    assert waiting.size == view.JobSize(tasks=4, cpus=8, cpu_memory=500, features="big", whole=True)
    assert (array.name, array.limit, list(view.task_ids(array.array_tasks))) == (
        "10",
        3,
        [1, 3, 5, 7, 9, 20],
    )
    assert (task.name, task.array_tasks, task.partitions) == (
        "10_4",
        "",
        frozenset({"vc", "other"}),
    )


@pytest.mark.parametrize(
    ("eligible", "evaluated", "told"),
    [
        (150, 150, True),
        (150, 0, True),
        (0, 0, False),
        (0, 250, False),
        (3750, 250, False),
        (3750, 3760, True),
    ],
)
def test_a_job_is_eligible_once_slurm_has_found_it_so(
    eligible: int, evaluated: int, told: bool
) -> None:
    """One that waits for another has no such time, one of the future has a later one."""
    (job,) = v22_05.jobs(
        squeue({"submit_time": 150, "eligible_time": eligible, "last_sched_evaluation": evaluated})
    )
    assert job.eligible == told


def test_nodes() -> None:
    nodes = v22_05.nodes(
        sinfo(
            {},
            {"name": "n3", "state_flags": ["DRAIN"], "state": "idle", "reason": "cod"},
            {"name": "n4", "state": "down", "state_flags": ["NOT_RESPONDING"]},
            {"name": "n5", "state": "idle", "state_flags": ["NOT_RESPONDING"]},
            {"name": "pattern", "state": "future"},
            {"name": "n6", "state": "idle", "state_flags": ["INVALID_REG"]},
        )
    )
    assert {name: (node.heard, node.closed, node.usable) for name, node in nodes.items()} == {
        "n2": (True, False, True),
        "n3": (True, True, False),
        "n4": (False, False, False),
        "n5": (False, False, False),
        "n6": (True, False, False),
    }
    assert nodes["n2"].features == {"cod", "big"}
    assert nodes["n2"].gres == {"gpu": 2, "gpu:a100": 2, "nvme": 1}
    assert nodes["n2"].gres_used == {"gpu": 1, "gpu:a100": 1, "nvme": 0}


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"slurm_load_jobs error: Unable to contact slurm controller",
        b"[]",
        b'{"jobs": []}',
        squeue({})[:400],
        squeue({"job_state": "DREAMING"}),
        squeue({"cpus": "1"}),
        squeue({"cpus": {"set": True, "number": 1}}),
        squeue({"nodes": "n[1-"}),
        squeue({"nodes": "n[1-x]"}),
        squeue({"nodes": None}),
        squeue({"array_task_string": "9-1"}),
        squeue({"array_task_string": "1-2:0"}),
        squeue({"array_task_string": "1,2,3,5,7,11..."}),
        squeue({"restart_cnt": None}),
        json.dumps(
            {
                "errors": [],
                "jobs": [{key: value for key, value in JOB.items() if key != "state_reason"}],
            }
        ).encode(),
    ],
)
def test_jobs_that_cannot_be_understood_are_not_guessed_at(output: bytes) -> None:
    with pytest.raises(NotUnderstood):
        v22_05.jobs(output)


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"{}",
        sinfo({})[:300],
        sinfo({"state": "asleep"}),
        sinfo({"cpus": "4"}),
        sinfo({"gres": "gpu:a100:many:2"}),
        sinfo({"address": None}),
    ],
)
def test_nodes_that_cannot_be_understood_are_not_guessed_at(output: bytes) -> None:
    with pytest.raises(NotUnderstood):
        v22_05.nodes(output)


def test_a_controller_that_does_not_answer_has_no_empty_pool() -> None:
    """The commands end with status 0 then, and list nothing."""
    with pytest.raises(CommandFailed, match=r"does not answer .*Failed while looking for jobs"):
        v22_05.jobs(squeue(errors=[{"description": "Failed while looking for jobs"}]))
    with pytest.raises(CommandFailed, match=r"^slurmctld does not answer$"):
        v22_05.nodes(sinfo(errors=[{"error": "Unspecified error", "errno": -1}]))


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(
        NotUnderstood, match=r"squeue --json: jobs\.1\.cpus: should be a whole number"
    ):
        v22_05.jobs(squeue({}, {"cpus": "1"}))
    with pytest.raises(NotUnderstood, match="job 7 is in the state 'DREAMING'"):
        v22_05.jobs(squeue({"job_state": "DREAMING"}))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n1,n3", ("n1", "n3")),
        ("n[09-11]", ("n09", "n10", "n11")),
        ("r[1-2]n[1,3]", ("r1n1", "r1n3", "r2n1", "r2n3")),
    ],
)
def test_lists_of_nodes(text: str, names: tuple[str, ...]) -> None:
    assert view.hostlist(text) == names


@pytest.mark.parametrize(
    "text", ["n[0-999999999]", "n[1-60000,1-60000]", "a[1-999]b[1-999]", "n[1-60000],m[1-60000]"]
)
def test_no_list_of_nodes_takes_the_memory(text: str) -> None:
    with pytest.raises(NotUnderstood, match="more than 100000 nodes"):
        view.hostlist(text)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("", {}),
        ("gpu:0", {"gpu": 0}),
        ("gres:gpu:2", {"gpu": 2}),
        ("gres:gpu", {"gpu": 1}),
        ("gres/gpu=2", {"gpu": 2}),
        ("gpu:a100:2(S:0-1),gpu:t4:1", {"gpu": 3, "gpu:a100": 2, "gpu:t4": 1}),
        ("mem:2K", {"mem": 2048}),
    ],
)
def test_generic_resources(text: str, counts: dict[str, int]) -> None:
    assert view.gres(text) == counts


def test_a_job_s_name_may_be_any_bytes() -> None:
    """Else any user could blind the VCM."""
    assert [
        job.id for job in v22_05.jobs(squeue({"name": "NAME"}).replace(b"NAME", b"\xff\xc3("))
    ] == [7]
