"""The settings of a Grid Engine pool."""

from __future__ import annotations

from pydantic import Field

from cod.vcm.batch.settings import BatchTable
from cod.vcm.settings import Settings


class GridEngineTable(BatchTable):
    """Settings of a Grid Engine cell, beside those of every batch system."""

    queue: str = Field("all.q", min_length=1, description="the cluster queue that nodes join")
    hostgroup: str = Field("@cod", pattern="^@", description="the host group of these nodes")
    slots: int = Field(1, ge=1, le=100_000, description="slots of one node")
    offers: dict[str, str] = Field(
        {},
        description="resources of a node for -l beside those that hosts show: { gpu = '1' }",
    )
    jobs_per_node: int = Field(1, ge=1, description="queued jobs for each further node")
    maintenance_notice: float = Field(
        86_400.0,
        ge=0,
        le=1e9,
        description=(
            "seconds before a maintenance window from which its nodes take no new jobs: the "
            "longest that a job may run"
        ),
    )
    placeholder: str = Field(
        "",
        description=(
            "disabled host that keeps the queue from having none; "
            "empty: the first of `keep`, or the master"
        ),
    )


class GridEngineSettings(Settings):
    """The whole file of `cod vcm sge`."""

    gridengine: GridEngineTable = GridEngineTable.model_validate({})
