"""Enrolment: machines that DHCP has never heard of become nodes, as many and as fast as the site
allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cod.core.networks import dhcp_conflicts
from cod.core.networks.dhcp_batch import GIVES_WAY, Batch, decide, free_address, place_of
from cod.model import DhcpClient, DhcpQuery
from cod.policy.hardware import identity
from cod.policy.nodes import power
from cod.policy.nodes.subnets import Net
from cod.policy.people import names
from cod.states import NodeState
from cod.store.nodes import bindings, dhcp_batch, nodes

MOST_NICS = 16  # of a machine that has not reported


def adopt(batch: Batch, asked: Sequence[tuple[DhcpQuery, Net | None]]) -> None:
    """Add unknown MACs to expected nodes that have the UUID which these MACs send."""
    unknown = {
        query.mac: query.uuid
        for query, net in asked
        if net
        and not net.isolated
        and query.kind == "DISCOVER"
        and query.stage != "os"
        and query.mac not in batch.clients
        and query.uuid is not None
        and identity.is_unique(query.uuid)
    }
    if not unknown:
        return
    expected = nodes.expected_by_uuid(batch.tx, sorted(set(unknown.values())))
    adopted: list[str] = []
    for mac, uuid in unknown.items():
        node = expected.get(uuid)
        if node is not None and nodes.count_macs(batch.tx, node.id) < MOST_NICS:
            nodes.add_mac(batch.tx, node.id, mac)
            if not node.boot_mac:
                expected[uuid] = nodes.change(batch.tx, node, boot_mac=mac)
            adopted.append(mac)
    if adopted:
        batch.clients.update(dhcp_batch.clients(batch.tx, adopted))


def ahead(batch: Batch, asked: Sequence[tuple[DhcpQuery, Net | None]]) -> None:
    """Add machines that were never seen before, with one statement for all of them. Other cases are
    left to `make_room_for` and `enrol`: limits that are reached, a full pool, and a UUID that
    another machine has."""
    first: dict[str, tuple[DhcpQuery, Net]] = {}
    for query, net in asked:
        if net and not net.isolated and query.mac not in batch.clients:
            first.setdefault(query.mac, (query, net))
    fresh = [(query, net) for query, net in first.values() if decide(batch, query, net, None).new]
    if len(fresh) < 2:
        return
    for query, net in fresh:  # in the order in which they asked
        batch.admitted[query.mac] = _admits(batch, query, net.subnet.name)
    fresh = [(query, net) for query, net in fresh if batch.admitted[query.mac]]
    if nodes.unapproved(batch.tx) + len(fresh) > batch.site.policy.new_machines:
        return
    uuids = {query.mac: query.uuid for query, _ in fresh if identity.is_unique(query.uuid)}
    others = Counter(uuids.values())
    known = nodes.known_uuids(batch.tx, sorted(each for each in others if each))
    added: list[tuple[dict[str, object], str]] = []
    taken: set[int] = set()
    for query, net in fresh:
        uuid = uuids.get(query.mac)
        address = free_address(batch, query, net, None, frozenset(taken))
        if address is not None and uuid not in known and others[uuid] < 2:
            taken.add(address)
            added.append(_newcomer(batch, query, uuid))
    if added:
        batch.enrolled = _add(batch, added)


def _admits(batch: Batch, query: DhcpQuery, subnet: str) -> bool:
    """Return whether a new machine is within the rate limits. Each message counts once."""
    known = batch.admitted.pop(query.mac, None)
    if known is not None:
        return known
    return batch.newcomers.admits(query, subnet, batch.site.policy, batch.now)


def make_room_for(batch: Batch, query: DhcpQuery, net: Net) -> bool:
    """Return whether an unknown machine may be added. If the site has reached its limit of new
    machines, forget one that has never reported. If there is none, return False and tell the
    administrators."""
    policy, name = batch.site.policy, net.subnet.name
    if not _admits(batch, query, name):
        dhcp_conflicts.record_limited(
            batch,
            name,
            f"more than {policy.new_rate:g} a second asked to network-boot for longer than usual"
            " (policy.new_rate, new_burst). If nobody switched that many on, a machine there"
            " invents MAC addresses. True ones are registered when they ask again",
        )
        return False
    if free_address(batch, query, net, None) is None:
        dhcp_conflicts.record_exhausted(batch, query, net, None)
        batch.newcomers.refuse(query.mac, batch.now)
        return False
    if nodes.unapproved(batch.tx) < policy.new_machines:
        return True
    for node_id in nodes.never_reported(batch.tx, batch.now - GIVES_WAY, len(batch.clients) + 1):
        if all(client.id != node_id for client in batch.clients.values()):
            batch.bindings.write()
            batch.bindings.lost(bindings.of_node(batch.tx, node_id))
            nodes.forget(batch.tx, [node_id])
            return True
    dhcp_conflicts.record_limited(
        batch,
        name,
        f"{policy.new_machines} machines are not approved yet, which is the limit"
        " (policy.new_machines). Approve or retire those that wait, or raise the limit",
    )
    batch.newcomers.refuse(query.mac, batch.now)
    return False


def enrol(batch: Batch, query: DhcpQuery, net: Net) -> DhcpClient:
    """Add a machine as a new node; if its UUID is of a node that has not reported yet, add its MAC
    to that node instead.

    All NICs of a node that has reported are on record. A new MAC with its UUID belongs to another
    machine, to which the maker gave the same UUID: a node without UUID is added for this machine.
    """
    uuid = query.uuid if identity.is_unique(query.uuid) else None
    known = nodes.by_uuid(batch.tx, uuid) if uuid else None
    unreported = known is not None and known.reported_at is None and known.state == NodeState.NEW
    if known is not None and unreported and nodes.count_macs(batch.tx, known.id) < MOST_NICS:
        nodes.add_mac(batch.tx, known.id, query.mac)
        batch.clients |= dhcp_batch.clients(batch.tx, [query.mac])
        return batch.clients[query.mac]
    if known is not None:
        dhcp_conflicts.record_same_uuid(batch, query, net, known.name, uuid)
        uuid = None
    batch.clients |= _add(batch, [_newcomer(batch, query, uuid)])
    return batch.clients[query.mac]


def _add(batch: Batch, found: Sequence[tuple[dict[str, object], str]]) -> dict[str, DhcpClient]:
    """Add machines as new nodes; return their clients, by MAC."""
    added = nodes.add_all(batch.tx, found, now=batch.now, actor="dhcp")
    return {row["boot_mac"]: dhcp_batch.newcomer(row) for row in added}


def _newcomer(batch: Batch, query: DhcpQuery, uuid: str | None) -> tuple[dict[str, object], str]:
    """Return the columns of a machine that asks for the first time, by a DISCOVER, and why it is
    added."""
    name = names.provisional(query.mac)
    driver, address, account = power.rule_for(batch.site.power, name, query.mac)
    columns: dict[str, object] = {
        "name": name,
        "boot_mac": query.mac,
        "uuid": uuid,
        **place_of(query),
        "power_driver": driver,
        "power_address": address,
        "power_account": account,
    }
    return columns, f"asked to network-boot ({query.stage})"
