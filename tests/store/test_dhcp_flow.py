"""Batches of DHCP messages against a real database."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select

from cod.flows import boot as boot_flow
from cod.flows import dhcp as flow
from cod.model import DhcpAnswer, DhcpQuery, Node, Policy, Site, Subnet, dotted, ipv4
from cod.store import bindings, conflicts, nodes, tables
from cod.store.engine import Tx

NOW = 1_000_000.0
MAC = "52:54:00:00:00:01"
OTHER = "52:54:00:00:00:02"


def ask(
    kind: str, mac: str = MAC, xid: int = 1, stage: str = "ipxe", subnet: str | None = "lab", **more: object
) -> DhcpQuery:
    return replace(DhcpQuery(kind, mac, xid, subnet, stage), **more)  # type: ignore[arg-type]


def one(tx: Tx, query: DhcpQuery, site: Site, now: float = NOW) -> DhcpAnswer | None:
    [answer] = flow.answer(tx, [query], site, now)
    return answer


def dora(tx: Tx, site: Site, mac: str = MAC, xid: int = 1, stage: str = "ipxe", now: float = NOW) -> str:
    offer = one(tx, ask("DISCOVER", mac, xid, stage), site, now)
    assert offer is not None
    assert offer.kind == "OFFER"
    ack = one(tx, ask("REQUEST", mac, xid, stage, requested=offer.yiaddr, server_id="10.77.0.1"), site, now)
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


def test_a_second_card_joins_its_machine_by_uuid_until_that_has_reported(tx: Tx, site: Site) -> None:
    uuid = "6b1d3a52-0c6e-4a8e-9a56-2f0e6f1b7a11"
    flow.answer(tx, [ask("DISCOVER", uuid=uuid), ask("DISCOVER", OTHER, uuid=uuid)], site, NOW)
    assert node_of(tx, OTHER).id == node_of(tx).id
    nodes.change(tx, node_of(tx), reported_at=NOW)
    third = "52:54:00:00:00:03"
    one(tx, ask("DISCOVER", third, uuid=uuid), site)
    assert node_of(tx, third).id != node_of(tx).id
    assert node_of(tx, third).uuid is None
    assert [row["kind"] for row in conflicts.every(tx)] == ["identity"]


@pytest.mark.parametrize("uuid", ["00000000-0000-0000-0000-000000000000", "03000200-0400-0500-0006-000700080009"])
def test_a_uuid_that_is_nobodys_joins_nothing(tx: Tx, site: Site, uuid: str) -> None:
    flow.answer(tx, [ask("DISCOVER", uuid=uuid), ask("DISCOVER", OTHER, uuid=uuid)], site, NOW)
    assert node_of(tx, OTHER).id != node_of(tx).id


# ---------------------------------------------------------------- addresses


def test_a_machine_keeps_its_address_from_stage_to_stage_and_boot_to_boot(tx: Tx, site: Site) -> None:
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
    answers = flow.answer(tx, [request, discover, discover, request, request], site, NOW)
    assert [(a.kind, a.yiaddr) for a in answers if a] == [
        (kind, address) for kind in ("ACK", "OFFER", "OFFER", "ACK", "ACK")]
    assert len(tx.execute(select(tables.bindings)).all()) == 1


def test_a_request_for_another_servers_offer_frees_ours(tx: Tx, site: Site) -> None:
    offer = one(tx, ask("DISCOVER"), site)
    assert offer is not None
    assert one(tx, ask("REQUEST", requested="192.0.2.9", server_id="192.0.2.1"), site) is None
    assert bindings.at(tx, [ipv4(offer.yiaddr)]) == {}


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
    assert one(tx, ask("REQUEST", stage="os", requested="10.77.9.9"), site) is None  # not an address of ours
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


def test_nobody_can_decline_or_release_anothers_address(tx: Tx, site: Site) -> None:
    address = dora(tx, site)
    dora(tx, site, OTHER)
    flow.answer(tx, [ask("DECLINE", OTHER, requested=address), ask("RELEASE", OTHER, ciaddr=address)], site, NOW)
    assert conflicts.every(tx) == []
    assert bindings.of_mac(tx, MAC, address, NOW) is not None


def test_a_released_address_is_free_at_once_and_still_the_first_choice(tx: Tx, site: Site) -> None:
    address = dora(tx, site)
    one(tx, ask("RELEASE", ciaddr=address), site)
    assert bindings.of_mac(tx, MAC, address, NOW) is None
    assert dora(tx, site, xid=2) == address


def small(site: Site, size: int) -> Site:
    [subnet] = site.subnets
    last = dotted(ipv4("10.77.1.1") + size - 1)
    return replace(site, subnets=(replace(subnet, boot_pool=("10.77.1.1", last)),))


def test_an_empty_pool_is_named_once_a_minute_and_heals(tx: Tx, site: Site) -> None:
    tiny = small(site, 2)
    macs = [f"52:54:00:00:01:{n:02x}" for n in range(4)]
    got = {dora(tx, tiny, mac) for mac in macs[:2]}
    assert len(got) == 2
    for mac in macs[2:]:
        assert one(tx, ask("DISCOVER", mac), tiny) is None
    assert [row["kind"] for row in conflicts.every(tx)] == ["exhausted"]
    later = NOW + tiny.policy.boot_time + 1
    assert dora(tx, tiny, macs[2], now=later) in got


def test_every_address_of_a_pool_is_given_before_it_is_empty(tx: Tx, site: Site) -> None:
    crowded = small(site, 300)
    discovers = [ask("DISCOVER", f"52:54:00:00:{n >> 8:02x}:{n & 255:02x}") for n in range(301)]
    answers = flow.answer(tx, discovers, crowded, NOW)
    given = [answer.yiaddr for answer in answers if answer]
    assert len(given) == len(set(given)) == 300


def test_a_pool_that_was_moved_gives_new_addresses(tx: Tx, site: Site) -> None:
    dora(tx, site)
    moved = replace(site, subnets=(replace(site.subnets[0], boot_pool=("10.77.9.1", "10.77.9.20")),))
    address = dora(tx, moved, xid=2)
    assert ipv4("10.77.9.1") <= ipv4(address) <= ipv4("10.77.9.20")
    assert len(tx.execute(select(tables.bindings)).all()) == 1


# ---------------------------------------------------------------- subnets

FAR = Subnet("far", "10.88.0.0/24", "10.77.0.1", ("10.88.0.10", "10.88.0.99"), ("10.88.0.128", "10.88.0.255"),
             relay="192.0.2.7")


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
