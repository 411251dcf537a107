"""A batch of DHCP messages is answered in one transaction.

Everything that waits in the socket is one batch: its clients and their bindings are read with a few statements, each
message is decided in order on what has been read (and on what earlier messages of the batch changed), and the bindings
are written with a few statements. The replies are sent after the commit, so no client is told what a crash could undo.

Which address: firmware and trampoline get one of the subnet's boot pool, offered for a minute and bound for
`policy.boot_time` when it is requested; an operating system gets the one that was reserved for its node. A message that
RFC 2131 leaves open (§4.3, table 4) is answered in favour of silence: there may be another DHCP server on the wire. A
NAK goes only to a machine that COD knows, about an address that is COD's to give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cod import news
from cod.model import Binding, DhcpAnswer, DhcpClient, DhcpQuery, Node, Refused, Site, dotted, ipv4
from cod.policy import boot, identity, lifecycle, power, template
from cod.policy.subnets import Net, Subnets
from cod.states import NODE_RULES, NodeEvent, NodeState, Step
from cod.store import bindings, clients, conflicts, nodes, notices, steps, templates, vclusters
from cod.store.engine import Tx
from cod.store.ledger import FIRST_LOOK, Ledger, probes

OFFER_TIME = 60.0  # seconds that an offered address is kept for its client
DECLINED_FOR = 86400.0  # seconds that nobody is given an address that somebody was found to use
EXHAUSTED_EVERY = 60.0  # seconds between two records of an empty pool


@dataclass(slots=True)
class _Batch:
    tx: Tx
    site: Site
    now: float
    subnets: Subnets
    clients: dict[str, DhcpClient]
    ledger: Ledger
    heard: dict[int, DhcpClient]


def answer(tx: Tx, queries: Sequence[DhcpQuery], site: Site, now: float) -> list[DhcpAnswer | None]:
    """The answers to `queries`, in their order; None is silence."""
    macs = list({query.mac for query in queries})
    batch = _Batch(tx, site, now, Subnets(site.subnets), clients.by_macs(tx, macs), Ledger(tx, macs), {})
    asked = [(query, batch.subnets.of(query)) for query in queries]
    _look_ahead(batch, asked)
    answers = [_answer(batch, query, net) if net else None for query, net in asked]
    batch.ledger.write()
    if batch.heard:
        clients.heard(tx, list(batch.heard.values()))
    return answers


def _look_ahead(batch: _Batch, asked: list[tuple[DhcpQuery, Net | None]]) -> None:
    """Read at once the addresses that the batch's new clients may get."""
    ahead: set[int] = set()
    for query, net in asked:
        if net and query.kind == "DISCOVER" and query.stage != "os" \
                and batch.ledger.get(query.mac, "boot", net.subnet.name) is None:
            ahead.update(probes(query.mac, net.pool, FIRST_LOOK))
    batch.ledger.look(ahead)


def _answer(batch: _Batch, query: DhcpQuery, net: Net) -> DhcpAnswer | None:
    client = batch.clients.get(query.mac)
    held = batch.ledger.get(query.mac, "boot", net.subnet.name)
    verdict = boot.decide(query, client, held.xid if held else None, batch.site.policy, batch.now)
    if verdict.new and batch.ledger.free(query.mac, net.pool, net.avoid, batch.now) is None:
        _exhausted(batch, query, net)  # and no row either: made-up machines cannot fill the database
    elif verdict.new:
        client = _enrol(batch, query)
    if client is None:
        return None
    if query.kind == "DISCOVER":
        _note_way(batch, query, client)
    if verdict.pool == "none":
        return _not_here(batch, query, net)
    if verdict.event is not None:
        client = _happened(batch, client, verdict.event, verdict.why)
    row = held if verdict.pool == "boot" else batch.ledger.get(query.mac, "vcluster", net.subnet.name)
    if row is not None and row.kind == "boot" and row.address not in net.pool:
        row = None  # the pool has been moved since
    return _ANSWERS[query.kind](batch, query, net, client, row, verdict.pool)


# ---------------------------------------------------------------- the five messages


def _discover(
    batch: _Batch, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding | None, pool: str
) -> DhcpAnswer | None:
    if pool == "vcluster":
        return _say(batch, "OFFER", query, net, client, row) if row else None
    until = batch.now + OFFER_TIME
    if row is not None and row.expires_at >= until:
        return _say(batch, "OFFER", query, net, client, row)  # nothing to write: it is kept for longer already
    address = row.address if row else batch.ledger.free(query.mac, net.pool, net.avoid, batch.now)
    if address is None:
        _exhausted(batch, query, net)
        return None
    xid = row.xid if row else 0  # of the last exchange that was completed; see policy.boot
    row = Binding(address, query.mac, "boot", client.id, net.subnet.name, None, "offered", until, None, xid)
    batch.ledger.put(row)
    return _say(batch, "OFFER", query, net, client, row)


