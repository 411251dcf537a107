"""The layout of Slurm 23.11 to 26.05 (tried with 24.11.5 and 26.05.5): a number says whether it is
set, a state is a list, and `scontrol show nodes` lists nodes.

The parser is pinned by its name: of 22.05's successors v0.0.42 (24.11 to 26.05) is the newest that
says whether a job is exclusive, and v0.0.40 (23.11 to 25.05) is the same in all that is read here.
"""

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

PARSERS = ("v0.0.42", "v0.0.40")  # the first that Slurm has is taken
# of several words of a job's state, the first of these is what 22.05 calls its state
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


class _Number(Shape):
    set: bool
    infinite: bool
    number: int

    @property
    def value(self) -> int | None:
        """Return the number, None where it is not set or without bounds."""
        return self.number if self.set and not self.infinite else None

    @property
    def count(self) -> int:
        """Return the number, 0 where it is not set."""
        return self.value or 0


class _Job(Shape):
    job_id: int
    job_state: list[str]
    state_reason: str
    partition: str
    array_job_id: _Number
    array_task_id: _Number
    array_task_string: str
    array_max_tasks: _Number
    nodes: str
    start_time: _Number
    end_time: _Number
    submit_time: _Number
    eligible_time: _Number
    last_sched_evaluation: _Number
    restart_cnt: int
    batch_flag: bool
    priority: _Number
    user_name: str
    account: str
    resv_name: str
    node_count: _Number
    max_nodes: _Number
    tasks: _Number
    cpus: _Number
    tasks_per_node: _Number
    minimum_cpus_per_node: _Number
    memory_per_node: _Number
    memory_per_cpu: _Number
    tres_per_node: str
    tres_per_task: str
    tres_per_job: str
    features: str
    shared: list[str]
    required_nodes: str
    excluded_nodes: str


class _Node(Shape):
    name: str
    address: str
    state: list[str]
    reason: str
    partitions: list[str]
    active_features: list[str]
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


def layout(parser: str) -> Layout:
    """Return the layout, with one of its parsers."""
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
    """Return the jobs, also those that are over. Raises `NotUnderstood`, or `CommandFailed` where
    the output has errors."""
    read = document("squeue", output, _Jobs).jobs
    return [_job(one) for one in read]


def nodes(output: bytes) -> dict[str, SlurmNode]:
    """Return the nodes by name, without those that only say what nodes may be (FUTURE). Raises as
    `jobs` does."""
    return {
        one.name: _node(one)
        for one in document("scontrol", output, _Nodes).nodes
        if "FUTURE" not in one.state
    }


def _job_state(one: _Job) -> str:
    words = [*(flag for flag in FLAGS if flag in one.job_state), *one.job_state]
    if not words or words[0] not in HELD | ON_NODES | OVER | {"PENDING"}:
        raise NotUnderstood(f"job {one.job_id} is in the state {','.join(one.job_state)!r}")
    return words[0]


def _job(one: _Job) -> SlurmJob:
    if one.array_task_string:
        task_ids(one.array_task_string)
    task, number = one.array_task_id.value, one.array_job_id.count
    evaluated = max(one.submit_time.count, one.last_sched_evaluation.count)
    return SlurmJob(
        id=one.job_id,
        state=_job_state(one),
        reason=one.state_reason,
        name=f"{number}_{task}" if task is not None else str(one.job_id),
        array=number,
        array_tasks="" if task is not None else one.array_task_string,
        limit=one.array_max_tasks.count,
        partitions=frozenset(one.partition.split(",")),
        nodes=hostlist(one.nodes),
        started=float(one.start_time.count),
        ended=float(one.end_time.count),
        restarts=one.restart_cnt,
        batch=one.batch_flag,
        eligible=0 < one.eligible_time.count <= evaluated,
        priority=one.priority.count,
        user=one.user_name,
        account=one.account,
        reservation=one.resv_name,
        size=JobSize(
            max(1, one.node_count.count),
            one.max_nodes.count,
            max(1, one.tasks.count),
            max(1, one.cpus.count),
            one.tasks_per_node.count,
            max(1, one.minimum_cpus_per_node.count),
            one.memory_per_node.value or None,  # 0 is what a job has that says nothing
            one.memory_per_cpu.value or None,
            _only_gres(one.tres_per_node),
            _only_gres(one.tres_per_task),
            _only_gres(one.tres_per_job),
            one.features,
            "none" in one.shared,
            hostlist(one.required_nodes),
            hostlist(one.excluded_nodes),
        ),
    )


def _only_gres(resources: str) -> str:
    """Return a list of resources without what is said elsewhere: cpu=2 is there for `-c2`."""
    return ",".join(one for one in resources.split(",") if one.startswith("gres"))


def _node(one: _Node) -> SlurmNode:
    states = [word.lower() for word in one.state if word.lower() in NODE_STATES]
    if len(states) != 1:
        raise NotUnderstood(f"node {one.name} is in the state {','.join(one.state)!r}")
    return SlurmNode(
        one.name,
        one.address,
        states[0],
        frozenset(word for word in one.state if word.lower() not in NODE_STATES),
        one.reason,
        frozenset(one.partitions),
        frozenset(filter(None, one.active_features)),
        one.cpus,
        one.alloc_cpus,
        one.real_memory,
        one.alloc_memory,
        gres(one.gres),
        gres(one.gres_used),
        one.cores,
        one.threads,
    )
