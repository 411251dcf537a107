"""Answers DNS questions about vclusters' nodes: a batch of questions in one read transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cod.core.networks import zone_records
from cod.model import DnsAnswer, DnsQuestion, DnsRecord, HostKey, Site, Subnet, VclusterName, ipv4
from cod.policy import dns, vcluster_names
from cod.policy.dns import NamePlace, Zone, full_name
from cod.policy.nodes import isolation
from cod.store import dns_zones
from cod.store.engine import Tx
from cod.store.nodes import dns_names, host_keys
from cod.store.nodes.dns_names import Host
from cod.store.scheduler import networks, vclusters
from cod.store.scheduler import vcluster_names as name_rows


def answer(tx: Tx, questions: Sequence[DnsQuestion], site: Site) -> list[DnsAnswer | None]:
    """Return the answers, in the order of the questions; None where the name is not the site's."""
    subnets = _subnets(tx, questions, site)
    places = [dns.place(question.name, site, subnets) for question in questions]
    rows = _looked_up(
        tx,
        [place for place in places if place is not None],
        keys=any(question.type in ("SSHFP", "ANY") for question in questions),
    )
    answers = [
        None if place is None else _one(question, place, rows, site)
        for question, place in zip(questions, places, strict=True)
    ]
    found = _with_serials(
        tx,
        answers,
        [
            None if place is None else _zone(question, place, rows, site)
            for question, place in zip(questions, places, strict=True)
        ],
    )
    lost = {each.vcluster for each in places if each is not None and _may_be_renamed(each, rows)}
    renamed = vclusters.renamed(tx, lost)
    now = {
        number: full_name(place.host, renamed[place.vcluster], site)
        for number, place in enumerate(places)
        if place is not None and place.what == "node" and place.vcluster in renamed
    }
    asked = [replace(questions[number], name=name) for number, name in now.items()]
    for (number, name), end in zip(
        now.items(), answer(tx, asked, site) if asked else (), strict=True
    ):
        found[number] = _redirected(questions[number], name, end)
    return [
        # former names have names below them, which resolvers may not ask for after an NXDOMAIN
        # for the vcluster's name (RFC 8020)
        replace(one, code="ok")
        if one and place and place.what == "vcluster" and place.vcluster in renamed
        else one
        for one, place in zip(found, places, strict=True)
    ]


def _may_be_renamed(place: NamePlace, rows: _Rows) -> bool:
    """Return whether the name is, or is below, the name of a vcluster that does not exist: the
    vcluster may have been renamed."""
    exists = (place.host, place.vcluster) in rows.hosts or place.vcluster in rows.vclusters
    return place.what in ("node", "vcluster") and not exists


def _redirected(question: DnsQuestion, name: str, end: DnsAnswer | None) -> DnsAnswer:
    """Return the answer to a question about a name below a vcluster's former name: a CNAME record
    that leads to `name`, the present name, and the records of `end`, the answer for `name`."""
    alias = DnsRecord(question.name, "CNAME", name)
    if question.type in ("CNAME", "ANY"):
        return DnsAnswer("ok", (alias,))
    assert end is not None
    return replace(end, records=(alias, *end.records))


