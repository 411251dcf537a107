"""The settings that the pools of all batch systems have."""

from __future__ import annotations

from pydantic import Field

from cod.vcm.batch.commands import Command
from cod.vcm.settings import Seconds, Table


class BatchTable(Table):
    """The pool."""

    path: str = Field("", description="folder of the batch system's commands; empty: PATH")
    environment: dict[str, str] = Field(
        {}, description="variables that they need and that are not in the environment"
    )
    idle_limit: Seconds = Field(300.0, description="seconds after which an idle node goes back")
    lifetime: float = Field(
        0.0,
        ge=0,
        le=1e9,
        description=(
            "seconds after which a node takes no more jobs, and goes "
            "back when those that it has are over; 0: no such end"
        ),
    )
    park: float = Field(
        0.0,
        ge=0,
        le=1e9,
        description=(
            "seconds more for which such a node stays booted, parked, unless a request needs it; "
            "0: none does"
        ),
    )
    park_maximum: int = Field(8, ge=0, description="parked nodes at most")
    reserve: int = Field(0, ge=0, description="idle nodes that stay all the same")
    minimum: int = Field(0, ge=0, description="nodes of the pool at least")
    maximum: int = Field(64, ge=0, description="nodes of the pool at most")
    calm: float = Field(
        60.0,
        ge=0,
        description=(
            "seconds after growth, and after the last job that waited, in which no node goes back"
        ),
    )
    keep: tuple[str, ...] = Field(
        (), description="hostnames of the vcluster that are no execution hosts: its head"
    )
    unheard_limit: Seconds = Field(
        300.0,
        description=(
            "seconds after which a node whose daemon does not report is "
            "given back, its jobs put back into the queue"
        ),
    )
    join_time: Seconds = Field(
        120.0,
        description=(
            "seconds that a node's execution daemon has to report; then the node is given back"
        ),
    )
    start: Command = Field(
        "",
        description=(
            "command that starts the execution daemon on a node: {hostname} and "
            "{address} are filled in; empty: its image does so by itself"
        ),
    )
    stop: Command = Field(
        "", description="the same before the node is given back; empty: the batch system's own way"
    )
    drain: bool = Field(
        False,
        description="let jobs end before a reclaimed node goes, as far as the deadline allows",
    )
    save: Command = Field(
        "",
        description=(
            "command that saves the jobs of a node that has to leave, before they are "
            "put back into the queue: {jobs} is their numbers, with commas"
        ),
    )
    save_time: Seconds = Field(
        60.0,
        description=(
            "seconds that it may take; after them, and when it fails, the node leaves all the same"
        ),
    )
    restore: Command = Field(
        "", description="command that is run for a node that joins, before it takes jobs"
    )
