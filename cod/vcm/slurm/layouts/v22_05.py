"""The layout of Slurm 22.05 (tried with 22.05.8): numbers are plain, a state is one word, and sinfo
lists nodes."""

from __future__ import annotations

from cod.vcm.batch.commands import NotUnderstood
from cod.vcm.slurm.layouts.document import Document, JobShape, Layout, NodeShape, document
from cod.vcm.slurm.view import NODE_STATES, SlurmJob, SlurmNode


class _Job(JobShape):
    job_state: str
    shared: str | None


class _Node(NodeShape):
    state: str
    state_flags: list[str]
    active_features: str


class _Jobs(Document):
    jobs: list[_Job]


class _Nodes(Document):
    nodes: list[_Node]


def jobs(output: bytes) -> list[SlurmJob]:
    """Return the jobs, including those that are over. Raises `NotUnderstood`, or `CommandFailed` if
    the output has errors."""
    return [
        one.job((one.job_state,), one.shared == "none")
        for one in document("squeue", output, _Jobs).jobs
    ]


def nodes(output: bytes) -> dict[str, SlurmNode]:
    """Return the nodes by name, without those that only describe future nodes (FUTURE). Raises as
    `jobs` does."""
    found = {}
    for one in document("sinfo", output, _Nodes).nodes:
        if one.state not in NODE_STATES | {"future"}:
            raise NotUnderstood(f"node {one.name} is in the state {one.state!r}")
        if one.state != "future":
            found[one.name] = one.node(one.state, one.state_flags, one.active_features.split(","))
    return found


LAYOUT = Layout(
    "22.05",
    ("squeue", "--all", "--json"),
    ("sinfo", "--all", "--json"),
    lambda _name: ("sinfo", "--all", "--json"),  # it knows no choice of nodes in JSON
    jobs,
    nodes,
)
