"""Which names are the site's: forward, reverse, and in which zone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cod.model import Dns, Site, ipv4
from cod.policy import dns


def of(site: Site, network: str, **columns: object) -> Site:
    """The site with that one subnet."""
    first = network.partition("/")[0].rpartition(".")[0]
    pool = (f"{first}.70", f"{first}.90")
    return replace(
        site, subnets=(replace(site.subnets[0], network=network, block_pool=pool, **columns),)
    )


@pytest.mark.parametrize(
    ("network", "zones"),
    [
        ("10.0.0.0/8", ["10.in-addr.arpa"]),
        ("10.77.0.0/16", ["77.10.in-addr.arpa"]),
        ("10.76.0.0/15", ["76.10.in-addr.arpa", "77.10.in-addr.arpa"]),
        (
            "10.77.4.0/22",
            [
                "4.77.10.in-addr.arpa",
                "5.77.10.in-addr.arpa",
                "6.77.10.in-addr.arpa",
                "7.77.10.in-addr.arpa",
            ],
        ),
        ("192.0.2.0/24", ["2.0.192.in-addr.arpa"]),
        ("192.0.2.64/26", ["64-127.2.0.192.in-addr.arpa"]),
        ("192.0.2.64/29", ["64-71.2.0.192.in-addr.arpa"]),
    ],
)
def test_a_subnet_s_reverse_zones(site: Site, network: str, zones: list[str]) -> None:
    found = dns.reverse_zones(replace(site.subnets[0], network=network))
    assert [zone.name for zone in found] == zones
    for zone in found:
        assert dns.first_address(zone.name) == zone.span[0]


@pytest.mark.parametrize(
    ("network", "name", "what", "zone"),
    [
        ("10.77.0.0/16", "77.10.in-addr.arpa", "apex", "77.10.in-addr.arpa"),
        ("10.77.0.0/16", "70.0.77.10.in-addr.arpa", "address", "77.10.in-addr.arpa"),
        ("10.77.0.0/16", "0.77.10.in-addr.arpa", "between", "77.10.in-addr.arpa"),
        ("10.77.0.0/16", "1.70.0.77.10.in-addr.arpa", "nothing", "77.10.in-addr.arpa"),
        ("10.77.4.0/22", "70.6.77.10.in-addr.arpa", "address", "6.77.10.in-addr.arpa"),
        ("192.0.2.64/26", "64-127.2.0.192.in-addr.arpa", "apex", "64-127.2.0.192.in-addr.arpa"),
        (
            "192.0.2.64/26",
            "70.64-127.2.0.192.in-addr.arpa",
            "address",
            "64-127.2.0.192.in-addr.arpa",
        ),
        (
            "192.0.2.64/26",
            "63.64-127.2.0.192.in-addr.arpa",
            "nothing",
            "64-127.2.0.192.in-addr.arpa",
        ),
        (
            "192.0.2.64/26",
            "070.64-127.2.0.192.in-addr.arpa",
            "nothing",
            "64-127.2.0.192.in-addr.arpa",
        ),
        # for clients that ask us, outside of our zone
        ("192.0.2.64/26", "70.2.0.192.in-addr.arpa", "address", None),
    ],
)
def test_a_reverse_name_s_place(
    site: Site, network: str, name: str, what: str, zone: str | None
) -> None:
    found = dns.place(name, site, of(site, network).subnets)
    assert found is not None
    assert (found.what, found.zone and found.zone.name) == (what, zone)
    if what == "address":
        assert found.address & 0xFF == 70


@pytest.mark.parametrize(
    ("network", "name"),
    [
        ("10.77.0.0/16", "10.in-addr.arpa"),
        ("10.77.0.0/16", "1.2.3.4.in-addr.arpa"),
        ("10.77.0.0/16", "in-addr.arpa"),
        ("10.77.0.0/16", "256.0.77.10.in-addr.arpa"),
        ("192.0.2.64/26", "2.0.192.in-addr.arpa"),
        ("192.0.2.64/26", "1.2.0.192.in-addr.arpa"),
        ("192.0.2.64/26", "64-100.2.0.192.in-addr.arpa"),
        ("10.77.0.0/16", "a-b.0.77.10.in-addr.arpa"),
    ],
)
def test_reverse_names_of_others(site: Site, network: str, name: str) -> None:
    assert dns.place(name, site, of(site, network).subnets) is None


def test_with_others_to_ask_only_nodes_addresses_are_ours(site: Site) -> None:
    asking = replace(of(site, "10.77.0.0/16"), dns=Dns(forward=("192.0.2.1",)))
    assert dns.place("1.0.77.10.in-addr.arpa", asking, asking.subnets) is None, (
        "the router, of which others may know"
    )
    assert dns.place("70.0.77.10.in-addr.arpa", asking, asking.subnets) is not None


def test_the_name_of_an_address_is_in_its_zone(site: Site) -> None:
    for network in ("10.77.0.0/16", "192.0.2.64/26", "10.77.4.0/22"):
        subnet = of(site, network).subnets[0]
        address = ipv4(subnet.block_pool[0])
        zone = next(zone for zone in dns.reverse_zones(subnet) if address in zone.span)
        found = dns.place(dns.reverse_name(address, zone), site, [subnet])
        assert found is not None
        assert (found.what, found.address, found.zone) == ("address", address, zone)


def test_a_site_s_name_servers(site: Site) -> None:
    assert dns.name_servers(site) == [("ns.cod.test", ("10.77.0.1",))]
    several = replace(site, dns=Dns(name_servers=("10.0.0.1", "ns.example.org", "10.0.0.2")))
    assert dns.name_servers(several) == [
        ("ns1.cod.test", ("10.0.0.1",)),
        ("ns.example.org", ()),
        ("ns2.cod.test", ("10.0.0.2",)),
    ]
    assert [
        label for label in ("ns", "ns1", "ns27", "nsa", "dns", "n1") if dns.is_reserved(label)
    ] == ["ns", "ns1", "ns27"]
