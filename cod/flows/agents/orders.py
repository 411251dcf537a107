"""A node's present order. Derived from its row each time, so nothing is queued, lost or out of
date.

=============  ========  ===================================================================
state          action    why
=============  ========  ===================================================================
wipe           wipe
prime          prime     from its template, the template's images, and its place in its vcluster
capture        capture   of the disk that its template was written to, to the image server
burnin         burnin    its memory, disks and network; disks are written only while they are clean
boot           reboot    into its vcluster's system
active         reboot    its system should run, but its agent is connected: the next boot loads
                         the system
off            off       was told to power down
trampoline     look      it is held, and its agent has not told what its disks hold
all others     wait      nothing is wanted, or nothing is decided yet
=============  ========  ===================================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from cod.choices import Wipe
from cod.core import seed_parts
from cod.core.nodes import (
    blame,
    image_sources,
    kept_disks,
    keytabs,
    next_order,
    transitions,
)
from cod.model import (
    Assignment,
    ChunkKeys,
    Effect,
    HostKeyMaker,
    ImageMirror,
    Inviter,
    Node,
    Refused,
    Result,
    Site,
    Subnet,
    Unsealer,
    Vcluster,
    owner_of,
)
from cod.orders import BurninPlan, Deposit, Order, current_id, look_id
from cod.policy.hardware import keep_marks, wiping
from cod.policy.nodes import capture, inner_vcm, place, prime, seed, template
from cod.policy.nodes import host_keys as host_key_policy
from cod.policy.people import kerberos
from cod.states import NODE_RULES, Disk, NodeEvent, NodeState
from cod.store import dns_zones, stories, vcms
from cod.store.engine import Tx
from cod.store.images import images, templates
from cod.store.nodes import blocks, burnins, captures, holding, host_keys, nodes, sessions
from cod.store.people import sshkeys
from cod.store.scheduler import vclusters

KEEP = "keep"  # the field of a refusal because a disk that is marked keep is in the way


def current(
    tx: Tx,
    node: Node,
    site: Site,
    address: str = "",
    *,
    inviter: Inviter | None = None,
    maker: HostKeyMaker | None = None,
    unseal: Unsealer | None = None,
    now: float = 0.0,
) -> Order:
    """Return the node's order. Raises `Refused` if the template cannot be carried out on the node
    (any more), which counts as a failure of priming.

    address  the agent's; its subnet decides from which address of COD it fetches images
    inviter  makes the invitation of the vcluster's VCM, if the VCM runs on this node
    maker    makes the node's SSH host key
    unseal   opens the node's keytab
    now      when the invitation and the host key are made
    """
    order_id, spared = next_order.order_id(node), next_order.spared(node, site)
    action = next_order.ACTIONS.get(NodeState(node.state))
    if node.state == NodeState.TRAMPOLINE and stories.is_asked(tx, node.id):
        # An agent takes a second order with the same id for a repeat, and a database that was
        # restored gives ids again. So this order has an id of its own.
        look = look_id(order_id)
        return Order(look, "look", wipe=False, keep=spared, installation=True)
    if action == "capture":
        servers = _subnet(site, address).servers
        urls = [f"http://{each}:{site.boot.http_port}/captures/{order_id}" for each in servers]
        order = _capture(tx, node, order_id, urls, site.policy.patience)
        return replace(order, keep=spared)
    if action == "burnin":
        plan = _burnin(
            tx,
            node,
            f"http://{_server(site, address)}:{site.boot.http_port}/files/trampoline/ramdisk",
        )
        return Order(order_id, action, wipe=False, keep=spared, burnin=plan)
    if action != "prime":
        return next_order.plain(node, site)
    wanted = holding.assignment(tx, node)
    if wanted is None:
        raise Refused("conflict", "nobody holds the node any more")
    server = _server(site, address)
    configuration = template.parse(wanted.document)
    order = _prime(tx, node, order_id, wanted, configuration, site, address)
    purge = Wipe.PURGE in (node.wipe, site.policy.wipe)
    order = replace(order, purge=purge and order.wipe)
    vcluster = vclusters.get(tx, node.vcluster_id or 0)
    # With `seedfrom`, cloud-init reads no vendor data of the seed, and makes its host keys itself.
    brings = configuration.seed and not configuration.own_host_keys and not configuration.seedfrom
    keyed = _host_key(tx, node, order_id, maker if brings else None, vcluster, now)
    if not configuration.seed:
        return replace(order, keep=spared)
    domain = f"{vcluster.name}.{site.domain}" if vcluster else site.domain
    fqdn = f"{node.hostname or node.name}.{domain}"
    keyed += _keytab(tx, fqdn, order_id, site, configuration, unseal)
    subnet = seed_parts.system_subnet(tx, vcluster, site)
    keys = sshkeys.of_group(tx, wanted.group_id)
    parts = [*keyed, *seed_parts.parts(vcluster, subnet, wanted, keys, site)]
    if inviter is not None:
        parts += _vcm_inside(tx, node, order_id, site, server, inviter, now)
    files = seed.seed_files(
        configuration,
        instance=order_id,
        fqdn=fqdn,
        mac=node.boot_mac,
        parts=parts,
        url=seed_parts.metadata_url(subnet.server, site),
    )
    return replace(order, keep=spared, seed=files)


def _prime(
    tx: Tx,
    node: Node,
    order_id: str,
    wanted: Assignment,
    configuration: template.Configuration,
    site: Site,
    address: str,
) -> Order:
    images_by_name = images.resolve(tx, template.image_names(configuration), owner_of(wanted.name))
    report = keep_marks.marked(node.attributes or "", keep_marks.marks(node, site.keep))
    if report and (why := keep_marks.in_the_way(configuration.disk, report)):
        raise Refused("conflict", why, KEEP)
    subnet, cache = _subnet(site, address), _mirror(tx, node, site, address)
    base, *others = [f"http://{each}:{site.boot.http_port}/images" for each in subnet.servers]
    mirror = f"{cache.base}/images" if cache else ""
    if others and not mirror:  # this server comes first; another serves the rest if it fails
        mirror, base = base, others[0]
    parts = prime.resolve(configuration, report, images_by_name, base, site.types, mirror)
    # Disks need no wipe if they were wiped and not written to since, or hold data of the node's own
    # group alone. All other disks are wiped, such as one that was marked keep until now.
    clean = node.disk == Disk.CLEAN or wiping.is_kept_for(node, wanted.group_id)
    clean = clean and not keep_marks.unkept(node.attributes, report)
    return Order(
        order_id,
        "prime",
        disk=parts.disk,
        wipe=not clean,
        verify=parts.verify,
        table=parts.table,
        partitions=parts.partitions,
        images=parts.images,
        sector=parts.sector,
    )


def _host_key(
    tx: Tx,
    node: Node,
    order_id: str,
    maker: HostKeyMaker | None,
    vcluster: Vcluster | None,
    now: float,
) -> list[seed.SeedPart]:
    """Return the seed part with the node's private SSH host key, and store the public key. Without
    a `maker`, return no part and delete the stored key. An order that is made again has the same
    key."""
    parts: list[seed.SeedPart] = []
    if maker is None:
        changed = host_keys.forget(tx, node.id)
    else:
        salt = host_keys.salt(tx, node.id, order_id) or maker.salt
        key, private = maker.make(salt, order_id)
        changed = host_keys.put(tx, node.id, key, order_id=order_id, salt=salt, now=now)
        parts.append(host_key_policy.seed_part(key, private))
    if changed and vcluster is not None:
        dns_zones.touch(tx, [("vcluster", vcluster.name)], now)
    return parts


def _keytab(
    tx: Tx,
    host: str,
    order_id: str,
    site: Site,
    configuration: template.Configuration,
    unseal: Unsealer | None,
) -> list[seed.SeedPart]:
    """Return the seed part with the keytab for the host name `host`; no part if the node gets no
    keytab."""
    if unseal is None or not kerberos.has_keytab(site.kerberos, configuration):
        return []
    sealed = host_keys.sealed_keytab(tx, host, order_id)
    keytab = unseal(sealed, order_id) if sealed is not None else None
    if keytab is None:
        raise Refused("conflict", "its keytab is missing, or was sealed by another authority")
    return [kerberos.keytab_part(keytab)]


def _vcm_inside(
    tx: Tx, node: Node, order_id: str, site: Site, server: str, inviter: Inviter, now: float
) -> list[seed.SeedPart]:
    """Return the part of the node's seed with the invitation for the vcluster's VCM; nothing if the
    VCM does not run on this node. An order's invitation is always the same one, so an order that is
    sent again does not invite twice."""
    vcluster = vclusters.get(tx, node.vcluster_id or 0)
    if vcluster is None or not site.nmp.port or not vcms.runs_on(tx, vcluster.id, node.hostname):
        return []
    vcm = vcms.get(tx, vcluster.id, lock=True)  # the VCM may be enrolled anew at this moment
    if vcm is None or vcm.head != node.hostname:
        return []
    secret = inviter.invitation(inner_vcm.words(vcluster.id, vcm.enrolled_at, order_id))
    vcms.invite(
        tx,
        vcm,
        node_id=node.id,
        digest=hashlib.sha256(secret.encode()).hexdigest(),
        expires_at=now + inner_vcm.LASTS,
    )
    near = next((each.servers for each in site.subnets if each.server == server), (server,))
    servers = [f"{each}:{site.nmp.port}" for each in seed_parts.servers_of(site, near)]
    return [inner_vcm.seed_part(vcluster.name, servers, inviter.authority, secret)]


def _capture(tx: Tx, node: Node, order_id: str, urls: Sequence[str], site_patience: float) -> Order:
    row = captures.get(tx, node.id)
    # less than the node's deadline: an agent that gives up by itself keeps what was sent
    patience = 0.8 * (NODE_RULES[NodeState.CAPTURE].deadline or 0.0) * site_patience
    if row is None or row.generation != node.generation or not row.secret:
        raise Refused("conflict", "nobody wants its capture any more")
    source = templates.get(tx, row.source_id) if row.source_id is not None else None
    disk = capture.where(None, {})
    if source is not None:
        configuration = template.parse(source.document)
        images_by_name = images.resolve(
            tx, template.image_names(configuration), owner_of(source.name)
        )
        disk = capture.where(configuration, images_by_name)
    return Order(
        order_id,
        "capture",
        disk=disk.rule,
        wipe=False,
        sector=disk.sector,
        deposit=Deposit(
            urls[0], row.secret, disk.least, row.what, int(patience), " ".join(urls[1:])
        ),
    )


def _burnin(tx: Tx, node: Node, url: str) -> BurninPlan:
    """Return the tests of a node's burn-in. Its neighbour for the network test is the node of its
    subnet whose burn-in began last before its own: that node's agent listens already."""
    row = burnins.open_of(tx, node.id)
    if row is None or row.generation != node.generation:
        raise Refused("conflict", "nobody wants its burn-in any more")
    others = burnins.running(tx, node.id)
    reached = {
        each.node_id: session.address
        for each in others
        if (session := sessions.get(tx, each.node_id))
    }
    near = (
        each
        for each in others
        if each.node_id in reached
        and "network" in each.tests
        and each.secret
        and (other := nodes.get(tx, each.node_id)) is not None
        and other.subnet == node.subnet
    )
    peer = next(near, None)
    tests = row.tests.split(",")
    return BurninPlan(
        "memory" in tests,
        "disk" in tests,
        "network" in tests,
        row.seconds,
        node.disk == Disk.CLEAN,
        url,
        row.secret,
        reached[peer.node_id] if peer else "",
        peer.secret if peer else "",
    )


