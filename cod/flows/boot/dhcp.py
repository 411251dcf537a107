"""A batch of DHCP messages is answered in one transaction.

Everything that waits in the socket is one batch: its clients and their bindings are read with a few
statements, each message is decided in order on what has been read (and on what earlier messages of
the batch changed), and the bindings are written with a few statements. The replies are sent after
the commit, so no client is told what a crash could undo.

Which address: firmware and trampoline get one of the subnet's boot pool, offered for a minute and
bound for `policy.boot_time` when it is requested; an operating system gets the one that was
reserved for its node. A message that RFC 2131 leaves open (§4.3, table 4) is answered in favour of
silence: there may be another DHCP server on the wire. A NAK goes only to a machine that COD knows,
about an address that is COD's to give.

Anybody on the wire can invent MACs. What that can cost is limited: approved machines have a part of
each pool for themselves; new ones are registered at a limited rate (`policy.nodes.newcomers`) and
in a limited number; the address of a machine that never reported gives way to one that needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from cod import notice_texts
from cod.core import notices
from cod.core.networks import isolation
from cod.core.nodes import blame, node_places, transitions
from cod.model import Binding, DhcpAnswer, DhcpClient, DhcpQuery, Node, Refused, Site, dotted, ipv4
from cod.policy.hardware import identity
from cod.policy.nodes import boot, power, template
from cod.policy.nodes.newcomers import Newcomers as Newcomers  # its owner is the socket
from cod.policy.nodes.subnets import Net, Subnets
from cod.states import NODE_RULES, OWN_SYSTEM, NodeEvent, NodeState, Step
from cod.store import dns_zones
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import bindings, captures, conflicts, dhcp_batch, nodes
from cod.store.nodes.dhcp_batch import FIRST_LOOK, BindingBatch, probes
from cod.store.scheduler import vclusters

OFFER_TIME = 60.0  # seconds that an offered address is kept for its client
DECLINED_FOR = 86400.0  # seconds that nobody is given an address that somebody was found to use
DOUBTED_FOR = 300.0  # the same, where a machine says so that has never reported
AGAIN = 60.0  # seconds between two records of the same trouble
DOUBT_AGAIN = 3600.0  # the same, of a MAC that another machine may use
OTHER_AGAIN = 3600.0  # seconds between two records that a node took another server's address
LIMITED_AGAIN = 3600.0  # seconds between two records that new machines are refused
# seconds that a machine which never reported keeps an address that another new one needs
GIVES_WAY = 120.0
MOST_NICS = 16  # of a machine that has not reported
# seconds between two records of a machine without a loader; for all of them
UNFIT_EVERY, UNFIT_AT_MOST = 86400.0, 200


@dataclass(slots=True)
class _Batch:
    """What one transaction answers with.

    admitted  whether newcomers are within their limits, by MAC, where that was asked ahead
    enrolled  newcomers that were enrolled ahead, until their first message is answered
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


def answer(
    tx: Tx, queries: Sequence[DhcpQuery], site: Site, newcomers: Newcomers, now: float
) -> list[DhcpAnswer | None]:
    """Return the answers to `queries`, in their order; None is silence."""
    macs = list({query.mac for query in queries})
    clients = dhcp_batch.clients(tx, macs)
    subnets = Subnets(
        site.subnets, isolation.subnets_of(tx, queries, site) if site.isolation else ()
    )
    batch = _Batch(tx, site, now, subnets, clients, BindingBatch(tx, macs), newcomers, {})
    asked = [(query, batch.subnets.of(query)) for query in queries]
    _read_ahead(batch, asked)
    _enrol_ahead(batch, asked)
    answers = [_answer(batch, query, net) if net else None for query, net in asked]
    batch.bindings.write()
    if batch.heard:
        dhcp_batch.write_locations(tx, list(batch.heard.values()))
    return answers


def _read_ahead(batch: _Batch, asked: list[tuple[DhcpQuery, Net | None]]) -> None:
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
                probes(query.mac, _boot_range(batch, net, batch.clients.get(query.mac)), FIRST_LOOK)
            )
    batch.bindings.look(ahead)


