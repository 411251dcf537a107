"""Switch ports of isolated vclusters' nodes: when they enter the vcluster's VLAN and leave it, and
what waits for that.

A node is primed in the network where it was found. Its port enters the VLAN when the node asks for
the boot of its own system: the agent, which would lose its connection, has ended by then. The port
leaves the VLAN in the transaction in which the node leaves its own system, whatever the reason. A
power command that boots a node waits until the port is in the wanted VLAN.
"""

from __future__ import annotations

from collections.abc import Iterable

from cod.core.networks import switch_ports
from cod.model import (
    AskedVcluster,
    DhcpClient,
    DhcpQuery,
    Isolation,
    Node,
    Refused,
    Site,
    Subnet,
    Vcluster,
    VclusterNetwork,
    ipv4,
)
from cod.policy.nodes import isolation
from cod.states import OWN_SYSTEM
from cod.store.engine import Tx
from cod.store.nodes import conflicts, nodes, switches
from cod.store.nodes import switch_ports as ports
from cod.store.scheduler import address_blocks, networks

AGAIN = 600.0  # seconds between two records that a node's port is not known
NOWHERE = "0.0.0.0"


# ---------------------------------------------------------------- networks as subnets


def subnets(tx: Tx, site: Site) -> list[Subnet]:
    """Return the networks of all isolated vclusters that have not ended, and that this host has an
    address in."""
    return [] if site.isolation is None else _own(networks.every(tx), site.isolation, site)


def subnets_of(tx: Tx, queries: Iterable[DhcpQuery], site: Site) -> list[Subnet]:
    """Return the networks of isolated vclusters that messages may have come from, and that this
    host has an address in."""
    rules = site.isolation
    if rules is None:
        return []
    if rules.interface is not None:
        vlans = {isolation.vlan_of(query.subnet) for query in queries} - {None}
        found = networks.of_subnets(tx, [each for each in vlans if each is not None], [])
    else:
        addresses = {
            query.giaddr if query.giaddr != NOWHERE else query.ciaddr for query in queries
        } - {NOWHERE}
        found = networks.of_subnets(tx, [], [ipv4(each) for each in addresses])
    return _own(found, rules, site)


def _own(found: Iterable[VclusterNetwork], rules: Isolation, site: Site) -> list[Subnet]:
    named = site.dns.port == 53
    return [isolation.subnet(each, rules, named) for each in found if isolation.serves(each, rules)]


def subnet_named(tx: Tx, name: str, site: Site) -> Subnet | None:
    """Return the subnet of that name: the site's, or an isolated vcluster's."""
    vlan = isolation.vlan_of(name)
    if vlan is None or site.isolation is None:
        return next((subnet for subnet in site.subnets if subnet.name == name), None)
    found = networks.of_subnets(tx, [vlan], [])
    return isolation.subnet(found[0], site.isolation, site.dns.port == 53) if found else None


def rules_of(site: Site) -> Isolation:
    """Return the site's rules for isolated vclusters. Raise `Refused` if the site has no VLANs for
    isolated vclusters."""
    if site.isolation is None:
        raise Refused(
            "conflict",
            "this site has no VLANs for isolated vclusters: [isolation] in the site file",
            "isolated",
        )
    return site.isolation


def asked_prefix(asked: AskedVcluster, count: int, site: Site) -> int | None:
    """Return the prefix length of the network that a new isolated vcluster of `count` nodes gets;
    None for a vcluster that is not isolated, whose addresses come from a block. Raise `Refused` if
    the site has too few addresses."""
    if site.isolates if asked.isolated is None else asked.isolated:
        return isolation.size(asked.network_size, count, rules_of(site))
    if asked.network_size is not None:
        raise Refused(
            "invalid",
            "only an isolated vcluster has a network whose size can be chosen",
            "network_size",
        )
    most = max(one.room for one in site.subnets)
    if count > most:
        raise Refused(
            "invalid",
            f"a vcluster has addresses for {most} nodes at most (block_pool in the site file)",
            "size",
        )
    return None


