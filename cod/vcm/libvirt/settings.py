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
    """What a node of a type offers to virtual machines."""

    type: str = Field("", description="the node type's name; empty: all types not named")
    cpus: int = Field(ge=1, description="processors of all its machines together at most")
    memory: int = Field(ge=1, description="MiB of all its machines together at most")

    @property
    def size(self) -> Size:
        return Size(self.cpus, self.memory)


class LibvirtTable(Table):
    """The pool."""

    uri: Annotated[str, AfterValidator(_uri)] = Field(
        "qemu+ssh://root@{address}/system",
        description="how virsh reaches a node: {hostname} and {address} are filled in",
    )
    machines: Path = Field(
        description="folder with a libvirt domain document NAME.xml for each machine that runs"
    )
    capacities: tuple[CapacityTable, ...] = Field(
        min_length=1,
        description=(
            "what nodes offer, tables of their own; new nodes are expected to be as the first says"
        ),
    )
    minimum: int = Field(0, ge=0, description="nodes of the pool at least")
    maximum: int = Field(64, ge=0, description="nodes of the pool at most")
    idle_limit: Seconds = Field(300.0, description="seconds after which an empty node goes back")
    stop_time: Seconds = Field(
        60.0, description="seconds that machines have to shut down; then they are ended"
    )
    keep: tuple[str, ...] = Field(
        (), description="hostnames of the vcluster that are no virtual hosts: its head"
    )


class LibvirtSettings(Settings):
    """The whole file."""

    libvirt: LibvirtTable
