"""Batches of DHCP messages against a real database."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, insert, select, update
from sqlalchemy.exc import IntegrityError, OperationalError

from cod.core.networks import dhcp_conflicts
from cod.core.nodes import transitions
from cod.flows.boot import dhcp as flow
from cod.flows.boot import script as boot_flow
from cod.flows.nodes import deadlines
from cod.model import (
    Binding,
    DhcpAnswer,
    DhcpQuery,
    Node,
    Policy,
    PowerRule,
    Refused,
    Site,
    Subnet,
    Vcluster,
    dotted,
    ipv4,
)
from cod.policy.nodes.newcomers import Newcomers
from cod.pool import in_transaction
from cod.states import NodeEvent, NodeState
from cod.store import dns_zones, tables
from cod.store.engine import Tx
from cod.store.nodes import bindings, captures, conflicts, dhcp_batch, dns_names, nodes, secrets
from cod.store.nodes.dhcp_batch import probes
from cod.store.people import groups
from cod.store.scheduler import vclusters
from tests.rows import add_vcluster

NOW = 1_000_000.0
MAC = "52:54:00:00:00:01"
OTHER = "52:54:00:00:00:02"


def ask(
    kind: str,
    mac: str = MAC,
    xid: int = 1,
    stage: str = "ipxe",
    subnet: str | None = "lab",
    **more: Any,
) -> DhcpQuery:
    return replace(DhcpQuery(kind, mac, xid, subnet, stage), **more)


def one(tx: Tx, query: DhcpQuery, site: Site, now: float = NOW) -> DhcpAnswer | None:
    [answer] = flow.answer(tx, [query], site, Newcomers(), now)
    return answer


def dora(
    tx: Tx, site: Site, mac: str = MAC, xid: int = 1, stage: str = "ipxe", now: float = NOW
) -> str:
    offer = one(tx, ask("DISCOVER", mac, xid, stage), site, now)
    assert offer is not None
    assert offer.kind == "OFFER"
    ack = one(
        tx,
        ask("REQUEST", mac, xid, stage, requested=offer.yiaddr, server_id="10.77.0.1"),
        site,
        now,
    )
    assert ack is not None
    assert (ack.kind, ack.yiaddr) == ("ACK", offer.yiaddr)
    return ack.yiaddr


def node_of(tx: Tx, mac: str = MAC) -> Node:
    node = nodes.by_mac(tx, mac)
    assert node is not None
    return node


# ---------------------------------------------------------------- machines never seen before


def test_a_new_machine_becomes_a_node_and_boots_the_trampoline(tx: Tx, site: Site) -> None:
    address = dora(tx, site)
    node = node_of(tx)
    assert (node.name, node.state, node.boot_mac) == ("node-525400000001", "new", MAC)
    assert ipv4("10.77.1.0") <= ipv4(address) <= ipv4("10.77.4.255")
    plan = boot_flow.script(tx, MAC, address, site, NOW)
    assert plan.action == "trampoline"
    assert "secret" not in plan.cmdline


def test_a_new_machine_is_switched_as_the_first_rule_that_fits_says(tx: Tx, site: Site) -> None:
    rule = PowerRule("52:54:*", "ipmi", "bmc-{name}?suite=3", "rack1")
    dora(tx, replace(site, power=(PowerRule("rack9-*", "lab", ""), rule)))
    node = node_of(tx)
    assert (node.power_driver, node.power_address, node.power_account) == (
        "ipmi",
        "bmc-node-525400000001?suite=3",
        "rack1",
    )


def test_known_only_ignores_strangers_and_leaves_no_trace(tx: Tx, site: Site) -> None:
    strict = replace(site, policy=Policy(unknown="known-only"))
    assert one(tx, ask("DISCOVER"), strict) is None
    assert nodes.by_mac(tx, MAC) is None


@pytest.mark.parametrize("kind", ["DISCOVER", "REQUEST", "DECLINE", "RELEASE", "INFORM"])
def test_a_foreign_system_is_never_answered(tx: Tx, site: Site, kind: str) -> None:
    query = ask(kind, stage="os", requested="10.77.1.9", ciaddr="10.77.1.9")
    assert one(tx, query, site) is None
    assert one(tx, replace(query, server_id="10.77.0.1"), site) is None
    assert nodes.every(tx) == []


def test_a_second_card_joins_its_machine_by_uuid_until_that_has_reported(
    tx: Tx, site: Site
) -> None:
    uuid = "6b1d3a52-0c6e-4a8e-9a56-2f0e6f1b7a11"
    flow.answer(
        tx, [ask("DISCOVER", uuid=uuid), ask("DISCOVER", OTHER, uuid=uuid)], site, Newcomers(), NOW
    )
    assert node_of(tx, OTHER).id == node_of(tx).id
    nodes.change(tx, node_of(tx), reported_at=NOW)
    third = "52:54:00:00:00:03"
    one(tx, ask("DISCOVER", third, uuid=uuid), site)
    assert node_of(tx, third).id != node_of(tx).id
    assert node_of(tx, third).uuid is None
    assert [row["kind"] for row in conflicts.every(tx)] == ["identity"]


@pytest.mark.parametrize(
    "uuid", ["00000000-0000-0000-0000-000000000000", "03000200-0400-0500-0006-000700080009"]
)
def test_a_uuid_that_is_nobodys_joins_nothing(tx: Tx, site: Site, uuid: str) -> None:
    flow.answer(
        tx, [ask("DISCOVER", uuid=uuid), ask("DISCOVER", OTHER, uuid=uuid)], site, Newcomers(), NOW
    )
    assert node_of(tx, OTHER).id != node_of(tx).id


# ---------------------------------------------------------------- addresses


def test_a_machine_keeps_its_address_from_stage_to_stage_and_boot_to_boot(
    tx: Tx, site: Site
) -> None:
    first = dora(tx, site, stage="firmware")
    assert dora(tx, site, xid=2, stage="ipxe") == first
    assert dora(tx, site, xid=3, stage="trampoline") == first
    assert dora(tx, site, xid=4, now=NOW + 10_000_000) == first


def test_the_loaders_are_told_apart(tx: Tx, site: Site) -> None:
    def bootfile(stage: str, arch: int | None) -> str | None:
        answer = one(tx, ask("DISCOVER", stage=stage, arch=arch), site)
        return answer.bootfile if answer else None

    assert bootfile("firmware", 0) == "undionly.kpxe"
    assert bootfile("firmware", 7) == bootfile("firmware", 9) == "snponly.efi"
    assert bootfile("httpclient", 16) == "http://10.77.0.1:8069/files/snponly.efi"
    assert bootfile("ipxe", 0) == f"http://10.77.0.1:8069/boot/{MAC}/script.ipxe"
    assert bootfile("trampoline", None) is None


def test_duplicates_and_reordering_in_one_batch(tx: Tx, site: Site) -> None:
    address = dora(tx, site)
    discover = ask("DISCOVER", xid=9)
    request = ask("REQUEST", xid=9, requested=address, server_id="10.77.0.1")
    answers = flow.answer(
        tx, [request, discover, discover, request, request], site, Newcomers(), NOW
    )
    assert [(a.kind, a.yiaddr) for a in answers if a] == [
        (kind, address) for kind in ("ACK", "OFFER", "OFFER", "ACK", "ACK")
    ]
    assert len(tx.execute(select(tables.bindings)).all()) == 1


def test_a_request_for_another_servers_offer_frees_ours(tx: Tx, site: Site) -> None:
    offer = one(tx, ask("DISCOVER"), site)
    assert offer is not None
    assert one(tx, ask("REQUEST", requested="192.0.2.9", server_id="192.0.2.1"), site) is None
    assert tx.execute(select(tables.bindings)).all() == []


def test_a_wrong_address_is_refused_to_a_machine_we_know(tx: Tx, site: Site) -> None:
    dora(tx, site)
    for query in (
        ask("REQUEST", requested="10.77.1.77"),  # INIT-REBOOT
        ask("REQUEST", requested="10.77.1.77", server_id="10.77.0.1"),  # SELECTING
        ask("REQUEST", ciaddr="10.77.1.77"),  # RENEWING
    ):
        answer = one(tx, query, site)
        assert answer is not None
        assert answer.kind == "NAK"


def test_a_known_machine_that_is_another_servers_client_is_left_alone(tx: Tx, site: Site) -> None:
    dora(tx, site)
    # not an address of ours
    assert one(tx, ask("REQUEST", stage="os", requested="10.77.9.9"), site) is None
    assert one(tx, ask("DISCOVER", stage="os"), site) is None
    answer = one(tx, ask("REQUEST", stage="os", requested="10.77.1.9"), site)
    assert answer is not None
    assert answer.kind == "NAK"


def test_a_declined_address_is_set_aside_and_named(tx: Tx, site: Site) -> None:
    address = dora(tx, site)
    assert one(tx, ask("DECLINE", requested=address, server_id="10.77.0.1"), site) is None
    again = dora(tx, site, xid=5)
    assert again != address
    [row] = conflicts.every(tx)
    assert (row["kind"], row["address"], row["mac"]) == ("declined", ipv4(address), MAC)


def both(site: Site) -> tuple[Site, Site]:
    """The site as each of its two servers sees it: a relay brings both of them each broadcast."""
    [subnet, *more] = site.subnets
    first = replace(subnet, others=("10.77.0.2",))
    second = replace(subnet, server="10.77.0.2", others=(subnet.server,))
    return replace(site, subnets=(first, *more)), replace(site, subnets=(second, *more))


def test_what_two_servers_hear_counts_once(tx: Tx, site: Site) -> None:
    first, second = both(site)
    offers = [one(tx, ask("DISCOVER"), each) for each in (first, second)]
    assert offers[0] is not None
    assert offers[1] is not None
    assert offers[0].yiaddr == offers[1].yiaddr
    chosen = ask("REQUEST", requested=offers[0].yiaddr, server_id="10.77.0.2")
    told = [one(tx, chosen, each) for each in (first, second)]
    assert [answer and answer.kind for answer in told] == [None, "ACK"]
    declined = ask("DECLINE", requested=offers[0].yiaddr, server_id="10.77.0.2")
    assert [one(tx, declined, each) for each in (first, second)] == [None, None]
    assert len(conflicts.every(tx)) == 1
    again = dora(tx, first, xid=5)
    assert again != offers[0].yiaddr
    for each in (first, second):  # after a restart: it names no server
        answer = one(tx, ask("REQUEST", xid=6, requested=again), each)
        assert answer is not None
        assert (answer.kind, answer.yiaddr) == ("ACK", again)
        wrong = one(tx, ask("REQUEST", xid=7, requested="10.77.1.9"), each)
        assert wrong is not None
        assert wrong.kind == "NAK"


def test_an_offer_of_both_servers_is_free_once_a_third_ones_is_taken(tx: Tx, site: Site) -> None:
    first, second = both(site)
    offer = one(tx, ask("DISCOVER"), first)
    assert offer is not None
    theirs = ask("REQUEST", requested="10.77.9.9", server_id="192.0.2.1")
    assert [one(tx, theirs, each) for each in (first, second)] == [None, None]
    assert bindings.mac_at(tx, offer.yiaddr) is None


def test_nobody_can_decline_or_release_anothers_address(tx: Tx, site: Site) -> None:
    address = dora(tx, site)
    dora(tx, site, OTHER)
    forged = [ask("DECLINE", OTHER, requested=address), ask("RELEASE", OTHER, ciaddr=address)]
    flow.answer(tx, forged, site, Newcomers(), NOW)
    assert conflicts.every(tx) == []
    assert bindings.with_node(tx, MAC, address, NOW) is not None


def test_a_released_address_is_free_at_once_and_still_the_first_choice(tx: Tx, site: Site) -> None:
    address = dora(tx, site)
    one(tx, ask("RELEASE", ciaddr=address), site)
    assert bindings.with_node(tx, MAC, address, NOW) is None
    assert dora(tx, site, xid=2) == address


def small(site: Site, size: int) -> Site:
    [subnet] = site.subnets
    last = dotted(ipv4("10.77.1.1") + size - 1)
    return replace(
        site,
        subnets=(replace(subnet, boot_pool=("10.77.1.1", last)),),
        policy=replace(site.policy, approved_share=0.0),
    )


def test_an_empty_pool_is_named_once_a_minute_and_heals(tx: Tx, site: Site) -> None:
    tiny = small(site, 2)
    macs = [f"52:54:00:00:01:{n:02x}" for n in range(4)]
    got = {dora(tx, tiny, mac) for mac in macs[:2]}
    assert len(got) == 2
    for mac in macs[2:]:
        assert one(tx, ask("DISCOVER", mac), tiny) is None
        assert nodes.by_mac(tx, mac) is None  # made-up machines cannot fill the database
    assert [row["kind"] for row in conflicts.every(tx)] == ["exhausted"]
    later = NOW + tiny.policy.boot_time + 1
    assert dora(tx, tiny, macs[2], now=later) in got


def test_every_address_of_a_pool_is_given_before_it_is_empty(tx: Tx, site: Site) -> None:
    crowded = small(site, 300)
    discovers = [ask("DISCOVER", f"52:54:00:00:{n >> 8:02x}:{n & 255:02x}") for n in range(301)]
    answers = flow.answer(tx, discovers, crowded, Newcomers(), NOW)
    given = [answer.yiaddr for answer in answers if answer]
    assert len(given) == len(set(given)) == 300


def test_a_pool_that_was_moved_gives_new_addresses(tx: Tx, site: Site) -> None:
    dora(tx, site)
    moved = replace(
        site, subnets=(replace(site.subnets[0], boot_pool=("10.77.9.1", "10.77.9.20")),)
    )
    address = dora(tx, moved, xid=2)
    assert ipv4("10.77.9.1") <= ipv4(address) <= ipv4("10.77.9.20")
    assert len(tx.execute(select(tables.bindings)).all()) == 1


# ---------------------------------------------------------------- subnets

FAR = Subnet(
    "far",
    "10.88.0.0/24",
    "10.77.0.1",
    ("10.88.0.10", "10.88.0.99"),
    ("10.88.0.128", "10.88.0.255"),
    relay="192.0.2.7",
)


def test_relays_choose_the_subnet(tx: Tx, site: Site) -> None:
    both = replace(site, subnets=(*site.subnets, FAR))
    for giaddr, mac in (("192.0.2.7", MAC), ("10.88.0.1", OTHER)):
        answer = one(tx, ask("DISCOVER", mac, giaddr=giaddr), both)
        assert answer is not None
        assert (answer.subnet, answer.yiaddr[:6]) == ("far", "10.88.")
    assert one(tx, ask("DISCOVER", giaddr="198.51.100.1"), both) is None


def test_a_renewal_through_a_router_is_of_its_own_subnet(tx: Tx, site: Site) -> None:
    both = replace(site, subnets=(*site.subnets, FAR))
    offer = one(tx, ask("DISCOVER", giaddr="192.0.2.7"), both)
    assert offer is not None
    answer = one(tx, ask("REQUEST", ciaddr=offer.yiaddr), both)
    assert answer is not None
    assert (answer.kind, answer.subnet) == ("ACK", "far")


# ---------------------------------------------------------------- machines without a loader


def test_a_machine_without_a_loader_is_listed_and_takes_nothing(tx: Tx, site: Site) -> None:
    """An ARM server beside x86 ones: silence, no node, no address, one row a day, and one
    notice."""
    small = replace(site, subnets=(replace(site.subnets[0], boot_pool=("10.77.9.1", "10.77.9.2")),))
    for turn in range(5):
        mac = f"52:54:00:00:aa:{turn:02x}"
        for again in (0.0, 4.0, 3600.0):
            assert (
                one(tx, ask("DISCOVER", mac, stage="firmware", arch=11), small, NOW + again) is None
            )
    assert nodes.by_mac(tx, "52:54:00:00:aa:00") is None
    rows = conflicts.every(tx)
    assert [row["kind"] for row in rows] == ["architecture"] * 5
    assert rows[0]["about"].startswith(
        "52:54:00:00:aa:04 asked to network-boot: its firmware is 64-bit ARM UEFI"
    )
    assert len(tx.execute(select(tables.notices)).all()) == 1
    assert dora(tx, small, MAC), "an x86 machine still has its address"
    one(tx, ask("DISCOVER", "52:54:00:00:aa:00", stage="firmware", arch=11), small, NOW + 90_000)
    assert len(conflicts.every(tx)) == 6, "the next day it is listed again"


@pytest.mark.slow
def test_made_up_machines_without_a_loader_cannot_fill_the_database(tx: Tx, site: Site) -> None:
    for turn in range(dhcp_conflicts.UNFIT_AT_MOST + 50):
        query = ask(
            "DISCOVER", f"52:54:00:00:{turn >> 8:02x}:{turn & 255:02x}", stage="firmware", arch=27
        )
        assert one(tx, query, site) is None
    assert len(conflicts.every(tx, 1000)) == dhcp_conflicts.UNFIT_AT_MOST


# ---------------------------------------------------------------- what asking means for a node

LOCAL = '<template><image target="disk" name="debian"/></template>'
READY = '<template><image target="disk" name="debian"/><ready port="80"/></template>'
DISKLESS = (
    '<template><boot mode="diskless"><kernel url="http://h/k"/><ramdisk url="http://h/r"/>'
    "<cmdline>quiet</cmdline></boot></template>"
)


def held_node(tx: Tx, site: Site, document: str = LOCAL, state: str = "boot") -> str:
    """A node of vcluster `web` in `state` that boots `document`; returns the address reserved for
    its system."""
    row = {"name": "t", "revision": 1, "document": document, "digest": "0" * 64, "created_at": 0.0}
    tx.execute(insert(tables.config_templates).values(id=1, **row))
    template_id = 1
    group = groups.ensure(tx, "site", 0.0)
    vcluster = add_vcluster(
        tx, "web", group.id, template_id, site.subnets[0], now=1.0, lease_time=100.0
    )
    node = nodes.add(
        tx,
        name="n1",
        boot_mac=MAC,
        now=NOW,
        cause="t",
        actor="t",
        state=state,
        vcluster_id=vcluster.id,
        template_id=template_id,
        hostname="web1",
        disk="dirty",
    )
    return dotted(bindings.reserve(tx, node, MAC, vcluster, "web1", NOW))


def web(tx: Tx) -> Vcluster:
    vcluster = vclusters.by_name(tx, "web")
    assert vcluster is not None
    return vcluster


def test_a_node_that_missed_its_boot_is_power_cycled_once(tx: Tx, site: Site) -> None:
    """The server was away when the firmware asked, so the disk's system started while the
    trampoline is expected."""
    held_node(tx, site, state="trampoline")
    tx.execute(update(tables.nodes).values(power_driver="lab", power_address="switches#n1"))
    for seconds in (20.0, 40.0, 41.0, 120.0):
        assert one(tx, ask("DISCOVER", xid=77, stage="os"), site, NOW + seconds) is None
    node = node_of(tx)
    assert (node.state, node.power_wanted, node.power_seq, node.attempts) == (
        "trampoline",
        "cycle",
        1,
        1,
    )
    assert "it missed that boot" in node.reason
    assert "boot order" not in node.reason


def test_a_node_that_was_reset_while_it_was_wiped_may_miss_its_boot(tx: Tx, site: Site) -> None:
    """What went wrong before is no reason to let it run the system that was to be wiped."""
    held_node(tx, site, state="wipe")
    tx.execute(update(tables.nodes).values(power_driver="lab", power_address="switches#n1"))
    dora(tx, site, xid=5, now=NOW)
    assert (node_of(tx).state, node_of(tx).attempts) == ("trampoline", 1)
    for seconds in (20.0, 40.0, 41.0, 120.0):
        assert one(tx, ask("DISCOVER", xid=77, stage="os"), site, NOW + seconds) is None
    node = node_of(tx)
    assert (node.state, node.power_wanted, node.power_seq) == ("trampoline", "cycle", 1)


@pytest.mark.parametrize("driver", ["lab", "pdu", "wol", "none"])
def test_a_uefi_machine_that_missed_its_boot_may_have_another_boot_order(
    tx: Tx, site: Site, driver: str
) -> None:
    held_node(tx, site, state="trampoline")
    tx.execute(
        update(tables.nodes).values(
            power_driver=driver, power_address="switches#n1", firmware="uefi"
        )
    )
    assert one(tx, ask("DISCOVER", xid=77, stage="os"), site, NOW + 40.0) is None
    assert "may have put itself first in the boot order" in node_of(tx).reason


def os_asks(tx: Tx, site: Site, now: float, **more: Any) -> DhcpAnswer | None:
    return one(tx, ask("REQUEST", xid=77, stage="os", **more), site, now)


def serve_boot(tx: Tx, site: Site, xid: int, now: float) -> str:
    """The loader's way through DHCP to its script; returns what the script does."""
    address = dora(tx, site, xid=xid, now=now)
    return boot_flow.script(tx, MAC, address, site, now + 0.5).action


