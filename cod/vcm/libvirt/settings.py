"""The settings of a pool of virtual hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from cod.vcm.libvirt.placement import Size
from cod.vcm.settings import Seconds, Settings, Table


def _uri(text: str) -> str:
    try:
        text.format(hostname="n2", address="10.0.0.2")
    except (ValueError, LookupError, AttributeError):
        raise ValueError(f"{text!r}: only {{hostname}} and {{address}} are filled in") from None
    return text


class CapacityTable(Table):
    """Capacity of a node of a type for virtual machines."""

    type: str = Field("", description="the node type's name; empty: all types not named")
    cpus: int = Field(ge=1, description="most processors of all machines of a node")
    memory: int = Field(ge=1, description="most MiB of all machines of a node")

    @property
    def size(self) -> Size:
        return Size(self.cpus, self.memory)


class LibvirtTable(Table):
    """The pool."""

    uri: Annotated[str, AfterValidator(_uri)] = Field(
        "qemu+ssh://root@{address}/system",
        description="libvirt's address of a node, with {hostname} and {address} filled in",
    )
    machines: Path = Field(
        description="folder with a libvirt domain document NAME.xml for each machine that runs"
    )
    capacities: tuple[CapacityTable, ...] = Field(
        min_length=1,
        description=("sizes of nodes, a table each; the VCM requests nodes of the first"),
    )
    minimum: int = Field(0, ge=0, description="fewest nodes of the pool")
    maximum: int = Field(64, ge=0, description="most nodes of the pool")
    idle_limit: Seconds = Field(300.0, description="seconds after which an empty node leaves")
    stop_time: Seconds = Field(
        60.0, description="seconds in which machines must shut down; then they are ended"
    )
    keep: tuple[str, ...] = Field(
        (), description="host names of the cluster that are no virtual hosts: its head"
    )


class LibvirtSettings(Settings):
    """The whole file."""

    libvirt: LibvirtTable
