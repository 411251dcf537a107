"""Which subnet a client is on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cod.model import DhcpQuery, Subnet, ipv4
from cod.policy.nodes.subnets import Subnets, listeners, numbers

NEAR = Subnet(
    "near",
    "10.77.0.0/16",
    "10.77.0.1",
    ("10.77.1.0", "10.77.4.255"),
    ("10.77.128.0", "10.77.255.255"),
    router="10.77.0.254",
    interface="br0",
)
FAR = Subnet(
    "far",
    "10.88.0.0/24",
    "10.77.0.1",
    ("10.88.0.10", "10.88.0.99"),
    ("10.88.0.128", "10.88.0.255"),
    relay="192.0.2.7",
)


@pytest.mark.parametrize(
    ("socket", "giaddr", "ciaddr", "name"),
    [
        ("near", "0.0.0.0", "0.0.0.0", "near"),
        (None, "0.0.0.0", "0.0.0.0", None),
        ("near", "192.0.2.7", "0.0.0.0", "far"),  # named by its relay's address
        ("near", "10.88.0.1", "0.0.0.0", "far"),  # or by being in it
        ("near", "198.51.100.1", "10.77.1.1", None),  # a relay of somebody else's
        ("near", "0.0.0.0", "10.88.0.20", "far"),  # a renewal that came through a router
        ("near", "0.0.0.0", "10.77.1.9", "near"),
        ("near", "0.0.0.0", "198.51.100.1", "near"),
    ],
)
def test_where_a_client_is(socket: str | None, giaddr: str, ciaddr: str, name: str | None) -> None:
    query = DhcpQuery("REQUEST", "52:54:00:00:00:01", 1, socket, "os", ciaddr=ciaddr, giaddr=giaddr)
    net = Subnets([NEAR, FAR]).of(query)
    assert (net.subnet.name if net else None) == name


def test_what_is_cods_to_give_and_what_is_nobodys() -> None:
    net = numbers(NEAR)
    assert net.owns(ipv4("10.77.1.0"))
    assert net.owns(ipv4("10.77.200.1"))
    assert not net.owns(ipv4("10.77.0.50"))
    assert net.avoid == {
        ipv4(text) for text in ("10.77.0.0", "10.77.255.255", "10.77.0.1", "10.77.0.254")
    }


def test_each_interface_and_each_address_behind_relays_has_one_socket() -> None:
    beside = replace(FAR, name="beside", interface="br0")
    further = replace(FAR, name="further", relay="192.0.2.8")
    elsewhere = replace(FAR, name="elsewhere", server="198.51.100.1")
    # broadcasts on br0 come from the subnet that has no relay
    assert listeners([beside, NEAR]) == [NEAR]
    assert listeners([FAR, further]) == [FAR]
    assert listeners([FAR, further, elsewhere]) == [FAR, elsewhere]
    # to its address relays may come by another interface
    assert listeners([FAR, NEAR]) == [NEAR, FAR]


def test_of_several_servers_the_one_that_a_client_chose_answers_and_none_is_given_away() -> None:
    subnets = Subnets([replace(NEAR, others=("10.77.0.2",))])
    asked = DhcpQuery("REQUEST", "52:54:00:00:00:01", 1, "near", "os", requested="10.77.1.9")
    assert subnets.leaves_to_other(replace(asked, server_id="10.77.0.2"))
    assert not subnets.leaves_to_other(replace(asked, server_id="10.77.0.1"))
    assert not subnets.leaves_to_other(replace(asked, server_id="192.0.2.1"))
    assert not subnets.leaves_to_other(asked)  # it renews, or reboots
    assert ipv4("10.77.0.2") in numbers(replace(NEAR, others=("10.77.0.2",))).avoid
