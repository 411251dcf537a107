"""The site file's table [isolation]."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from typing import Annotated, Literal

from pydantic import Field, model_validator

from cod.site.values import Table

Vlan = Annotated[int, Field(ge=2, le=4094)]
PrefixLength = Annotated[int, Field(ge=20, le=29)]
LONGEST_TRUNK = 10  # of the 15 characters of an interface's name; the rest is for ".4094"


class IsolationTable(Table):
    """Networks of their own for isolated vclusters: VLANs, and subnets. Without `vlans` no vcluster
    can be isolated."""

    vlans: tuple[Vlan, Vlan] | None = Field(
        None,
        description=(
            "first and last VLAN that COD may give to vclusters; "
            "every switch that nodes are on has to carry them"
        ),
    )
    by_default: bool = Field(
        False, description="a new vcluster is isolated unless it asks not to be"
    )
    networks: IPv4Network | None = Field(
        None, description="the network that vclusters' subnets are cut from"
    )
    default_size: PrefixLength = Field(
        26, description="prefix length of a subnet where a vcluster asks for none"
    )
    largest_size: PrefixLength = Field(
        20, description="prefix length of the largest subnet that a vcluster may have"
    )
    interface: str | None = Field(
        None,
        min_length=1,
        max_length=LONGEST_TRUNK,
        description=(
            "the server's interface that carries the VLANs tagged: COD makes INTERFACE.VLAN for"
            " each VLAN in use, or takes one that is there"
        ),
    )
    server: IPv4Address | None = Field(
        None,
        description=(
            "instead of `interface`: the server's address that nodes "
            "reach through the router, which relays their DHCP to it"
        ),
    )
    router: Literal["first", "last", "none"] = Field(
        "none",
        description=(
            "the address of each subnet that the site's "
            "router has, which nodes get as their default router"
        ),
    )

    @model_validator(mode="after")
    def _coherent(self) -> IsolationTable:
        problems = list(_problems(self))
        if problems:
            raise ValueError("; ".join(problems))
        return self


def _problems(table: IsolationTable) -> Iterator[str]:
    """Yield what of the table does not go together."""
    if table.vlans is None:
        used = (table.networks, table.interface, table.server)
        if table.by_default or any(each is not None for each in used):
            yield "vlans should be set: without them no vcluster can be isolated"
        return
    first, last = table.vlans
    if last < first:
        yield f"vlans should name the first VLAN before the last, not {first} before {last}"
    if table.networks is None:
        yield "networks should be set: isolated vclusters get their subnets from it"
    elif table.networks.prefixlen > table.largest_size:
        yield (
            f"networks {table.networks} should hold a /{table.largest_size}, or largest_size be a"
            " smaller subnet"
        )
    if table.largest_size > table.default_size:
        yield (
            f"default_size /{table.default_size} should not be larger than largest_size"
            f" /{table.largest_size}"
        )
    if (table.interface is None) == (table.server is None):
        yield "either interface or server should be set: how does the server reach the VLANs?"
    if table.server is not None and table.router == "none":
        yield "router should be first or last: behind a relay, the server is reached through it"
    if table.server is not None and table.networks is not None and table.server in table.networks:
        yield (
            f"server {table.server} should not be in networks {table.networks}, which vclusters get"
        )
