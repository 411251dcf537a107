"""What an administrator does to a node, on a real database."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, select

from cod.flows.nodes import nodes as flows
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import Account, AskedVcluster, Node, Peer, Refused, Result, Site
from cod.states import Disk
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import nodes, sessions
from tests.contexts import flow_context
from tests.store.manager_world import (
    OWNER,
    add_node,
    arrive,
    check_world,
    furnish,
    members,
    run_pass,
)


def do(flow: Any, tx: Tx, site: Site, **arguments: Any) -> tuple[Node, set[str]]:
    """Run an administrator's flow on node1; the node then, and who was woken."""
    done = flow(tx, flow_context(site, 5.0, OWNER), name="node1", **arguments)
    assert nodes.get(tx, done.value.id) == done.value
    return done.value, {effect.what for effect in done.effects}


def actions(tx: Tx) -> list[tuple[int, str]]:
    """(generation, wish) of all power actions."""
    return [
        (row.generation, row.desired)
        for row in tx.execute(select(t.power_actions).order_by(t.power_actions.c.id))
    ]


@pytest.mark.parametrize(
    ("reported", "state"), [(True, "inactive"), (False, "trampoline"), (None, "trampoline")]
)
def test_approving(tx: Tx, site: Site, reported: bool | None, state: str) -> None:
    node = add_node(tx, 1, "registering", disk=Disk.FOREIGN)
    if reported is not None:
        epoch = sessions.open(tx, node.id, "server", "10.0.0.9", 1.0)
        if reported:
            sessions.set_reported(tx, Peer(node.id, "server", epoch, node.boot_mac))
    moved, woken = do(flows.approve, tx, site)
    assert (moved.state, moved.disk) == (state, Disk.FOREIGN)
    assert "orders" in woken
    assert [row["event"] for row in nodes.history(tx, node.id)][:2] == ["seen", "approved"]


@pytest.mark.parametrize(
    ("state", "sentence"), [("new", "has not reported"), ("inactive", "needs no approval")]
)
def test_approve_refuses(tx: Tx, site: Site, state: str, sentence: str) -> None:
    add_node(tx, 1, state)
    with pytest.raises(Refused, match=sentence):
        do(flows.approve, tx, site)


def test_power_wishes_and_the_cold_reserve(tx: Tx, site: Site) -> None:
    add_node(tx, 1)
    node, woken = do(flows.power, tx, site, desired="cycle")
    assert (node.state, node.power_wanted, node.generation, woken) == (
        "inactive",
        "cycle",
        0,
        {"power"},
    )
    node, woken = do(flows.power, tx, site, desired="off")
    assert (node.state, node.power_wanted, node.generation) == ("off", "off", 1)
    assert woken >= {"power", "manager"}
    node, _ = do(flows.power, tx, site, desired="off")
    assert node.state == "off"
    node, _ = do(flows.power, tx, site, desired="on")
    assert (node.state, node.power_wanted, node.generation) == ("trampoline", "on", 2)
    assert actions(tx) == [(0, "cycle"), (1, "off"), (1, "off"), (2, "on")]


def test_a_node_that_is_woken_before_it_was_off_is_heard_again(tx: Tx, site: Site) -> None:
    """The wish for off is dropped by the newer one, so nothing reboots the node: only a new report
    moves it on."""
    node = add_node(tx, 1)
    peer = Peer(
        node.id, "server", sessions.open(tx, node.id, "server", "10.0.0.9", 1.0), node.boot_mac
    )
    sessions.set_reported(tx, peer)
    do(flows.power, tx, site, desired="off")
    assert sessions.connected(tx, [node.id])
    do(flows.power, tx, site, desired="on")
    assert not sessions.connected(tx, [node.id])


@pytest.mark.parametrize(
    ("columns", "desired", "sentence"),
    [
        ({"power_driver": "none"}, "on", "has no power driver"),
        ({}, "sideways", "power is on, off, soft, cycle"),
    ],
)
def test_power_refuses(
    tx: Tx, site: Site, columns: dict[str, Any], desired: str, sentence: str
) -> None:
    add_node(tx, 1, **columns)
    with pytest.raises(Refused, match=sentence):
        do(flows.power, tx, site, desired=desired)
    assert actions(tx) == []


def test_quarantining_a_free_node_and_restoring_it(tx: Tx, site: Site) -> None:
    add_node(tx, 1, reported_at=0.0)
    node, woken = do(flows.quarantine, tx, site, reason="fan is loud")
    assert (node.state, node.reason) == ("quarantined", "fan is loud")
    assert "manager" in woken
    assert nodes.history(tx, node.id)[-1]["cause"] == "user:ann: fan is loud"
    assert actions(tx) == []
    node, _ = do(flows.quarantine, tx, site, reason="its fan is worn out")
    assert (node.state, node.reason) == ("quarantined", "its fan is worn out")
    node, _ = do(flows.restore, tx, site)
    assert (node.state, node.reason, node.attempts, node.disk) == ("trampoline", "", 0, Disk.DIRTY)
    assert actions(tx) == [(node.generation, "cycle")]


