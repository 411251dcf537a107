"""DNS zones for secondary servers: all zones with their serials, and all records of one zone."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from cod import notice_texts
from cod.core import notices
from cod.core.networks import zone_records
from cod.model import DnsRecord, Site
from cod.policy import dns
from cod.policy.dns import Zone, full_name
from cod.policy.nodes import isolation
from cod.store import dns_zones
from cod.store.engine import Tx
from cod.store.nodes import dns_names, host_keys
from cod.store.notices import notices as notices_told
from cod.store.scheduler import networks, vcluster_names, vclusters


@dataclass(frozen=True, slots=True)
class Transfer:
    """A zone as it is now. `records`: those of the zone's own name come first, the SOA before all
    others; `primary`: the name server that the SOA names."""

    serial: int
    primary: str
    records: tuple[DnsRecord, ...]


def every(tx: Tx, site: Site) -> list[tuple[Zone, int]]:
    """Return the site's zones with their serials, the list of the zones last."""
    subnets = list(site.subnets)
    if site.isolation is not None:
        subnets += [isolation.subnet(each, site.isolation) for each in networks.every(tx)]
    found = [
        dns.site_zone(site),
        *(dns.vcluster_zone(one.name, site) for one in vclusters.live(tx)),
        *(zone for subnet in subnets for zone in dns.reverse_zones(subnet)),
        dns.catalog_zone(site),
    ]
    serials = dns_zones.serials(tx)
    return [(zone, serials.get((zone.kind, zone.key), 1)) for zone in dict.fromkeys(found)]


def transfer(tx: Tx, name: str, site: Site) -> Transfer | None:
    """Return the zone of that name; None where there is none."""
    found = every(tx, site)
    zone, serial = next(((zone, serial) for zone, serial in found if zone.name == name), (None, 0))
    if zone is None:
        return None
    if zone == dns.catalog_zone(site):
        records = _catalog(zone, [each for each, _ in found if each != zone])
    elif zone.kind == "site":
        records = _site(tx, site)
    elif zone.kind == "vcluster":
        records = _vcluster(tx, zone.key, site)
    else:
        records = (
            DnsRecord(dns.reverse_name(address, zone), "PTR", full_name(*named, site))
            for address, named in dns_names.named_between(tx, zone.span[0], zone.span[-1]).items()
        )
    return Transfer(
        serial, dns.name_servers(site)[0][0], (*zone_records.apex(name, serial, site), *records)
    )


def configured(tx: Tx, site: Site, now: float) -> None:
    """Raise the serials if the domain, the name servers or the subnets in the site file have
    changed."""
    content = repr(
        (
            site.domain,
            site.dns.name_servers,
            [(one.name, one.network, *sorted(one.servers)) for one in site.subnets],
        )
    )
    dns_zones.configure(tx, hashlib.sha256(content.encode()).hexdigest(), now)


def tell_of_secondary(tx: Tx, *, secondary: str, wrong: str, now: float) -> None:
    """Tell the site's administrators that a secondary does not follow the zones, for the reason
    `wrong`, or, where `wrong` is '', that the secondary follows them again. Do not repeat what the
    last notice about the secondary said."""
    if wrong and secondary not in _late(tx):
        text = notice_texts.secondary_late(secondary, wrong)
        notices.add(tx, **text, group_id=None, now=now)
    elif not wrong and secondary in _late(tx):
        text = notice_texts.secondary_follows(secondary)
        notices.add(tx, **text, group_id=None, now=now)


def forget_secondaries(tx: Tx, *, server: str, known: Collection[str], now: float) -> None:
    """Report late secondaries that `server` no longer watches as recovered. Secondaries are named
    ADDRESS@SERVER; `known` are those that the server watches."""
    for one in sorted(_late(tx)):
        if one.endswith(f"@{server}") and one not in known:
            tell_of_secondary(tx, secondary=one, wrong="", now=now)


def _late(tx: Tx) -> set[str]:
    """Return the secondaries whose last notice said that they do not follow the zones."""
    late = set[str]()
    for each in notices_told.of_site(tx, ("dns-secondary", "dns-recovered"), 0.0):
        name = unquote(each.link.removeprefix(notice_texts.SECONDARY))
        (late.add if each.kind == "dns-secondary" else late.discard)(name)
    return late


def _site(tx: Tx, site: Site) -> Iterator[DnsRecord]:
    servers = dns.name_servers(site)
    for name, _ in servers:
        yield from zone_records.addresses(name, site)
    for vcluster in vclusters.live(tx):
        for name, _ in servers:
            yield DnsRecord(dns.vcluster_zone(vcluster.name, site).name, "NS", name)


def _vcluster(tx: Tx, name: str, site: Site) -> Iterator[DnsRecord]:
    vcluster = vclusters.by_name(tx, name)
    if vcluster is None:
        return
    hosts = dns_names.of_vcluster(tx, vcluster.id)
    keys = host_keys.of_nodes(tx, [host.node_id for host in hosts.values()])
    for hostname, host in hosts.items():
        yield from zone_records.of_host(full_name(hostname, name, site), host, keys)
    for one in vcluster_names.of(tx, vcluster.id).values():
        yield zone_records.alias(one, name, site)


def _catalog(catalog: Zone, zones: list[Zone]) -> Iterator[DnsRecord]:
    """Yield the list of zones (RFC 9432)."""
    yield DnsRecord(f"version.{catalog.name}", "TXT", "2")
    for zone in zones:
        label = hashlib.sha256(zone.name.encode()).hexdigest()[:32]
        yield DnsRecord(f"{label}.zones.{catalog.name}", "PTR", zone.name)
