"""Answers DNS questions about vclusters' nodes: a batch of questions in one read transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cod.model import DnsAnswer, DnsQuestion, DnsRecord, Site
from cod.policy import dns
from cod.policy.dns import Place
from cod.policy.nodes.host_keys import sshfp
from cod.store.engine import Tx
from cod.store.nodes import dns_names, host_keys


def answer(tx: Tx, questions: Sequence[DnsQuestion], site: Site, serial: int) -> list[DnsAnswer | None]:
    """Return the answers, in the order of the questions; None where the name is not the site's."""
    places = [dns.place(question.name, site) for question in questions]
    ours = [place for place in places if place is not None]
    hosts = dns_names.hosts(tx, {(place.host, place.vcluster) for place in ours if place.what == "node"})
    clusters = dns_names.vclusters(tx, {place.vcluster for place in ours if place.what == "vcluster"})
    named = dns_names.named(tx, {place.address for place in ours if place.what == "address"})
    asked = {(place.host, place.vcluster) for question, place in zip(questions, places, strict=True)
             if place is not None and question.type in ("SSHFP", "ANY")}
    keys = host_keys.of_nodes(tx, {hosts[pair].node_id for pair in asked if pair in hosts})

    def of(question: DnsQuestion, place: Place) -> DnsAnswer:
        def found(*records: DnsRecord) -> DnsAnswer:
            """Return those of the records that are asked for; the name is there, whether it has any or not."""
            wanted = tuple(each for each in records if question.type in (each.type, "ANY"))
            return DnsAnswer("ok", wanted, zone, serial)

        zone = "" if place.what == "address" else site.domain
        nothing = DnsAnswer("nxdomain", (), zone, serial)
        name = question.name
        if place.what == "apex":
            return found(DnsRecord(name, "SOA", serial), DnsRecord(name, "NS", f"ns.{site.domain}"))
        if place.what == "server":
            return replace(found(), server=question.type in ("A", "ANY"))
        if place.what == "vcluster":
            return found() if place.vcluster in clusters else nothing
        if place.what == "node" and (host := hosts.get((place.host, place.vcluster))):
            prints = filter(None, map(sshfp, keys.get(host.node_id, ())))
            return found(DnsRecord(name, "A", host.address), *(DnsRecord(name, "SSHFP", each) for each in prints))
        if place.what == "address" and place.address in named:
            return found(DnsRecord(name, "PTR", dns.full_name(*named[place.address], site)))
        return nothing

    return [None if place is None else of(question, place) for question, place in zip(questions, places, strict=True)]
