"""The layout of Slurm 23.11 to 26.05 (tried with 24.11.5 and 26.05.5): a number has a field that
says whether it is set, a state is a list, and `scontrol show nodes` lists nodes.

The parser is chosen by name. v0.0.42 (24.11 to 26.05) is the newest that says whether a job is
exclusive; v0.0.40 (23.11 to 25.05) is the same in everything that is read here.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from cod.vcm.batch.commands import NotUnderstood
from cod.vcm.slurm.layouts.document import Document, JobShape, Layout, NodeShape, document
from cod.vcm.slurm.view import NODE_STATES, SlurmJob, SlurmNode

PARSERS = ("v0.0.42", "v0.0.40")  # the first that Slurm has is taken
# if a job's state has several words, the first of these is the state that 22.05 would show
FLAGS = (
    "COMPLETING",
    "STAGE_OUT",
    "CONFIGURING",
    "RESIZING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "STOPPED",
    "REVOKED",
    "RESV_DEL_HOLD",
    "SIGNALING",
)


def _value(number: Any) -> Any:
    """Return the number; None if it is not set or infinite. For other forms, return a text, which
    the validator refuses."""
    match number:
        case {"set": bool(), "infinite": bool(), "number": int()}:
            return number["number"] if number["set"] and not number["infinite"] else None
    return f"not a number with `set`: {number!r}"


def _count(number: Any) -> Any:
    value = _value(number)
    return 0 if value is None else value


def _only_gres(resources: str) -> str:
    """Return a list of resources without those that have fields of their own, such as cpu=2 for
    `-c2`."""
    return ",".join(one for one in resources.split(",") if one.startswith("gres"))


Value = Annotated[int | None, BeforeValidator(_value)]
Count = Annotated[int, BeforeValidator(_count)]  # 0 where it is not set
Gres = Annotated[str, AfterValidator(_only_gres)]


class _Job(JobShape):
    job_state: list[str]
    array_job_id: Count
    array_task_id: Value
    array_max_tasks: Count
    start_time: Count
    end_time: Count
    submit_time: Count
    eligible_time: Count
    last_sched_evaluation: Count
    priority: Count
    node_count: Count
    max_nodes: Count
    tasks: Value
    cpus: Value
    tasks_per_node: Count
    minimum_cpus_per_node: Count
    memory_per_node: Value
    memory_per_cpu: Value
    tres_per_node: Gres
    tres_per_task: Gres
    tres_per_job: Gres
    time_limit: Value
    shared: list[str]


class _Node(NodeShape):
    state: list[str]
    active_features: list[str]


class _Jobs(Document):
    jobs: list[_Job]


class _Nodes(Document):
    nodes: list[_Node]


def layout(parser: str) -> Layout:
    """Return the layout that reads the output of this parser."""
    json = f"--json={parser}"
    return Layout(
        f"23.11 to 26.05, by the parser {parser}",
        ("squeue", "--all", json),
        ("scontrol", "--all", "show", "nodes", json),
        lambda name: ("scontrol", "--all", "show", "node", name, json),
        jobs,
        nodes,
    )


def jobs(output: bytes) -> list[SlurmJob]:
    """Return the jobs, including those that are over. Raises `NotUnderstood`, or `CommandFailed` if
    the output has errors."""
    found = []
    for one in document("squeue", output, _Jobs).jobs:
        flags = [flag for flag in FLAGS if flag in one.job_state]
        found.append(one.job([*flags, *one.job_state], "none" in one.shared))
    return found


def nodes(output: bytes) -> dict[str, SlurmNode]:
    """Return the nodes by name, without those that only describe future nodes (FUTURE). Raises as
    `jobs` does."""
    found = {}
    for one in document("scontrol", output, _Nodes).nodes:
        if "FUTURE" in one.state:
            continue
        states = [word.lower() for word in one.state if word.lower() in NODE_STATES]
        if len(states) != 1:
            raise NotUnderstood(f"node {one.name} is in the state {','.join(one.state)!r}")
        flags = [word for word in one.state if word.lower() not in NODE_STATES]
        found[one.name] = one.node(states[0], flags, one.active_features)
    return found
