"""Packets and reports of a host in the name of another node, with a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import select, update

from cod.core.nodes import boot_nonces
from cod.flows.agents import report
from cod.flows.agents import sessions as agents
from cod.flows.boot import dhcp, script
from cod.flows.nodes.nodes import approve
from cod.model import (
    Account,
    DhcpAnswer,
    DhcpQuery,
    Peer,
    Refused,
    Switch,
    dotted,
)
from cod.policy.nodes.newcomers import Newcomers
from cod.store import tables as t
from cod.store.nodes import bindings
from tests.contexts import flow_context
from tests.store.agentlab import TEMPLATE, Lab, hardware, mac

READY = '<ready port="80"/></template>'

STATES = ["inactive", "wipe", "prime"]


def send(lab: Lab, kind: str, xid: int = 1, stage: str = "ipxe", **more: Any) -> DhcpAnswer | None:
    """Send one DHCP message with the MAC of node 1."""
    query = replace(DhcpQuery(kind, mac(1), xid, "lab", stage), **more)
    [answer] = dhcp.answer(lab.tx, [query], lab.site, Newcomers(), lab.now)
    return answer


def at_work(lab: Lab, state: str) -> None:
    """Node 1 in that state, with its agent connected."""
    lab.machine(1, "trampoline", disk="dirty" if state == "wipe" else "clean")
    lab.boots(1)
    if state == "prime":
        lab.assign(1, lab.vcluster(lab.template()))
    assert lab.node(1).state == state


def forge(lab: Lab) -> None:
    """Send 34 DISCOVERs a second in node 1's name, half a minute long; its agent is heard."""
    for second in range(30):
        lab.now += 1
        agents.held(lab.tx, "a", lab.now)
        for turn in range(34):
            send(lab, "DISCOVER", xid=100 + 34 * second + turn)


def in_use(lab: Lab, state: str) -> str:
    """Node 1 of a vcluster whose readiness check is a port, in that state; returns its address."""
    lab.machine(1, "trampoline")
    peer = lab.boots(1)
    document = TEMPLATE.replace("{more}", "").replace("</template>", READY)
    vcluster = lab.vcluster(lab.template(document=document))
    lab.assign(1, vcluster)
    agents.lost(lab.tx, peer, lab.site, lab.now)
    lab.tx.execute(update(t.nodes).values(state=state, boot_served_at=lab.now))
    return dotted(bindings.reserve(lab.tx, lab.node(1), mac(1), vcluster, "n1", lab.now))


def addresses(lab: Lab) -> set[str]:
    rows = bindings.of_node(lab.tx, lab.node(1).id)
    return {dotted(row.address) for row in rows if row.kind == "vcluster"}


def decline(lab: Lab) -> set[str]:
    """Decline the address of an active node, right after its acknowledgement; return those
    addresses that are not its own any more."""
    own = in_use(lab, "active")
    send(lab, "REQUEST", 7, "os", requested=own)
    for _ in range(3):
        send(lab, "DECLINE", 7, "os", requested=own)
    return {own} ^ addresses(lab)


NONCE = "ab" * 16

TRIES = 10


def booting(lab: Lab, *, nonce: bool) -> None:
    """COD has just cycled node 1, and handed its BMC a nonce, where it does that."""
    rack = Account("rack", "admin", "/nowhere", boot_nonce=nonce)
    lab.site = replace(lab.site, accounts=(rack,))
    lab.machine(1, "trampoline", power_account="rack", subnet="lab")
    if nonce:
        boot_nonces.order(lab.tx, lab.node(1), NONCE, lab.now)


def bound(lab: Lab, xid: int, stage: str) -> str:
    """Return the address that DHCP binds to whoever asks with node 1's MAC."""
    arch = 16 if stage == "httpclient" else None
    offer = send(lab, "DISCOVER", xid, stage, arch=arch)
    assert offer is not None
    assert send(lab, "REQUEST", xid, stage, arch=arch, requested=offer.yiaddr) is not None
    return offer.yiaddr


def is_given_secret(lab: Lab, address: str, name: str) -> bool:
    key = bytes(32)
    try:
        script.mint(lab.tx, mac(1), address, name, key, key, key, lab.site, lab.now)
    except Refused:
        return False
    return True


def race(lab: Lab) -> int:
    """Return how often a host with node 1's MAC that asks before the node is given a secret."""
    addresses = [bound(lab, 20 + turn, "ipxe") for turn in range(TRIES)]
    return sum(is_given_secret(lab, each, f"t{n}") for n, each in enumerate(addresses))


HOME: dict[str, Any] = {"giaddr": "10.77.0.2", "circuit": "0004", "remote": "aa01"}

ELSEWHERE: dict[str, Any] = HOME | {"circuit": "0009"}


def careful(lab: Lab) -> None:
    """The site approves no machine by itself, as a site with tenants does not."""
    lab.site = replace(lab.site, policy=replace(lab.site.policy, auto_approve=False))


def settled(lab: Lab) -> None:
    """Node 1, approved at a switch port that option 82 tells; it is off now."""
    careful(lab)
    lab.machine(1, "registering", subnet="lab")
    send(lab, "DISCOVER", stage="trampoline", **HOME)
    approve(lab.tx, flow_context(lab.site, lab.now, "user:root"), name="node1")
    lab.tx.execute(update(t.nodes).values(state="off"))


def lie(lab: Lab) -> dict[str, int]:
    """Have node 2 report node 1's port; return which port is which node's then."""
    lab.site = replace(lab.site, switches=(Switch("leaf", "ovs", "unix:/x"),))
    for number, port in ((1, "p1"), (2, "p2")):
        lab.machine(number, "trampoline")
        reports(lab, lab.open(number), port)
    lab.tx.execute(update(t.nodes).values(state="trampoline"))
    reports(lab, lab.again(2), "p1")
    return {row.port: row.node_id for row in lab.tx.execute(select(t.switch_ports)).all()}


def reports(lab: Lab, peer: Peer, port: str, heard_on: Sequence[tuple[str, ...]] = ()) -> None:
    told = f'boot="no"><neighbour switch="leaf" port="{port}"/></nic>'
    document = hardware(peer.mac).replace('boot="no"/>', told) if port else hardware(peer.mac)
    report.report(lab.tx, peer, document, lab.site, lab.now, heard_on=heard_on)