def primary(site: Site) -> str:
    """Return the name server that the zones' SOA names."""
    return dns.name_servers(site)[0][0]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows from which a batch of questions is answered.

    hosts      nodes by (host name, vcluster), the targets of `names` included
    names      additional names in a vcluster's zone, by vcluster, then by name
    keys       SSH host keys by node id
    vclusters  the existing ones among those asked for without a host, or with an unknown one
    addresses  (host name, vcluster) by address
    """

    hosts: dict[tuple[str, str], Host]
    names: dict[str, dict[str, VclusterName]]
    keys: dict[int, list[HostKey]]
    vclusters: set[str]
    addresses: dict[int, tuple[str, str]]


def _subnets(tx: Tx, questions: Sequence[DnsQuestion], site: Site) -> list[Subnet]:
    """Return the subnets that the reverse names among the questions may be of: the site's, and
    those of isolated vclusters."""
    first = {
        address
        for question in questions
        if (address := dns.first_address(question.name)) is not None
    }
    outside = {
        one
        for one in first
        if not any(
            ipv4(each.block_pool[0]) <= one <= ipv4(each.block_pool[1]) for each in site.subnets
        )
    }
    if not outside or site.isolation is None:
        return list(site.subnets)
    found = networks.of_subnets(tx, (), outside)
    return [*site.subnets, *(isolation.subnet(each, site.isolation) for each in found)]


def _looked_up(tx: Tx, places: Sequence[NamePlace], *, keys: bool) -> _Rows:
    asked = {(place.host, place.vcluster) for place in places if place.what == "node"}
    hosts = dns_names.hosts(tx, asked)
    missing = {vcluster for host, vcluster in asked if (host, vcluster) not in hosts}
    names = name_rows.of_live(tx, missing)
    hosts |= dns_names.hosts(
        tx,
        {
            (one.target, vcluster)
            for vcluster, known in names.items()
            for one in known.values()
            if not one.external
        },
    )
    return _Rows(
        hosts,
        names,
        host_keys.of_nodes(tx, {host.node_id for host in hosts.values()}) if keys else {},
        dns_names.vclusters(
            tx, missing | {each.vcluster for each in places if each.what in ("vcluster", "nothing")}
        ),
        dns_names.named(tx, {place.address for place in places if place.what == "address"}),
    )


def _one(question: DnsQuestion, place: NamePlace, rows: _Rows, site: Site) -> DnsAnswer:
    def answer(*records: DnsRecord, code: str = "ok") -> DnsAnswer:
        """Return an answer with the records of the question's type, aliases always. If there are
        none, the answer is empty, because the name exists."""
        return DnsAnswer(
            code,
            tuple(
                each
                for each in records
                if question.type in (each.type, "ANY") or each.type == "CNAME"
            ),
        )

    match place.what:
        case "apex":
            return answer(*zone_records.apex(question.name, 0, site))
        case "server":
            if not site.dns.name_servers:  # the door adds the address that the client asked
                return replace(answer(), server=question.type in ("A", "ANY"))
            return answer(*zone_records.addresses(question.name, site))
        case "vcluster" if place.vcluster in rows.vclusters:
            return (
                answer()
                if question.type == "DS"
                else answer(*zone_records.apex(question.name, 0, site))
            )
        case "between":
            return answer()
        case "address" if place.address in rows.addresses:
            return answer(
                DnsRecord(question.name, "PTR", full_name(*rows.addresses[place.address], site))
            )
        case "node" if host := rows.hosts.get((place.host, place.vcluster)):
            return answer(*zone_records.of_host(question.name, host, rows.keys))
        case "node" if steps := vcluster_names.follow(
            place.host, rows.names.get(place.vcluster, {})
        ):
            aliases = [zone_records.alias(one, place.vcluster, site) for one in steps]
            last = steps[-1]
            if question.type in ("CNAME", "ANY"):
                return answer(aliases[0])
            if last.external:
                return answer(*aliases)
            end = rows.hosts.get((last.target, place.vcluster))
            if end is None:  # its node has left: the code is of the last name (RFC 6604)
                return answer(*aliases, code="nxdomain")
            return answer(
                *aliases,
                *zone_records.of_host(full_name(last.target, place.vcluster, site), end, rows.keys),
            )
    return answer(code="nxdomain")


def _zone(question: DnsQuestion, place: NamePlace, rows: _Rows, site: Site) -> Zone | None:
    """Return the zone that answers for the name. The site's zone, the parent, answers for a
    vcluster that does not exist, and for the DS record of any vcluster."""
    if (
        place.zone is None
        or place.zone.kind != "vcluster"
        or (place.host, place.vcluster) in rows.hosts
    ):
        return place.zone
    parents = question.type == "DS" and place.what == "vcluster"
    return place.zone if place.vcluster in rows.vclusters and not parents else dns.site_zone(site)


def _with_serials(
    tx: Tx, answers: Sequence[DnsAnswer | None], zones: Sequence[Zone | None]
) -> list[DnsAnswer | None]:
    """Return the answers, with the zone's serial in those that contain a SOA record: negative
    answers and answers about the SOA."""

    def tells(answer: DnsAnswer | None) -> bool:
        # resolvers keep a negative answer as long as the SOA beside it says (RFC 2308, 5)
        return answer is not None and (
            answer.code == "nxdomain"
            or not answer.records
            or any(record.type == "SOA" for record in answer.records)
        )

    asked = {
        (zone.kind, zone.key)
        for answer, zone in zip(answers, zones, strict=True)
        if zone and tells(answer)
    }
    serials = dns_zones.serials(tx, asked)
    found: list[DnsAnswer | None] = []
    for answer, zone in zip(answers, zones, strict=True):
        if answer is None or not tells(answer):
            found.append(answer)
            continue
        serial = serials.get((zone.kind, zone.key), 1) if zone else 1
        records = tuple(
            replace(each, data=serial) if each.type == "SOA" else each for each in answer.records
        )
        found.append(
            replace(answer, records=records, zone=zone.name if zone else "", serial=serial)
        )
    return found
