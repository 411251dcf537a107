"""The site file's table [[subnet]], and the rules that span its keys."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network

from pydantic import Field, model_validator

from cod.site.values import LABEL, Pool, Table


class SubnetTable(Table):
    """One IPv4 network that COD answers on. Repeat the table for more."""

    name: str = Field(pattern=LABEL, description="its name in listings, a DNS label")
    network: IPv4Network = Field(description="the network, ADDRESS/BITS")
    server: IPv4Address = Field(
        description="COD's own address on it (behind a relay: the address that nodes reach)"
    )
    interface: str | None = Field(
        None,
        min_length=1,
        max_length=15,
        description="the server's interface on it; leave out for a network behind a relay",
    )
    relay: IPv4Address | None = Field(
        None, description="address by which a DHCP relay names this network (giaddr)"
    )
    router: IPv4Address | None = Field(None, description="default router given to nodes")
    dns: tuple[IPv4Address, ...] = Field(
        (), description="name servers given to nodes; none: COD's own, if it is on"
    )
    boot_pool: Pool = Field(description="first and last address for firmware and trampoline")
    block_pool: Pool = Field(
        description="first and last address from which vclusters get their blocks"
    )
    block_size: int = Field(
        64,
        ge=2,
        le=2**20,
        description=(
            "addresses in a block, a power of two; a vcluster has as many blocks as it needs"
        ),
    )

    @model_validator(mode="after")
    def _coherent(self) -> SubnetTable:
        problems = list(_problems(self))
        if problems:
            raise ValueError("; ".join(problems))
        return self


def _problems(subnet: SubnetTable) -> Iterator[str]:
    """Yield what of a subnet does not go together."""
    net = subnet.network
    on_it = {"router": subnet.router, "server": subnet.server if subnet.interface else None}
    for key, address in on_it.items():
        if address is not None and address not in net:
            yield f"{key} {address} should be inside the network {net}"
    for key in ("boot_pool", "block_pool"):
        first, last = getattr(subnet, key)
        if last < first:
            yield f"{key} should name its first address before its last"
        elif first not in net or last not in net:
            yield f"{key} {first} - {last} should be inside the network {net}"
        elif any(
            own is not None and first <= own <= last for own in (subnet.server, subnet.router)
        ):
            yield (
                f"{key} {first} - {last} should hold neither the server's nor the router's address"
            )
    if subnet.boot_pool[0] == net.network_address or subnet.boot_pool[1] == net.broadcast_address:
        yield "boot_pool should leave out the network's first and last address"
    if _overlap(subnet.boot_pool, subnet.block_pool):
        yield "boot_pool and block_pool should not overlap"
    if subnet.block_size & (subnet.block_size - 1):
        yield f"block_size should be a power of two, not {subnet.block_size}"
    elif int(subnet.block_pool[1]) - int(subnet.block_pool[0]) + 1 < subnet.block_size:
        yield "block_pool should hold at least one block of block_size addresses"
    if subnet.interface is None and subnet.relay is None:
        yield "interface or relay should be set: how do its packets reach this server?"
    if subnet.interface is None and not _is_host(subnet.server):
        yield (
            f"server {subnet.server} should be an address of this server that the relay sends to:"
            " nothing listens for DHCP otherwise"
        )


def _is_host(address: IPv4Address) -> bool:
    return not (
        address.is_unspecified or address.is_loopback or address.is_multicast or address.is_reserved
    )


def _overlap(one: Pool, other: Pool) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