def _enrol_ahead(batch: _Batch, asked: Sequence[tuple[DhcpQuery, Net | None]]) -> None:
    """Add machines never seen before, by a statement for all of them. What is not plain is left to
    `_make_room_for` and `_enrol`: a limit or a full pool, and a UUID that another machine has."""
    first: dict[str, tuple[DhcpQuery, Net]] = {}
    for query, net in asked:
        if net and not net.isolated and query.mac not in batch.clients:
            first.setdefault(query.mac, (query, net))
    fresh = [(query, net) for query, net in first.values() if _is_new(batch, query, net)]
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
    lent: set[int] = set()
    for query, net in fresh:
        uuid = uuids.get(query.mac)
        address = _free(batch, query, net, None, frozenset(lent))
        if address is not None and uuid not in known and others[uuid] < 2:
            lent.add(address)
            added.append(_newcomer(batch, query, uuid))
    if added:
        nodes.add_all(batch.tx, added, now=batch.now, actor="dhcp")
        macs = [str(columns["boot_mac"]) for columns, _ in added]
        batch.enrolled = dhcp_batch.clients(batch.tx, macs)


def _is_new(batch: _Batch, query: DhcpQuery, net: Net) -> bool:
    held = batch.bindings.get(query.mac, "boot", net.subnet.name)
    xid = held.xid if held else None
    return boot.decide(query, None, xid, batch.site.policy, batch.now).new


def _admits(batch: _Batch, query: DhcpQuery, subnet: str) -> bool:
    """Return whether a newcomer is within its limits; a message counts once for them."""
    known = batch.admitted.pop(query.mac, None)
    if known is not None:
        return known
    return batch.newcomers.admits(query, subnet, batch.site.policy, batch.now)


def _boot_range(batch: _Batch, net: Net, client: DhcpClient | None) -> range:
    """Return the boot addresses that the client may get."""
    approved = client is not None and client.state not in (NodeState.NEW, NodeState.REGISTERING)
    return net.pool if approved else net.open(batch.site.policy.approved_share)


def _free(
    batch: _Batch,
    query: DhcpQuery,
    net: Net,
    client: DhcpClient | None,
    lent: frozenset[int] = frozenset(),
) -> int | None:
    """Return an address that the client may be lent now, none of those that are `lent` to others;
    None where the pool is empty."""
    pool = _boot_range(batch, net, client)
    keeps = GIVES_WAY if client is None or client.state == NodeState.NEW else 0.0
    yielding = batch.now + batch.site.policy.boot_time - keeps
    return batch.bindings.free(query.mac, pool, net.avoid | lent, batch.now, yielding)


def _answer(batch: _Batch, query: DhcpQuery, net: Net) -> DhcpAnswer | None:
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
        # each card has a port of its own, and a system may ask by all of them
        if query.stage != "os" or query.mac == client.boot_mac:
            _record_moved(batch, query, net, client, where)
        return None
    held = batch.bindings.get(query.mac, "boot", net.subnet.name)
    verdict = boot.decide(query, client, held.xid if held else None, batch.site.policy, batch.now)
    if verdict.listed and query.kind == "DISCOVER":
        _record_unfit(batch, query, net, verdict.why)
    if verdict.noted and client is not None:
        _record_doubt(batch, query, net, client, verdict.why)
    if verdict.new and (enrolled is not None or _make_room_for(batch, query, net)):
        client = enrolled or _enrol(batch, query, net)
    if client is None:
        return None
    if query.kind == "DISCOVER":
        # Proposals of blocks are made of where on the network the machine is, which is written once
        # a batch, on change. Only a broadcast tells it, and of its boot NIC: a system that renews
        # its binding speaks past the relay.
        relay = None if query.giaddr == "0.0.0.0" else query.giaddr
        way = relay, query.circuit, query.remote
        known = client.relay, client.circuit, client.remote
        heard = boot.is_heard(client, batch.site.policy, batch.now)
        if query.mac == client.boot_mac and way != known and not heard:
            batch.heard[client.id] = replace(
                client, relay=relay, circuit=query.circuit, remote=query.remote
            )
        else:
            # of two relays that pass on one packet the last counts
            batch.heard.pop(client.id, None)
    # anybody can ask: that a boot has failed is told when its script is fetched again
    if verdict.event not in (None, NodeEvent.BOOT_FAILED):
        client = _apply_event(batch, client, verdict.event, verdict.why)
    if verdict.binding == "none":
        # Its system may hold on to an address of ours; or it is another server's client.
        if query.kind != "REQUEST" or not net.owns(ipv4(query.requested or query.ciaddr)):
            return None
        if query.server_id is not None and query.server_id not in batch.subnets.servers:
            return None
        return _nak(batch, query, net, None)
    row = (
        held
        if verdict.binding == "boot"
        else batch.bindings.get(query.mac, "vcluster", net.subnet.name)
    )
    if verdict.binding == "vcluster" and row is not None and _is_others(batch, query):
        _take_others(batch, query, net, client, row)
        return None
    if row is not None and row.kind == "boot" and row.address not in net.pool:
        row = None  # the pool has been moved since
    if row is None and verdict.binding == "vcluster" and query.kind == "DISCOVER":
        return None  # nothing is reserved for its system
    return _ANSWERS[query.kind](batch, query, net, client, row)


