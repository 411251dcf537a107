"""A node of an isolated vcluster: who answers it where, when its switch port enters the VLAN and
leaves it, and what waits for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from cod.core.networks import switch_ports
from cod.core.nodes import assignment, transitions
from cod.flows.boot import dhcp as flow
from cod.flows.boot import script as boot_flow
from cod.flows.nodes import deadlines
from cod.flows.nodes import power as power_flow
from cod.flows.scheduler import moves as move_flows
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedVcluster, DhcpAnswer, DhcpQuery, Isolation, Node, Refused, Site, dotted
from cod.policy.nodes.newcomers import Newcomers
from cod.states import NodeEvent, NodeState, Step
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import bindings, nodes, switches
from cod.store.nodes import switch_ports as ports
from cod.store.scheduler import networks, requests, vclusters
from tests.contexts import flow_context
from tests.store.manager_world import OWNER, arrive, furnish, run_pass

pytestmark = pytest.mark.slow

NOW = 1_700_000_000.0
MAC, OTHER, STRANGER = "52:54:00:00:00:00", "52:54:00:00:00:01", "52:54:00:00:00:99"
DISKLESS = (
    '<template><boot mode="diskless"><kernel url="http://h/k"/><ramdisk url="http://h/r"/>'
    "<cmdline>quiet</cmdline></boot></template>"
)
INTERFACE = Isolation((2001, 2009), "10.80.0.0/16", default_size=28, interface="eth1")
RELAY = Isolation((2001, 2009), "10.80.0.0/16", default_size=28, server="10.77.0.1", router="first")


@pytest.fixture
def site(site: Site) -> Site:
    """A site with VLANs."""
    return replace(site, isolation=INTERFACE)


def plug(tx: Tx, *numbers: int) -> None:
    """LLDP told the ports of those nodes."""
    switches.keep(tx, ["leaf"])
    for number in numbers:
        node = nodes.by_name(tx, f"node{number}")
        assert node is not None
        ports.add(
            tx,
            switch="leaf",
            port=f"p{number}",
            node_id=node.id,
            mac=node.boot_mac,
            source="lldp",
            now=NOW,
        )


def flip(tx: Tx, mac: str = MAC) -> None:
    """The switch did what is wanted of the port."""
    port = ports.of_mac(tx, mac)
    assert port is not None
    ports.change(tx, port, applied_vlan=port.wanted_vlan, applied_seq=port.seq)


def wanted(tx: Tx, mac: str = MAC) -> int | None:
    """The VLAN that is wanted of a NIC's port."""
    port = ports.of_mac(tx, mac)
    assert port is not None
    return port.wanted_vlan


def isolated(tx: Tx, site: Site, name: str = "one", size: int = 1, state: str = "boot") -> Node:
    """A vcluster whose nodes have been primed and are in `state`; the first of them."""
    owner_flows.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name=name, size=size, template="debian", group="site", isolated=True),
    )
    run_pass(tx, site, NOW)
    made = vclusters.by_name(tx, name)
    assert made is not None
    held = nodes.every(tx, vcluster_id=made.id)
    assert len(held) == size, requests.every(tx)
    for node in held:
        if state != "prime":
            node = transitions.move(tx, node, NodeEvent.PRIMED, now=NOW, cause="t", actor="t")
        if state == "active":
            transitions.move(tx, node, NodeEvent.BOOTED, now=NOW, cause="t", actor="t")
    return nodes.every(tx, vcluster_id=made.id)[0]


def ask(
    kind: str,
    subnet: str | None,
    mac: str = MAC,
    xid: int = 1,
    stage: str = "firmware",
    **more: Any,
) -> DhcpQuery:
    return replace(DhcpQuery(kind, mac, xid, subnet, stage), **more)


def one(tx: Tx, query: DhcpQuery, site: Site, now: float = NOW) -> DhcpAnswer | None:
    [answer] = flow.answer(tx, [query], site, Newcomers(), now)
    return answer


def node_of(tx: Tx, mac: str = MAC) -> Node:
    node = nodes.by_mac(tx, mac)
    assert node is not None
    return node