def _mirror(tx: Tx, node: Node, site: Site, address: str) -> ImageMirror | None:
    """Return the cache through which the node, whose agent is at `address`, fetches images."""
    named = node.block_id is not None and any(each.blocks for each in site.mirrors)
    block = blocks.names(tx).get(node.block_id or 0, "") if named else ""
    return prime.mirror_for(site.mirrors, _subnet(site, address).name, block)


def _server(site: Site, address: str) -> str:
    """Return the address by which the agent at `address` reaches COD."""
    return _subnet(site, address).server


def _subnet(site: Site, address: str) -> Subnet:
    """Return the subnet of the agent at `address`; the first where it is in none."""
    return (place.subnet_at(site.subnets, address) if address else None) or site.subnets[0]


def any_waiting(tx: Tx, server: str, site: Site) -> bool:
    """Return whether an order can be sent on any connection of `server`. Reads only."""
    return bool(sessions.waiting(tx, server, _await_keytabs(tx, site), 1))


def _await_keytabs(tx: Tx, site: Site) -> set[int]:
    return keytabs.awaiting(tx, site) if site.kerberos.keytab_command else set()


def waiting(
    tx: Tx,
    server: str,
    site: Site,
    now: float,
    inviter: Inviter | None = None,
    maker: HostKeyMaker | None = None,
    unsent: set[tuple[int, int]] | None = None,
    chunk_keys: ChunkKeys | None = None,
    unseal: Unsealer | None = None,
) -> Result[list[tuple[int, int, Order]]]:
    """Return the orders to send now, as (node id, epoch of its connection, order): one for each of
    `server`'s connections whose node has another order than the one last sent.

    The orders count as sent from now on: if the server dies before it sends them, its connections
    end, too. An agent recognises an order that is sent twice by its id. An order that is never sent
    would be missed until a deadline.

    unsent      (node id, epoch) of orders that count as sent and may not have been: they are sent
                again. Each order that is returned is added to the set, even if the transaction
                cannot be committed, so that the next run misses none
    chunk_keys  keys with which nodes pass images on to each other; None: nodes do not do so
    unseal      opens nodes' keytabs; a node waits for its order until its keytab is made, and does
                not delay other nodes
    """
    orders: list[tuple[int, int, Order]] = []
    effects: list[Effect] = []
    unsent = set() if unsent is None else unsent
    sessions.set_sent(tx, [(node_id, epoch, "") for node_id, epoch in unsent])
    for node, session in sessions.waiting(tx, server, _await_keytabs(tx, site)):
        try:
            if node.state == NodeState.WIPE:  # disks that the order spares must not count as erased
                node = kept_disks.remark(tx, node, site, now)
            order = current(
                tx,
                node,
                site,
                session.address,
                inviter=inviter,
                maker=maker,
                unseal=unseal,
                now=now,
            )
        except Refused as refusal:
            reason = f"its order cannot be given: {refusal.sentence}"
            cause = "kept" if refusal.field == KEEP else "order"
            step = blame.on_trouble(tx, node, NodeEvent.FAILED, reason, site.policy, cause)
            moved = transitions.apply(tx, node, step, now=now, actor="confd", policy=site.policy)
            effects += transitions.wakes(node, moved)
        else:
            orders.append((node.id, session.epoch, order))
    if chunk_keys and site.images.pass_on and any(each.images for _, _, each in orders):
        orders = image_sources.appoint(tx, orders, site, chunk_keys, now)
    sent = [
        (node_id, epoch, order.id if order.action != "look" else current_id(order.id))
        for node_id, epoch, order in orders
    ]
    sessions.set_sent(tx, sent)
    unsent.update((node_id, epoch) for node_id, epoch, _ in orders)
    return Result(orders, tuple(effects))
