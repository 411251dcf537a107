"""The layout of Slurm 22.05 (tried with 22.05.8): numbers are plain, a state is a word, and sinfo
lists nodes."""

from __future__ import annotations

from cod.vcm.batch.commands import NotUnderstood
from cod.vcm.slurm.layouts.document import Document, Layout, Shape, document
from cod.vcm.slurm.view import (
    HELD,
    NODE_STATES,
    ON_NODES,
    OVER,
    JobSize,
    SlurmJob,
    SlurmNode,
    gres,
    hostlist,
    task_ids,
)


class _Job(Shape):
    job_id: int
    job_state: str
    state_reason: str
    partition: str
    array_job_id: int
    array_task_id: int | None
    array_task_string: str
    array_max_tasks: int
    nodes: str
    start_time: int
    end_time: int
    submit_time: int
    eligible_time: int
    last_sched_evaluation: int
    restart_cnt: int
    batch_flag: bool
    priority: int
    user_name: str
    account: str
    resv_name: str
    node_count: int
    max_nodes: int
    tasks: int | None
    cpus: int | None
    tasks_per_node: int
    minimum_cpus_per_node: int
    memory_per_node: int | None
    memory_per_cpu: int | None
    tres_per_node: str
    tres_per_task: str
    tres_per_job: str
    features: str
    shared: str | None
    required_nodes: str
    excluded_nodes: str


class _Node(Shape):
    name: str
    address: str
    state: str
    state_flags: list[str]
    reason: str
    partitions: list[str]
    active_features: str
    cpus: int
    cores: int
    threads: int
    alloc_cpus: int
    real_memory: int
    alloc_memory: int
    gres: str
    gres_used: str


class _Jobs(Document):
    jobs: list[_Job]


class _Nodes(Document):
    nodes: list[_Node]


def jobs(output: bytes) -> list[SlurmJob]:
    """Return the jobs, also those that are over. Raises `NotUnderstood`, or `CommandFailed` where
    the output has errors."""
    return [_job(one) for one in document("squeue", output, _Jobs).jobs]


def nodes(output: bytes) -> dict[str, SlurmNode]:
    """Return the nodes by name, without those that only say what nodes may be (FUTURE). Raises as
    `jobs` does."""
    return {
        one.name: _node(one)
        for one in document("sinfo", output, _Nodes).nodes
        if one.state != "future"
    }


def _job(one: _Job) -> SlurmJob:
    if one.job_state not in HELD | ON_NODES | OVER | {"PENDING"}:
        raise NotUnderstood(f"job {one.job_id} is in the state {one.job_state!r}")
    if one.array_task_string:
        task_ids(one.array_task_string)
    single = one.array_task_id is not None
    return SlurmJob(
        id=one.job_id,
        state=one.job_state,
        reason=one.state_reason,
        name=f"{one.array_job_id}_{one.array_task_id}" if single else str(one.job_id),
        array=one.array_job_id,
        array_tasks="" if single else one.array_task_string,
        limit=one.array_max_tasks,
        partitions=frozenset(one.partition.split(",")),
        nodes=hostlist(one.nodes),
        started=float(one.start_time),
        ended=float(one.end_time),
        restarts=one.restart_cnt,
        batch=one.batch_flag,
        eligible=0 < one.eligible_time <= max(one.submit_time, one.last_sched_evaluation),
        priority=one.priority,
        user=one.user_name,
        account=one.account,
        reservation=one.resv_name,
        size=JobSize(
            max(1, one.node_count),
            one.max_nodes,
            max(1, one.tasks or 1),
            max(1, one.cpus or 1),
            one.tasks_per_node,
            max(1, one.minimum_cpus_per_node),
            one.memory_per_node,
            one.memory_per_cpu,
            one.tres_per_node,
            one.tres_per_task,
            one.tres_per_job,
            one.features,
            one.shared == "none",
            hostlist(one.required_nodes),
            hostlist(one.excluded_nodes),
        ),
    )


def _node(one: _Node) -> SlurmNode:
    if one.state not in NODE_STATES:
        raise NotUnderstood(f"node {one.name} is in the state {one.state!r}")
    return SlurmNode(
        one.name,
        one.address,
        one.state,
        frozenset(one.state_flags),
        one.reason,
        frozenset(one.partitions),
        frozenset(filter(None, one.active_features.split(","))),
        one.cpus,
        one.alloc_cpus,
        one.real_memory,
        one.alloc_memory,
        gres(one.gres),
        gres(one.gres_used),
        one.cores,
        one.threads,
    )


LAYOUT = Layout(
    "22.05",
    ("squeue", "--all", "--json"),
    ("sinfo", "--all", "--json"),
    lambda _name: ("sinfo", "--all", "--json"),  # it knows no choice of nodes in JSON
    jobs,
    nodes,
)