def test_a_boot_that_comes_up_makes_the_node_active(tx: Tx, site: Site) -> None:
    own = held_node(tx, site)
    assert serve_boot(tx, site, 5, NOW) == "local"
    assert node_of(tx).boot_served_at == NOW + 0.5
    offer = one(tx, ask("DISCOVER", xid=77, stage="os"), site, NOW + 20)
    assert offer is not None
    assert (offer.yiaddr, offer.hostname, offer.domain, offer.bootfile) == (
        own,
        "web1",
        "web.cod.test",
        None,
    )
    assert node_of(tx).state == "boot"  # offered is not yet bound
    ack = os_asks(tx, site, NOW + 21, requested=own, server_id="10.77.0.1")
    assert ack is not None
    assert (ack.kind, ack.yiaddr, ack.lease_time) == ("ACK", own, site.policy.binding_time)
    assert node_of(tx).state == "active"
    assert nodes.history(tx, node_of(tx).id)[-1]["actor"] == "dhcp"


def test_a_readiness_check_has_the_last_word(tx: Tx, site: Site) -> None:
    own = held_node(tx, site, READY)
    serve_boot(tx, site, 5, NOW)
    os_asks(tx, site, NOW + 21, requested=own)
    assert node_of(tx).state == "boot"
    assert [b.state for b in bindings.of_node(tx, node_of(tx).id) if b.kind == "vcluster"] == [
        "bound"
    ]
    serve_boot(tx, site, 6, NOW + 22)  # it came back: the next boot starts from 'reserved'
    assert node_of(tx).state == "trampoline"


