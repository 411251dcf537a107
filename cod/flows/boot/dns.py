"""Answers DNS questions about vclusters' nodes: a batch of questions in one read transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cod.model import DnsAnswer, DnsQuestion, DnsRecord, HostKey, Site, VclusterName
from cod.policy import dns, vcluster_names
from cod.policy.dns import Place, full_name
from cod.policy.nodes.host_keys import sshfp
from cod.store.engine import Tx
from cod.store.nodes import dns_names, host_keys
from cod.store.nodes.dns_names import Host
from cod.store.scheduler import vcluster_names as name_rows


def answer(tx: Tx, questions: Sequence[DnsQuestion], site: Site, serial: int) -> list[DnsAnswer | None]:
    """Return the answers, in the order of the questions; None where the name is not the site's."""
    places = [dns.place(question.name, site) for question in questions]
    found = _looked_up(tx, [place for place in places if place is not None],
                       keys=any(question.type in ("SSHFP", "ANY") for question in questions))
    return [None if place is None else _one(question, place, found, site, serial)
            for question, place in zip(questions, places, strict=True)]


@dataclass(frozen=True, slots=True)
class _Rows:
    """What the database has of the names that are asked for. `hosts`: by host name and vcluster, with those that the
    `names` of a vcluster lead to; `keys`: by node."""

    hosts: dict[tuple[str, str], Host]
    names: dict[str, dict[str, VclusterName]]
    keys: dict[int, list[HostKey]]
    vclusters: set[str]
    addresses: dict[int, tuple[str, str]]


def _looked_up(tx: Tx, places: Sequence[Place], *, keys: bool) -> _Rows:
    asked = {(place.host, place.vcluster) for place in places if place.what == "node"}
    hosts = dns_names.hosts(tx, asked)
    names = name_rows.of_live(tx, {vcluster for host, vcluster in asked if (host, vcluster) not in hosts})
    hosts |= dns_names.hosts(tx, {(one.target, vcluster) for vcluster, known in names.items() for one in known.values()
                                  if not one.external})
    return _Rows(
        hosts, names, host_keys.of_nodes(tx, {host.node_id for host in hosts.values()}) if keys else {},
        dns_names.vclusters(tx, {place.vcluster for place in places if place.what == "vcluster"}),
        dns_names.named(tx, {place.address for place in places if place.what == "address"}))


def _one(question: DnsQuestion, place: Place, rows: _Rows, site: Site, serial: int) -> DnsAnswer:
    def there(*records: DnsRecord, code: str = "ok") -> DnsAnswer:
        """Return those of the records that are asked for; the name is there, whether it has any or not."""
        wanted = tuple(each for each in records if question.type in (each.type, "ANY") or each.type == "CNAME")
        return DnsAnswer(code, wanted, "" if place.what == "address" else site.domain, serial)

    match place.what:
        case "apex":
            return there(DnsRecord(question.name, "SOA", serial), DnsRecord(question.name, "NS", f"ns.{site.domain}"))
        case "server":
            return replace(there(), server=question.type in ("A", "ANY"))
        case "vcluster" if place.vcluster in rows.vclusters:
            return there()
        case "address" if place.address in rows.addresses:
            return there(DnsRecord(question.name, "PTR", full_name(*rows.addresses[place.address], site)))
        case "node" if host := rows.hosts.get((place.host, place.vcluster)):
            return there(*_of_host(question.name, host, rows))
        case "node" if steps := vcluster_names.follow(place.host, rows.names.get(place.vcluster, {})):
            aliases = [DnsRecord(full_name(one.name, place.vcluster, site), "CNAME", one.target if one.external else
                                 full_name(one.target, place.vcluster, site)) for one in steps]
            last = steps[-1]
            end = None if last.external else rows.hosts.get((last.target, place.vcluster))
            if last.external or question.type in ("CNAME", "ANY"):
                return there(*aliases[:1] if question.type in ("CNAME", "ANY") else aliases)
            if end is None:  # its node has left: the code is of the last name (RFC 6604)
                return there(*aliases, code="nxdomain")
            return there(*aliases, *_of_host(full_name(last.target, place.vcluster, site), end, rows))
    return there(code="nxdomain")


def _of_host(name: str, host: Host, rows: _Rows) -> Iterator[DnsRecord]:
    """Yield a node's records."""
    yield DnsRecord(name, "A", host.address)
    for key in rows.keys.get(host.node_id, ()):
        if (data := sshfp(key)) is not None:
            yield DnsRecord(name, "SSHFP", data)
