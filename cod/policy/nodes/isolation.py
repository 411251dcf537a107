"""The networks of isolated vclusters: choice of VLAN and subnet, use of the subnet's addresses, and
size of the subnet. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Network

from cod.model import AddressBlock, Isolation, Refused, Subnet, VclusterNetwork, dotted, ipv4

SMALLEST = 29  # prefix length: four to six nodes, with one server
# seconds within which a switch usually changes a port; firmware repeats its DHCP request for longer
MOMENT = 10.0
_NAME = re.compile(r"vlan-([0-9]{1,4})")


def vlan_of(name: str | None) -> int | None:
    """Return the VLAN of the isolated vcluster's network called `name`; None: `name` is another
    network."""
    match = _NAME.fullmatch(name or "")
    return int(match[1]) if match else None


def place(taken: Sequence[VclusterNetwork], prefix: int, rules: Isolation) -> tuple[int, int]:
    """Return the lowest free VLAN of the site, and the first address of the lowest free subnet with
    that prefix length. Raise `Refused` if all are taken.

    taken  the existing networks, in the order of their first addresses
    """
    first, last = rules.vlans
    used = {each.vlan for each in taken}
    vlan = next((number for number in range(first, last + 1) if number not in used), None)
    if vlan is None:
        raise Refused(
            "conflict",
            f"all {last + 1 - first} VLANs of the site ({first} to {last}) are in use: delete an "
            "isolated vcluster, or widen vlans in the site file",
            "isolated",
        )
    whole, size = IPv4Network(rules.networks), 2 ** (32 - prefix)
    start, end = int(whole.network_address), int(whole.broadcast_address)
    for each in taken:
        if start + size <= each.first_address:
            break
        start = max(start, each.last_address + 1 + -(each.last_address + 1) % size)
    if start + size - 1 > end:
        raise Refused(
            "conflict",
            f"no subnet of size /{prefix} is free in {rules.networks}: ask for a smaller one, "
            "delete an isolated vcluster, or enlarge networks in the site file",
            "network_size",
        )
    return vlan, start


def network(
    vlan: int, vcluster_id: int, first: int, prefix: int, rules: Isolation
) -> VclusterNetwork:
    """Return the network of a vcluster that begins with the address `first`. Each of COD's servers
    has an address in it, unless nodes reach the servers through the router."""
    hosts = range(first + 1, first + (1 << 32 - prefix) - 1)
    router = {"first": hosts[0], "last": hosts[-1]}.get(rules.router)
    if rules.server:
        return VclusterNetwork(vlan, vcluster_id, first, prefix, ipv4(rules.server), router)
    server = hosts[1] if router == hosts[0] else hosts[0]
    servers = len(rules.hosts) or 1
    return VclusterNetwork(vlan, vcluster_id, first, prefix, server, router, servers)


def serves(network: VclusterNetwork, rules: Isolation) -> bool:
    """Return whether this host serves the network: hosts that were added to the site after the
    network was made have no address in it."""
    return bool(rules.server) or rules.place < network.servers


def subnet(network: VclusterNetwork, rules: Isolation, named: bool = True) -> Subnet:
    """Return a vcluster's network as a subnet. Its server is this host, if the host has an address
    in the network.

    named  whether COD's servers answer DNS questions there
    """
    block = nodes(network)
    pool = dotted(block.first), dotted(block.last)
    servers = rules.servers or _servers(network, rules)
    server, *others = servers
    return Subnet(
        network.subnet,
        str(network),
        server,
        boot_pool=pool,
        block_pool=pool,
        block_size=1 << 32 - network.prefix,
        router=None if network.router_address is None else dotted(network.router_address),
        interface=None if rules.interface is None else f"{rules.interface}.{network.vlan}",
        dns=servers if named else (),
        others=tuple(others),
    )


def _servers(network: VclusterNetwork, rules: Isolation) -> tuple[str, ...]:
    """Return the servers' addresses in a network; this host's own address is first, if there is
    one."""
    places = sorted(range(network.servers), key=lambda place: (place != rules.place, place))
    return tuple(dotted(network.server_address + place) for place in places)


def nodes(network: VclusterNetwork) -> AddressBlock:
    """Return the addresses that nodes of a network get: all except the network and broadcast
    addresses, the router's and the servers'."""
    first, last = network.first_address + 1, network.last_address - 1
    servers = range(network.server_address, network.server_address + network.servers)
    others = (network.router_address, *servers)
    while first in others:
        first += 1
    while last in others:
        last -= 1
    return AddressBlock(first, last, network.subnet)


def room(prefix: int, rules: Isolation) -> int:
    """Return the number of nodes that a subnet with that prefix length has addresses for."""
    first = int(IPv4Network(rules.networks).network_address)
    return nodes(network(0, 0, first, prefix, rules)).room


def size(asked: int | None, count: int, rules: Isolation) -> int:
    """Return the prefix length of the subnet of a vcluster with `count` nodes: `asked`, or, without
    it, the site's default or the larger subnet that `count` needs. Raise `Refused` if `asked` is
    not allowed or too small, or `count` is too large for any subnet."""
    sizes = range(SMALLEST, rules.largest_size - 1, -1)
    fitting = next((prefix for prefix in sizes if room(prefix, rules) >= count), None)
    if asked is not None and asked not in sizes:
        raise Refused(
            "invalid",
            f"a vcluster's network has a size from /{SMALLEST} to /{rules.largest_size}, not "
            f"/{asked}",
            "network_size",
        )
    if fitting is None:
        most = room(rules.largest_size, rules)
        raise Refused(
            "invalid",
            f"an isolated vcluster has addresses for {most} nodes at most (largest_size in the "
            "site file)",
            "size",
        )
    if asked is not None and asked > fitting:
        raise Refused(
            "invalid",
            f"a network of size /{asked} has addresses for {room(asked, rules)} nodes, not for "
            f"{count}: ask for /{fitting}, which has {room(fitting, rules)}",
            "network_size",
        )
    return asked or min(fitting, rules.default_size)
