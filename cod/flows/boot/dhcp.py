"""A batch of DHCP messages is answered in one transaction.

Everything that waits in the socket is one batch: its clients and their bindings are read with a few
statements, each message is decided in order on what has been read (and on what earlier messages of
the batch changed), and the bindings are written with a few statements. The replies are sent after
the commit, so no client is told what a crash could undo.

Which address: firmware and trampoline get one of the subnet's boot pool, offered for a minute and
bound for `policy.boot_time` when it is requested; an operating system gets the one that was
reserved for its node. COD stays silent where RFC 2131 leaves the answer open (§4.3, table 4): the
wire may have another DHCP server. A NAK goes only to a machine that COD knows, about an address
that is COD's to give.

Any host on the wire can invent MAC addresses. Three limits bound the damage: a part of each pool is
reserved for approved machines; new machines are registered (`core.nodes.enrolment`) at a limited
rate and in a limited number; a machine that never reported loses its address to one that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cod.core.networks import dhcp_conflicts, isolation
from cod.core.networks.dhcp_batch import Batch, boot_range, decide, free_address, place_of
from cod.core.nodes import blame, enrolment, node_places, stories, transitions
from cod.model import Binding, DhcpAnswer, DhcpClient, DhcpQuery, Node, Refused, Site, dotted, ipv4
from cod.policy.nodes import boot, template
from cod.policy.nodes.newcomers import Newcomers as Newcomers  # its owner is the socket
from cod.policy.nodes.subnets import Net, Subnets
from cod.states import (
    NODE_RULES,
    OWN_SYSTEM,
    UNREPORTED,
    NodeEvent,
    NodeState,
    Step,
    StoryVerdict,
)
from cod.store import dns_zones
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import bindings, captures, conflicts, dhcp_batch, nodes
from cod.store.nodes.dhcp_batch import FIRST_LOOK, probes
from cod.store.scheduler import vclusters

OFFER_TIME = 60.0  # seconds that an offered address is kept for its client
DECLINED_FOR = 86400.0  # seconds that an address found in use is given to no client
DOUBTED_FOR = 300.0  # the same, where the machine that found it in use has never reported
MOST_LEFT = 4  # addresses that the systems of one held node may keep
# verdicts on a held node that is not known to be as the database says
_IN_DOUBT = (StoryVerdict.SILENT, StoryVerdict.DIFFERS)
isolated_subnets = isolation.subnets  # the DHCP server answers in isolated vclusters, too


def answer(
    tx: Tx, queries: Sequence[DhcpQuery], site: Site, newcomers: Newcomers, now: float
) -> list[DhcpAnswer | None]:
    """Return the answers to `queries`, in their order; None is silence."""
    macs = list({query.mac for query in queries})
    clients, held = dhcp_batch.read(tx, macs)
    subnets = Subnets(
        site.subnets, isolation.subnets_of(tx, queries, site) if site.isolation else ()
    )
    batch = Batch(tx, site, now, subnets, clients, held, newcomers, {})
    asked = [(q, None if subnets.leaves_to_other(q) else subnets.of(q)) for q in queries]
    _read_ahead(batch, asked)
    if len(clients) < len(macs):
        enrolment.adopt(batch, asked)
        enrolment.ahead(batch, asked)
    _move_ahead(batch, asked)
    answers = [_answer(batch, query, net) if net else None for query, net in asked]
    batch.bindings.write()
    if batch.heard:
        dhcp_batch.write_locations(tx, list(batch.heard.values()))
    return answers


def _read_ahead(batch: Batch, asked: list[tuple[DhcpQuery, Net | None]]) -> None:
    """Read at once the addresses that the batch's new clients may get."""
    ahead: set[int] = set()
    for query, net in asked:
        if (
            net
            and query.kind == "DISCOVER"
            and query.stage != "os"
            and batch.bindings.get(query.mac, "boot", net.subnet.name) is None
        ):
            ahead.update(
                probes(query.mac, boot_range(batch, net, batch.clients.get(query.mac)), FIRST_LOOK)
            )
    batch.bindings.look(ahead)


