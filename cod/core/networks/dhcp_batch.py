"""Rows from which one transaction answers DHCP messages, and the boot addresses that their clients
may get."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cod.model import DhcpClient, DhcpQuery, Site
from cod.policy.nodes import boot
from cod.policy.nodes.newcomers import Newcomers
from cod.policy.nodes.subnets import Net, Subnets
from cod.states import UNAPPROVED, UNREPORTED
from cod.store.engine import Tx
from cod.store.nodes.dhcp_batch import BindingBatch

# seconds that a machine which never reported keeps an address that another new one needs
GIVES_WAY = 120.0


@dataclass(slots=True)
class Batch:
    """Rows and caches from which one transaction answers messages.

    admitted  whether a new machine is within the limits, by MAC, for machines checked ahead
    enrolled  new machines that were enrolled ahead, by MAC, until their first message is answered
    """

    tx: Tx
    site: Site
    now: float
    subnets: Subnets
    clients: dict[str, DhcpClient]
    bindings: BindingBatch
    newcomers: Newcomers
    heard: dict[int, DhcpClient]
    admitted: dict[str, bool] = field(default_factory=dict)
    enrolled: dict[str, DhcpClient] = field(default_factory=dict)


def decide(batch: Batch, query: DhcpQuery, net: Net, client: DhcpClient | None) -> boot.Verdict:
    """Return the policy's verdict on a client's message from outside isolated networks."""
    held = batch.bindings.get(query.mac, "boot", net.subnet.name)
    return boot.decide(query, client, held.xid if held else None, batch.site.policy, batch.now)


def boot_range(batch: Batch, net: Net, client: DhcpClient | None) -> range:
    """Return the boot addresses that the client may get."""
    approved = client is not None and client.state not in UNAPPROVED
    return net.pool if approved else net.open(batch.site.policy.approved_share)


def free_address(
    batch: Batch,
    query: DhcpQuery,
    net: Net,
    client: DhcpClient | None,
    in_use: frozenset[int] = frozenset(),
) -> int | None:
    """Return an address that the client may be given now, none of those `in_use` by others;
    None where the pool is empty."""
    pool = boot_range(batch, net, client)
    keeps = GIVES_WAY if client is None or client.state in UNREPORTED else 0.0
    yielding = batch.now + batch.site.policy.boot_time - keeps
    return batch.bindings.free(query.mac, pool, net.avoid | in_use, batch.now, yielding)


def place_of(query: DhcpQuery) -> dict[str, Any]:
    """Return the columns of a node with the relay and the switch port that a message came
    through."""
    relay = None if query.giaddr == "0.0.0.0" else query.giaddr
    return {"relay": relay, "circuit": query.circuit, "remote": query.remote}