def _answer_isolated(
    batch: _Batch, query: DhcpQuery, net: Net, client: DhcpClient | None
) -> DhcpAnswer | None:
    """Return the answer to a client on the network of an isolated vcluster; None for clients that
    are not the vcluster's nodes. A node's firmware and system get the same reserved address."""
    row = batch.bindings.get(query.mac, "vcluster", net.subnet.name)
    if client is None or row is None or query.stage == "trampoline":
        return None
    verdict = boot.decide(query, client, row.xid, batch.site.policy, batch.now)
    if verdict.noted:
        _record_doubt(batch, query, net, client, verdict.why)
    if verdict.event is not None:
        client = _apply_event(batch, client, verdict.event, verdict.why)
    if verdict.binding == "none" or client.state not in OWN_SYSTEM:
        return None  # its port is on its way back, where it is answered
    answer = _ANSWERS[query.kind](batch, query, net, client, row)
    return answer and replace(answer, network=net.subnet)


# ---------------------------------------------------------------- the five messages


def _discover(
    batch: _Batch, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding | None
) -> DhcpAnswer | None:
    until = batch.now + OFFER_TIME
    if row is not None and (row.kind == "vcluster" or row.expires_at >= until):
        # nothing to write: it is kept for longer already
        return _lend(batch, "OFFER", query, net, client, row)
    address = row.address if row else _free(batch, query, net, client)
    if address is None:
        _record_exhausted(batch, query, net, client)
        return None
    xid = row.xid if row else 0  # of the last exchange that was completed; see policy.boot
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
    batch: _Batch, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding | None
) -> DhcpAnswer | None:
    if query.server_id is not None and query.server_id not in batch.subnets.servers:
        if row is not None and row.state == "offered":
            batch.bindings.drop(row)  # it took another server's offer
        return None
    wanted = ipv4(query.requested or query.ciaddr)
    if row is None or row.address != wanted:
        return _nak(batch, query, net, row)
    client_id = query.client_id.hex()[:160] if query.client_id else None
    if row.kind == "boot":
        until = batch.now + batch.site.policy.boot_time
        repeated = boot.is_repeat(query, client.boot_served_at, row.xid, batch.now)
        batch.bindings.put(
            Binding(
                row.address,
                row.mac,
                "boot",
                client.id,
                row.subnet,
                hostname=None,
                state="bound",
                expires_at=until,
                client_id=client_id,
                xid=query.xid,
                acked_at=row.acked_at if repeated else batch.now,
            )
        )
    elif query.stage != "os":  # firmware in its vcluster's own network: its system is yet to ask
        batch.bindings.put(replace(row, xid=query.xid))
    elif (
        row.state != "bound"
        or row.client_id != client_id
        or (client.state == NodeState.BOOT and row.xid != query.xid)
    ):
        batch.bindings.put(
            replace(row, state="bound", client_id=client_id, xid=query.xid, acked_at=batch.now)
        )
    if row.kind == "vcluster" and query.stage == "os" and client.state == NodeState.BOOT:
        _note_booted(batch, client)
    return _lend(batch, "ACK", query, net, client, row)