def _move_ahead(batch: Batch, asked: Sequence[tuple[DhcpQuery, Net | None]]) -> None:
    """Move the inactive nodes whose first messages of the batch show a reset, all with one
    statement. `_apply_event` moves other nodes, one at a time."""
    first: dict[int, tuple[DhcpQuery, Net]] = {}
    for query, net in asked:
        client = batch.clients.get(query.mac)
        if net and not net.isolated and client and client.state == NodeState.INACTIVE:
            first.setdefault(client.id, (query, net))
    causes = {}
    for node_id, (query, net) in first.items():
        client = batch.clients[query.mac]
        verdict = decide(batch, query, net, client)
        away = boot.elsewhere(query, client, net.subnet.name, batch.site)
        if verdict.event is NodeEvent.ASKED and not away:
            causes[node_id] = verdict.why
    if len(causes) < 2:  # the statements of `_apply_event` for one node are prepared already
        return
    # another transaction may have moved a node before the lock
    moved = [
        (node, causes[node.id])
        for node in nodes.lock(batch.tx, causes)
        if node.state == NodeState.INACTIVE and node.vcluster_id is None
    ]
    if moved:
        policy = batch.site.policy
        transitions.asked_all(batch.tx, moved, now=batch.now, actor="dhcp", policy=policy)
        ids = {node.id for node, _ in moved}
        macs = [mac for mac, client in batch.clients.items() if client.id in ids]
        batch.clients.update(dhcp_batch.clients(batch.tx, macs))


def _answer(batch: Batch, query: DhcpQuery, net: Net) -> DhcpAnswer | None:
    enrolled = batch.enrolled.pop(query.mac, None)
    client = _looked_up(batch, query, batch.clients.get(query.mac))
    if enrolled is not None:
        batch.clients[query.mac] = enrolled
    if net.isolated:
        return _answer_isolated(batch, query, net, client)
    if (
        client
        and client.vlan is not None
        and isolation.is_on_its_way(batch.tx, query, client, client.vlan, batch.now)
    ):
        return None
    where = boot.elsewhere(query, client, net.subnet.name, batch.site) if client else ""
    if client and where and not node_places.may_ask(batch.tx, client.id, query, net.subnet.name):
        # each NIC has its own switch port, and a system may send requests by all of them
        if query.stage != "os" or query.mac == client.boot_mac:
            dhcp_conflicts.record_moved(batch, query, net, client, where)
        return None
    verdict = decide(batch, query, net, client)
    if verdict.listed and query.kind == "DISCOVER":
        dhcp_conflicts.record_unfit(batch, query, net, verdict.why)
    if verdict.noted and client is not None:
        dhcp_conflicts.record_doubt(batch, query, net, client, verdict.why)
    if verdict.new and (enrolled is not None or enrolment.make_room_for(batch, query, net)):
        client = enrolled or enrolment.enrol(batch, query, net)
    if client is None:
        return None
    if query.kind == "DISCOVER":
        _note_place(batch, query, client)
    # any host can forge a query: a boot has failed once its script is fetched again
    if verdict.event not in (None, NodeEvent.BOOT_FAILED):
        client = _apply_event(batch, client, verdict.event, verdict.why)
    if verdict.binding == "none" and query.stage == "os" and client.story in _IN_DOUBT:
        return _answer_unknown_system(batch, query, net, client)
    if verdict.binding == "none":
        # Its system may still use an address of COD, or it is the client of another server.
        if query.kind != "REQUEST" or not net.owns(ipv4(query.requested or query.ciaddr)):
            return None
        if query.server_id is not None and query.server_id not in batch.subnets.servers:
            return None
        return _nak(batch, query, net, None)
    row = batch.bindings.get(query.mac, "boot", net.subnet.name)
    if verdict.binding == "vcluster":
        row = batch.bindings.get(query.mac, "vcluster", net.subnet.name)
        if row is not None and _is_others(batch, query):
            _take_others(batch, query, net, client, row)
            return None
        if row is None and query.kind == "DISCOVER":
            return None  # nothing is reserved for its system
    elif row is not None and row.address not in net.pool:
        row = None  # the pool has been moved since
    return _ANSWERS[query.kind](batch, query, net, client, row)