def test_restoring_does_not_wipe_what_cod_never_wrote(tx: Tx, site: Site) -> None:
    add_node(tx, 1, disk=Disk.FOREIGN, reported_at=0.0)
    do(flows.quarantine, tx, site, reason="look at it")
    node, _ = do(flows.restore, tx, site)
    assert node.disk == Disk.FOREIGN


def test_quarantining_a_held_node_switches_it_off_and_asks_for_another(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    made = owner_flows.create(
        tx,
        flow_context(site, 1.0),
        AskedVcluster(name="one", size=2, template="kept", group="site"),
    )
    run_pass(tx, site, 2.0)
    arrive(tx, 3.0)
    read: list[str] = []

    def note(*said: Any) -> None:
        read.append(said[2])

    event.listen(tx, "before_cursor_execute", note)
    node, woken = do(flows.quarantine, tx, site, reason="smoke")
    event.remove(tx, "before_cursor_execute", note)
    assert len([text for text in read if "FROM request_tuples" in text]) == 1
    # the new one alone, as it was written
    assert len([text for text in read if "WHERE node_requests.id = " in text]) == 1
    assert (node.state, node.vcluster_id, node.disk) == ("quarantined", None, Disk.DIRTY)
    assert woken == {"manager", "orders", "power"}
    assert actions(tx) == [(node.generation, "off")]
    assert members(tx, made.value[0].vcluster.id) == ["node0"]
    check_world(tx)
    add_node(tx, 3)
    run_pass(tx, site, 6.0)
    assert members(tx, made.value[0].vcluster.id) == ["node0", "node3"]


def test_retiring(tx: Tx, site: Site) -> None:
    add_node(tx, 1, reported_at=0.0)
    node, _ = do(flows.retire, tx, site)
    assert (node.state, node.reason) == ("retired", "")
    node, _ = do(flows.restore, tx, site)
    assert node.state == "trampoline"


def test_a_held_node_is_not_retired(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    owner_flows.create(
        tx,
        flow_context(site, 1.0),
        AskedVcluster(name="one", size=2, template="debian", group="site"),
    )
    run_pass(tx, site, 2.0)
    with pytest.raises(Refused, match="release or quarantine it first"):
        do(flows.retire, tx, site)


def change(tx: Tx, site: Site, node: str, **said: Any) -> Result:
    """An administrator's change."""
    return flows.change(tx, flow_context(site, 1.0, "user:root"), name=node, changes=said)


def test_changing_what_the_site_says(tx: Tx, site: Site) -> None:
    add_node(tx, 1, power_driver="none")
    change(tx, site, "node1", power_driver="lab", power_address="/run/n1")
    change(tx, site, "node1", block="rack7")
    done = change(tx, site, "node1", name="big")
    node = done.value
    assert (node.name, node.power_driver, node.power_address) == ("big", "lab", "/run/n1")
    assert node.block_id is not None
    add_node(tx, 2)
    assert change(tx, site, "node2", block="rack7").value.block_id == node.block_id
    assert change(tx, site, "node2", block="").value.block_id is None
    assert change(tx, site, "node2", name="node2").value.name == "node2"


def test_an_account_is_one_that_the_site_has(tx: Tx, site: Site) -> None:
    add_node(tx, 1)
    with pytest.raises(Refused, match=r"no \[\[account\]\] named 'rack'; it has none"):
        change(tx, site, "node1", power_account="rack")
    known = replace(
        site,
        accounts=(Account("rack", "admin", "/etc/cod/rack"), Account("old", "", "/etc/cod/old")),
    )
    with pytest.raises(Refused, match="it has rack, old"):
        change(tx, known, "node1", power_account="tack")
    assert change(tx, known, "node1", power_account="rack").value.power_account == "rack"
    assert change(tx, known, "node1", power_address="/run/n1").value.power_account == "rack"
    assert change(tx, known, "node1", power_account="").value.power_account is None


def test_another_driver_knows_nothing_of_what_the_last_one_saw(tx: Tx, site: Site) -> None:
    add_node(tx, 1, power="on", watts=80.0)
    node = change(tx, site, "node1", power_driver="wol").value
    assert (node.power, node.watts) == ("unknown", None)


def test_a_free_node_that_is_asked_to_shut_down_joins_the_cold_reserve(tx: Tx, site: Site) -> None:
    add_node(tx, 1, state="inactive")
    node, _ = do(flows.power, tx, site, desired="soft")
    assert (node.state, node.power_wanted) == ("off", "soft")
    again, _ = do(flows.power, tx, site, desired="soft")
    assert again.state == "off", "soft wakes nobody"


@pytest.mark.parametrize(
    ("name", "sentence"), [("node2", "already"), ("No", "no DNS label"), ("", "no DNS label")]
)
def test_renaming_refuses(tx: Tx, site: Site, name: str, sentence: str) -> None:
    add_node(tx, 1)
    add_node(tx, 2)
    with pytest.raises(Refused, match=sentence):
        change(tx, site, "node1", name=name)


@pytest.mark.parametrize("flow", [flows.approve, flows.restore, flows.retire])
def test_a_node_that_is_not_there(tx: Tx, site: Site, flow: Any) -> None:
    with pytest.raises(Refused, match="there is no node 'node1'"):
        do(flow, tx, site)