THEIRS = "10.77.100.9"  # outside COD's pools, of the other server


def beside(tx: Tx, site: Site, now: float, xid: int = 77, **more: Any) -> DhcpAnswer | None:
    """Send the REQUEST with which a node's system takes another server's offer."""
    offered: dict[str, Any] = {"requested": THEIRS, "server_id": "10.77.0.250", **more}
    return one(tx, ask("REQUEST", xid=xid, stage="os", **offered), site, now)


def system_address(tx: Tx) -> tuple[str, str]:
    [row] = [b for b in bindings.of_node(tx, node_of(tx).id) if b.kind == "vcluster"]
    return dotted(row.address), row.state


def test_a_system_that_takes_another_servers_address_is_told_with_both_remedies(
    tx: Tx, site: Site
) -> None:
    own = held_node(tx, site)
    serve_boot(tx, site, 5, NOW)
    for seconds in (20.0, 25.0, 60.0):
        assert beside(tx, site, NOW + seconds) is None
    [row] = conflicts.every(tx)
    assert (row["kind"], row["mac"]) == ("dhcp", MAC)
    for words in (THEIRS, "10.77.0.250", "ignore the nodes' MAC", "isolate", "os_addresses"):
        assert words in row["about"]
    node = node_of(tx)
    assert (node.state, node.reason) == ("boot", row["about"])
    assert system_address(tx) == (own, "reserved")
    told = tx.execute(select(tables.notices.c.kind, tables.notices.c.about)).all()
    assert [kind for kind, _about in told] == ["dhcp"]
    assert "10.77.0.250" in told[0].about
    tx.execute(update(tables.nodes).values(deadline=NOW + 600))
    deadlines.run(tx, site, NOW + 601)
    assert "no sign of progress" in node_of(tx).reason
    assert "10.77.0.250" in node_of(tx).reason