def _note_place(batch: Batch, query: DhcpQuery, client: DhcpClient) -> None:
    """Note the relay and the switch port that a DISCOVER of a node's boot NIC came through, if they
    have changed: blocks are proposed by them. `answer` writes them once a batch. A DISCOVER is a
    broadcast, so it passes the relay; a system that renews its binding sends past the relay."""
    place = place_of(query)
    known = {name: getattr(client, name) for name in place}
    heard = boot.is_heard(client, batch.site.policy, batch.now)
    if query.mac == client.boot_mac and place != known and not heard:
        batch.heard[client.id] = replace(client, **place)
    else:
        # where two relays forward one packet, the last one counts
        batch.heard.pop(client.id, None)


def _answer_isolated(
    batch: Batch, query: DhcpQuery, net: Net, client: DhcpClient | None
) -> DhcpAnswer | None:
    """Return the answer to a client on the network of an isolated vcluster; None for clients that
    are not the vcluster's nodes. A node's firmware and system get the same reserved address."""
    row = batch.bindings.get(query.mac, "vcluster", net.subnet.name)
    if client is None or row is None or query.stage == "trampoline":
        return None
    verdict = boot.decide(query, client, row.xid, batch.site.policy, batch.now)
    if verdict.noted:
        dhcp_conflicts.record_doubt(batch, query, net, client, verdict.why)
    if verdict.event is not None:
        client = _apply_event(batch, client, verdict.event, verdict.why)
    if verdict.binding == "none" or client.state not in OWN_SYSTEM:
        return None  # its port is on its way back to the network where the node is answered
    answer = _ANSWERS[query.kind](batch, query, net, client, row)
    return answer and replace(answer, network=net.subnet)


# ---------------------------------------------------------------- the five messages


def _discover(
    batch: Batch, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding | None
) -> DhcpAnswer | None:
    until = batch.now + OFFER_TIME
    if row is not None and (row.kind == "vcluster" or row.expires_at >= until):
        # nothing to write: the binding lasts longer already
        return _lend(batch, "OFFER", query, net, client, row)
    address = row.address if row else free_address(batch, query, net, client)
    if address is None:
        dhcp_conflicts.record_exhausted(batch, query, net, client)
        return None
    xid = row.xid if row else 0  # of the client's last completed exchange; see policy.boot
    row = Binding(
        address,
        query.mac,
        "boot",
        client.id,
        net.subnet.name,
        hostname=None,
        state="offered",
        expires_at=until,
        client_id=None,
        xid=xid,
    )
    batch.bindings.put(row)
    return _lend(batch, "OFFER", query, net, client, row)


def _request(
    batch: Batch, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding | None
) -> DhcpAnswer | None:
    if query.server_id is not None and query.server_id not in batch.subnets.servers:
        if row is not None and row.state == "offered":
            batch.bindings.drop(row)  # the client took another server's offer
        return None
    wanted = ipv4(query.requested or query.ciaddr)
    if row is None or row.address != wanted:
        # a NAK makes a starting client ask anew; a running system would lose its network
        runs = query.stage == "os" and query.ciaddr != "0.0.0.0" and not net.isolated
        if runs and client.story in _IN_DOUBT:
            return _answer_unknown_system(batch, query, net, client)
        return _nak(batch, query, net, row)
    client_id = query.client_id.hex()[:160] if query.client_id else None
    if row.kind == "boot":
        until = batch.now + batch.site.policy.boot_time
        repeated = boot.is_repeat(query, client.boot_served_at, row.xid, batch.now)
        batch.bindings.put(
            replace(
                row,
                node_id=client.id,
                state="bound",
                expires_at=until,
                client_id=client_id,
                xid=query.xid,
                acked_at=row.acked_at if repeated else batch.now,
            )
        )
    elif query.stage != "os":  # firmware in an isolated network: its system has not asked yet
        batch.bindings.put(replace(row, xid=query.xid))
    elif (
        row.state != "bound"
        or row.client_id != client_id
        or (client.state == NodeState.BOOT and row.xid != query.xid)
    ):
        batch.bindings.put(
            replace(row, state="bound", client_id=client_id, xid=query.xid, acked_at=batch.now)
        )
    if row.kind == "vcluster" and query.stage == "os":
        # one that takes what it was just offered tells nothing of its own
        if client.story in _IN_DOUBT and query.server_id is None:
            evidence = f"its system uses its address {dotted(row.address)}"
            stories.by_system(batch.tx, client.id, StoryVerdict.AGREES, evidence, batch.now)
        if client.state == NodeState.BOOT:
            _note_booted(batch, client)
    return _lend(batch, "ACK", query, net, client, row)


