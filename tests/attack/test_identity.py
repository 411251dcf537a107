"""A host on the nodes' network that sends packets in the name of another node, on a real database
with a clock that is moved by hand: the forger, the decliner, the impostor, the liar about ports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from cod.core.nodes import boot_evidence, node_places
from cod.flows.agents import sessions as agents
from cod.flows.boot import dhcp, script
from cod.flows.nodes.nodes import moved, places_of, power, restore
from cod.flows.nodes.power import PowerTask, succeeded
from cod.flows.nodes.switches import switch_of
from cod.model import (
    DhcpQuery,
    NodePlace,
    PowerAction,
    Refused,
    Site,
    Switch,
)
from cod.policy.nodes.newcomers import Newcomers
from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import bindings, conflicts, nodes
from cod.store.nodes import power as power_rows
from tests.attack.forgeries import (
    ELSEWHERE,
    HOME,
    NONCE,
    STATES,
    TRIES,
    addresses,
    at_work,
    booting,
    bound,
    careful,
    decline,
    forge,
    in_use,
    is_given_secret,
    lie,
    race,
    reports,
    send,
    settled,
)
from tests.contexts import flow_context
from tests.store.agentlab import Lab, mac


@pytest.fixture
def lab(tx: Tx, site: Site) -> Lab:
    return Lab(tx, site)


def kinds(lab: Lab) -> list[str]:
    return [row["kind"] for row in conflicts.every(lab.tx)]


# ---------------------------------------------------------------- the forger


@pytest.mark.parametrize("state", STATES)
@pytest.mark.slow
def test_forged_discovers_decide_nothing_while_the_agent_is_heard(lab: Lab, state: str) -> None:
    at_work(lab, state)
    before = lab.node(1)
    forge(lab)
    assert lab.node(1) == before
    assert kinds(lab) == ["identity"]


@pytest.mark.parametrize("state", STATES)
def test_a_reset_counts_once_the_old_connection_is_given_up(lab: Lab, state: str) -> None:
    at_work(lab, state)
    [peer] = agents.inherited(lab.tx, "a")
    lab.now += 3 * lab.site.policy.heartbeat
    agents.lost(lab.tx, peer, lab.site, lab.now)
    assert lab.node(1).state == "trampoline"
    # had it been given work again before its firmware asks
    lab.tx.execute(update(t.nodes).values(state=state))
    send(lab, "DISCOVER", xid=7)
    assert lab.node(1).state == "trampoline"


@pytest.mark.parametrize("state", STATES)
def test_a_connection_whose_server_is_dead_shows_nothing(lab: Lab, state: str) -> None:
    at_work(lab, state)
    lab.now += 100 * lab.site.policy.heartbeat
    send(lab, "DISCOVER", xid=7)
    assert lab.node(1).state == "trampoline"


def test_the_connection_from_before_an_ordered_power_cycle_does_not_count(lab: Lab) -> None:
    at_work(lab, "inactive")
    lab.tx.execute(update(t.nodes).values(power_address="x"))
    power(lab.tx, flow_context(lab.site, lab.now, "user:root"), name="node1", desired="cycle")
    lab.now += 1
    send(lab, "DISCOVER", xid=7)
    assert lab.node(1).state == "trampoline"
    assert kinds(lab) == []


def test_a_system_that_asks_does_not_cycle_the_power_of_a_node_that_is_heard(lab: Lab) -> None:
    lab.machine(1, "trampoline", disk="dirty", power_address="x")
    lab.open(1)  # connected, and about to report
    lab.tx.execute(update(t.sessions).values(reported=True))
    for _ in range(60):
        lab.now += 1
        agents.held(lab.tx, "a", lab.now)
        assert send(lab, "DISCOVER", stage="os") is None
    assert (lab.node(1).attempts, lab.wishes(1)) == (0, [])


def test_an_agent_that_is_heard_keeps_its_address(lab: Lab) -> None:
    at_work(lab, "inactive")
    offer = send(lab, "DISCOVER", stage="trampoline")
    assert offer is not None
    send(lab, "REQUEST", stage="trampoline", requested=offer.yiaddr)
    before = bindings.of_node(lab.tx, lab.node(1).id)
    send(lab, "DECLINE", requested=offer.yiaddr)
    send(lab, "RELEASE", ciaddr=offer.yiaddr)
    assert bindings.of_node(lab.tx, lab.node(1).id) == before


# ---------------------------------------------------------------- the decliner


def test_a_declined_address_of_an_active_node_is_a_conflict_and_stays(lab: Lab) -> None:
    assert decline(lab) == set()
    [row] = conflicts.every(lab.tx)
    assert (row["kind"], "is active" in row["about"]) == ("declined", True)


@pytest.mark.parametrize(("xid", "later"), [(8, 1.0), (7, 60.0)])
def test_a_decline_counts_right_after_its_own_acknowledgement_only(
    lab: Lab, xid: int, later: float
) -> None:
    own = in_use(lab, "boot")
    send(lab, "REQUEST", 7, "os", requested=own)
    acked = lab.now
    lab.now = acked + later
    send(lab, "DECLINE", xid, "os", requested=own)
    assert addresses(lab) == {own}
    send(lab, "REQUEST", 9, "os", requested=own)  # the same client asks again
    send(lab, "DECLINE", 9, "os", requested=own)
    assert own not in addresses(lab)


# ---------------------------------------------------------------- every packet, in every state

HEARD = {"registering", "trampoline", "inactive", "wipe", "prime", "capture", "burnin"}


def stand(lab: Lab, state: str) -> str:
    """Node 1 in that state, its agent connected where it would be; returns an address of its."""
    if state in ("boot", "active"):
        own = in_use(lab, state)
        send(lab, "REQUEST", stage="os", requested=own)
        return own
    lab.machine(1, state, disk="dirty", power_address="x")
    offer = send(lab, "DISCOVER", stage="trampoline")
    if offer is None:
        return "10.77.1.9"  # retired: foreign
    send(lab, "REQUEST", stage="trampoline", requested=offer.yiaddr)
    if state in HEARD:
        lab.open(1, lab.mint(1, "session"))
        lab.tx.execute(update(t.sessions).values(reported=True))
    return offer.yiaddr


@pytest.mark.slow
@pytest.mark.parametrize("state", sorted(set(NodeState) - {"expected", "new"}))
def test_packets_alone_disturb_no_node(lab: Lab, state: str) -> None:
    own = stand(lab, state)
    careful(lab)
    before, rows = lab.node(1), bindings.of_node(lab.tx, 1)
    lab.now += 60  # longer than firmware repeats a packet
    for turn in range(3):
        lab.now += 10
        agents.held(lab.tx, "a", lab.now)
        for stage in ("firmware", "ipxe", "pxelinux", "httpclient", "os"):
            xid = 100 * turn + 7
            ports = {"giaddr": "10.77.0.2", "circuit": f"{turn}"} if state in HEARD else {}
            send(lab, "DISCOVER", xid, stage, **ports)
            send(lab, "REQUEST", xid, stage, requested=own, server_id="10.77.0.1")
            send(lab, "DECLINE", xid + 1, stage, requested=own)
            send(lab, "RELEASE", xid, stage, ciaddr=own)
            send(lab, "INFORM", xid, stage, ciaddr=own)
    kept = {(row.address, row.kind, row.state) for row in bindings.of_node(lab.tx, 1)}
    assert kept >= {(row.address, row.kind, row.state) for row in rows}
    now = lab.node(1)
    if state not in HEARD:  # where it is asked from is noted
        now = replace(now, relay=before.relay, circuit=before.circuit, remote=before.remote)
    assert (now, lab.wishes(1)) == (before, [])


def test_a_machine_that_comes_back_from_its_boot_fails_it_by_fetching_its_script(lab: Lab) -> None:
    in_use(lab, "boot")
    lab.now += 30
    offer = send(lab, "DISCOVER", 7)
    assert offer is not None
    send(lab, "REQUEST", 7, requested=offer.yiaddr, server_id="10.77.0.1")
    assert lab.node(1).state == "boot"
    plan = script.script(lab.tx, mac(1), offer.yiaddr, lab.site, lab.now)
    assert (plan.action, lab.node(1).state) == ("trampoline", "trampoline")
    assert "asked to boot again 30 s after" in lab.node(1).reason


def test_a_button_pressed_counts_when_the_agent_connects(lab: Lab) -> None:
    lab.machine(1, "off")
    send(lab, "DISCOVER", 7)
    assert lab.node(1).state == "off"
    lab.open(1, power="on")
    assert lab.node(1).state == "trampoline"


# ---------------------------------------------------------------- the impostor


@pytest.mark.parametrize(("nonce", "given"), [(False, TRIES), (True, 0)])
def test_a_host_that_is_quicker_than_a_node_lacks_its_nonce(
    lab: Lab, nonce: bool, given: int
) -> None:
    booting(lab, nonce=nonce)
    assert race(lab) == given


def test_the_node_s_loader_has_the_address_that_its_firmware_brought_the_nonce_from(
    lab: Lab,
) -> None:
    booting(lab, nonce=True)
    race(lab)
    address = bound(lab, 7, "httpclient")
    script.bring(lab.tx, NONCE, address, lab.site, lab.now)
    lab.now += 5
    assert bound(lab, 8, "ipxe") == address
    assert script.script(lab.tx, mac(1), address, lab.site, lab.now).action == "trampoline"
    assert is_given_secret(lab, address, "own")


def told(lab: Lab) -> list[str]:
    return [row.kind for row in lab.tx.execute(select(t.notices)).all()]


@pytest.mark.parametrize("state", ["off", "inactive", "wipe", "quarantined"])
def test_no_agent_is_believed_of_a_node_whose_driver_says_off(lab: Lab, state: str) -> None:
    lab.machine(1, state)
    before = lab.node(1)
    secret = lab.mint(1)
    for _ in range(3):
        assert isinstance(lab.knock(1, secret, power="off"), str)
    assert lab.node(1) == before
    assert (kinds(lab), told(lab)) == (["identity"], ["identity"])
    [row] = lab.tx.execute(select(t.audit)).all()
    assert (row.actor, row.action, row.thing) == ("confd", "agent refuse", "node1")
    lab.open(1, secret, power="on")  # the secret is not spent


def test_no_other_agent_is_believed_while_the_first_is_heard(lab: Lab) -> None:
    at_work(lab, "inactive")
    before = lab.node(1)
    for server, here in (("a", [before.id]), ("b", [])):
        assert isinstance(lab.knock(1, server=server, power="on", here=here), str)
    assert lab.node(1) == before
    assert (kinds(lab), told(lab)) == (["identity"], [])
    lab.open(1)  # its connection to this server is closed: it was reset
    assert lab.node(1).state == "trampoline"


def test_a_boot_that_nobody_ordered_is_believed_if_the_driver_says_on(lab: Lab) -> None:
    careful(lab)
    lab.machine(1, "off")
    lab.report(lab.open(1, power="on"))
    assert (lab.node(1).state, kinds(lab)) == ("inactive", [])


@pytest.mark.parametrize("driver", ["none", "wol"])
def test_without_a_driver_a_boot_that_nobody_ordered_waits_for_an_administrator(
    lab: Lab, driver: str
) -> None:
    careful(lab)
    lab.machine(1, "inactive")
    lab.tx.execute(update(t.nodes).values(power_driver=driver))
    send(lab, "DISCOVER", xid=7)
    peer = lab.boots(1)
    assert (lab.node(1).state, lab.order(1).action) == ("quarantined", "wait")
    restore(lab.tx, flow_context(lab.site, lab.now, "user:root"), name="node1")
    lab.now += 1
    lab.report(peer)
    assert lab.node(1).boot_unordered is False


def test_a_driver_that_does_not_answer_is_told_to_cycle(lab: Lab) -> None:
    careful(lab)
    lab.machine(1, "inactive", power_address="x")
    lab.boots(1)
    assert (lab.node(1).state, lab.wishes(1)) == ("trampoline", ["cycle"])
    task = PowerTask(_action(lab), "node1", "lab", "x", None, False, None)
    succeeded(lab.tx, task, "on", lab.now + 5)
    assert lab.node(1).boot_unordered is False


def test_where_nothing_is_cycled_an_administrator_decides(lab: Lab) -> None:
    careful(lab)
    lab.site = replace(lab.site, policy=replace(lab.site.policy, power_cycle=False))
    lab.machine(1, "inactive", power_address="x")
    lab.boots(1)
    lab.tick(30)
    assert (lab.node(1).state, lab.wishes(1)) == ("quarantined", [])


def test_an_agent_that_comes_back_by_its_session_was_not_reset(lab: Lab) -> None:
    careful(lab)
    lab.machine(1, "trampoline")
    peer = lab.boots(1)
    agents.lost(lab.tx, peer, lab.site, lab.now)
    assert lab.node(1).boot_unordered is True
    lab.report(lab.again(1))
    assert (lab.node(1).state, lab.node(1).boot_unordered) == ("inactive", False)


def test_after_an_outage_of_the_site_nothing_is_a_conflict(lab: Lab) -> None:
    careful(lab)
    for number in (1, 2, 3):
        lab.machine(number, "trampoline")
        peer = lab.boots(number)
        agents.lost(lab.tx, peer, lab.site, lab.now)
    lab.tx.execute(update(t.nodes).values(power_driver="none"))
    lab.now += 300
    for number in (3, 2, 1):
        assert isinstance(lab.knock(number, power="off"), str)  # a BMC that is late
        peer = lab.boots(number)
        assert lab.node(number).state == "inactive"
    assert (kinds(lab), told(lab)) == ([], [])
    lab.assign(1, lab.vcluster(lab.template()))
    lab.done(peer, lab.order(1).id)
    lab.now += boot_evidence.OUTAGE
    lab.release(1)
    lab.boots(1)
    assert lab.node(1).state == "wipe"  # that boot was ordered


def test_an_outage_that_cod_slept_through_is_one_too(lab: Lab) -> None:
    careful(lab)
    for number in (1, 2, 3):
        lab.machine(number, "trampoline")
        lab.boots(number)
    lab.tx.execute(update(t.nodes).values(power_driver="none"))
    lab.now += 3600
    queries = [DhcpQuery("DISCOVER", mac(number), 7, "lab", "ipxe") for number in (1, 2, 3)]
    dhcp.answer(lab.tx, queries, lab.site, Newcomers(), lab.now)
    for number in (1, 2, 3):
        lab.boots(number)
        assert lab.node(number).state == "inactive"


def _action(lab: Lab) -> PowerAction:
    action = power_rows.due(lab.tx, lab.now, 1, [])[0]
    claimed = power_rows.claim(lab.tx, action, "a", lab.now, lab.now + 60)
    assert claimed is not None
    return claimed


# ---------------------------------------------------------------- elsewhere on the network


@pytest.mark.parametrize(
    "change", [{"circuit": "0009"}, {"remote": "bb02"}, {"circuit": None, "remote": None}]
)
def test_a_node_is_not_answered_where_it_is_not(lab: Lab, change: dict[str, Any]) -> None:
    settled(lab)
    before = lab.node(1)
    for xid in range(20, 25):
        assert send(lab, "DISCOVER", xid, **HOME | change) is None
        assert send(lab, "REQUEST", xid, requested="10.77.1.9", **HOME | change) is None
    assert lab.node(1) == before
    assert (kinds(lab), told(lab)) == (["moved"], ["identity"])
    assert send(lab, "DISCOVER", 30, **HOME) is not None


def test_a_system_that_asks_by_another_card_is_not_told_of(lab: Lab) -> None:
    settled(lab)
    nodes.add_mac(lab.tx, lab.node(1).id, mac(9))
    query = replace(DhcpQuery("DISCOVER", mac(9), 20, "lab", "os"), **ELSEWHERE)
    assert dhcp.answer(lab.tx, [query], lab.site, Newcomers(), lab.now) == [None]
    assert kinds(lab) == []


def test_a_renewal_past_the_relay_tells_no_place(lab: Lab) -> None:
    settled(lab)
    send(lab, "REQUEST", ciaddr="10.77.1.9")
    assert kinds(lab) == []


def test_another_relay_of_the_subnet_is_the_same_place(lab: Lab) -> None:
    settled(lab)
    assert send(lab, "DISCOVER", 30, **HOME | {"giaddr": "10.77.0.3"}) is not None


@pytest.mark.parametrize("word", ["administrator", "site"])
def test_a_node_that_was_moved_boots_when_somebody_says_so(lab: Lab, word: str) -> None:
    settled(lab)
    if word == "administrator":
        assert send(lab, "DISCOVER", 20, **ELSEWHERE) is None
        moved(lab.tx, flow_context(lab.site, lab.now), name="node1")
    else:
        lab.site = replace(lab.site, policy=replace(lab.site.policy, moves="follow"))
    assert send(lab, "DISCOVER", 21, **ELSEWHERE) is not None
    lab.report(lab.open(1, power="on"))
    lab.site = replace(lab.site, policy=replace(lab.site.policy, moves="ask"))
    assert lab.node(1).home_circuit == "0009"
    assert send(lab, "DISCOVER", 22, **HOME) is None


def test_a_node_approved_earlier_is_remembered_at_its_first_proven_boot(lab: Lab) -> None:
    careful(lab)
    lab.machine(1, "off", subnet="lab")
    send(lab, "DISCOVER", **HOME)
    peer = lab.open(1)
    lab.report(peer)
    assert lab.node(1).home_at is None  # nobody ordered that boot, and no driver confirms it
    lab.report(lab.open(1, power="on"))
    assert (lab.node(1).home_circuit, lab.node(1).home_remote) == ("0004", "aa01")


OTHER_CARD: dict[str, Any] = HOME | {"circuit": "0009"}


def heard_at(lab: Lab) -> list[NodePlace]:
    return [each for each in places_of(lab.tx, name="node1") if not each.approved]


def also(lab: Lab, place: int) -> None:
    moved(lab.tx, flow_context(lab.site, lab.now), name="node1", also=place)


def test_a_second_card_or_relay_boots_once_it_is_approved_and_the_first_goes_on(lab: Lab) -> None:
    settled(lab)
    for xid in range(20, 25):
        assert send(lab, "DISCOVER", xid, **OTHER_CARD) is None
    [place] = heard_at(lab)
    assert (place.subnet, place.circuit, place.remote) == ("lab", "0009", "aa01")
    also(lab, place.id)
    for xid, where in enumerate((OTHER_CARD, HOME, OTHER_CARD), 30):
        assert send(lab, "DISCOVER", xid, **where) is not None
        lab.report(lab.open(1, power="on"))
    assert lab.node(1).home_circuit == "0004"
    assert send(lab, "DISCOVER", 40, **HOME | {"circuit": "0010"}) is None
    moved(lab.tx, flow_context(lab.site, lab.now), name="node1")
    assert places_of(lab.tx, name="node1") == []


def test_only_a_place_where_the_node_was_heard_is_approved(lab: Lab) -> None:
    settled(lab)
    for place in (0, 99):
        with pytest.raises(Refused, match="was heard in no place"):
            also(lab, place)


def test_forged_places_are_few_and_leave_the_approved_alone(lab: Lab) -> None:
    settled(lab)
    send(lab, "DISCOVER", 20, **OTHER_CARD)
    also(lab, heard_at(lab)[0].id)
    for circuit in range(50):
        assert send(lab, "DISCOVER", 30, **HOME | {"circuit": f"f{circuit}"}) is None
    assert len(heard_at(lab)) == node_places.MOST
    assert send(lab, "DISCOVER", 31, **OTHER_CARD) is not None
    lab.now += node_places.KEPT
    send(lab, "DISCOVER", 32, **HOME | {"circuit": "0011"})
    assert "0011" in [each.circuit for each in heard_at(lab)]


# ---------------------------------------------------------------- the liar about ports


def test_a_node_thatreports_another_port_waits_and_takes_none(lab: Lab) -> None:
    assert lie(lab) == {"p1": lab.node(1).id, "p2": lab.node(2).id}
    assert (lab.node(1).state, lab.node(2).state) == ("trampoline", "quarantined")
    assert "on port leaf p1, and was on leaf p2" in lab.node(2).reason


def test_a_second_port_by_lldp_is_one_of_its_places_once_it_is_approved(lab: Lab) -> None:
    lab.site = replace(lab.site, switches=(Switch("leaf", "ovs", "unix:/x"),))
    lab.machine(1, "trampoline")
    reports(lab, lab.open(1), "p1")
    lab.tx.execute(update(t.nodes).values(state="trampoline"))
    reports(lab, lab.again(1), "p2")
    assert lab.node(1).state == "quarantined"
    [place] = heard_at(lab)
    assert place.port == "leaf p2"
    also(lab, place.id)
    restore(lab.tx, flow_context(lab.site, lab.now, "user:root"), name="node1")
    for port in ("p2", "p1", "p2"):
        lab.tx.execute(update(t.nodes).values(state="trampoline"))
        reports(lab, lab.again(1), port)
        assert lab.node(1).state == "wipe"
    lab.tx.execute(update(t.nodes).values(state="trampoline"))
    reports(lab, lab.again(1), "p3")
    assert lab.node(1).state == "quarantined"


def test_its_own_place_stays_one_when_its_port_is_learned(lab: Lab) -> None:
    settled(lab)
    send(lab, "DISCOVER", 20, **OTHER_CARD)
    also(lab, heard_at(lab)[0].id)
    lab.site = replace(lab.site, switches=(Switch("leaf", "ovs", "unix:/x"),))
    assert send(lab, "DISCOVER", 30, **HOME) is not None
    reports(lab, lab.open(1, power="on"), "p1")
    places = [(each.circuit, each.port) for each in places_of(lab.tx, name="node1")]
    assert places == [("0009", None), ("0004", "leaf p1")]


TABLE = replace(Switch("leaf", "snmp", "leaf.example"), nodes_on=("p*",))


@pytest.mark.parametrize(
    ("heard_on", "lldp", "state"),
    [
        ([("leaf p2",)], "p1", "quarantined"),  # the agent lies: the switch's own word outweighs it
        ([("leaf p2",)], "", "quarantined"),
        ([("leaf p1",)], "p2", "wipe"),
        ([("leaf 1", "leaf p1")], "", "wipe"),  # by another of its names
        ([("leaf p2",), ("leaf p1",)], "", "wipe"),  # what is not where it was is old
        ([("leaf p2",), ("leaf p3",)], "p1", "wipe"),  # no evidence, as in each below
        ([("leaf uplink",)], "p1", "wipe"),
        ([], "p1", "wipe"),
        ([], "", "wipe"),
    ],
)
def test_a_port_by_the_switchs_table_counts_as_by_lldp_and_outweighs_it(
    lab: Lab, heard_on: list[tuple[str, ...]], lldp: str, state: str
) -> None:
    lab.site = replace(lab.site, switches=(TABLE,))
    lab.machine(1, "trampoline", disk="dirty")
    reports(lab, lab.open(1), "", [("leaf 1", "leaf p1")])
    assert (lab.node(1).home_port, lab.node(1).state) == ("leaf p1", "wipe")
    lab.tx.execute(update(t.nodes).values(state="trampoline"))
    reports(lab, lab.again(1), lldp, heard_on)
    assert (lab.node(1).home_port, lab.node(1).state) == ("leaf p1", state)
    if state == "quarantined":
        reason = "on port leaf p2, and was on leaf p1 before (the switch's table of MAC addresses)"
        assert reason in lab.node(1).reason
        assert [place.port for place in heard_at(lab)] == ["leaf p2"]


def test_a_site_that_follows_moves_follows_the_switchs_table(lab: Lab) -> None:
    policy = replace(lab.site.policy, moves="follow")
    lab.site = replace(lab.site, switches=(TABLE,), policy=policy)
    lab.machine(1, "trampoline", disk="dirty")
    reports(lab, lab.open(1), "p1")
    reports(lab, lab.again(1), "p1", [("leaf p2",)])
    assert (lab.node(1).home_port, lab.node(1).state) == ("leaf p2", "wipe")


def test_a_remembered_port_that_cannot_be_the_drivers_name_is_not_compared(lab: Lab) -> None:
    lab.site = replace(lab.site, switches=(TABLE,))
    lab.machine(1, "trampoline", disk="dirty", home_at=1.0, home_port="leaf 44:4c:a8:00:00:01")
    reports(lab, lab.open(1), "44:4c:a8:00:00:01", [("leaf p1",)])
    assert lab.node(1).state == "wipe"


def test_switches_are_asked_of_nodes_that_have_just_booted(lab: Lab) -> None:
    lab.machine(1, "trampoline", home_port="leaf p1")
    lab.machine(2, "trampoline")
    lab.machine(3, "registering")
    lab.machine(4, "inactive", home_port="leaf p4")
    asked = [switch_of(lab.tx, mac(number)) for number in range(1, 6)]
    assert asked == ["leaf", "", None, None, None]
