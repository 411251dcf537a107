"""The settings that the pools of all batch systems have."""

from __future__ import annotations

from pydantic import Field

from cod.vcm.batch.commands import Command
from cod.vcm.settings import Seconds, Table


class BatchTable(Table):
    """The pool."""

    path: str = Field("", description="folder of the batch system's commands; empty: PATH")
    environment: dict[str, str] = Field(
        {}, description="environment variables that these commands need"
    )
    idle_limit: Seconds = Field(300.0, description="seconds after which an idle node leaves")
    lifetime: float = Field(
        0.0,
        ge=0,
        le=1e9,
        description=(
            "seconds after which a node takes no new jobs, and leaves when its jobs have ended; "
            "0: no limit"
        ),
    )
    park: float = Field(
        0.0,
        ge=0,
        le=1e9,
        description=(
            "further seconds for which an idle node stays booted, parked, unless a request needs "
            "it; 0: none"
        ),
    )
    park_maximum: int = Field(8, ge=0, description="most parked nodes")
    reserve: int = Field(0, ge=0, description="idle nodes that always stay")
    minimum: int = Field(0, ge=0, description="fewest nodes of the pool")
    maximum: int = Field(64, ge=0, description="most nodes of the pool")
    calm: float = Field(
        60.0,
        ge=0,
        description=("seconds without a node leaving, after growth and after the last waiting job"),
    )
    keep: tuple[str, ...] = Field(
        (), description="host names of the cluster that are no execution hosts: its head"
    )
    unheard_limit: Seconds = Field(
        300.0,
        description=(
            "seconds after which a node with a silent daemon is released, and its jobs return to "
            "the queue"
        ),
    )
    join_time: Seconds = Field(
        120.0,
        description=("seconds in which a new node's daemon must report; else the node is released"),
    )
    start: Command = Field(
        "",
        description=(
            "command that starts the execution daemon on a node, with {hostname} and {address} "
            "filled in; empty: the image starts it"
        ),
    )
    stop: Command = Field(
        "",
        description="command that stops it before the node leaves; empty: the system's own way",
    )
    drain: bool = Field(
        False,
        description="let jobs end before a reclaimed node goes, as far as the deadline allows",
    )
    save: Command = Field(
        "",
        description=(
            "command that saves the jobs of a node that must leave, before they return to the "
            "queue; {jobs}: their numbers, with commas"
        ),
    )
    save_time: Seconds = Field(
        60.0,
        description=(
            "longest time of `save`; after it, or after a failure, the node leaves all the same"
        ),
    )
    restore: Command = Field(
        "", description="command that runs for a node that joins, before it takes jobs"
    )