def _decline(
    batch: Batch, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding | None
) -> None:
    """Set an address aside that its client found in use (RFC 2131 §4.3.3); the client gets another
    when it asks. Any machine can forge this message, so it counts only after the ACK of the same
    transaction, and never for a node that is active or heard."""
    if row is None or query.requested != dotted(row.address):
        return
    doubt = boot.decline_doubt(query, client, row, batch.site.policy, batch.now)
    about = f"{client.name} found that another machine uses {query.requested}"
    if doubt:
        about = f"a client with the MAC of {client.name} declined {query.requested}: {doubt}"
    dhcp_conflicts.record(batch, "declined", about, query, net, address=row.address)
    if doubt:
        return
    until = batch.now + (DOUBTED_FOR if client.state in UNREPORTED else DECLINED_FOR)
    batch.bindings.put(
        Binding(
            row.address,
            None,
            row.kind,
            None,
            row.subnet,
            hostname=None,
            state="declined",
            expires_at=until,
        )
    )
    if row.kind == "vcluster":
        batch.bindings.write()  # `reserve` reads the table, where the address still looks free
        node = nodes.get(batch.tx, client.id)
        vcluster = vclusters.get(batch.tx, node.vcluster_id) if node and node.vcluster_id else None
        if node is None or vcluster is None:
            return
        try:
            bindings.reserve(
                batch.tx, node, query.mac, vcluster, node.hostname or node.name, batch.now
            )
        except Refused as refused:
            conflicts.add(
                batch.tx,
                "exhausted",
                refused.sentence,
                batch.now,
                subnet=vcluster.subnet,
                mac=query.mac,
            )
        batch.bindings.reread([query.mac])


def _release(
    batch: Batch, query: DhcpQuery, _net: Net, client: DhcpClient, row: Binding | None
) -> None:
    """Free the address of a machine that has never reported (RFC 2131 §4.3.4). The machine gets the
    same address again if that is still free. A node keeps its addresses: COD takes them back
    itself, and any host can forge this message while the node boots."""
    if row is None or query.ciaddr != dotted(row.address) or client.state not in UNREPORTED:
        return
    batch.bindings.put(replace(row, state="offered", expires_at=batch.now))


def _inform(
    batch: Batch, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding | None
) -> DhcpAnswer | None:
    """Return options without an address (RFC 2131 §4.3.5) for a client with an address of COD."""
    if row is None or query.ciaddr != dotted(row.address):
        return None
    return replace(_lend(batch, "ACK", query, net, client, row), yiaddr="0.0.0.0", lease_time=None)


_Answer = Callable[[Batch, DhcpQuery, Net, DhcpClient, Binding | None], DhcpAnswer | None]
_ANSWERS: dict[str, _Answer] = {
    "DISCOVER": _discover,
    "REQUEST": _request,
    "DECLINE": _decline,
    "RELEASE": _release,
    "INFORM": _inform,
}


# ---------------------------------------------------------------- a system that is not recorded


