"""The subnet of a DHCP client. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import IPv4Network

from cod.model import DhcpQuery, Subnet, ipv4

NOWHERE = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Net:
    """A subnet with its addresses as numbers.

    network   all its addresses
    pool      addresses for firmware and trampoline
    blocks    addresses for vclusters' systems
    avoid     addresses that are never assigned: of the network itself, COD's servers and the router
    isolated  whether it is the network of an isolated vcluster: only this vcluster's systems are
              answered there
    """

    subnet: Subnet
    network: range
    pool: range
    blocks: range
    avoid: frozenset[int]
    isolated: bool = False

    def open(self, kept: float) -> range:
        """Return the part of the boot pool for machines without approval; the fraction `kept` is
        for approved ones."""
        return self.pool[: max(1, len(self.pool) - int(len(self.pool) * kept))]

    def owns(self, address: int) -> bool:
        """Return whether COD assigns the address."""
        return address in self.pool or address in self.blocks


@lru_cache(maxsize=1024)
def numbers(subnet: Subnet) -> Net:
    """Return the subnet with its addresses as numbers."""
    network = IPv4Network(subnet.network)
    whole = range(int(network.network_address), int(network.broadcast_address) + 1)
    avoid = [subnet.server, *subnet.others, subnet.router, subnet.relay]
    return Net(
        subnet,
        whole,
        _range(subnet.boot_pool),
        _range(subnet.block_pool),
        frozenset([whole[0], whole[-1], *(ipv4(address) for address in avoid if address)]),
    )


def _range(pool: tuple[str, str]) -> range:
    return range(ipv4(pool[0]), ipv4(pool[1]) + 1)


def listeners(subnets: Iterable[Subnet]) -> list[Subnet]:
    """Return one subnet for each DHCP socket that is needed.

    Each interface has a socket, which serves directly attached clients and relays. If an interface
    has several subnets, attached clients are in the subnet without a relay. For subnets without an
    interface, each server address has a socket, which serves only relays and renewals: their
    packets may arrive by any interface.
    """
    sockets: dict[str, Subnet] = {}
    for subnet in sorted(subnets, key=lambda each: each.relay is not None):
        sockets.setdefault(subnet.interface or subnet.server, subnet)
    return list(sockets.values())


class Subnets:
    """The site's subnets, indexed to find the subnets of many clients."""

    def __init__(self, subnets: Iterable[Subnet], isolated: Iterable[Subnet] = ()) -> None:
        self._nets = {subnet.name: numbers(subnet) for subnet in subnets}
        self._nets |= {subnet.name: replace(numbers(subnet), isolated=True) for subnet in isolated}
        self._relays: dict[str, Net | None] = {}
        nets = self._nets.values()
        self.servers = frozenset(net.subnet.server for net in nets)  # this host's own
        self._others = frozenset(each for net in nets for each in net.subnet.others)

    def leaves_to_other(self, query: DhcpQuery) -> bool:
        """Return whether the client has chosen the offer of another server of the site, which has
        the same bindings and answers. A renewal names no server, and is answered by any."""
        return query.kind == "REQUEST" and query.server_id in self._others

    def of(self, query: DhcpQuery) -> Net | None:
        """Return the client's subnet, by its relay, by its own address when it renews, or by the
        socket."""
        chosen = self._nets.get(query.subnet or "")
        # the message came by the isolated network: its own addresses do not decide
        if chosen is not None and chosen.isolated:
            return chosen if query.giaddr == NOWHERE else None
        if query.giaddr != NOWHERE:
            if query.giaddr not in self._relays:
                named = (net for net in self._nets.values() if net.subnet.relay == query.giaddr)
                self._relays[query.giaddr] = next(named, None) or self._by_address(query.giaddr)
            return self._relays[query.giaddr]
        net = chosen
        if query.ciaddr != NOWHERE and (net is None or ipv4(query.ciaddr) not in net.network):
            return self._by_address(query.ciaddr) or net
        return net

    def _by_address(self, address: str) -> Net | None:
        number = ipv4(address)
        # An isolated network with an interface of this server is reached by that interface alone.
        return next(
            (
                net
                for net in self._nets.values()
                if number in net.network and not (net.isolated and net.subnet.interface)
            ),
            None,
        )