def _request(
    batch: _Batch, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding | None, _pool: str
) -> DhcpAnswer | None:
    if query.server_id is not None and query.server_id not in batch.subnets.servers:
        if row is not None and row.state == "offered":
            batch.ledger.drop(row)  # it took another server's offer
        return None
    wanted = ipv4(query.requested or query.ciaddr)
    if row is None or row.address != wanted:
        return _refuse(batch, query, net, row)
    _bind(batch, query, client, row)
    if row.kind == "vcluster" and client.state == NodeState.BOOT:
        _booted(batch, client)
    return _say(batch, "ACK", query, net, client, row)


def _bind(batch: _Batch, query: DhcpQuery, client: DhcpClient, row: Binding) -> None:
    client_id = query.client_id.hex()[:160] if query.client_id else None
    if row.kind == "boot":
        until = batch.now + batch.site.policy.boot_time
        batch.ledger.put(Binding(row.address, row.mac, "boot", client.id, row.subnet, None, "bound", until,
                                 client_id, query.xid))
    elif row.state != "bound" or row.client_id != client_id:
        batch.ledger.put(replace(row, state="bound", client_id=client_id, xid=query.xid))


def _decline(
    batch: _Batch, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding | None, _pool: str
) -> None:
    """RFC 2131 §4.3.3: somebody else uses the address. It is set aside, and the client gets another when it asks."""
    if row is None or query.requested != dotted(row.address):
        return
    about = f"{client.name} found that another machine uses {query.requested}"
    conflicts.add(batch.tx, "declined", about, batch.now, subnet=net.subnet.name, address=row.address, mac=query.mac)
    batch.ledger.put(Binding(row.address, None, row.kind, None, row.subnet, None, "declined",
                             batch.now + DECLINED_FOR))
    if row.kind == "vcluster":
        _reserve_another(batch, query.mac, client)


def _reserve_another(batch: _Batch, mac: str, client: DhcpClient) -> None:
    batch.ledger.write()
    node = nodes.get(batch.tx, client.id)
    vcluster = vclusters.get(batch.tx, node.vcluster_id) if node and node.vcluster_id else None
    if node is None or vcluster is None:
        return
    try:
        bindings.reserve(batch.tx, node, mac, vcluster, node.hostname or node.name, batch.now)
    except Refused as refused:
        conflicts.add(batch.tx, "exhausted", refused.sentence, batch.now, subnet=vcluster.subnet, mac=mac)
    batch.ledger.reread([mac])


def _release(
    batch: _Batch, query: DhcpQuery, _net_: Net, _client: DhcpClient, row: Binding | None, _pool: str
) -> None:
    """RFC 2131 §4.3.4. A boot address is free at once, and still its old client's first choice."""
    if row is None or query.ciaddr != dotted(row.address):
        return
    if row.kind == "boot":
        batch.ledger.put(replace(row, state="offered", expires_at=batch.now))
    else:
        batch.ledger.put(replace(row, state="reserved"))


def _inform(
    batch: _Batch, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding | None, _pool: str
) -> DhcpAnswer | None:
    """RFC 2131 §4.3.5: options without an address, for a client that has one of ours."""
    if row is None or query.ciaddr != dotted(row.address):
        return None
    return replace(_say(batch, "ACK", query, net, client, row), yiaddr="0.0.0.0", lease_time=None)


_Answer = Callable[[_Batch, DhcpQuery, Net, DhcpClient, Binding | None, str], DhcpAnswer | None]
_ANSWERS: dict[str, _Answer] = {
    "DISCOVER": _discover, "REQUEST": _request, "DECLINE": _decline, "RELEASE": _release, "INFORM": _inform}


# ---------------------------------------------------------------- what is said


def _say(
    batch: _Batch, kind: str, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding
) -> DhcpAnswer:
    policy, subnet = batch.site.policy, net.subnet
    if row.kind == "vcluster":
        domain = f"{client.vcluster}.{batch.site.domain}" if client.vcluster else batch.site.domain
        return DhcpAnswer(kind, dotted(row.address), subnet.name, policy.binding_time, row.hostname, domain)
    return DhcpAnswer(kind, dotted(row.address), subnet.name, policy.boot_time, client.name, batch.site.domain,
                      boot.bootfile(query, client, subnet, batch.site, batch.now))


def _refuse(batch: _Batch, query: DhcpQuery, net: Net, row: Binding | None) -> DhcpAnswer | None:
    wanted = query.requested or query.ciaddr
    if row is None and query.server_id not in batch.subnets.servers and not net.owns(ipv4(wanted)):
        return None
    return DhcpAnswer("NAK", "0.0.0.0", net.subnet.name, reason=f"{wanted} is not yours")