def _answer_unknown_system(
    batch: Batch, query: DhcpQuery, net: Net, client: DhcpClient
) -> DhcpAnswer | None:
    """Note that a held node runs a system that the database does not know, and answer the system.

    The system may renew an address, which other nodes then get only if no other address is free. It
    gets no new address. While the node's agent is heard, the message comes from another machine and
    gets no answer.
    """
    if boot.is_heard(client, batch.site.policy, batch.now):
        return None
    wanted = ipv4(query.requested or query.ciaddr)
    ours = query.server_id is None or query.server_id in batch.subnets.servers
    if client.story != StoryVerdict.DIFFERS:
        evidence = "a system runs on it" + (f" with the address {dotted(wanted)}" if wanted else "")
        stories.by_system(batch.tx, client.id, StoryVerdict.DIFFERS, evidence, batch.now)
    if query.kind != "REQUEST" or not ours or wanted not in net.blocks or wanted in net.avoid:
        return None
    binding = batch.bindings.at(wanted)
    own = binding is not None and binding.state == "left" and binding.node_id in (None, client.id)
    if binding is not None and binding.expires_at > batch.now and not own:
        return None  # the address of another node
    if not own and bindings.left(batch.tx, client.id) >= MOST_LEFT:
        return None  # otherwise any host could have a row written for each address
    until = batch.now + batch.site.policy.binding_time
    row = Binding(
        wanted,
        None,
        "vcluster",
        client.id,
        net.subnet.name,
        hostname=None,
        state="left",
        expires_at=until,
        client_id=None,
    )
    batch.bindings.put(row)
    batch.bindings.write()  # the next message's `MOST_LEFT` counts this row
    return _lend(batch, "ACK", query, net, client, row)


# ---------------------------------------------------------------- another DHCP server


def _is_others(batch: Batch, query: DhcpQuery) -> bool:
    """Return whether the message of a node's system is for another DHCP server: it names one, or
    the site leaves systems' addresses to another."""
    if query.kind == "REQUEST" and query.server_id is not None:
        return query.server_id not in batch.subnets.servers
    theirs = batch.site.policy.os_addresses == "theirs"
    return theirs and query.kind in ("DISCOVER", "REQUEST", "DECLINE")


def _take_others(
    batch: Batch, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding
) -> None:
    """Record the address that another server gives a node's system as the node's address, if the
    site's `os_addresses` is "theirs"; otherwise report a conflict. COD acts on the request because
    the other server may send its acknowledgement to the node alone."""
    # a client that renews names its address as ciaddr alone (RFC 2131, 4.3.2)
    wanted = query.requested or (query.ciaddr if query.ciaddr != "0.0.0.0" else None)
    if query.kind != "REQUEST" or wanted is None or query.mac != client.boot_mac:
        return
    server = query.server_id or "which it does not name"
    if batch.site.policy.os_addresses != "theirs":
        dhcp_conflicts.record_others(
            batch,
            query,
            net,
            client,
            f"the system of {client.name} takes the address {wanted} of another DHCP server,"
            f" {server}, and not {dotted(row.address)} of COD: have that server ignore the nodes'"
            " MAC addresses or isolate the nodes' network, or set os_addresses ="
            ' "theirs" in [policy]',
        )
        return
    address = ipv4(wanted)
    if why := _unusable(batch, net, client, row, address):
        dhcp_conflicts.record_others(
            batch,
            query,
            net,
            client,
            f"the system of {client.name} takes the address {wanted} of another DHCP server,"
            f" {server}, which cannot be the node's: {why}",
        )
        return
    if address != row.address and client.vcluster:
        zones = [("vcluster", client.vcluster), ("subnet", net.subnet.name)]
        dns_zones.touch(batch.tx, zones, batch.now)
    client_id = query.client_id.hex()[:160] if query.client_id else None
    batch.bindings.put(
        replace(
            row,
            address=address,
            state="bound",
            client_id=client_id,
            xid=query.xid,
            acked_at=batch.now,
        )
    )
    if client.state == NodeState.BOOT:
        _note_booted(batch, client)


def _unusable(batch: Batch, net: Net, client: DhcpClient, row: Binding, address: int) -> str:
    """Return why a node cannot have that address of another server; '' where it can."""
    if address == row.address:
        return ""
    if address not in net.network or address in net.avoid:
        return f"it is none of the hosts' addresses of subnet {net.subnet.name}"
    if net.owns(address):
        return f"it is in a pool of subnet {net.subnet.name}, which COD gives addresses of"
    binding = batch.bindings.at(address)
    # an address left to a system that could not be switched off is the other server's to give
    if binding and binding.mac not in (None, row.mac) and binding.expires_at > batch.now:
        return "another node has it"
    # An active node's address changes only after a boot: any host can send in the node's name.
    served, rule = client.boot_served_at, NODE_RULES[NodeState.BOOT]
    latest = (served or 0.0) + (rule.deadline or 0.0) * batch.site.policy.patience
    if client.state == NodeState.ACTIVE and batch.now > latest:
        return "the node has not booted since it got another"
    return ""


