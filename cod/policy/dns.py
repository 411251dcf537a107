"""The site's DNS zones, and the position of each name in them. Pure; `store.nodes.dns_names` finds
the addresses.

The site's domain is a zone, each vcluster below it is a zone, and the reverse names of each subnet
are one or more zones::

    cod.internal            the site's zone (SOA, NS, and the vclusters' NS)
    pool.cod.internal       the zone of a vcluster (SOA, NS)
    n4.pool.cod.internal    its node n4
    _catalog.cod.internal   the list of all zones, for secondaries (RFC 9432)
    77.10.in-addr.arpa      the zone of a subnet 10.77.0.0/16

For reverse zones, a subnet's prefix length is rounded up to a whole octet: a /22 has four zones. A
subnet smaller than a /24 has a zone by RFC 2317, such as 64-127.2.0.192.in-addr.arpa, to which the
owner of 2.0.192.in-addr.arpa can refer. The plain names of its addresses are answered, too, for
clients that ask this server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network

from cod.model import Site, Subnet, dotted, ipv4
from cod.policy.nodes.place import subnet_at

_OCTET = re.compile(r"[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5]")
_ARPA = ".in-addr.arpa"

# label of the server itself below the domain; with a number where the site has several
NAME_SERVER = "ns"
CATALOG = "_catalog"
_SERVERS = re.compile(rf"{NAME_SERVER}[0-9]*")


@dataclass(frozen=True, slots=True)
class Zone:
    """A zone of the site. `kind` and `key` identify its serial number: ('site', ''), ('vcluster',
    name) or ('subnet', name). `span`: the addresses of a reverse zone."""

    name: str
    kind: str
    key: str = ""
    span: range = range(0)

    @property
    def is_part(self) -> bool:
        """Return whether the zone is a reverse zone of less than 256 addresses (RFC 2317)."""
        return 0 < len(self.span) < 256


@dataclass(frozen=True, slots=True)
class NamePlace:
    """A name's position in the site's tree.

    what  'apex' of a zone, 'server' (a name server), 'vcluster' (the apex of its zone, if there is
          such a vcluster), 'node', 'address' (a reverse name), 'between' (a domain above reverse
          names), or 'nothing' (a name of the site's domain that can never exist)
    zone  the zone that the name is in, or would be in; None: a reverse name outside the zone of its
          subnet (RFC 2317)
    """

    what: str
    zone: Zone | None
    vcluster: str = ""
    host: str = ""
    address: int = 0


def site_zone(site: Site) -> Zone:
    """Return the zone of the site's domain."""
    return Zone(site.domain, "site")


def catalog_zone(site: Site) -> Zone:
    """Return the zone that lists the others."""
    return Zone(f"{CATALOG}.{site.domain}", "site")


def vcluster_zone(name: str, site: Site) -> Zone:
    return Zone(f"{name}.{site.domain}", "vcluster", name)


def place(name: str, site: Site, subnets: Iterable[Subnet]) -> NamePlace | None:
    """Return the position of `name` (lower case, without the last dot); None if the site is not
    responsible for the name."""
    if name == site.domain:
        return NamePlace("apex", site_zone(site))
    if name.endswith("." + site.domain):
        labels = name.removesuffix("." + site.domain).split(".")
        if labels == [CATALOG]:
            return NamePlace("apex", catalog_zone(site))
        if len(labels) == 1:
            if name in dict(name_servers(site)):
                return NamePlace("server", site_zone(site))
            return NamePlace("vcluster", vcluster_zone(labels[0], site), labels[0])
        if len(labels) == 2:
            return NamePlace("node", vcluster_zone(labels[1], site), labels[1], labels[0])
        return NamePlace("nothing", vcluster_zone(labels[-1], site), labels[-1])
    first = first_address(name)
    if first is None:
        return None
    subnet = subnet_at(subnets, dotted(first))
    if subnet is not None:
        return _reverse(name, first, subnet, site)
    isolated = site.isolation is not None and IPv4Address(first) in IPv4Network(
        site.isolation.networks
    )
    return (
        NamePlace("address", None, address=first)
        if isolated and name == reverse_name(first)
        else None
    )


def _reverse(name: str, first: int, subnet: Subnet, site: Site) -> NamePlace | None:
    zone = next(zone for zone in reverse_zones(subnet) if first in zone.span)
    if name == zone.name:
        return NamePlace("apex", zone)
    below = name.endswith("." + zone.name)
    labels = name.removesuffix(_ARPA).split(".")
    if len(labels) == 4 and "-" not in labels[0]:  # the plain name of an address
        ours = ipv4(subnet.block_pool[0]) <= first <= ipv4(subnet.block_pool[1])
        if site.dns.forward and not ours:
            return None  # the servers that questions are forwarded to may know the name
        return NamePlace("address", zone if below else None, address=first)
    if not below:
        return None  # a domain above the zone
    if len(labels) < 4:
        return NamePlace("between", zone)
    host = name.removesuffix("." + zone.name)
    if zone.is_part and _OCTET.fullmatch(host) and (first & ~0xFF | int(host)) in zone.span:
        return NamePlace("address", zone, address=first & ~0xFF | int(host))
    return NamePlace("nothing", zone)


def first_address(name: str) -> int | None:
    """Return the first address that a reverse name (RFC 1035 section 3.5, RFC 2317) covers; None
    for a name of another sort."""
    if not name.endswith(_ARPA):
        return None
    labels = name.removesuffix(_ARPA).split(".")[::-1]
    octets = [
        label if place < 3 else label.partition("-")[0] for place, label in enumerate(labels[:4])
    ]
    if not all(map(_OCTET.fullmatch, octets)):
        return None
    return ipv4(".".join([*octets, *["0"] * (4 - len(octets))]))


@lru_cache(maxsize=1024)
def reverse_zones(subnet: Subnet) -> Sequence[Zone]:
    """Return the zones of a subnet's reverse names."""
    network = IPv4Network(subnet.network)
    if network.prefixlen > 24:
        return (_zone(network, subnet.name),)
    whole = max(-(-network.prefixlen // 8) * 8, 8)
    return tuple(_zone(part, subnet.name) for part in network.subnets(new_prefix=whole))


def _zone(network: IPv4Network, subnet: str) -> Zone:
    first, last = int(network.network_address), int(network.broadcast_address)
    octets = str(network.network_address).split(".")[: min(network.prefixlen, 24) // 8]
    if network.prefixlen > 24:
        octets.append(f"{first & 0xFF}-{last & 0xFF}")
    return Zone(".".join(octets[::-1]) + _ARPA, "subnet", subnet, range(first, last + 1))


def reverse_name(address: int, zone: Zone | None = None) -> str:
    """Return the reverse name of an address: the name in `zone` if this is a zone by RFC 2317 (a
    part of a /24 network), otherwise the plain reverse name."""
    octets = dotted(address).split(".")[::-1]
    return f"{octets[0]}.{zone.name}" if zone and zone.is_part else ".".join(octets) + _ARPA


def full_name(host: str, vcluster: str, site: Site) -> str:
    """Return a node's name in DNS, without the last dot."""
    return f"{host}.{vcluster}.{site.domain}"


def name_servers(site: Site) -> list[tuple[str, tuple[str, ...]]]:
    """Return (name, addresses) of the zones' name servers: those in the site file, or by default
    one name with the addresses of all of COD's servers. A server that the site file gives as an
    address has a name below the site's domain."""
    if not site.dns.name_servers:
        # sorted, so that the zones are the same on each server
        addresses = dict.fromkeys(each for one in site.subnets for each in sorted(one.servers))
        return [(f"{NAME_SERVER}.{site.domain}", tuple(addresses))]
    return list(_named(site))


def _named(site: Site) -> Iterator[tuple[str, tuple[str, ...]]]:
    own = 0
    for each in site.dns.name_servers:
        if _is_address(each):
            own += 1
            yield f"{NAME_SERVER}{own}.{site.domain}", (each,)
        else:
            yield each, ()


def _is_address(text: str) -> bool:
    return all(map(_OCTET.fullmatch, text.split("."))) and text.count(".") == 3


def is_reserved(label: str) -> bool:
    """Return whether a label is reserved for name servers, so that no vcluster may have it."""
    return _SERVERS.fullmatch(label) is not None
