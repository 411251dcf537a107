"""Rules of the site file that span keys: each function tells what is wrong, a sentence a problem."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from cod.sitevalues import Pool

if TYPE_CHECKING:
    from cod.sitefile import SiteFile, SubnetTable


def subnet_problems(subnet: SubnetTable) -> Iterator[str]:
    """What of a subnet does not go together."""
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
        elif any(own is not None and first <= own <= last for own in (subnet.server, subnet.router)):
            yield f"{key} {first} - {last} should hold neither the server's nor the router's address"
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
        yield (f"server {subnet.server} should be an address of this server that the relay sends to: nothing listens "
               "for DHCP otherwise")


def _is_host(address: IPv4Address) -> bool:
    return not (address.is_unspecified or address.is_loopback or address.is_multicast or address.is_reserved)


def _overlap(one: Pool, other: Pool) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def site_problems(file: SiteFile) -> Iterator[str]:
    """What of different tables does not go together; each sentence begins with the key."""
    if file.boot.http_port == file.boot.confd_port:
        yield "boot.http_port and boot.confd_port should differ"
    if not file.subnet:
        yield "subnet: at least one [[subnet]] is needed"
    yield from _account_problems(file)
    for n, subnet in enumerate(file.subnet):
        for other in file.subnet[:n]:
            if subnet.name == other.name:
                yield f"subnet.{n}.name: {subnet.name!r} is used twice"
            if subnet.network.overlaps(other.network):
                yield f"subnet.{n}.network: {subnet.network} overlaps that of {other.name!r}"
            if subnet.interface is not None and subnet.interface == other.interface and subnet.relay is None:
                yield f"subnet.{n}.interface: {subnet.interface} serves {other.name!r} already; one needs a relay"


def _account_problems(file: SiteFile) -> Iterator[str]:
    names = [account.name for account in file.account]
    for n, name in enumerate(names):
        if name in names[:n]:
            yield f"account.{n}.name: {name!r} is used twice"
    for n, rule in enumerate(file.power):
        if rule.account is not None and rule.account not in names:
            yield f"power.{n}.account: there is no [[account]] named {rule.account!r}"
