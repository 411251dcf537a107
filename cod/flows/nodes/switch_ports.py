"""An administrator's views of switches and their ports, and actions on them."""

from __future__ import annotations

from collections.abc import Sequence

from cod.core.networks import switch_ports
from cod.model import (
    Effect,
    Refused,
    Result,
    Site,
    SwitchPort,
    SwitchPortView,
    SwitchSession,
    SwitchView,
)
from cod.policy.nodes import switch_ports as policy
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.nodes import switch_ports as store
from cod.store.nodes import switches as sessions

# a request may wait for nodes with usable ports
_CHANGED = (switch_ports.WAKE, Effect("wake", "manager"))
LONGEST = 200  # characters of a port's name


def switches(tx: Tx, *, site: Site) -> list[SwitchView]:
    """Return the site's switches, in the site file's order."""
    known = {row.name: row for row in sessions.every(tx)}
    counts = store.counts(tx)
    return [
        SwitchView(
            each, known.get(each.name, SwitchSession(each.name)), **counts.get(each.name, {})
        )
        for each in site.switches
    ]


def switch(tx: Tx, *, name: str, site: Site) -> SwitchView:
    """Return the switch. Raises `Refused` where the site file has none of that name."""
    found = next((each for each in switches(tx, site=site) if each.switch.name == name), None)
    if found is None:
        raise Refused("not_found", f"there is no switch {name!r} in the site file", "name")
    return found


def check(tx: Tx, *, name: str, site: Site) -> Result[SwitchView]:
    """Request a session with the switch at once; `switch` shows its outcome later."""
    switch(tx, name=name, site=site)
    sessions.keep(tx, [each.name for each in site.switches])
    sessions.want_check(tx, name)
    return Result(switch(tx, name=name, site=site), (switch_ports.WAKE,))


def ports(
    tx: Tx, *, site: Site, switch: str | None = None, node: str | None = None
) -> list[SwitchPortView]:
    """Return the known ports, by switch and port: all, those of a switch, or those of a node's
    NICs. Raises `Refused` for a switch that is not in the site file and has no known ports."""
    found = store.listed(tx, switch, node)
    if switch and not found and policy.named(site.switches, switch) is None:
        raise _no_switch(switch)
    return found


def entered(tx: Tx) -> list[SwitchPortView]:
    """Return the ports, entered by hand, of the NICs that nodes boot from."""
    by_hand = [each for each in store.listed(tx) if each.port.source == "manual"]
    owners = nodes.by_macs(tx, [each.port.mac for each in by_hand if each.port.mac])
    return [
        each
        for each in by_hand
        if each.port.mac in owners and owners[each.port.mac].boot_mac == each.port.mac
    ]


def _no_switch(name: str) -> Refused:
    return Refused("invalid", f"there is no switch {name!r} in the site file", "switch")


def of_node(tx: Tx, *, name: str) -> list[SwitchPortView]:
    """Return the ports of a node's NICs. Raises `Refused`."""
    return store.listed(tx, node=nodes.named(tx, name).name)


def enter(
    tx: Tx, *, name: str, switch: str, port: str, mac: str | None, site: Site, now: float
) -> Result[Sequence[SwitchPortView]]:
    """Record by hand the switch port of a node's NIC; `mac` None: the NIC that the node boots from.
    LLDP does not change such an entry."""
    node = nodes.named(tx, name, lock=True)
    if policy.named(site.switches, switch) is None:
        raise _no_switch(switch)
    nic = (mac or node.boot_mac).lower()
    owner = nodes.by_mac(tx, nic)
    if owner is None or owner.id != node.id:
        raise Refused("invalid", f"node {name} has no NIC {nic}", "mac")
    existing = store.at(tx, switch, port)
    if (
        existing is not None
        and existing.wanted_vlan is not None
        and existing.mac not in (None, nic)
    ):
        raise Refused(
            "conflict",
            f"port {port} of switch {switch} holds {existing.mac} in VLAN {existing.wanted_vlan}: "
            "release that node first",
            "port",
        )
    switch_ports.connect(tx, node, nic, switch, port, source="manual", now=now)
    return Result(store.listed(tx, node=name), _CHANGED)


def forget(tx: Tx, *, name: str) -> Result[None]:
    """Forget the switch ports of a node's NICs, until LLDP tells them again. Raise `Refused` while
    the node is in an isolated network."""
    node = nodes.named(tx, name, lock=True)
    found = store.of_node(tx, node.id)
    for port in found:
        _settled(port)
    for port in found:
        store.delete_port(tx, port.id)
    return Result(None)


def retry(tx: Tx, *, name: str, now: float) -> Result[Sequence[SwitchPortView]]:
    """Have the pending changes of the ports of a node's NICs tried again at once, and the other
    ports read again."""
    node = nodes.named(tx, name, lock=True)
    found = store.of_node(tx, node.id)
    if not found:
        raise Refused(
            "conflict",
            f"no switch port of node {name} is known: enter it, or let the node boot from the "
            "network beside a switch that sends LLDP",
            "name",
        )
    for port in found:
        if port.pending:
            store.wish(tx, port, port.wanted_vlan, now)
        elif port.seq:
            store.change(tx, port, next_at=now)
    return Result(store.listed(tx, node=name), _CHANGED)


def _settled(port: SwitchPort) -> None:
    if port.wanted_vlan is not None or port.pending:
        raise Refused(
            "conflict",
            f"port {port.port} of switch {port.switch} is not in the provisioning VLAN yet: "
            "release the node first",
            "name",
        )
