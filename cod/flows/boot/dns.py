"""Answers DNS questions about vclusters' nodes: a batch of questions in one read transaction."""

from __future__ import annotations

from collections.abc import Sequence

from cod.model import DnsAnswer, DnsQuestion, Site
from cod.policy import dns
from cod.policy.dns import Place
from cod.store.engine import Tx
from cod.store.nodes import dns_names

NOTHING = DnsAnswer("nxdomain")
EMPTY = DnsAnswer("ok")  # the name is there, and has nothing of that type


def answer(tx: Tx, questions: Sequence[DnsQuestion], site: Site) -> list[DnsAnswer | None]:
    """Return the answers, in the order of the questions; None where the name is not the site's."""
    places = [dns.place(question.name, site) for question in questions]
    ours = [place for place in places if place is not None]
    hosts = dns_names.hosts(tx, {(place.host, place.vcluster) for place in ours if place.what == "node"})
    clusters = dns_names.vclusters(tx, {place.vcluster for place in ours if place.what == "vcluster"})
    named = dns_names.named(tx, {place.address for place in ours if place.what == "address"})

    def of(question: DnsQuestion, place: Place) -> DnsAnswer:
        if place.what == "apex":
            return DnsAnswer("ok", apex=question.type in ("SOA", "NS", "ANY"))
        if place.what == "server":
            return DnsAnswer("ok", server=question.type in ("A", "ANY"))
        if place.what == "vcluster":
            return EMPTY if place.vcluster in clusters else NOTHING
        if place.what == "node":
            address = hosts.get((place.host, place.vcluster))
            if address is None:
                return NOTHING
            return DnsAnswer("ok", address=address) if question.type in ("A", "ANY") else EMPTY
        if place.what == "address" and place.address in named:
            name = dns.full_name(*named[place.address], site)
            return DnsAnswer("ok", name=name) if question.type in ("PTR", "ANY") else EMPTY
        return NOTHING

    return [None if place is None else of(question, place) for question, place in zip(questions, places, strict=True)]