def test_another_server_that_gives_the_addresses_makes_the_node_active(tx: Tx, site: Site) -> None:
    theirs = replace(site, policy=replace(site.policy, os_addresses="theirs"))
    held_node(tx, theirs)
    serve_boot(tx, theirs, 5, NOW)
    assert one(tx, ask("DISCOVER", xid=77, stage="os"), theirs, NOW + 20) is None
    assert beside(tx, theirs, NOW + 21) is None
    assert node_of(tx).state == "active"
    assert system_address(tx) == (THEIRS, "bound")
    assert bindings.mac_at(tx, THEIRS) == MAC
    assert conflicts.every(tx) == []
    # a reboot in which the system asks for the address that it had, of no server by name
    assert beside(tx, theirs, NOW + 9000, 78, server_id=None) is None
    assert system_address(tx) == (THEIRS, "bound")


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("192.0.2.7", "hosts' addresses of subnet lab"),
        ("10.77.0.1", "hosts' addresses of subnet lab"),
        ("10.77.1.9", "in a pool"),
        ("10.77.100.10", "another node has it"),
    ],
)
def test_an_address_that_cannot_be_the_nodes_is_a_conflict(
    tx: Tx, site: Site, wanted: str, why: str
) -> None:
    theirs = replace(site, policy=replace(site.policy, os_addresses="theirs"))
    own = held_node(tx, theirs)
    taken = Binding(ipv4("10.77.100.10"), OTHER, "vcluster", None, "lab", "x", "bound", NOW * 2)
    bindings.add(tx, [taken])
    serve_boot(tx, theirs, 5, NOW)
    assert beside(tx, theirs, NOW + 21, requested=wanted) is None
    assert node_of(tx).state == "boot"
    assert system_address(tx) == (own, "reserved")
    assert [why in row["about"] for row in conflicts.every(tx)] == [True]


