"""Isolated vclusters: what they are given when they are created, what is refused, and when it is
free again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from cod.core.networks import address_blocks as grants
from cod.flows.scheduler import requests as request_flows
from cod.flows.scheduler import vclusters as flows
from cod.model import (
    AskedNodes,
    AskedTuple,
    AskedVcluster,
    Isolation,
    Refused,
    Site,
    VclusterNetwork,
)
from cod.store import tables as t
from cod.store import views
from cod.store.engine import Tx
from cod.store.nodes import switch_ports, switches
from cod.store.scheduler import address_blocks, networks, vclusters
from tests.contexts import flow_context
from tests.store.manager_world import OWNER, add_node, furnish, run_pass

RULES = Isolation((2001, 2003), "10.80.0.0/24", default_size=28, largest_size=25, interface="eth1")


@pytest.fixture
def isolating(site: Site) -> Site:
    """A site with three VLANs."""
    return replace(site, isolation=RULES)


def wanted(tx: Tx, site: Site, name: str = "one", size: int = 2, **rest: Any) -> int:
    """An isolated vcluster that waits for its nodes; its id."""
    made = flows.create(
        tx,
        flow_context(site, 1.0),
        AskedVcluster(
            name=name, size=size, template="debian", group="site", **{"isolated": True} | rest
        ),
    )
    return int(made.value[0].vcluster.id)


def create(tx: Tx, site: Site, name: str = "one", size: int = 2, **rest: Any) -> int:
    """An isolated vcluster with the network that a grant gives it; its id."""
    made = vclusters.get(tx, wanted(tx, site, name, size, **rest))
    assert made is not None
    grants.extend(tx, made, size, site, now=1.0)
    return made.id


def shown(tx: Tx, name: str = "one") -> tuple[int, str, list[str]]:
    """VLAN, subnet and addresses of nodes, as people are shown them."""
    [view] = views.vclusters(tx, name=name)
    assert view.network is not None
    return view.network.vlan, str(view.network), [str(one) for one in view.addresses]


def test_it_gets_a_vlan_and_a_subnet_and_its_nodes_addresses_in_it(tx: Tx, isolating: Site) -> None:
    furnish(tx, 0)
    one = create(tx, isolating)
    assert shown(tx) == (2001, "10.80.0.0/28", ["10.80.0.2 - 10.80.0.14"])
    assert [block.subnet for block in address_blocks.of(tx, one)] == ["vlan-2001"]
    made = vclusters.get(tx, one)
    assert made is not None
    assert (made.isolated, made.subnet) == (
        True,
        "lab",
    ), "its nodes come from the subnet where they are primed"
    create(tx, isolating, "two", size=20)
    assert shown(tx, "two") == (
        2002,
        "10.80.0.32/27",
        ["10.80.0.34 - 10.80.0.62"],
    ), "a subnet begins at its own size"
    create(tx, isolating, "three", network_size=29)
    assert shown(tx, "three") == (
        2003,
        "10.80.0.16/29",
        ["10.80.0.18 - 10.80.0.22"],
    ), "the gap is used"


def test_what_waits_takes_no_vlan_and_a_grant_gives_one(tx: Tx, isolating: Site) -> None:
    furnish(tx, 0)
    for number in range(5):
        wanted(tx, isolating, f"waits{number}", size=1, network_size=29)
    assert networks.every(tx) == []
    assert {view.addresses for view in views.vclusters(tx)} == {()}
    switches.keep(tx, ["leaf"])
    for number in range(4):
        node = add_node(tx, number)
        port = {"switch": "leaf", "port": f"p{number}", "mac": node.boot_mac}
        switch_ports.add(tx, node_id=node.id, source="lldp", now=1.0, **port)
    with pytest.raises(Refused, match=r"all 3 VLANs of the site"):  # which the request is told
        run_pass(tx, isolating, 2.0)
    assert [network.prefix for network in networks.every(tx)] == [29] * 3
    assert shown(tx, "waits0") == (2001, "10.80.0.0/29", ["10.80.0.2 - 10.80.0.6"])


def test_its_nodes_come_from_where_ports_are_known_though_a_switch_is_away(
    tx: Tx, isolating: Site
) -> None:
    two = replace(isolating.subnets[0], name="bare", network="10.79.0.0/16", server="10.79.0.1")
    site = replace(isolating, subnets=(two, *isolating.subnets))
    furnish(tx, 0)
    switches.keep(tx, ["leaf"])
    for number in range(4):
        node = add_node(tx, number, subnet="bare" if number else "lab")
        if not number:
            port = {"switch": "leaf", "port": "p0", "mac": node.boot_mac}
            switch_ports.add(tx, node_id=node.id, source="lldp", now=1.0, **port)
    tx.execute(update(t.switches).values(failures=3))
    one = vclusters.get(tx, wanted(tx, site))
    assert one is not None
    assert one.subnet == "lab"


def test_other_vclusters_are_as_before(tx: Tx, isolating: Site) -> None:
    furnish(tx, 0)
    wanted(tx, isolating, "plain", isolated=False)
    [view] = views.vclusters(tx, name="plain")
    assert (view.network, view.vcluster.isolated, view.addresses) == (None, False, ())


def test_what_is_full_is_named(tx: Tx, isolating: Site) -> None:
    furnish(tx, 0)
    create(tx, isolating, "a", network_size=25)
    create(tx, isolating, "b", network_size=26)
    with pytest.raises(
        Refused, match=r"no subnet of size /25 is free in 10\.80\.0\.0/24: ask for a smaller one"
    ):
        create(tx, isolating, "c", network_size=25)


def test_all_vlans_taken(tx: Tx, isolating: Site) -> None:
    furnish(tx, 0)
    for name in "abc":
        create(tx, isolating, name)
    with pytest.raises(
        Refused, match=r"all 3 VLANs of the site \(2001 to 2003\) are in use: delete an isolated"
    ):
        create(tx, isolating, "d")


@pytest.mark.parametrize(
    ("change", "field", "sentence"),
    [
        ({"isolated": False, "network_size": 26}, "network_size", "only an isolated vcluster"),
        ({"network_size": 30}, "network_size", "from /29 to /25"),
        ({"size": 6, "network_size": 29}, "network_size", "ask for /28"),
        ({"size": 0}, "size", "at least one node"),
    ],
)
def test_create_refuses(
    tx: Tx, isolating: Site, change: dict[str, Any], field: str, sentence: str
) -> None:
    furnish(tx, 0)
    with pytest.raises(Refused, match=sentence) as refused:
        wanted(tx, isolating, **change)
    assert refused.value.field == field


def test_a_site_without_vlans_has_none(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    with pytest.raises(Refused, match="no VLANs for isolated vclusters"):
        wanted(tx, site)


def test_its_network_bounds_how_far_it_grows(tx: Tx, isolating: Site) -> None:
    furnish(tx, 0)
    one = vclusters.get(tx, create(tx, isolating, network_size=29))
    assert one is not None
    vclusters.change(tx, one, 2.0, state="active")
    with pytest.raises(
        Refused, match="addresses for 5 nodes, not for 6: only a new one can have a larger network"
    ):
        flows.resize(tx, flow_context(isolating, 3.0, OWNER), name="one", size=6)
    with pytest.raises(Refused, match="addresses for 5 nodes, not for 7"):
        request_flows.submit(
            tx, flow_context(isolating, 3.0), vcluster="one", asked=AskedNodes([AskedTuple(5)])
        )
    flows.resize(tx, flow_context(isolating, 4.0, OWNER), name="one", size=5)


@pytest.mark.parametrize("isolated", [True, False])
def test_one_without_nodes_keeps_addresses_and_grows_again(
    tx: Tx, isolating: Site, isolated: bool
) -> None:
    furnish(tx, 0)
    made = create(tx, isolating, preemptible=True, isolated=isolated)
    one = vclusters.get(tx, made)
    assert one is not None
    before = address_blocks.of(tx, made)
    none = vclusters.change(tx, one, 2.0, state="active", size=0)
    grants.trim(tx, made)
    assert address_blocks.of(tx, made) == before
    flows.resize(tx, flow_context(isolating, 3.0, OWNER), name="one", size=2)
    grants.extend(tx, none, 2, isolating, now=4.0)
    assert address_blocks.of(tx, made) == before


def test_a_network_whose_addresses_were_freed_is_used_again(tx: Tx, isolating: Site) -> None:
    furnish(tx, 0)
    one = vclusters.get(tx, create(tx, isolating))
    assert one is not None
    address_blocks.give_back(tx, one.id)  # as releases before did of one without nodes
    vclusters.change(tx, one, 2.0, state="active", size=0)
    flows.resize(tx, flow_context(isolating, 3.0, OWNER), name="one", size=2)
    grants.extend(tx, one, 2, isolating, now=4.0)
    assert shown(tx) == (2001, "10.80.0.0/28", ["10.80.0.2 - 10.80.0.14"])


def test_it_is_kept_until_no_port_is_in_its_vlan(tx: Tx, isolating: Site) -> None:
    furnish(tx, 0)
    one = create(tx, isolating)
    flows.delete(tx, flow_context(isolating, 2.0, OWNER), name="one")
    assert address_blocks.of(tx, one) == []
    assert networks.every(tx) == []
    port = switch_ports.add(
        tx,
        switch="leaf",
        port="p1",
        node_id=add_node(tx, 1).id,
        mac="52:54:00:00:00:01",
        source="lldp",
        now=2.0,
    )
    port = switch_ports.change(tx, port, applied_vlan=2001)
    create(tx, isolating, "two")
    assert shown(tx, "two")[:2] == (2002, "10.80.0.16/28")
    switch_ports.change(tx, port, applied_vlan=1)
    create(tx, isolating, "three")
    assert shown(tx, "three")[:2] == (2001, "10.80.0.0/28")


def test_networks_are_found_by_vlan_and_by_address(tx: Tx, isolating: Site) -> None:
    furnish(tx, 0)
    one, two = create(tx, isolating), create(tx, isolating, "two")
    found = networks.of_subnets(tx, [2002], [])
    assert [each.vcluster_id for each in found] == [two]
    near = networks.of_subnets(tx, [], [0x0A500003])
    assert VclusterNetwork(2001, one, 0x0A500000, 28, 0x0A500001, None) in near
    assert networks.of_subnets(tx, [], []) == []