def claim(tx: Tx, vcluster: Vcluster, site: Site) -> None:
    """Give the vcluster a VLAN and a subnet, unless it has them, and add the subnet's addresses as
    the vcluster's. The subnet has the size asked for at the vcluster's creation. Raises `Refused`
    if no VLAN or subnet is free."""
    rules = rules_of(site)
    network = networks.of(tx, vcluster.id)
    if network is None:
        networks.free(tx, ports.vlans(tx))
        prefix = vcluster.network_prefix or rules.default_size
        vlan, first = isolation.place(networks.taken(tx), prefix, rules)
        network = isolation.network(vlan, vcluster.id, first, prefix, rules)
        networks.add(tx, network)
    address_blocks.add(tx, vcluster.id, isolation.nodes(network))


# ---------------------------------------------------------------- a node's port


def enter(tx: Tx, node: Node, vlan: int, now: float) -> float:
    """Ask for the node's port in its vcluster's VLAN. Return for how many seconds this has been
    wanted. If the node's port is not known, record a conflict and return infinity."""
    try:
        switch_ports.want(tx, node, vlan, now)
    except Refused as refused:
        conflicts.add_once(
            tx, "switch", refused.sentence, now, within=AGAIN, subnet=node.subnet, mac=node.boot_mac
        )
        return float("inf")
    port = ports.of_mac(tx, node.boot_mac)
    return float("inf") if port is None else now - port.wished_at


def is_on_its_way(tx: Tx, query: DhcpQuery, client: DhcpClient, vlan: int, now: float) -> bool:
    """Return whether to leave a query of an isolated vcluster's node unanswered, because the node
    will ask again in its own network.

    The query came from the network in which the node was primed. Its agent has ended, so its port
    is wanted in the vcluster's VLAN from now on.

    Firmware is answered once the port has been wanted for `MOMENT`: the boot script then makes the
    node wait. Without an answer the firmware would boot from the disk, whose system must not run
    outside its network.
    """
    if client.state not in OWN_SYSTEM or query.stage == "trampoline":
        return False
    node = nodes.known(tx, client.id)
    waited = enter(tx, node, vlan, now)
    return query.stage == "os" or waited < isolation.MOMENT


def delays_power(tx: Tx, node: Node, desired: str) -> bool:
    """Return whether a power command has to wait, because it would boot the node before its port is
    in the wanted VLAN."""
    return desired in ("on", "cycle") and not switch_ports.arrived(tx, node)


def elsewhere(tx: Tx, node: Node, subnet: Subnet) -> str:
    """Return why a node that asks for its boot script from `subnet` cannot boot there; '' where it
    can."""
    network = networks.of(tx, node.vcluster_id) if node.vcluster_id is not None else None
    if isolation.vlan_of(subnet.name) is not None:
        return (
            ""
            if node.state in OWN_SYSTEM
            else "its switch port is on its way back to the provisioning network"
        )
    if network is None or node.state not in OWN_SYSTEM:
        return ""
    fault = trouble(tx, node)
    return fault or f"its switch port is on its way to VLAN {network.vlan}"


def way_down(tx: Tx, node: Node) -> tuple[str, float | None]:
    """Return ('switch NAME', since when the VLAN is wanted) if the node's switch port is not in the
    wanted VLAN and the switch does not answer; else ('', None)."""
    port = ports.of_mac(tx, node.boot_mac)
    if port is None or not port.pending:
        return "", None
    switch = switches.get(tx, port.switch)
    return (f"switch {port.switch}", port.wished_at) if switch and switch.failures else ("", None)


def trouble(tx: Tx, node: Node) -> str:
    """Return the fault of the node's switch port; '' where there is none, or no VLAN is wanted."""
    port = ports.of_mac(tx, node.boot_mac)
    if port is None:
        network = networks.of(tx, node.vcluster_id) if node.vcluster_id is not None else None
        return (
            ""
            if network is None
            else f"switch port: it is not known, and VLAN {network.vlan} is wanted"
        )
    if not port.pending:
        return ""
    where = "the provisioning VLAN" if port.wanted_vlan is None else f"VLAN {port.wanted_vlan}"
    return f"switch port: {port.port} of {port.switch} is not in {where} yet" + (
        f" ({port.reason})" if port.reason else ""
    )
