"""Reports to administrators about DHCP clients: conflicts, and notices of the first of a kind."""

from __future__ import annotations

from collections.abc import Collection

from cod import notice_texts
from cod.core import notices
from cod.core.networks.dhcp_batch import Batch, boot_range
from cod.core.nodes import node_places
from cod.model import DhcpClient, DhcpQuery
from cod.policy.nodes.subnets import Net
from cod.store.nodes import conflicts, nodes

AGAIN = 60.0  # seconds between two records of the same trouble
DOUBT_AGAIN = 3600.0  # the same, where another machine may use a node's MAC
OTHER_AGAIN = 3600.0  # seconds between two records that a node took another server's address
LIMITED_AGAIN = 3600.0  # seconds between two records that new machines are refused
# seconds between two records of one machine that COD has no loader for, and the maximum of such
# records, of all machines, within that time
UNFIT_EVERY, UNFIT_AT_MOST = 86400.0, 200


def record(
    batch: Batch,
    kind: str,
    about: str,
    query: DhcpQuery,
    net: Net,
    *,
    within: float = AGAIN,
    same: Collection[str] = ("mac",),
    address: int | None = None,
) -> bool:
    """Record a conflict about the client of `query`, by `conflicts.add_once`. Return whether it was
    recorded."""
    return conflicts.add_once(
        batch.tx,
        kind,
        about,
        batch.now,
        within=within,
        same=same,
        subnet=net.subnet.name,
        address=address,
        mac=query.mac,
    )


def record_others(batch: Batch, query: DhcpQuery, net: Net, client: DhcpClient, about: str) -> None:
    """Report that a node's system takes an address of another server: in the node's `reason`, as
    one conflict an hour for the node, and by a notice if it is the site's first within an hour."""
    node = nodes.get(batch.tx, client.id)
    if node is not None and node.reason != about:
        nodes.change(batch.tx, node, reason=about)
    first = not conflicts.count_since(batch.tx, "dhcp", batch.now - OTHER_AGAIN)
    if record(batch, "dhcp", about, query, net, within=OTHER_AGAIN) and first:
        text = notice_texts.other_dhcp_server(client.name, about)
        notices.add(batch.tx, **text, group_id=None, now=batch.now)


def record_exhausted(batch: Batch, query: DhcpQuery, net: Net, client: DhcpClient | None) -> None:
    """Record that no boot address is left for the client: one conflict a minute for a subnet."""
    name, pool = net.subnet.name, boot_range(batch, net, client)
    part = "" if pool == net.pool else f" for machines that are not approved, {len(pool)} of its"
    about = f"the boot pool of subnet {name}{part} ({len(net.pool)} addresses) is empty"
    record(batch, "exhausted", about, query, net, same=("subnet",))


def record_unfit(batch: Batch, query: DhcpQuery, net: Net, why: str) -> None:
    """Tell the administrator of a machine that COD has no loader for: a conflict once a day, a
    notice of the first.

    Made-up machines cannot fill the database: there is a limit for all together.
    """
    about = f"{query.mac} asked to network-boot: {why}"
    recorded = conflicts.count_since(batch.tx, "architecture", batch.now - UNFIT_EVERY)
    if recorded < UNFIT_AT_MOST:
        same = ("mac", "about")
        record(batch, "architecture", about, query, net, within=UNFIT_EVERY, same=same)
    if not recorded:
        notices.add(batch.tx, **notice_texts.cannot_boot(about), group_id=None, now=batch.now)


def record_moved(batch: Batch, query: DhcpQuery, net: Net, client: DhcpClient, where: str) -> None:
    """Record that a node's MAC was heard elsewhere: one conflict an hour for the node, and one
    notice an hour for the site."""
    node_places.heard(
        batch.tx,
        client.id,
        batch.now,
        subnet=net.subnet.name,
        circuit=query.circuit,
        remote=query.remote,
    )
    about = f"a machine with the MAC of {client.name} asked {where}"
    first = not conflicts.count_since(batch.tx, "moved", batch.now - DOUBT_AGAIN)
    if record(batch, "moved", about, query, net, within=DOUBT_AGAIN) and first:
        text = notice_texts.asked_elsewhere(client.name, about)
        notices.add(batch.tx, **text, group_id=None, now=batch.now)


def record_doubt(batch: Batch, query: DhcpQuery, net: Net, client: DhcpClient, why: str) -> None:
    """Record that another machine may use the MAC of a node: one conflict an hour."""
    about = (
        f"a machine with the MAC of {client.name} asked to network-boot, but {why}: another machine"
        " may use that MAC, or the node was reset a moment ago"
    )
    record(batch, "identity", about, query, net, within=DOUBT_AGAIN)


def record_same_uuid(batch: Batch, query: DhcpQuery, net: Net, node: str, uuid: str | None) -> None:
    """Record that a machine has the UUID of another node: one conflict a minute for a subnet."""
    about = f"{query.mac} says it has the UUID of {node}, {uuid}, which has other network cards"
    record(batch, "identity", about, query, net, same=("subnet",))


def record_limited(batch: Batch, name: str, why: str) -> None:
    """Tell the administrators once that new machines are refused."""
    about = f"new machines on subnet {name} are refused: {why}"
    if conflicts.add_once(
        batch.tx, "limited", about, batch.now, within=LIMITED_AGAIN, same=("subnet",), subnet=name
    ):
        notices.add(
            batch.tx, **notice_texts.new_machines_refused(name, about), group_id=None, now=batch.now
        )
