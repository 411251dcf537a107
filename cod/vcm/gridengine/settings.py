"""The settings of a Grid Engine pool."""

from __future__ import annotations

from pydantic import Field

from cod.vcm.batch.settings import BatchTable
from cod.vcm.settings import Settings


class GridEngineTable(BatchTable):
    """What a cell needs beside what every batch system does."""

    queue: str = Field("all.q", min_length=1, description="the cluster queue that nodes join")
    hostgroup: str = Field(
        "@cod", pattern="^@", description="the host group that they are put into"
    )
    slots: int = Field(1, ge=1, le=100_000, description="slots of one node")
    offers: dict[str, str] = Field(
        {}, description="what a node offers to -l beside what the pool's hosts show: { gpu = '1' }"
    )
    jobs_per_node: int = Field(1, ge=1, description="one node more for so many queued jobs")
    placeholder: str = Field(
        "",
        description=(
            "host that stands in the queue, disabled, so that there is one while the "
            "pool is empty; empty: the first of keep, or the master's"
        ),
    )


class GridEngineSettings(Settings):
    """The whole file of `cod vcm sge`."""

    gridengine: GridEngineTable = GridEngineTable.model_validate({})
