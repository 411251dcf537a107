"""Which DNS names are the site's, and what each means. Pure; who has which address is `store.nodes.dns_names`' matter.

The zone is the site's domain. Below it, each vcluster's name is a domain of its own with its nodes in it::

    cod.internal            the zone's apex (SOA, NS)
    pool.cod.internal       a vcluster: it exists, and has no address
    n4.pool.cod.internal    its node n4

For reverse names (RFC 1035 section 3.5) the site is the authority on its subnets' blocks of vcluster addresses only:
whose the other addresses are, others know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from cod.model import Site, ipv4

_OCTET = re.compile(r"[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5]")

NAME_SERVER = "ns"  # label of the server itself below the domain


@dataclass(frozen=True, slots=True)
class Place:
    """Where a name is in the site's tree.

    what  'apex', 'server' (the name server itself), 'vcluster', 'node', 'address' (a reverse name), or 'nothing': a
          name of ours that cannot be anybody's
    """

    what: str
    vcluster: str = ""
    host: str = ""
    address: int = 0


def place(name: str, site: Site) -> Place | None:
    """Return what `name` (lower case, without the last dot) is; None where it is not the site's to say."""
    if name == site.domain:
        return Place("apex")
    if name.endswith("." + site.domain):
        labels = name.removesuffix("." + site.domain).split(".")
        if labels == [NAME_SERVER]:
            return Place("server")
        if len(labels) == 1:
            return Place("vcluster", labels[0])
        return Place("node", labels[1], labels[0]) if len(labels) == 2 else Place("nothing")
    if name.endswith(".in-addr.arpa"):
        return _reverse(name.removesuffix(".in-addr.arpa").split(".")[::-1], site)
    return None


def _reverse(octets: list[str], site: Site) -> Place | None:
    if len(octets) != 4 or not all(map(_OCTET.fullmatch, octets)):
        return None
    address = ipv4(".".join(octets))
    ours = any(ipv4(subnet.block_pool[0]) <= address <= ipv4(subnet.block_pool[1]) for subnet in site.subnets)
    ours = ours or (site.isolation is not None and IPv4Address(address) in IPv4Network(site.isolation.networks))
    return Place("address", address=address) if ours else None


def full_name(host: str, vcluster: str, site: Site) -> str:
    """Return a node's name in DNS, without the last dot."""
    return f"{host}.{vcluster}.{site.domain}"
