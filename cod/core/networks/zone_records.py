"""The records of DNS zones, for single answers and for whole zones alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cod.model import DnsRecord, HostKey, Site, VclusterName, ipv4
from cod.policy.dns import full_name, name_servers
from cod.policy.nodes.host_keys import sshfp
from cod.store.nodes.dns_names import Host


def apex(zone: str, serial: int, site: Site) -> Iterator[DnsRecord]:
    """Yield the records of a zone's own name."""
    yield DnsRecord(zone, "SOA", serial)
    for name, _addresses in name_servers(site):
        yield DnsRecord(zone, "NS", name)


def addresses(name: str, site: Site) -> Iterator[DnsRecord]:
    """Yield the addresses of a name server of the site."""
    for address in dict(name_servers(site)).get(name, ()):
        yield DnsRecord(name, "A", ipv4(address))


def of_host(name: str, host: Host, keys: Mapping[int, Sequence[HostKey]]) -> Iterator[DnsRecord]:
    """Yield a node's records. `keys`: host keys by node id. Code that changes one of these values
    has to call `store.dns_zones.touch`, as `store.nodes.bindings` does: secondaries learn of
    changes by the zone's serial."""
    yield DnsRecord(name, "A", host.address)
    for key in keys.get(host.node_id, ()):
        if (data := sshfp(key)) is not None:
            yield DnsRecord(name, "SSHFP", data)


def alias(one: VclusterName, vcluster: str, site: Site) -> DnsRecord:
    """Return the record of a name that an owner has added."""
    target = one.target if one.external else full_name(one.target, vcluster, site)
    return DnsRecord(full_name(one.name, vcluster, site), "CNAME", target)