def test_an_address_that_was_left_is_the_other_servers_to_give_again(tx: Tx, site: Site) -> None:
    """Servers give a machine the address again that it had before."""
    theirs = replace(site, policy=replace(site.policy, os_addresses="theirs"))
    held_node(tx, theirs)
    serve_boot(tx, theirs, 5, NOW)
    beside(tx, theirs, NOW + 21)
    bindings.release(tx, node_of(tx).id, NOW + 3600)  # nobody can switch it off
    bindings.reserve(tx, node_of(tx), MAC, web(tx), "web1", NOW + 30)
    tx.execute(update(tables.nodes).values(state="boot"))
    serve_boot(tx, theirs, 6, NOW + 100)
    assert beside(tx, theirs, NOW + 121, 79) is None
    assert conflicts.every(tx) == []
    assert system_address(tx) == (THEIRS, "bound")
    assert node_of(tx).state == "active"


def test_an_active_nodes_address_changes_after_a_boot_alone(tx: Tx, site: Site) -> None:
    theirs = replace(site, policy=replace(site.policy, os_addresses="theirs"))
    held_node(tx, theirs)
    serve_boot(tx, theirs, 5, NOW)
    beside(tx, theirs, NOW + 21)
    beside(tx, theirs, NOW + 9000, 78, requested="10.77.100.11")
    assert system_address(tx) == (THEIRS, "bound")
    assert [row["kind"] for row in conflicts.every(tx)] == ["dhcp"]
    serve_boot(tx, theirs, 6, NOW + 9100)
    beside(tx, theirs, NOW + 9120, 79, requested="10.77.100.11")
    assert system_address(tx) == ("10.77.100.11", "bound")


@pytest.mark.parametrize("ready", ['by="port" port="80"', 'by="time" seconds="3000"'])
def test_a_system_that_is_not_told_by_dhcp_is_not_made_active_by_it(
    tx: Tx, site: Site, ready: str
) -> None:
    own = held_node(tx, site, LOCAL.replace("</t", f"<ready {ready}/></t"))
    serve_boot(tx, site, 5, NOW)
    os_asks(tx, site, NOW + 21, requested=own)
    node = node_of(tx)
    assert node.state == "boot"
    if "time" in ready:
        assert node.deadline is not None
        assert node.deadline > NOW + 3000  # whatever the state's own deadline is
    serve_boot(tx, site, 6, NOW + 22)
    assert node_of(tx).state == "trampoline"  # a failed boot is noticed before its time has come


def test_a_node_is_active_when_its_boot_is_served_if_its_template_wants_nothing_more(
    tx: Tx, site: Site
) -> None:
    held_node(tx, site, LOCAL.replace("</t", '<ready by="none"/></t'))
    vclusters.change(tx, web(tx), NOW, state="active")
    assert serve_boot(tx, site, 5, NOW) == "local"
    assert node_of(tx).state == "active"
    assert web(tx).ready_at == NOW + 0.5  # its group is told
    offer = one(tx, ask("DISCOVER", xid=8, stage="httpclient", arch=16), site, NOW + 10)
    assert offer is not None
    # its firmware is still on its way
    assert offer.bootfile == "http://10.77.0.1:8069/files/go-on-to-your-disk"
    assert serve_boot(tx, site, 6, NOW + 300) == "local"
    assert [row["to_state"] for row in nodes.history(tx, node_of(tx).id)] == ["boot", "active"]


def test_a_node_that_asks_again_after_its_boot_was_served_has_failed(tx: Tx, site: Site) -> None:
    held_node(tx, site)
    assert serve_boot(tx, site, 5, NOW) == "local"
    assert serve_boot(tx, site, 6, NOW + 90) == "trampoline"
    node = node_of(tx)
    assert (node.state, node.attempts, node.boot_served_at) == ("trampoline", 1, None)


def test_repeats_and_retries_are_no_failures(tx: Tx, site: Site) -> None:
    held_node(tx, site)
    dora(tx, site, xid=4, stage="firmware")  # first stage
    dora(tx, site, xid=5)  # the loader's first try: its script never came through
    assert serve_boot(tx, site, 6, NOW + 30) == "local"
    late = [ask("DISCOVER", xid=6), ask("DISCOVER", xid=6)]
    answers = flow.answer(tx, late, site, Newcomers(), NOW + 33)
    assert all(answers)
    assert node_of(tx).state == "boot"
    assert serve_boot(tx, site, 6, NOW + 34) == "local"  # fetched again: still the same boot
    assert node_of(tx).state == "boot"


def test_other_boot_options_of_the_same_firmware_lead_nowhere(tx: Tx, site: Site) -> None:
    held_node(tx, site)
    nodes.add_mac(tx, node_of(tx).id, OTHER)
    serve_boot(tx, site, 5, NOW)
    offer = one(tx, ask("DISCOVER", xid=8, stage="httpclient", arch=16), site, NOW + 10)
    assert offer is not None
    assert offer.bootfile == "http://10.77.0.1:8069/files/go-on-to-your-disk"
    assert one(tx, ask("DISCOVER", OTHER, xid=9, stage="firmware"), site, NOW + 12) is None
    assert node_of(tx).state == "boot"


