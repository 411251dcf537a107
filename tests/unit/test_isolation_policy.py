"""Networks of isolated vclusters: which address is whose, how large they are, and what the site
file may say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cod.model import Isolation, Refused, dotted, ipv4
from cod.policy.nodes import isolation
from cod.site import load
from cod.site.file import SiteFile

RULES = Isolation((2001, 2004), "10.80.0.0/16", interface="eth1")
SITE = """
[isolation]
{isolation}
[[subnet]]
name = "{name}"
network = "10.77.0.0/16"
server = "10.77.0.1"
interface = "br0"
boot_pool = ["10.77.1.0", "10.77.4.255"]
block_pool = ["10.77.128.0", "10.77.255.255"]
"""
GOOD = 'vlans = [2001, 2004]\nnetworks = "10.80.0.0/16"\ninterface = "eth1"'


@pytest.mark.parametrize(
    ("rules", "server", "router", "nodes"),
    [
        (RULES, "10.80.0.1", None, ("10.80.0.2", "10.80.0.6")),
        (
            Isolation((1, 2), "10.80.0.0/16", interface="eth1", router="first"),
            "10.80.0.2",
            "10.80.0.1",
            ("10.80.0.3", "10.80.0.6"),
        ),
        (
            Isolation((1, 2), "10.80.0.0/16", interface="eth1", router="last"),
            "10.80.0.1",
            "10.80.0.6",
            ("10.80.0.2", "10.80.0.5"),
        ),
        (
            Isolation((1, 2), "10.80.0.0/16", server="192.0.2.1", router="last"),
            "192.0.2.1",
            "10.80.0.6",
            ("10.80.0.1", "10.80.0.5"),
        ),
    ],
)
def test_addresses_of_a_subnet(
    rules: Isolation, server: str, router: str | None, nodes: tuple[str, str]
) -> None:
    made = isolation.network(2001, 7, ipv4("10.80.0.0"), 29, rules)
    subnet = isolation.subnet(made, rules)
    assert (subnet.name, subnet.network, subnet.server, subnet.router) == (
        "vlan-2001",
        "10.80.0.0/29",
        server,
        router,
    )
    assert subnet.interface == ("eth1.2001" if rules.interface else None)
    block = isolation.nodes(made)
    assert (dotted(block.first), dotted(block.last), block.subnet) == (*nodes, "vlan-2001")


SEVERAL = replace(RULES, hosts=("10.77.0.1", "10.77.0.2"))


def test_each_server_has_an_address_of_its_own_in_a_network() -> None:
    made = isolation.network(2001, 7, ipv4("10.80.0.0"), 29, SEVERAL)
    block = isolation.nodes(made)
    assert (dotted(block.first), dotted(block.last)) == ("10.80.0.3", "10.80.0.6")
    own = [isolation.subnet(made, replace(SEVERAL, place=place)).servers for place in (0, 1)]
    assert own == [("10.80.0.1", "10.80.0.2"), ("10.80.0.2", "10.80.0.1")]
    first = isolation.network(2001, 7, ipv4("10.80.0.0"), 29, replace(SEVERAL, router="first"))
    assert isolation.subnet(first, SEVERAL).servers == ("10.80.0.2", "10.80.0.3")
    assert dotted(isolation.nodes(first).first) == "10.80.0.4"


def test_a_server_that_came_later_serves_no_network_of_before() -> None:
    """A node may have the address that would be the server's."""
    before = isolation.network(2001, 7, ipv4("10.80.0.0"), 29, RULES)
    assert isolation.serves(before, SEVERAL)
    assert not isolation.serves(before, replace(SEVERAL, place=1))
    assert isolation.subnet(before, replace(SEVERAL, place=1)).servers == ("10.80.0.1",)


def test_servers_behind_the_router_keep_their_addresses_in_each_network() -> None:
    rules = Isolation((1, 2), "10.80.0.0/16", server="192.0.2.1", router="last")
    made = isolation.network(1, 7, ipv4("10.80.0.0"), 29, rules)
    other = replace(rules, server="192.0.2.2", others=("192.0.2.1",), place=1)
    assert isolation.serves(made, other)
    assert isolation.subnet(made, other).servers == ("192.0.2.2", "192.0.2.1")


