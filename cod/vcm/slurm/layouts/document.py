"""Common parts of the layouts of all releases: a document is JSON of a given shape, strictly
checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from cod.model import field_error
from cod.vcm.batch.commands import CommandFailed, NotUnderstood
from cod.vcm.slurm.view import (
    HELD,
    ON_NODES,
    OVER,
    JobSize,
    SlurmJob,
    SlurmNode,
    gres,
    hostlist,
    task_ids,
)

LARGEST = 256 * 2**20  # bytes of one command's output
SILENT = "slurmctld does not answer"


@dataclass(frozen=True, slots=True)
class Layout:
    """The commands and readers for some releases of Slurm.

    releases      for people
    queue, nodes  commands that list all jobs, and all nodes
    node          returns the command that lists the node of a name, and perhaps others
    read_jobs     returns the jobs, including those that are over
    read_nodes    returns the nodes by name, without those that only describe future nodes (FUTURE)
    """

    releases: str
    queue: tuple[str, ...]
    nodes: tuple[str, ...]
    node: Callable[[str], tuple[str, ...]]
    read_jobs: Callable[[bytes], list[SlurmJob]]
    read_nodes: Callable[[bytes], dict[str, SlurmNode]]


class Shape(BaseModel):
    """A part of a document, which may have further fields that are not read."""

    model_config = ConfigDict(strict=True, extra="ignore")


class Document(Shape):
    """Fields of every document."""

    errors: list[Any]


class JobShape(Shape):
    """A job as squeue lists it; layouts that write a field in another form override it."""

    job_id: int
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
    required_nodes: str
    excluded_nodes: str
    time_limit: int | None  # minutes

    def job(self, states: Sequence[str], exclusive: bool) -> SlurmJob:
        """Return the job. The VCM uses the first of `states`. Raises `NotUnderstood`."""
        if not states or states[0] not in HELD | ON_NODES | OVER | {"PENDING"}:
            raise NotUnderstood(f"job {self.job_id} is in the state {','.join(states)!r}")
        if self.array_task_string:
            task_ids(self.array_task_string)
        single = self.array_task_id is not None
        evaluated = max(self.submit_time, self.last_sched_evaluation)
        return SlurmJob(
            id=self.job_id,
            state=states[0],
            reason=self.state_reason,
            name=f"{self.array_job_id}_{self.array_task_id}" if single else str(self.job_id),
            array=self.array_job_id,
            array_tasks="" if single else self.array_task_string,
            limit=self.array_max_tasks,
            partitions=frozenset(self.partition.split(",")),
            nodes=hostlist(self.nodes),
            started=float(self.start_time),
            ended=float(self.end_time),
            restarts=self.restart_cnt,
            batch=self.batch_flag,
            eligible=0 < self.eligible_time <= evaluated,
            priority=self.priority,
            user=self.user_name,
            account=self.account,
            reservation=self.resv_name,
            size=JobSize(
                least=max(1, self.node_count),
                most=self.max_nodes,
                tasks=max(1, self.tasks or 1),
                cpus=max(1, self.cpus or 1),
                tasks_per_node=self.tasks_per_node,
                node_cpus=max(1, self.minimum_cpus_per_node),
                memory=self.memory_per_node or None,  # 0 is what a job has that says nothing
                cpu_memory=self.memory_per_cpu or None,
                node_gres=self.tres_per_node,
                task_gres=self.tres_per_task,
                job_gres=self.tres_per_job,
                features=self.features,
                whole=exclusive,
                required=hostlist(self.required_nodes),
                excluded=hostlist(self.excluded_nodes),
            ),
            lasts=inf if self.time_limit is None else self.time_limit * 60.0,
        )


class NodeShape(Shape):
    """A node, with the fields that all layouts have in common."""

    name: str
    address: str
    reason: str
    partitions: list[str]
    cpus: int
    cores: int
    threads: int
    alloc_cpus: int
    real_memory: int
    alloc_memory: int
    gres: str
    gres_used: str

    def node(self, state: str, flags: Iterable[str], features: Iterable[str]) -> SlurmNode:
        """Return the node. Raises `NotUnderstood`."""
        return SlurmNode(
            name=self.name,
            address=self.address,
            state=state,
            flags=frozenset(flags),
            reason=self.reason,
            partitions=frozenset(self.partitions),
            features=frozenset(filter(None, features)),
            cpus=self.cpus,
            cpus_used=self.alloc_cpus,
            memory=self.real_memory,
            memory_used=self.alloc_memory,
            gres=gres(self.gres),
            gres_used=gres(self.gres_used),
            cores=self.cores,
            threads=self.threads,
        )


D = TypeVar("D", bound=Document)


def document(command: str, output: bytes, shape: type[D]) -> D:
    """Return a command's output as a document of this shape. Raises `NotUnderstood`, or
    `CommandFailed` if the output has errors."""
    if len(output) > LARGEST:
        raise NotUnderstood(f"{command} --json: {len(output)} bytes of output")
    try:
        # names of jobs may be any bytes
        read = shape.model_validate_json(output.decode(errors="replace"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise NotUnderstood(f"{command} --json: {where}: {field_error(first)}") from None
    if read.errors:  # with status 0, and an empty list: the controller does not answer
        why = read.errors[0] if isinstance(read.errors[0], dict) else {"error": read.errors[0]}
        text = str(why.get("description") or why.get("error") or "Unspecified error")
        more = "" if text == "Unspecified error" else f" ({command} --json: {text})"
        raise CommandFailed(f"{SILENT}{more}")
    return read