@pytest.mark.parametrize("state", ["boot", "active"])
def test_a_rom_on_uefi_is_followed_by_the_firmwares_own_entries_of_the_nic(
    tx: Tx, site: Site, state: str
) -> None:
    """An e1000 under OVMF: the script of its iPXE ROM exits, OVMF asks by PXE, then by HTTP, then
    boots the disk."""
    own = held_node(tx, site, state=state)
    assert serve_boot(tx, site, 5, NOW) == "local"
    nowhere = "go-on-to-your-disk"
    pxe = one(tx, ask("DISCOVER", xid=6, stage="firmware", arch=7), site, NOW + 3)
    http = one(tx, ask("DISCOVER", xid=7, stage="httpclient", arch=16), site, NOW + 6)
    assert pxe is not None
    assert http is not None
    assert (pxe.bootfile, http.bootfile) == (nowhere, f"http://10.77.0.1:8069/files/{nowhere}")
    os_asks(tx, site, NOW + 20, requested=own)
    assert (node_of(tx).state, node_of(tx).attempts) == ("active", 0)


def test_a_uefi_machine_that_comes_back_is_noticed_after_its_firmwares_time(
    tx: Tx, site: Site
) -> None:
    held_node(tx, site)
    serve_boot(tx, site, 5, NOW)
    for turn in range(4):  # a disk without a system: the firmware begins its list again
        one(
            tx, ask("DISCOVER", xid=6 + turn, stage="firmware", arch=7), site, NOW + 25 * (turn + 1)
        )
        assert node_of(tx).state == "boot"
    assert serve_boot(tx, site, 10, NOW + 125) == "trampoline"
    assert (node_of(tx).state, node_of(tx).attempts) == ("trampoline", 1)


@pytest.mark.parametrize("stage", ["firmware", "httpclient"])
def test_a_diskless_uefi_machine_that_is_power_cycled_at_once_loads_its_kernel_again(
    tx: Tx, site: Site, stage: str
) -> None:
    held_node(tx, site, DISKLESS, state="active")
    address = dora(tx, site)
    boot_flow.script(tx, MAC, address, site, NOW)
    answer = one(
        tx,
        ask("DISCOVER", xid=6, stage=stage, arch=7 if stage == "firmware" else 16),
        site,
        NOW + 10,
    )
    assert answer is not None
    assert str(answer.bootfile).endswith("snponly.efi")


def test_a_node_that_waits_to_be_captured_is_not_sent_past_its_script(tx: Tx, site: Site) -> None:
    held_node(tx, site, state="active")
    serve_boot(tx, site, 5, NOW)
    captures.put(tx, node_of(tx).id, image="saved", state="wanted", actor="ann", asked_at=NOW + 1)
    answer = one(tx, ask("DISCOVER", xid=6, stage="firmware", arch=7), site, NOW + 10)
    assert answer is not None
    assert answer.bootfile == "snponly.efi"


@pytest.mark.parametrize("state", ["inactive", "wipe", "prime", "capture"])
def test_a_node_that_was_reset_goes_to_the_crossroads(tx: Tx, site: Site, state: str) -> None:
    nodes.add(tx, name="n1", boot_mac=MAC, now=NOW, cause="t", actor="t", state=state)
    assert serve_boot(tx, site, 5, NOW) == "trampoline"
    node = node_of(tx)
    assert node.state == "trampoline"
    assert node.attempts == (0 if state == "inactive" else 1)
    generation = node.generation
    flow.answer(tx, [ask("DISCOVER", xid=5)] * 3, site, Newcomers(), NOW + 1)
    assert node_of(tx).generation == generation


def test_resets_without_end_lead_to_quarantine_and_the_trampoline(tx: Tx, site: Site) -> None:
    held_node(tx, site, state="prime")
    for turn in range(10):
        dora(tx, site, xid=100 + turn, now=NOW + 60 * turn)
        node = node_of(tx)
        if node.state == "quarantined":
            break
        transitions.move(tx, node, NodeEvent.PRIME_ORDERED, now=NOW, cause="t", actor="t")
    assert "reset" in node.reason
    assert serve_boot(tx, site, 999, NOW + 1000) == "trampoline"


def test_an_active_node_that_is_power_cycled_boots_again_and_stays_active(
    tx: Tx, site: Site
) -> None:
    own = held_node(tx, site, state="active")
    for turn in range(3):
        assert serve_boot(tx, site, 5 + turn, NOW + 300 * turn) == "local"
        answer = os_asks(tx, site, NOW + 300 * turn + 20, requested=own)
        assert answer is not None
        assert answer.kind == "ACK"
    assert node_of(tx).state == "active"
    assert node_of(tx).generation == 0


def test_an_active_diskless_node_that_is_reset_gets_its_kernel_again_and_stays_active(
    tx: Tx, site: Site
) -> None:
    own = held_node(tx, site, DISKLESS, state="active")
    for turn in range(2):
        now = NOW + 300 * turn
        address = dora(tx, site, xid=5 + turn, now=now)
        plan = boot_flow.script(tx, MAC, address, site, now)
        assert (plan.action, plan.kernel) == ("kernel", "http://h/k")
        answer = os_asks(tx, site, now + 20, requested=own)
        assert answer is not None
        assert answer.kind == "ACK"
    assert (node_of(tx).state, node_of(tx).generation) == ("active", 0)


def test_a_diskless_node_gets_its_kernel_and_no_secret(tx: Tx, site: Site) -> None:
    held_node(tx, site, DISKLESS)
    address = dora(tx, site)
    plan = boot_flow.script(tx, MAC, address, site, NOW)
    assert (plan.action, plan.kernel, plan.initrds, plan.cmdline) == (
        "kernel",
        "http://h/k",
        ("http://h/r",),
        "quiet",
    )
    with pytest.raises(Refused):
        mint(tx, site, MAC, address, "s0")


def test_a_retired_machine_is_foreign(tx: Tx, site: Site) -> None:
    nodes.add(tx, name="n1", boot_mac=MAC, now=NOW, cause="t", actor="t", state=NodeState.RETIRED)
    assert one(tx, ask("DISCOVER"), site) is None


