"""The settings of a Slurm pool."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from cod.vcm.batch.commands import NotUnderstood
from cod.vcm.batch.settings import BatchTable
from cod.vcm.pool import Nodeset
from cod.vcm.settings import Requirements, Settings, Table
from cod.vcm.slurm.needs import NodeKind
from cod.vcm.slurm.view import gres


def _gres(text: str) -> str:
    try:
        gres(text)
    except NotUnderstood:
        raise ValueError(
            f"{text!r} is not of the form 'gpu:2' or 'gpu:a100:2', with commas between several"
        ) from None
    return text


class NodesetTable(Table):
    """One kind of nodes."""

    name: str = Field(
        pattern="^[a-z0-9][a-z0-9-]{0,30}$", description="name of the nodeset, for the log"
    )
    cpus: int = Field(1, ge=1, le=100_000, description="CPUs of a node, as `slurmd -C` counts them")
    threads: int = Field(
        1, ge=1, le=64, description="threads of a core, where Slurm gives jobs whole cores"
    )
    memory: int = Field(
        0, ge=0, description="memory of a node in MiB (RealMemory); 0: any job fits"
    )
    gres: Annotated[str, AfterValidator(_gres)] = Field(
        "", description="generic resources of a node: `gpu:a100:2,nvme:1`"
    )
    features: tuple[str, ...] = Field(
        (), description="features beside `feature`; the VCM sets them"
    )
    requires: Requirements = Field(
        "", description="requirements of these nodes (XML); empty: those of the file"
    )
    template: str = Field("", description="template of these nodes; empty: that of the file")

    def kind(self, feature: str) -> NodeKind:
        return NodeKind(
            Nodeset(self.name, self.template, self.requires),
            self.cpus,
            self.memory or None,
            gres(self.gres),
            frozenset({feature, *self.features}),
            self.threads,
        )


def _distinct(nodesets: tuple[NodesetTable, ...]) -> tuple[NodesetTable, ...]:
    names = [one.name for one in nodesets]
    if len(set(names)) < len(names):
        raise ValueError("two nodesets have the same name")
    return nodesets


class SlurmTable(BatchTable):
    """Settings of Slurm, beside those of every batch system."""

    partition: str = Field(
        "vc", min_length=1, description="the partition whose jobs wait for nodes"
    )
    feature: str = Field(
        "cod",
        min_length=1,
        description="feature of each node of the pool, which puts it into the partition's NodeSet",
    )
    fresh: bool = Field(
        False, description="true: each job gets nodes of its own, which leave after it"
    )
    nodesets: Annotated[tuple[NodesetTable, ...], AfterValidator(_distinct)] = Field(
        (),
        description=(
            "kinds of nodes, a table each: a job gets the first that could run it, and `minimum`"
            " and `reserve` are of the first; none: all nodes are like those that joined, and the"
            " VCM requests one to see"
        ),
    )


class SlurmSettings(Settings):
    """The whole file of `cod vcm slurm`."""

    slurm: SlurmTable = SlurmTable.model_validate({})