def _decline(
    batch: _Batch, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding | None
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
    conflicts.add_once(
        batch.tx,
        "declined",
        about,
        batch.now,
        within=AGAIN,
        subnet=net.subnet.name,
        address=row.address,
        mac=query.mac,
    )
    if doubt:
        return
    until = batch.now + (DOUBTED_FOR if client.state == NodeState.NEW else DECLINED_FOR)
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
        batch.bindings.write()
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
    batch: _Batch, query: DhcpQuery, _net: Net, client: DhcpClient, row: Binding | None
) -> None:
    """RFC 2131 §4.3.4. The address of a machine that has never reported is free at once, and still
    its old client's first choice. A node keeps its addresses: COD takes them back itself, and
    anybody can send this message while the node boots."""
    if row is None or query.ciaddr != dotted(row.address) or client.state != NodeState.NEW:
        return
    batch.bindings.put(replace(row, state="offered", expires_at=batch.now))


def _inform(
    batch: _Batch, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding | None
) -> DhcpAnswer | None:
    """RFC 2131 §4.3.5: options without an address, for a client that has one of ours."""
    if row is None or query.ciaddr != dotted(row.address):
        return None
    return replace(_lend(batch, "ACK", query, net, client, row), yiaddr="0.0.0.0", lease_time=None)


_Answer = Callable[[_Batch, DhcpQuery, Net, DhcpClient, Binding | None], DhcpAnswer | None]
_ANSWERS: dict[str, _Answer] = {
    "DISCOVER": _discover,
    "REQUEST": _request,
    "DECLINE": _decline,
    "RELEASE": _release,
    "INFORM": _inform,
}


# ---------------------------------------------------------------- another DHCP server


def _is_others(batch: _Batch, query: DhcpQuery) -> bool:
    """Return whether the message of a node's system is for another DHCP server: it names one, or
    the site leaves systems' addresses to another."""
    if query.kind == "REQUEST" and query.server_id is not None:
        return query.server_id not in batch.subnets.servers
    theirs = batch.site.policy.os_addresses == "theirs"
    return theirs and query.kind in ("DISCOVER", "REQUEST", "DECLINE")