def test_a_system_of_a_node_that_was_taken_back_is_refused_its_old_address(
    tx: Tx, site: Site
) -> None:
    own = held_node(tx, site, state="active")
    os_asks(tx, site, NOW, requested=own)
    transitions.move(tx, node_of(tx), NodeEvent.RELEASED, now=NOW, cause="t", actor="t")
    bindings.release(tx, node_of(tx).id, NOW + 3600)
    answer = os_asks(tx, site, NOW + 100, ciaddr=own)
    assert answer is not None
    assert answer.kind == "NAK"


def test_an_address_whose_system_may_still_be_up_is_given_on_last(tx: Tx, site: Site) -> None:
    own = held_node(tx, site, state="active")
    os_asks(tx, site, NOW, requested=own)
    vcluster = web(tx)
    bindings.release(tx, node_of(tx).id, NOW + 3600)
    mac = "52:54:00:00:01:0a"
    next_one = nodes.add(tx, name="n9", boot_mac=mac, now=NOW, cause="t", actor="t", disk="dirty")

    def given(now: float, block: int = 2) -> str:
        tx.execute(
            update(tables.vcluster_blocks).values(
                first_address=ipv4(own), last_address=ipv4(own) + block - 1
            )
        )
        return dotted(bindings.reserve(tx, next_one, mac, vcluster, "web1", now))

    other = given(NOW + 1)
    assert other == dotted(ipv4(own) + 1)  # the one that was never used
    bindings.release(tx, next_one.id, NOW + 3600)
    assert given(NOW + 1) == other  # nobody asked for it: it is free at once
    assert given(NOW + 3600) == own  # its lease is over
    bindings.release(tx, next_one.id, NOW + 3600)
    bindings.reserve(tx, node_of(tx), MAC, vcluster, "web1", NOW + 3600)
    os_asks(tx, site, NOW + 3600, requested=own)
    bindings.release(tx, node_of(tx).id, NOW + 7200)
    assert given(NOW + 3601, block=1) == own  # nothing else is left


def test_of_addresses_that_were_left_the_oldest_is_given_first(tx: Tx, site: Site) -> None:
    first = ipv4(held_node(tx, site))
    vcluster = web(tx)
    tx.execute(update(tables.vcluster_blocks).values(first_address=first, last_address=first + 3))
    bindings.release(tx, node_of(tx).id, NOW)
    bindings.add(
        tx,
        [
            Binding(first + n, None, "vcluster", None, "lab", None, state, until)
            for n, state, until in [
                (0, "left", NOW + 9),
                (1, "left", NOW + 7),
                (2, "declined", NOW + 5),
                (3, "left", NOW + 8),
            ]
        ],
    )

    def give(name: str) -> int:
        mac = f"52:54:00:00:01:{name}"
        other = nodes.add(tx, name=name, boot_mac=mac, now=NOW, cause="t", actor="t", disk="dirty")
        return bindings.reserve(tx, other, mac, vcluster, name, NOW) - first

    assert [give("0a"), give("0b"), give("0c")] == [1, 3, 0]
    with pytest.raises(Refused, match="has no free address"):
        give("0d")  # the declined one is known to be used by somebody


def test_a_declined_system_address_is_replaced_from_the_block(tx: Tx, site: Site) -> None:
    own = held_node(tx, site, READY)
    os_asks(tx, site, NOW, requested=own)
    one(tx, ask("DECLINE", xid=77, stage="os", requested=own), site, NOW + 3)
    offer = one(tx, ask("DISCOVER", stage="os"), site)
    assert offer is not None
    assert offer.yiaddr != own
    assert offer.hostname == "web1"


def test_a_system_address_that_is_declined_to_two_servers_is_replaced_once(
    tx: Tx, site: Site
) -> None:
    own = held_node(tx, site, READY)
    os_asks(tx, site, NOW, requested=own)
    declined = ask("DECLINE", xid=77, stage="os", requested=own)
    offers = []
    for each in both(site):
        one(tx, declined, each, NOW + 3)
        offers.append(one(tx, ask("DISCOVER", stage="os"), each))
    assert offers[0] is not None
    assert offers[0] == offers[1]
    assert offers[0].yiaddr != own


def test_a_name_whose_address_is_not_replaced_leaves_dns(tx: Tx, site: Site) -> None:
    """Secondaries hear of it: another machine uses the address."""
    own = held_node(tx, site, READY)
    vcluster = web(tx)
    tx.execute(
        update(tables.vcluster_blocks).values(first_address=ipv4(own), last_address=ipv4(own))
    )
    zones = {("vcluster", vcluster.name), ("subnet", "lab")}
    os_asks(tx, site, NOW, requested=own)
    before = dns_zones.serials(tx, zones)
    one(tx, ask("DECLINE", xid=77, stage="os", requested=own), site, NOW + 3)
    assert dns_names.of_vcluster(tx, vcluster.id) == {}
    assert {
        zone for zone, serial in dns_zones.serials(tx, zones).items() if serial > before[zone]
    } == zones


def test_inform_tells_options_and_binds_nothing(tx: Tx, site: Site) -> None:
    own = held_node(tx, site, state="active")
    answer = one(tx, ask("INFORM", stage="os", ciaddr=own), site)
    assert answer is not None
    assert (answer.kind, answer.yiaddr, answer.lease_time, answer.hostname) == (
        "ACK",
        "0.0.0.0",
        None,
        "web1",
    )
    assert one(tx, ask("INFORM", stage="os", ciaddr="10.77.0.99"), site) is None


# ---------------------------------------------------------------- scripts and secrets


def mint(tx: Tx, site: Site, mac: str, address: str, secret_id: str, now: float = NOW) -> None:
    boot_flow.mint(tx, mac, address, secret_id, b"s" * 16, b"k" * 32, b"v" * 32, site, now)


def test_scripts_and_secrets_are_for_the_address_that_is_bound(tx: Tx, site: Site) -> None:
    address, others = dora(tx, site), dora(tx, site, OTHER)
    for wrong in (others, "not an address"):
        with pytest.raises(Refused, match="is not bound"):
            boot_flow.script(tx, MAC, wrong, site, NOW)
    with pytest.raises(Refused, match="is not bound"):
        mint(tx, site, MAC, others, "s0")
    mint(tx, site, MAC, address, "s0")
    kept = secrets.get(tx, "s0")
    assert kept is not None
    assert (kept.mac, kept.address, kept.kind, kept.expires_at) == (MAC, address, "boot", NOW + 300)
    late = NOW + site.policy.boot_time + 1
    with pytest.raises(Refused, match="is not bound"):
        boot_flow.script(tx, MAC, address, site, late)