def own(tx: Tx, mac: str = MAC) -> str:
    """The address that is reserved for a node's system."""
    [found] = [
        each for each in bindings.of_node(tx, node_of(tx, mac).id) if each.kind == "vcluster"
    ]
    return dotted(found.address)


def boots(tx: Tx, site: Site, now: float, xid: int = 10) -> str:
    """The loader's way in its vcluster's network; returns what its script does."""
    offer = one(tx, ask("DISCOVER", "vlan-2001", xid=xid, stage="ipxe"), site, now)
    assert offer is not None
    assert offer.bootfile == "http://10.80.0.1:8069/boot/52:54:00:00:00:00/script.ipxe"
    ack = one(
        tx,
        ask(
            "REQUEST",
            "vlan-2001",
            xid=xid,
            stage="ipxe",
            requested=offer.yiaddr,
            server_id="10.80.0.1",
        ),
        site,
        now,
    )
    assert ack is not None
    assert (ack.kind, ack.yiaddr) == ("ACK", own(tx))
    return boot_flow.script(tx, MAC, ack.yiaddr, site, now).action


# ---------------------------------------------------------------- who is answered


def test_firmware_and_system_get_the_reserved_address_of_the_vclusters_network(
    tx: Tx, site: Site
) -> None:
    furnish(tx, 1)
    plug(tx, 0)
    isolated(tx, site)
    assert boots(tx, site, NOW + 10) == "local"
    assert node_of(tx).state == "boot", "firmware's ACK is not yet that of its system"
    asked = one(tx, ask("DISCOVER", "vlan-2001", xid=20, stage="os"), site, NOW + 30)
    assert asked is not None
    assert asked.network is not None
    assert (asked.yiaddr, asked.network.network, asked.network.server) == (
        own(tx),
        "10.80.0.0/28",
        "10.80.0.1",
    )
    assert (asked.hostname, asked.domain, asked.bootfile) == ("n1", "one.cod.test", None)
    one(
        tx,
        ask("REQUEST", "vlan-2001", xid=20, stage="os", requested=own(tx), server_id="10.80.0.1"),
        site,
        NOW + 31,
    )
    assert node_of(tx).state == "active"


