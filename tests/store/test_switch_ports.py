"""Switch ports in the database: where NICs are plugged in, which VLAN is wanted, and whether it was
read back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cod.core.networks import switch_ports
from cod.flows.nodes import switches
from cod.model import Node, Refused, Site, Switch, SwitchPort
from cod.policy.nodes.switch_ports import BUDGET, FIRST_PAUSE, LONGEST_PAUSE, place, retry_after
from cod.store.engine import Tx
from cod.store.nodes import conflicts, nodes
from cod.store.nodes import switch_ports as store

LEAF = Switch(
    "leaf",
    "ovs",
    "unix:/run/ovs/db.sock",
    known_as=("leaf.rack*", "44:4c:a8:*"),
    ports={r"Gi(\d.*)": r"GigabitEthernet\1"},
    provisioning_vlan=10,
)
SPINE = Switch("spine", "ovs", "unix:/run/ovs/db.sock")


def machine(tx: Tx, name: str = "n1", **columns: Any) -> Node:
    return nodes.add(
        tx,
        name=name,
        boot_mac=f"52:54:00:00:00:{name[1:].zfill(2)}",
        now=0.0,
        cause="seen",
        actor="dhcp",
        **columns,
    )


def report(node: Node, switch: str, port: str) -> str:
    return (
        f'<node><nic mac="{node.boot_mac}"><neighbour switch="{switch}"'
        f' port="{port}"/></nic></node>'
    )


def sight(tx: Tx, node: Node, switch: str, port: str, now: float = 0.0) -> None:
    switch_ports.sighted(tx, node, report(node, switch, port), [node.boot_mac], (LEAF, SPINE), now)


def port(tx: Tx, node: Node) -> SwitchPort:
    found = store.of_mac(tx, node.boot_mac)
    assert found is not None
    return found


def done(tx: Tx, found: SwitchPort, vlan: int) -> bool:
    return store.outcome(tx, found, applied_seq=found.seq, applied_vlan=vlan, next_at=None)


def test_what_lldp_calls_switch_and_port_is_found_in_the_site_file() -> None:
    switches = (LEAF, SPINE)
    assert place(switches, "Leaf.rack7.example", "Gi1/0/7") == ("leaf", "GigabitEthernet1/0/7")
    assert place(switches, "44:4c:a8:00:00:01", "Ethernet17") == ("leaf", "Ethernet17")
    assert place(switches, "spine", "p 3") == ("spine", "p 3")
    assert place(switches, "leaf-2", "Gi1/0/7") is None
    assert place((), "leaf", "p1") is None


def test_a_failed_change_is_tried_again_at_longer_pauses_until_its_time_is_spent() -> None:
    assert [retry_after(n, 0.0) for n in (1, 2, 3, 6, 50)] == [
        FIRST_PAUSE,
        2 * FIRST_PAUSE,
        4 * FIRST_PAUSE,
        LONGEST_PAUSE,
        LONGEST_PAUSE,
    ]
    assert retry_after(9, BUDGET - 1.0) is None


def test_a_report_says_where_a_nic_is_plugged_in_and_a_site_without_switches_keeps_nothing(
    tx: Tx,
) -> None:
    node = machine(tx)
    switch_ports.sighted(tx, node, report(node, "leaf", "p1"), [node.boot_mac], (), 0.0)
    assert store.listed(tx) == []
    sight(tx, node, "leaf", "Gi1/0/7", 5.0)
    (view,) = store.listed(tx)
    assert (
        view.node,
        view.port.switch,
        view.port.port,
        view.port.mac,
        view.port.source,
        view.port.seen_at,
    ) == ("n1", "leaf", "GigabitEthernet1/0/7", node.boot_mac, "lldp", 5.0)
    assert switch_ports.arrived(tx, node), "COD has never changed it"
    # its NIC was replaced
    switch_ports.sighted(tx, node, "<node/>", ["52:54:00:00:00:99"], (LEAF,), 6.0)
    assert port_of(tx, "leaf", "GigabitEthernet1/0/7").mac is None


def port_of(tx: Tx, switch: str, name: str) -> SwitchPort:
    found = store.at(tx, switch, name)
    assert found is not None
    return found


def test_a_wish_counts_until_it_is_read_back_and_the_newest_has_the_last_word(tx: Tx) -> None:
    node = machine(tx)
    sight(tx, node, "leaf", "p1")
    assert switch_ports.want(tx, node, None, 1.0) == (), (
        "it is there already, and was never changed"
    )
    assert switch_ports.want(tx, node, 20, 2.0) == (switch_ports.WAKE,)
    assert switch_ports.want(tx, node, 20, 3.0) == ()
    assert not switch_ports.arrived(tx, node)
    late = port(tx, node)
    assert [each.id for each in store.due(tx, "leaf", 2.0, 10)] == [late.id]
    switch_ports.want(tx, node, None, 4.0)
    assert not done(tx, late, 20), "a session that is late says nothing"
    assert not switch_ports.arrived(tx, node)
    assert done(tx, port(tx, node), 10)
    assert switch_ports.arrived(tx, node)


@pytest.mark.parametrize("leaves", ["back", "forgotten"])
def test_a_vlan_is_in_use_until_a_port_that_may_be_in_it_was_read(tx: Tx, leaves: str) -> None:
    node = machine(tx)
    sight(tx, node, "spine", "p1")
    switch_ports.want(tx, node, 2001, 1.0)
    in_session = port(tx, node)
    if leaves == "back":
        switch_ports.want(tx, node, None, 2.0)
    else:
        store.detach(tx, [node.id])
    assert 2001 in store.vlans(tx), "the session may be changing the port"
    assert not done(tx, in_session, 2001)
    assert 2001 in store.vlans(tx)
    done(tx, port_of(tx, "spine", "p1"), 1)
    assert store.vlans(tx) == {1}


def test_a_wish_that_was_given_up_is_made_anew(tx: Tx) -> None:
    node = machine(tx)
    sight(tx, node, "leaf", "p1")
    switch_ports.want(tx, node, 20, 1.0)
    store.outcome(
        tx, port(tx, node), given_up=True, reason="the switch has no port p1", next_at=None
    )
    assert port(tx, node).given_up
    assert port(tx, node).reason == "the switch has no port p1"
    assert switch_ports.want(tx, node, 20, 2.0) == (switch_ports.WAKE,)
    assert not port(tx, node).given_up
    assert port(tx, node).seq == 2


def test_a_node_whose_port_is_not_known_can_be_in_no_isolated_network(tx: Tx) -> None:
    node = machine(tx)
    assert switch_ports.arrived(tx, node)
    assert switch_ports.want(tx, node, None, 0.0) == ()
    with pytest.raises(
        Refused, match="n1: the switch port of its boot NIC 52:54:00:00:00:01 is not known"
    ):
        switch_ports.want(tx, node, 20, 0.0)


def test_a_nic_that_moves_takes_its_wish_along_and_its_port_goes_back(tx: Tx) -> None:
    node = machine(tx)
    sight(tx, node, "leaf", "p1")
    switch_ports.want(tx, node, 20, 1.0)
    done(tx, port(tx, node), 20)
    sight(tx, node, "spine", "p9", 2.0)
    moved, left = port(tx, node), port_of(tx, "leaf", "p1")
    assert (moved.switch, moved.port, moved.wanted_vlan, moved.pending) == ("spine", "p9", 20, True)
    assert (left.mac, left.node_id, left.wanted_vlan, left.pending) == (None, None, None, True)


def test_no_session_is_due_with_a_switch_that_is_gone_or_was_just_away(tx: Tx) -> None:
    """Whether one is due is looked for twice a second, and a claim takes a transaction that
    writes."""
    node = machine(tx)
    sight(tx, node, "leaf", "p1")
    switch_ports.want(tx, node, 20, 1.0)
    switches.began(tx, "a", ["leaf"], 1.0)
    assert switches.is_due(tx, 1.0)
    [task] = switches.claim(tx, "a", (LEAF,), [], 1, 1.0, 10.0)
    switches.failed(tx, task, "no answer", 2.0)
    assert not switches.is_due(tx, 3.0)
    assert switches.is_due(tx, 2.0 + FIRST_PAUSE)
    switches.began(tx, "a", ["spine"], 50.0)
    assert not switches.is_due(tx, 1000.0)


def test_a_port_that_is_found_in_an_old_report_has_all_the_time_of_a_new_wish(tx: Tx) -> None:
    """Else the first failure of its switch would be the last."""
    node = machine(tx)
    sight(tx, node, "leaf", "p1")
    switch_ports.want(tx, node, 20, 1.0)
    nodes.change(tx, node, attributes=report(node, "spine", "p9"), reported_at=2.0)
    site = Site(name="test", domain="cod.test", subnets=(), switches=(LEAF, SPINE))
    switches.place_reported(tx, site, 0, 10, 90_000.0)  # the site file has the switch now
    moved, left = port(tx, node), port_of(tx, "leaf", "p1")
    assert (moved.switch, moved.wished_at, moved.seen_at) == ("spine", 90_000.0, 2.0)
    assert left.wished_at == 90_000.0


def test_a_port_in_an_isolated_network_is_not_taken_over_by_hearsay(tx: Tx) -> None:
    held, other = machine(tx), machine(tx, "n2")
    sight(tx, held, "leaf", "p1")
    switch_ports.want(tx, held, 20, 1.0)
    for now in (2.0, 3.0):
        sight(tx, other, "leaf", "p1", now)
    assert port(tx, held).port == "p1"
    assert store.of_mac(tx, other.boot_mac) is None
    (conflict,) = conflicts.every(tx)
    assert conflict["about"].startswith(
        "n2 says that its NIC is on port p1 of switch leaf, where 52:54:00:00:00:01 is"
    )
    switch_ports.want(tx, held, None, 4.0)
    sight(tx, other, "leaf", "p1", 5.0)
    assert store.of_mac(tx, other.boot_mac) is None, "a port of nobody's network is occupied, too"
    sight(tx, held, "leaf", "p2", 6.0)
    sight(tx, other, "leaf", "p1", 7.0)
    assert (port(tx, held).port, port(tx, other).port) == ("p2", "p1"), "cables were changed"


def test_a_port_that_is_not_for_nodes_is_nobodys_by_lldp(tx: Tx) -> None:
    node = machine(tx)
    leaf = replace(LEAF, nodes_on=("p[0-9]",))
    for now in (1.0, 2.0):
        document = report(node, "leaf", "uplink")
        switch_ports.sighted(tx, node, document, [node.boot_mac], (leaf,), now)
    assert store.listed(tx) == []
    (conflict,) = conflicts.every(tx)
    assert "is on port uplink of switch leaf, which is not for nodes" in conflict["about"]
    switch_ports.sighted(tx, node, report(node, "leaf", "p1"), [node.boot_mac], (leaf,), 3.0)
    assert port(tx, node).port == "p1"


def test_a_manual_entry_stays(tx: Tx) -> None:
    node, other = machine(tx), machine(tx, "n2")
    switch_ports.connect(tx, node, node.boot_mac, "leaf", "p1", source="manual", now=0.0)
    sight(tx, node, "leaf", "p2")
    sight(tx, other, "leaf", "p1")
    assert port(tx, node).port == "p1"
    assert store.of_mac(tx, other.boot_mac) is None
    sight(tx, node, "leaf", "p1", 9.0)
    assert (port(tx, node).source, port(tx, node).seen_at) == ("manual", 9.0)
    switch_ports.connect(tx, node, node.boot_mac, "spine", "p7", source="manual", now=10.0)
    assert (port(tx, node).switch, port(tx, node).port) == ("spine", "p7")


def test_ports_outlive_their_nodes_and_go_back_to_provisioning(tx: Tx) -> None:
    shadow, node = machine(tx), machine(tx, "n2")
    sight(tx, shadow, "leaf", "p1")
    nodes.absorb(tx, shadow.id, node.id)
    assert [each.port for each in store.of_node(tx, node.id)] == ["p1"]
    other = machine(tx, "n3")
    sight(tx, other, "leaf", "p3")
    switch_ports.want(tx, other, 20, 1.0)
    nodes.forget(tx, [other.id])
    left = port_of(tx, "leaf", "p3")
    assert (left.node_id, left.mac, left.wanted_vlan, left.seq, left.pending) == (
        None,
        None,
        None,
        2,
        True,
    )


def test_ports_are_counted_by_switch(tx: Tx) -> None:
    for n in (1, 2, 3):
        sight(tx, machine(tx, f"n{n}"), "leaf", f"p{n}")
    switch_ports.want(tx, node := nodes.named(tx, "n1"), 20, 1.0)
    switch_ports.want(tx, nodes.named(tx, "n2"), 20, 1.0)
    store.outcome(tx, port(tx, node), given_up=True, next_at=None)
    assert store.counts(tx) == {"leaf": {"ports": 3, "pending": 1, "given_up": 1}}
    switches.began(tx, "a", ["leaf", "spine"], 1.0)
    assert store.switches_due(tx, 1.0) == {"leaf"}