def test_few_secrets_are_live_at_once(tx: Tx, site: Site) -> None:
    address = dora(tx, site)
    for n in range(7):
        mint(tx, site, MAC, address, f"s{n}", NOW + n)
    assert {s.id for s in secrets.of_mac(tx, MAC)} == {"s3", "s4", "s5", "s6"}
    assert secrets.spend(tx, "s6")
    assert not secrets.spend(tx, "s6")
    dora(tx, site, xid=3, now=NOW + 10_000)
    mint(tx, site, MAC, address, "new", NOW + 10_000)
    assert [s.id for s in secrets.of_mac(tx, MAC)] == ["new"]


# ---------------------------------------------------------------- no address twice


@pytest.mark.slow
@pytest.mark.usefixtures("engine")
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_address_is_ever_bound_to_two_machines(
    engine: Engine, site: Site, data: st.DataObject
) -> None:
    """Whatever 6 machines say in a pool of 4 addresses: each live ACK is the only one for its
    address."""
    tiny = small(site, 4)
    offered: dict[str, str] = {}
    promised: dict[str, tuple[str, float]] = {}  # address -> (mac, until)
    now = NOW
    kinds = st.sampled_from(["DISCOVER", "DISCOVER", "REQUEST", "REQUEST", "RELEASE", "DECLINE"])
    with engine.connect() as tx:
        for _ in range(data.draw(st.integers(2, 8))):
            now += data.draw(st.sampled_from([0.0, 1.0, 70.0, 1000.0]))
            batch = []
            said = st.tuples(kinds, st.integers(0, 5), st.sampled_from([0, 0, 0, 1, 2]))
            for kind, n, last in data.draw(st.lists(said, max_size=8)):
                mac = f"52:54:00:00:00:{n:02x}"
                own = f"10.77.1.{last}" if last else offered.get(mac, "10.77.1.1")
                batch.append(ask(kind, mac, requested=own, ciaddr=own))
            for query, answer in zip(
                batch, flow.answer(tx, batch, tiny, Newcomers(), now), strict=True
            ):
                if (
                    query.kind in ("RELEASE", "DECLINE")
                    and promised.get(query.ciaddr, ("", 0.0))[0] == query.mac
                ):
                    del promised[query.ciaddr]
                if answer is not None and answer.kind == "OFFER":
                    offered[query.mac] = answer.yiaddr
                if answer is None or answer.kind != "ACK":
                    continue
                mac, until = promised.get(answer.yiaddr, (query.mac, 0.0))
                assert mac == query.mac or until <= now, (answer, mac)
                promised[answer.yiaddr] = (query.mac, now + (answer.lease_time or 0))
        tx.rollback()


def test_servers_that_race_for_a_crowded_pool_promise_no_address_twice(
    engine: Engine, site: Site
) -> None:
    """Four servers' threads, 24 machines, 24 addresses: what each was promised is what the database
    says."""
    crowded = small(site, 24)
    macs = [f"52:54:00:00:02:{n:02x}" for n in range(24)]
    promised: dict[str, str] = {}
    start = threading.Barrier(4)

    def again(query: DhcpQuery) -> DhcpAnswer | None:
        for _ in range(50):  # as the pool and the socket do: the message is run again, alone
            try:
                return in_transaction(engine, one, query, crowded)
            except (IntegrityError, OperationalError):
                continue
        raise AssertionError("never came through")

    def serve(mine: list[str]) -> None:
        start.wait()
        for mac in mine:
            offer = again(ask("DISCOVER", mac))
            if offer is not None:
                ack = again(ask("REQUEST", mac, requested=offer.yiaddr))
                promised.update({mac: ack.yiaddr} if ack and ack.kind == "ACK" else {})

    threads = [threading.Thread(target=serve, args=(macs[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with engine.begin() as tx:
        rows = tx.execute(select(tables.bindings.c.mac, tables.bindings.c.address)).all()
    assert {row.mac: dotted(row.address) for row in rows} == promised
    assert len(set(promised.values())) == len(promised) == 24


def test_an_address_that_another_server_gives_away_meanwhile_is_not_given_again(
    tx: Tx, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All probes hit taken addresses; of the two that are left, one is taken between the scan and
    the row's lock."""
    crowded = small(site, 200)
    first, last = ipv4("10.77.1.1"), ipv4("10.77.1.200")
    seen_by = bindings.taken

    def take(tx: Tx, address: int) -> None:
        mac = f"52:54:00:01:00:{address & 0xFF:02x}"
        bindings.add(tx, [Binding(address, mac, "boot", None, "lab", None, "bound", NOW + 900)])

    def overtaken(tx: Tx, first: int, last: int, now: float) -> set[int]:
        found = seen_by(tx, first, last, now)
        take(tx, free[0])
        return found

    free = [
        address
        for address in range(first, last + 1)
        if address not in probes(MAC, range(first, last + 1), 128)
    ]
    for address in set(range(first, last + 1)) - set(free[:2]):
        take(tx, address)
    nodes.add(tx, name="n1", boot_mac=MAC, now=NOW, cause="test", actor="test")
    monkeypatch.setattr(bindings, "taken", overtaken)
    offer = one(tx, ask("DISCOVER", MAC), crowded)
    assert offer is not None
    assert offer.yiaddr == dotted(free[1])


@pytest.mark.mariadb
def test_a_batch_locks_its_clients_bindings_and_not_their_nodes(
    mariadb_engine: Engine, site: Site
) -> None:
    """One statement reads both; a locked node would wait for DHCP, and DHCP for the node's flow."""
    with mariadb_engine.begin() as tx:
        dora(tx, site)
        dora(tx, site, OTHER)
    with mariadb_engine.connect() as batch, mariadb_engine.connect() as other:
        clients, held = dhcp_batch.read(batch, [MAC])
        assert (set(clients), held.get(MAC, "boot", "lab") is None) == ({MAC}, False)
        locked = "SELECT 1 FROM {} WHERE {}mac = '{}' FOR UPDATE NOWAIT"
        other.exec_driver_sql(locked.format("nodes", "boot_", MAC))
        other.exec_driver_sql(locked.format("bindings", "", OTHER))
        with pytest.raises(OperationalError):
            other.exec_driver_sql(locked.format("bindings", "", MAC))
