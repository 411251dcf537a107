"""Which order a node has now. Derived from its row each time, so nothing is queued, lost or out of date.

=============  ========  =====================================================================================
state          action    why
=============  ========  =====================================================================================
wipe           wipe
prime          prime     from its template, the images of that, and its place in its vcluster
capture        capture
boot           reboot    into its vcluster's system
active         reboot    its system is said to run, but its agent is here: the boot decision sends it home
off            off       was told to power down
all others     wait      nothing is wanted, or nothing is decided yet
=============  ========  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence

from cod.model import Effect, Node, Refused, Result, Site, ipv4
from cod.orders import Order
from cod.policy import lifecycle, prime, template
from cod.policy.subnets import numbers
from cod.states import Disk, NodeEvent, NodeState
from cod.store import images, sessions, steps
from cod.store.engine import Tx

_ACTIONS = {
    NodeState.WIPE: "wipe",
    NodeState.PRIME: "prime",
    NodeState.CAPTURE: "capture",
    NodeState.BOOT: "reboot",
    NodeState.ACTIVE: "reboot",
    NodeState.OFF: "off",
}


def current(tx: Tx, node: Node, site: Site, address: str = "") -> Order:
    """The node's order. `address`: where its agent is, which decides by which of COD's addresses it fetches images.

    Raises `Refused` when its template cannot be carried out on it (any more): that is a failure of priming.
    """
    order_id = f"{node.id}.{node.generation}"
    action = _ACTIONS.get(NodeState(node.state), "wait")
    if action != "prime":
        return Order(order_id, action)
    wanted = steps.wanted(tx, node)
    if wanted is None:
        raise Refused("conflict", "nobody holds the node any more")
    return _prime(tx, node, order_id, template.parse(wanted.document), site, _server(site, address))


def _prime(
    tx: Tx, node: Node, order_id: str, configuration: template.Configuration, site: Site, base: str
) -> Order:
    there = images.named(tx, template.image_names(configuration))
    parts = prime.resolve(configuration, node.attributes or "", there, base, site.types)
    seed = prime.seed_files(configuration, instance=order_id, hostname=node.hostname or node.name)
    # A disk that was wiped and not written since needs no second wipe; anything else does.
    return Order(order_id, "prime", disk=parts.disk, wipe=node.disk != Disk.CLEAN, verify=parts.verify,
                 table=parts.table, partitions=parts.partitions, images=parts.images, seed=seed)


def _server(site: Site, address: str) -> str:
    nets = map(numbers, site.subnets)
    here = next((net.subnet for net in nets if address and ipv4(address) in net.network), site.subnets[0])
    return f"http://{here.server}:{site.http_port}/images"


def any_waiting(tx: Tx, server: str) -> bool:
    """Does any connection of `server` wait for an order? Reads only."""
    return bool(sessions.waiting(tx, server, 1))


def waiting(tx: Tx, server: str, site: Site, now: float) -> Result:
    """The orders to be sent now: (node id, epoch of its connection, order) for each of `server`'s connections whose
    node has another order than the one last sent. Whoever has sent them says so by `sent`; an order that is sent twice
    is the same order to its agent, and one that is not sent would be missed until a deadline.
    """
    orders: list[tuple[int, int, Order]] = []
    effects: list[Effect] = []
    for node, session in sessions.waiting(tx, server):
        try:
            order = current(tx, node, site, session.address)
        except Refused as refusal:
            effects += _impossible(tx, node, refusal.sentence, site, now)
        else:
            orders.append((node.id, session.epoch, order))
    return Result(orders, tuple(effects))


def sent(tx: Tx, orders: Sequence[tuple[int, int, str]]) -> None:
    """(node id, epoch of its connection, order's id): those orders were written to their connections."""
    for node_id, epoch, order_id in orders:
        sessions.set_sent(tx, node_id, epoch, order_id)


def _impossible(tx: Tx, node: Node, reason: str, site: Site, now: float) -> tuple[Effect, ...]:
    step = lifecycle.on_trouble(node, NodeEvent.FAILED, f"its template cannot be used: {reason}", site.policy)
    return steps.wakes(node, steps.apply(tx, node, step, now=now, actor="confd", policy=site.policy))