@pytest.mark.parametrize(
    ("asked", "count", "prefix"),
    [
        (None, 1, 26),
        (None, 61, 26),
        (None, 62, 25),
        (None, 5, 26),
        (29, 5, 29),
        (20, 1, 20),
        (None, 4063, 20),
    ],
)
def test_the_size_is_what_was_asked_for_or_what_the_nodes_need(
    asked: int | None, count: int, prefix: int
) -> None:
    assert isolation.size(asked, count, RULES) == prefix
    assert isolation.room(prefix, RULES) >= count


@pytest.mark.parametrize(
    ("asked", "count", "field", "sentence"),
    [
        (
            29,
            6,
            "network_size",
            "/29 has addresses for 5 nodes, not for 6: ask for /28, which has 13",
        ),
        (30, 1, "network_size", "from /29 to /20, not /30"),
        (19, 1, "network_size", "from /29 to /20, not /19"),
        (None, 4064, "size", "addresses for 4063 nodes at most"),
    ],
)
def test_a_size_that_cannot_be_is_refused(
    asked: int | None, count: int, field: str, sentence: str
) -> None:
    with pytest.raises(Refused, match=sentence) as refused:
        isolation.size(asked, count, RULES)
    assert refused.value.field == field


# ---------------------------------------------------------------- the site file


def parsed(isolation: str, name: str = "lab") -> SiteFile:
    return load.parse(SITE.format(isolation=isolation, name=name), Path("site.toml"))


def test_the_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(SITE.format(isolation=GOOD, name="lab") + '[server]\ndata_dir = "/srv/cod"\n')
    site, _ = load.load(path)
    assert (site.isolation, site.isolates) == (replace(RULES, hosts=("10.77.0.1",)), False)
    silent = GOOD + "\nby_default = true"
    path.write_text(SITE.format(isolation=silent, name="lab") + '[server]\ndata_dir = "/srv/cod"\n')
    assert load.load(path)[0].isolates
    path.write_text(SITE.format(isolation="", name="lab") + '[server]\ndata_dir = "/srv/cod"\n')
    assert load.load(path)[0].isolation is None


@pytest.mark.parametrize(
    "left", ["by_default = false", 'router = "first"\nlargest_size = 24', "largest_size = 29"]
)
def test_keys_that_are_left_without_networks_mean_nothing(left: str) -> None:
    assert parsed(left).isolation is None
    with pytest.raises(load.ConfigError, match=r"\Asite.toml: isolation.rooter: no such key"):
        parsed(left + '\nrooter = "last"')


@pytest.mark.parametrize(
    ("isolation", "name", "sentence"),
    [
        (
            GOOD.replace("2001, 2004", "2004, 2001"),
            "lab",
            "vlans should name the first VLAN before the last",
        ),
        (GOOD.replace("2004", "4095"), "lab", "isolation.vlans.1"),
        (GOOD.replace("2001", "1"), "lab", "isolation.vlans.0"),
        ('networks = "10.80.0.0/16"', "lab", "vlans: is missing"),
        ("by_default = true", "lab", "vlans: is missing"),
        ('vlans = [2001, 2004]\ninterface = "eth1"', "lab", "networks: is missing"),
        (GOOD.replace("/16", "/21"), "lab", "networks 10.80.0.0/21 should hold a /20"),
        (
            GOOD + "\nlargest_size = 27",
            "lab",
            "default_size /26 should not be larger than largest_size /27",
        ),
        (GOOD + '\nserver = "192.0.2.1"', "lab", "either interface or server should be set"),
        (GOOD.replace('interface = "eth1"', ""), "lab", "either interface or server should be set"),
        (
            GOOD.replace('interface = "eth1"', 'server = "192.0.2.1"'),
            "lab",
            "router should be first or last",
        ),
        (
            GOOD.replace('interface = "eth1"', 'server = "10.80.0.1"\nrouter = "last"'),
            "lab",
            "should not be in networks",
        ),
        (
            GOOD.replace("10.80.0.0/16", "10.64.0.0/10"),
            "lab",
            "overlaps 10.77.0.0/16 of subnet 'lab'",
        ),
        (GOOD, "vlan-7", "subnet.0.name: 'vlan-7' is how isolated vclusters' subnets are called"),
        (GOOD.replace("eth1", "enp129s0f1np1"), "lab", "isolation.interface"),
    ],
)
def test_the_site_file_says_what_is_wrong(isolation: str, name: str, sentence: str) -> None:
    with pytest.raises(load.ConfigError, match=sentence):
        parsed(isolation, name)