# ---------------------------------------------------------------- what is said


def _lend(
    batch: Batch, kind: str, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding
) -> DhcpAnswer:
    policy, subnet = batch.site.policy, net.subnet
    if row.kind == "vcluster" and query.stage == "os":
        domain = f"{client.vcluster}.{batch.site.domain}" if client.vcluster else batch.site.domain
        return DhcpAnswer(
            kind, dotted(row.address), subnet.name, policy.binding_time, row.hostname, domain
        )
    return DhcpAnswer(
        kind,
        dotted(row.address),
        subnet.name,
        policy.boot_time,
        client.name,
        batch.site.domain,
        boot.bootfile(query, client, subnet, batch.site, batch.now),
    )


def _nak(batch: Batch, query: DhcpQuery, net: Net, row: Binding | None) -> DhcpAnswer | None:
    wanted = query.requested or query.ciaddr
    if row is None and query.server_id not in batch.subnets.servers and not net.owns(ipv4(wanted)):
        return None
    return DhcpAnswer("NAK", "0.0.0.0", net.subnet.name, reason=f"{wanted} is not yours")


# ---------------------------------------------------------------- what it means for the node


def _looked_up(batch: Batch, query: DhcpQuery, client: DhcpClient | None) -> DhcpClient | None:
    """Return the client with facts that only few answers need.

    These facts are `cycled`, whether the node's last transition was a timeout, and `sent_to_disk`,
    whether its boot script sent it to its disk. A node with a diskless system is never sent to its
    disk, nor is a node that waits to be captured.
    """
    if client is None:
        return None
    if boot.may_have_missed(query, client, batch.site.policy, batch.now):
        last = nodes.history(batch.tx, client.id, 1)
        return replace(client, cycled=bool(last) and last[0]["event"] == NodeEvent.TIMED_OUT)
    if client.template_id is None:
        return client
    if not boot.may_be_next_option(query, client, batch.site.policy, batch.now):
        return client
    row = templates.get(batch.tx, client.template_id)
    local = row is not None and template.parse(row.document).diskless is None
    return replace(client, sent_to_disk=local and not captures.is_wanted(batch.tx, client.id))


def _apply_event(batch: Batch, client: DhcpClient, event: NodeEvent, why: str) -> DhcpClient:
    node = nodes.known(batch.tx, client.id)
    if event is NodeEvent.TIMED_OUT and node.firmware == "uefi":
        why += (
            "; the machine has UEFI firmware: its system may have put itself first in the boot"
            " order"
        )
    in_motion = NODE_RULES[NodeState(node.state)].kind == "motion"
    step = (
        blame.on_trouble(batch.tx, node, event, why, batch.site.policy)
        if in_motion
        else Step(event, why)
    )
    return _moved(
        batch,
        transitions.apply(
            batch.tx, node, step, now=batch.now, actor="dhcp", policy=batch.site.policy
        ),
    )


def _note_booted(batch: Batch, client: DhcpClient) -> None:
    """Make a node active whose own system has got its address, unless the node's template has a
    readiness check.

    The readiness check starts when the binding's state shows that the system has its address.
    """
    row = templates.get(batch.tx, client.template_id) if client.template_id else None
    if row is None or template.parse(row.document).ready != template.Ready():
        return
    node = nodes.known(batch.tx, client.id)
    cause = "its system got its address by DHCP"
    _moved(
        batch,
        transitions.booted(
            batch.tx, node, cause, now=batch.now, actor="dhcp", policy=batch.site.policy
        ),
    )


def _moved(batch: Batch, moved: Node) -> DhcpClient:
    mine = [mac for mac, client in batch.clients.items() if client.id == moved.id]
    batch.clients.update(dhcp_batch.clients(batch.tx, mine))
    assert moved.state == batch.clients[mine[0]].state
    return batch.clients[mine[0]]