def _take_others(
    batch: _Batch, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding
) -> None:
    """Take the address that another server gives a node's system as the node's, where the site says
    so; else tell that the node waits in vain. COD hears the request alone: the other server's
    acknowledgement may be sent to the node only."""
    wanted = query.requested or (query.ciaddr if query.ciaddr != "0.0.0.0" else None)
    if query.kind != "REQUEST" or wanted is None or query.mac != client.boot_mac:
        return
    server = query.server_id or "which it does not name"
    if batch.site.policy.os_addresses != "theirs":
        _record_others(
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
        _record_others(
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


def _unusable(batch: _Batch, net: Net, client: DhcpClient, row: Binding, address: int) -> str:
    """Return why a node cannot have that address of another server; '' where it can."""
    if address == row.address:
        return ""
    if address not in net.network or address in net.avoid:
        return f"it is none of the hosts' addresses of subnet {net.subnet.name}"
    if net.owns(address):
        return f"it is in a pool of subnet {net.subnet.name}, which COD gives addresses of"
    there = batch.bindings.at(address)
    # what a system that nobody could switch off has left is for the other server to give
    if there and there.mac not in (None, row.mac) and there.expires_at > batch.now:
        return "another node has it"
    # An active node's address follows a boot alone: anybody can send a message in its name.
    served, rule = client.boot_served_at, NODE_RULES[NodeState.BOOT]
    latest = (served or 0.0) + (rule.deadline or 0.0) * batch.site.policy.patience
    if client.state == NodeState.ACTIVE and batch.now > latest:
        return "the node has not booted since it got another"
    return ""


def _record_others(
    batch: _Batch, query: DhcpQuery, net: Net, client: DhcpClient, about: str
) -> None:
    """Tell that a node's system takes an address of another server: on the node, as a conflict an
    hour, and by a notice of the first of all."""
    node = nodes.get(batch.tx, client.id)
    if node is not None and node.reason != about:
        nodes.change(batch.tx, node, reason=about)
    first = not conflicts.count_since(batch.tx, "dhcp", batch.now - OTHER_AGAIN)
    recorded = conflicts.add_once(
        batch.tx,
        "dhcp",
        about,
        batch.now,
        within=OTHER_AGAIN,
        subnet=net.subnet.name,
        mac=query.mac,
    )
    if recorded and first:
        text = notice_texts.other_dhcp_server(client.name, about)
        notices.add(batch.tx, **text, group_id=None, now=batch.now)


# ---------------------------------------------------------------- what is said


def _lend(
    batch: _Batch, kind: str, query: DhcpQuery, net: Net, client: DhcpClient, row: Binding
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


def _nak(batch: _Batch, query: DhcpQuery, net: Net, row: Binding | None) -> DhcpAnswer | None:
    wanted = query.requested or query.ciaddr
    if row is None and query.server_id not in batch.subnets.servers and not net.owns(ipv4(wanted)):
        return None
    return DhcpAnswer("NAK", "0.0.0.0", net.subnet.name, reason=f"{wanted} is not yours")


def _record_exhausted(batch: _Batch, query: DhcpQuery, net: Net, client: DhcpClient | None) -> None:
    name, pool = net.subnet.name, _boot_range(batch, net, client)
    part = "" if pool == net.pool else f" for machines that are not approved, {len(pool)} of its"
    about = f"the boot pool of subnet {name}{part} ({len(net.pool)} addresses) is empty"
    conflicts.add_once(
        batch.tx,
        "exhausted",
        about,
        batch.now,
        within=AGAIN,
        same=("subnet",),
        subnet=name,
        mac=query.mac,
    )


def _record_unfit(batch: _Batch, query: DhcpQuery, net: Net, why: str) -> None:
    """Tell the administrator of a machine that COD has no loader for: a conflict once a day, a
    notice of the first.

    Made-up machines cannot fill the database: there is a limit for all together.
    """
    about = f"{query.mac} asked to network-boot: {why}"
    recorded = conflicts.count_since(batch.tx, "architecture", batch.now - UNFIT_EVERY)
    if recorded < UNFIT_AT_MOST:
        conflicts.add_once(
            batch.tx,
            "architecture",
            about,
            batch.now,
            within=UNFIT_EVERY,
            same=("mac", "about"),
            subnet=net.subnet.name,
            mac=query.mac,
        )
    if not recorded:
        notices.add(batch.tx, **notice_texts.cannot_boot(about), group_id=None, now=batch.now)


def _record_moved(
    batch: _Batch, query: DhcpQuery, net: Net, client: DhcpClient, where: str
) -> None:
    """Tell that a node's MAC was heard elsewhere: a conflict an hour, and a notice of the first of
    all."""
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
    if (
        conflicts.add_once(
            batch.tx,
            "moved",
            about,
            batch.now,
            within=DOUBT_AGAIN,
            subnet=net.subnet.name,
            mac=query.mac,
        )
        and first
    ):
        notices.add(
            batch.tx,
            **notice_texts.asked_elsewhere(client.name, about),
            group_id=None,
            now=batch.now,
        )


def _record_doubt(batch: _Batch, query: DhcpQuery, net: Net, client: DhcpClient, why: str) -> None:
    about = (
        f"a machine with the MAC of {client.name} asked to network-boot, but {why}: another machine"
        " may use that MAC, or the node was reset a moment ago"
    )
    conflicts.add_once(
        batch.tx,
        "identity",
        about,
        batch.now,
        within=DOUBT_AGAIN,
        subnet=net.subnet.name,
        mac=query.mac,
    )


# ---------------------------------------------------------------- what it means for the node


def _looked_up(batch: _Batch, query: DhcpQuery, client: DhcpClient | None) -> DhcpClient | None:
    """Return the client with facts that only few answers need.

    They are `cycled`, whether its last transition was a timeout, and `sent_to_disk`, whether its
    boot script sent it to its disk. A diskless system never is sent there, nor is a node that waits
    to be captured.
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


def _make_room_for(batch: _Batch, query: DhcpQuery, net: Net) -> bool:
    """Return whether an unknown machine may be added. At the limit a machine that has never
    reported is forgotten in its favour. If there is none, the unknown machine gets no row, and
    administrators are told."""
    policy, name = batch.site.policy, net.subnet.name
    if not _admits(batch, query, name):
        _record_limited(
            batch,
            name,
            f"more than {policy.new_rate:g} a second asked to network-boot for longer than usual"
            " (policy.new_rate, new_burst). If nobody switched that many on, a machine there"
            " invents MAC addresses. True ones are registered when they ask again",
        )
        return False
    if _free(batch, query, net, None) is None:
        _record_exhausted(batch, query, net, None)
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
    _record_limited(
        batch,
        name,
        f"{policy.new_machines} machines are not approved yet, which is the limit"
        " (policy.new_machines). Approve or retire those that wait, or raise the limit",
    )
    batch.newcomers.refuse(query.mac, batch.now)
    return False


def _record_limited(batch: _Batch, name: str, why: str) -> None:
    """Tell the administrators once that new machines are refused."""
    about = f"new machines on subnet {name} are refused: {why}"
    if conflicts.add_once(
        batch.tx, "limited", about, batch.now, within=LIMITED_AGAIN, same=("subnet",), subnet=name
    ):
        notices.add(
            batch.tx, **notice_texts.new_machines_refused(name, about), group_id=None, now=batch.now
        )


def _enrol(batch: _Batch, query: DhcpQuery, net: Net) -> DhcpClient:
    """Add a machine as a new node; if its UUID is of a node that has not reported yet, add its MAC
    to that node instead.

    A node that has reported has all its NICs on record. A new MAC with its UUID is then another
    machine to which the maker gave the same UUID: a node without UUID is added for it.
    """
    uuid = query.uuid if identity.is_unique(query.uuid) else None
    known = nodes.by_uuid(batch.tx, uuid) if uuid else None
    unreported = known is not None and known.reported_at is None and known.state == NodeState.NEW
    if known is not None and unreported and nodes.count_macs(batch.tx, known.id) < MOST_NICS:
        nodes.add_mac(batch.tx, known.id, query.mac)
        return _client(batch, query.mac)
    if known is not None:
        about = (
            f"{query.mac} says it has the UUID of {known.name}, {uuid}, which has other network"
            " cards"
        )
        conflicts.add_once(
            batch.tx,
            "identity",
            about,
            batch.now,
            within=AGAIN,
            same=("subnet",),
            subnet=net.subnet.name,
            mac=query.mac,
        )
        uuid = None
    columns, cause = _newcomer(batch, query, uuid)
    nodes.add_all(batch.tx, [(columns, cause)], now=batch.now, actor="dhcp")
    return _client(batch, query.mac)


def _newcomer(batch: _Batch, query: DhcpQuery, uuid: str | None) -> tuple[dict[str, object], str]:
    """Return the columns of a machine that asks for the first time, and why it is added."""
    name = f"node-{query.mac.replace(':', '')}"
    driver, address, account = power.rule_for(batch.site.power, name, query.mac)
    columns: dict[str, object] = {
        "name": name,
        "boot_mac": query.mac,
        "uuid": uuid,
        "power_driver": driver,
        "power_address": address,
        "power_account": account,
    }
    return columns, f"asked to network-boot ({query.stage})"


def _client(batch: _Batch, mac: str) -> DhcpClient:
    batch.clients |= dhcp_batch.clients(batch.tx, [mac])
    return batch.clients[mac]


def _apply_event(batch: _Batch, client: DhcpClient, event: NodeEvent, why: str) -> DhcpClient:
    node = nodes.get(batch.tx, client.id)
    assert node is not None
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


def _note_booted(batch: _Batch, client: DhcpClient) -> None:
    """Note that a node's own system has its address: the node is active, unless its template has a
    readiness check.

    That check decides then; the binding's state says that it is time to look.
    """
    row = templates.get(batch.tx, client.template_id) if client.template_id else None
    if row is None or template.parse(row.document).ready != template.Ready():
        return
    node = nodes.get(batch.tx, client.id)
    assert node is not None
    cause = "its system got its address by DHCP"
    _moved(
        batch,
        transitions.booted(
            batch.tx, node, cause, now=batch.now, actor="dhcp", policy=batch.site.policy
        ),
    )


def _moved(batch: _Batch, moved: Node) -> DhcpClient:
    mine = [mac for mac, client in batch.clients.items() if client.id == moved.id]
    batch.clients.update(dhcp_batch.clients(batch.tx, mine))
    assert moved.state == batch.clients[mine[0]].state
    return batch.clients[mine[0]]