def test_a_diskless_system_loads_its_kernel_in_its_network(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    plug(tx, 0)
    isolated(tx, site)
    tx.execute(update(t.config_templates).values(document=DISKLESS))
    assert boots(tx, site, NOW + 10) == "kernel"


def test_nobody_else_is_answered_there(tx: Tx, site: Site) -> None:
    furnish(tx, 3)
    plug(tx, 0, 1)
    isolated(tx, site)
    isolated(tx, site, "two")
    for mac in (STRANGER, OTHER, "52:54:00:00:00:02"):
        for stage in ("firmware", "ipxe", "os", "trampoline"):
            for kind in ("DISCOVER", "REQUEST", "INFORM"):
                query = ask(
                    kind, "vlan-2001", mac=mac, stage=stage, requested=own(tx), ciaddr=own(tx)
                )
                assert one(tx, query, site, NOW + 10) is None, (mac, stage, kind)
    assert nodes.by_mac(tx, STRANGER) is None, "no machine is found there"
    assert one(tx, ask("DISCOVER", "vlan-2009"), site) is None, "a VLAN that nobody has"


def test_nobody_there_says_where_it_is(tx: Tx, site: Site) -> None:
    """A machine on one VLAN names a relay of another, or of the site, and gets nothing of
    theirs."""
    furnish(tx, 2)
    plug(tx, 0, 1)
    isolated(tx, site)
    isolated(tx, site, "two")
    for giaddr in ("10.80.0.17", "10.77.0.1"):
        assert (
            one(tx, ask("DISCOVER", "vlan-2001", mac=OTHER, giaddr=giaddr), site, NOW + 10) is None
        )
    assert one(tx, ask("DISCOVER", "lab", mac=MAC, giaddr="10.80.0.1"), site, NOW + 10) is None
    assert one(tx, ask("REQUEST", "lab", stage="os", ciaddr=own(tx)), site, NOW + 10) is None


def test_a_message_there_moves_no_node_of_another_vcluster(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    plug(tx, 0, 1)
    isolated(tx, site)
    isolated(tx, site, "two")
    nodes.change(tx, node_of(tx), boot_served_at=NOW)
    one(tx, ask("DISCOVER", "vlan-2002", xid=99), site, NOW + 100)
    assert node_of(tx).state == "boot"
    one(tx, ask("DISCOVER", "vlan-2001", xid=99), site, NOW + 100)
    assert node_of(tx).state == "trampoline"


def test_a_server_that_came_later_answers_nobody_there(tx: Tx, site: Site) -> None:
    """A server without an address in the network would answer in another server's name."""
    furnish(tx, 1)
    plug(tx, 0)
    isolated(tx, site)
    assert site.isolation is not None
    later = replace(site.isolation, hosts=("10.77.0.1", "10.77.0.2"), place=1)
    asked = ask("DISCOVER", "vlan-2001")
    assert one(tx, asked, replace(site, isolation=later), NOW + 10) is None
    assert one(tx, asked, site, NOW + 10) is not None


def test_a_relay_names_the_network(tx: Tx, site: Site) -> None:
    relayed = replace(site, isolation=RELAY)
    furnish(tx, 2)
    plug(tx, 0, 1)
    isolated(tx, relayed)
    isolated(tx, relayed, "two")
    answer = one(tx, ask("DISCOVER", None, giaddr="10.80.0.1"), relayed, NOW + 10)
    assert answer is not None
    assert answer.network is not None
    assert (answer.yiaddr, answer.network.server, answer.network.router) == (
        own(tx),
        "10.77.0.1",
        "10.80.0.1",
    )
    assert one(tx, ask("DISCOVER", None, giaddr="10.80.0.17"), relayed, NOW + 10) is None
    renewed = one(tx, ask("REQUEST", None, stage="os", ciaddr=own(tx)), relayed, NOW + 10)
    assert renewed is not None
    assert renewed.kind == "ACK"


# ---------------------------------------------------------------- into its network


def test_its_port_enters_the_vlan_when_it_asks_for_the_boot_of_its_system(
    tx: Tx, site: Site
) -> None:
    furnish(tx, 1)
    plug(tx, 0)
    isolated(tx, site, state="prime")
    assert wanted(tx) is None, "it is primed in the provisioning network"
    transitions.move(tx, node_of(tx), NodeEvent.PRIMED, now=NOW, cause="t", actor="t")
    assert wanted(tx) is None, "its agent is yet to be told to reboot"
    assert one(tx, ask("DISCOVER", "lab", stage="trampoline"), site, NOW + 1) is not None
    assert wanted(tx) is None
    assert one(tx, ask("DISCOVER", "lab"), site, NOW + 5) is None, (
        "it asks again in a moment, in its own network"
    )
    assert wanted(tx) == 2001


def test_one_whose_port_is_slow_is_made_to_wait_and_not_sent_to_its_disk(
    tx: Tx, site: Site
) -> None:
    furnish(tx, 1)
    plug(tx, 0)
    isolated(tx, site)
    assert one(tx, ask("DISCOVER", "lab"), site, NOW + 5) is None
    offer = one(tx, ask("DISCOVER", "lab"), site, NOW + 20)
    assert offer is not None
    one(tx, ask("REQUEST", "lab", requested=offer.yiaddr, server_id="10.77.0.1"), site, NOW + 20)
    plan = boot_flow.script(tx, MAC, offer.yiaddr, site, NOW + 21)
    assert (plan.action, plan.why) == ("none", "switch port: p0 of leaf is not in VLAN 2001 yet")
    assert node_of(tx).boot_served_at is None
    for stage in ("os", "firmware"):
        assert one(tx, ask("DISCOVER", "vlan-2001", stage=stage, xid=5), site, NOW + 30) is not None


def test_its_system_gets_no_address_where_it_was_primed(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    plug(tx, 0)
    isolated(tx, site, state="active")
    for seconds in (0, 100):
        for kind in ("DISCOVER", "REQUEST"):
            query = ask(kind, "lab", stage="os", requested=own(tx))
            assert one(tx, query, site, NOW + seconds) is None


def test_a_port_that_does_not_arrive_is_the_reason_of_the_quarantine(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    plug(tx, 0)
    isolated(tx, site)
    now = NOW
    for _ in range(12):
        node = node_of(tx)
        if node.state == NodeState.QUARANTINED:
            break
        if node.state == NodeState.BOOT:
            one(tx, ask("DISCOVER", "lab"), site, now + 5)
            port = ports.of_mac(tx, MAC)
            assert port is not None
            ports.change(tx, port, given_up=True, reason="no answer")
        now += 1000
        deadlines.run(tx, site, now)
        if node_of(tx).state == NodeState.TRAMPOLINE and node_of(tx).vcluster_id is not None:
            flip(tx)
            arrive_in_boot(tx, now)
    node = node_of(tx)
    assert node.state == "quarantined"
    assert "switch port: p0 of leaf is not in VLAN 2001 yet (no answer)" in node.reason
    assert node.vcluster_id is None


def arrive_in_boot(tx: Tx, now: float) -> None:
    """Prime the node anew after it came to the trampoline."""
    for event in (NodeEvent.PRIME_ORDERED, NodeEvent.PRIMED):
        transitions.move(tx, node_of(tx), event, now=now, cause="t", actor="t")


# ---------------------------------------------------------------- and back


def enter(tx: Tx, site: Site, state: str = "active") -> Node:
    """A node whose port is in the VLAN."""
    furnish(tx, 1)
    plug(tx, 0)
    isolated(tx, site, state=state)
    switch_ports.want(tx, node_of(tx), 2001, NOW)
    flip(tx)
    return node_of(tx)


def tasks(tx: Tx, now: float) -> list[str]:
    """The power commands that are carried out at a moment."""
    return [task.action.desired for task in power_flow.claim(tx, "s", {"lab": 10}, now, 60.0)]


def test_a_released_node_is_power_cycled_when_its_port_is_back(tx: Tx, site: Site) -> None:
    assignment.release(
        tx, [enter(tx, site)], cause="t", now=NOW + 10, actor="t", policy=site.policy
    )
    assert (node_of(tx).state, wanted(tx)) == ("trampoline", None)
    assert tasks(tx, NOW + 10) == []
    assert tasks(tx, NOW + 11) == []
    flip(tx)
    assert tasks(tx, NOW + 12) == ["cycle"]


def test_a_port_that_does_not_come_back_is_told_and_retried(tx: Tx, site: Site) -> None:
    assignment.release(
        tx, [enter(tx, site)], cause="t", now=NOW + 10, actor="t", policy=site.policy
    )
    port = ports.of_mac(tx, MAC)
    assert port is not None
    ports.change(tx, port, given_up=True, reason="no answer")
    deadlines.run(tx, site, NOW + 1000)
    node = node_of(tx)
    assert (node.state, node.attempts) == ("trampoline", 1)
    assert node.reason.endswith(
        "switch port: p0 of leaf is not in the provisioning VLAN yet (no answer)"
    )
    port = ports.of_mac(tx, MAC)
    assert port is not None
    assert not port.given_up, "the switch is asked once more"
    assert tasks(tx, NOW + 1001) == []
    flip(tx)
    assert tasks(tx, NOW + 1002) == ["cycle"]


@pytest.mark.parametrize(
    ("state", "event"),
    [
        ("boot", NodeEvent.BOOT_FAILED),
        ("boot", NodeEvent.FAILED),
        ("active", NodeEvent.CAPTURE_WANTED),
        ("active", NodeEvent.RELEASED),
        ("boot", NodeEvent.TIMED_OUT),
        ("boot", NodeEvent.RELEASED),
    ],
)
def test_whatever_ends_its_system_brings_the_port_back_and_then_a_power_cycle(
    tx: Tx, site: Site, state: str, event: NodeEvent
) -> None:
    node = enter(tx, site, state)
    moved = transitions.apply(
        tx, node, Step(event, "t"), now=NOW + 10, actor="t", policy=site.policy
    )
    assert (moved.state, moved.power_wanted, wanted(tx)) == ("trampoline", "cycle", None)
    assert tasks(tx, NOW + 10) == []
    flip(tx)
    assert tasks(tx, NOW + 11) == ["cycle"]


def test_a_quarantined_node_leaves_the_vlan_and_keeps_its_power(tx: Tx, site: Site) -> None:
    moved = transitions.apply(
        tx,
        enter(tx, site),
        Step(NodeEvent.QUARANTINED, "t"),
        now=NOW,
        actor="t",
        policy=site.policy,
    )
    assert (moved.state, moved.power_wanted, wanted(tx)) == ("quarantined", None, None)


def test_nothing_boots_in_the_vlan_once_the_node_has_left(tx: Tx, site: Site) -> None:
    enter(tx, site, "boot")
    assert boots(tx, site, NOW + 10) == "local"
    address = own(tx)
    assert one(tx, ask("DISCOVER", "vlan-2001", xid=50), site, NOW + 200) is None
    assert (node_of(tx).state, node_of(tx).power_wanted, wanted(tx)) == (
        "trampoline",
        "cycle",
        None,
    )
    assert one(tx, ask("DISCOVER", "vlan-2001", xid=51), site, NOW + 204) is None
    plan = boot_flow.script(tx, MAC, address, site, NOW + 205)
    assert (plan.action, plan.why) == (
        "none",
        "its switch port is on its way back to the provisioning network",
    )
    flip(tx)
    answer = one(tx, ask("DISCOVER", "lab", xid=52), site, NOW + 206)
    assert answer is not None
    assert answer.subnet == "lab"


def test_an_active_node_that_was_reset_boots_again_in_its_network(tx: Tx, site: Site) -> None:
    enter(tx, site)
    assert boots(tx, site, NOW + 500) == "local"
    assert (node_of(tx).state, wanted(tx)) == ("active", 2001)


def test_nodes_of_other_vclusters_never_touch_their_ports(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    plug(tx, 0)
    owner_flows.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name="plain", size=1, template="debian", group="site"),
    )
    run_pass(tx, site, NOW)
    arrive(tx, NOW + 1)
    assert one(tx, ask("DISCOVER", "lab"), site, NOW + 100) is not None
    assignment.release(tx, [node_of(tx)], cause="t", now=NOW + 200, actor="t", policy=site.policy)
    port = ports.of_mac(tx, MAC)
    assert port is not None
    assert port.seq == 0
    assert tasks(tx, NOW + 200) == ["cycle"]


def test_a_node_moves_from_one_isolated_vcluster_to_another(tx: Tx, site: Site) -> None:
    enter(tx, site)
    owner_flows.delete(tx, flow_context(site, NOW + 10, OWNER), name="one")
    first = vclusters.every(tx, ["releasing"])[0]
    assert len(networks.every(tx)) == 1, "its VLAN is kept while the node is on its way"
    flip(tx)
    arrive(tx, NOW + 20)
    run_pass(tx, site, NOW + 30)
    ended = vclusters.get(tx, first.id)
    assert ended is not None
    assert ended.state == "ended"
    assert networks.every(tx) == []
    isolated(tx, site, "two", state="boot")
    assert wanted(tx) is None
    assert one(tx, ask("DISCOVER", "lab"), site, NOW + 40) is None
    assert (wanted(tx), own(tx)) == (2001, "10.80.0.2"), "the first one's VLAN is free again"


def test_nodes_move_to_an_isolated_vcluster_only_with_a_switch_port(tx: Tx, site: Site) -> None:
    furnish(tx, 4)
    plug(tx, 0, 1)
    isolated(tx, site)
    owner_flows.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name="open", size=3, template="debian", group="site"),
    )
    run_pass(tx, site, NOW + 1)
    arrive(tx, NOW + 2)
    with pytest.raises(Refused, match=r"1 of the 3 nodes .*2: without a known switch port"):
        move_flows.start(
            tx, flow_context(site, NOW + 3, OWNER), source="open", target="one", count=2, within=0.0
        )
    move_flows.start(
        tx, flow_context(site, NOW + 3, OWNER), source="open", target="one", count=1, within=0.0
    )
    for turn in range(4):
        run_pass(tx, site, NOW + 4 + turn)
        for mac in (MAC, OTHER):
            flip(tx, mac)
        arrive(tx, NOW + 4 + turn)
    one = vclusters.by_name(tx, "one")
    assert one is not None
    assert {node.name for node in nodes.every(tx, vcluster_id=one.id)} == {"node0", "node1"}
    assert [(request.kind, request.state) for request in requests.every(tx)][-1] == (
        "move",
        "granted",
    )