def _not_here(batch: _Batch, query: DhcpQuery, net: Net) -> DhcpAnswer | None:
    """A known machine that gets no address now: its system holds on to one of ours, or it is another server's
    client."""
    if query.kind != "REQUEST" or not net.owns(ipv4(query.requested or query.ciaddr)):
        return None
    if query.server_id is not None and query.server_id not in batch.subnets.servers:
        return None
    return _refuse(batch, query, net, None)


def _exhausted(batch: _Batch, query: DhcpQuery, net: Net) -> None:
    name = net.subnet.name
    if not conflicts.seen_since(batch.tx, "exhausted", batch.now - EXHAUSTED_EVERY, subnet=name):
        about = f"the boot pool of subnet {name} ({len(net.pool)} addresses) is empty"
        conflicts.add(batch.tx, "exhausted", about, batch.now, subnet=name, mac=query.mac)


# ---------------------------------------------------------------- what it means for the node


def _enrol(batch: _Batch, query: DhcpQuery) -> DhcpClient:
    """A machine never seen before becomes a node; a further NIC of one that has not reported yet joins it.

    Once a machine has reported, its NICs are known, so another MAC with its UUID is another machine whose maker gave
    both the same one: it becomes a node of its own, without UUID.
    """
    uuid = query.uuid if identity.is_unique(query.uuid) else None
    known = nodes.by_uuid(batch.tx, uuid) if uuid else None
    if known is not None and known.reported_at is None and known.state == NodeState.NEW:
        nodes.add_mac(batch.tx, known.id, query.mac)
        return _client(batch, query.mac, known)
    if known is not None:
        about = f"{query.mac} says it has the UUID of {known.name}, {uuid}, which has other network cards"
        conflicts.add(batch.tx, "identity", about, batch.now, mac=query.mac)
        uuid = None
    name = f"node-{query.mac.replace(':', '')}"
    driver, address, account = power.rule_for(batch.site.power, name, query.mac)
    node = nodes.add(
        batch.tx, name=name, boot_mac=query.mac, now=batch.now, cause=f"asked to network-boot ({query.stage})",
        actor="dhcp", uuid=uuid, power_driver=driver, power_address=address, power_account=account)
    return _client(batch, query.mac, node)


def _client(batch: _Batch, mac: str, node: Node) -> DhcpClient:
    client = DhcpClient(node.id, node.name, node.state, node.boot_mac, node.boot_served_at, node.template_id,
                        None)
    batch.clients[mac] = client
    return client


def _note_way(batch: _Batch, query: DhcpQuery, client: DhcpClient) -> None:
    """Where on the network the machine is: proposals of blocks are made of it. Written once a batch, on change alone.

    Only a broadcast tells it, and of its boot NIC: a system that renews its binding speaks past the relay.
    """
    relay = None if query.giaddr == "0.0.0.0" else query.giaddr
    way = relay, query.circuit, query.remote
    if query.mac == client.boot_mac and way != (client.relay, client.circuit, client.remote):
        batch.heard[client.id] = replace(client, relay=relay, circuit=query.circuit, remote=query.remote)
    else:
        batch.heard.pop(client.id, None)  # of two relays that pass on one packet the last counts


def _happened(batch: _Batch, client: DhcpClient, event: NodeEvent, why: str) -> DhcpClient:
    node = nodes.get(batch.tx, client.id)
    assert node is not None
    in_motion = NODE_RULES[NodeState(node.state)].kind == "motion"
    step = lifecycle.on_trouble(node, event, why, batch.site.policy) if in_motion else Step(event, why)
    return _step(batch, node, step)


def _booted(batch: _Batch, client: DhcpClient) -> None:
    """Its system has its address. Where the template has a readiness check, that check decides (the binding's state
    says that it is time to look); else the node is active."""
    row = templates.get(batch.tx, client.template_id) if client.template_id else None
    if row is None or template.parse(row.document).ready is not None:
        return
    node = nodes.get(batch.tx, client.id)
    assert node is not None
    _step(batch, node, Step(NodeEvent.BOOTED, "its system got its address by DHCP"))
    ready = vclusters.first_ready(batch.tx, node.vcluster_id, batch.now)
    if ready is not None:
        notices.add(batch.tx, **news.vcluster_ready(ready, ready.size), group_id=ready.group_id, vcluster_id=ready.id,
                    now=batch.now)


def _step(batch: _Batch, node: Node, step: Step) -> DhcpClient:
    moved = steps.apply(batch.tx, node, step, now=batch.now, actor="dhcp", policy=batch.site.policy)
    mine = [mac for mac, client in batch.clients.items() if client.id == node.id]
    batch.clients.update(clients.by_macs(batch.tx, mine))
    assert moved.state == batch.clients[mine[0]].state
    return batch.clients[mine[0]]
