"""Deadlines: the consequences when an expected event does not come. The manager runs `run` every
second or so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from cod.choices import Wipe
from cod.core import volumes
from cod.core.networks import isolation
from cod.core.nodes import blame, keytabs, outages, reinstalls, transitions
from cod.core.nodes import burnins as core
from cod.model import Effect, Node, Site
from cod.policy.nodes import burnin, lifecycle
from cod.policy.scheduler import reserve_pool
from cod.states import (
    KERBEROS,
    NODE_RULES,
    POWER_CONTROL,
    WORKING,
    Disk,
    Fault,
    NodeEvent,
    NodeState,
    Step,
)
from cod.store import claims
from cod.store.engine import Tx
from cod.store.nodes import burnins, captures, conflicts, holding, nodes, power, sessions
from cod.store.scheduler import reservations

OTHER_AGAIN = 3600.0  # seconds in which another DHCP server is recorded once for a node
MOST = 50  # nodes moved by one transaction: tens of milliseconds
# heartbeats after which a warm node without a connection is lost, whoever held the connection
SILENCE = 12
HOLDER_WAITS = 1800.0  # seconds that a holder waits for one node's power driver


def run(
    tx: Tx, site: Site, now: float, started: float = 0.0, claim: claims.Claim | None = None
) -> list[Effect]:
    """Act on nodes with something due: those that have rested in the trampoline, that are kept for
    a group that is gone, overdue, silent in the warm reserve, or out of service until now.

    started  when this server began to listen: silence does not count until agents have had time to
             connect again

    At most `MOST` nodes are moved, to keep the transaction short when very many are overdue. The
    next run moves others. Raises `claims.Lost`.
    """
    effects: list[Effect] = []
    has_written = False
    for node, step in islice(_due(tx, site, now, started), MOST):
        has_written = True
        if step is not None:
            moved = transitions.apply(tx, node, step, now=now, actor="deadline", policy=site.policy)
            effects += transitions.wakes(node, moved)
    advanced = reinstalls.advance(tx, now=now, policy=site.policy)
    has_notified = outages.look(tx, now)
    if claim is not None and (has_written or advanced.value or has_notified):
        claims.confirm(tx, claim)
    return list(dict.fromkeys([*effects, *advanced.effects]))


def _test_again(tx: Tx, site: Site, now: float) -> Iterator[tuple[Node, Step]]:
    """Yield the step that begins a periodic burn-in on a free node whose last one is too long ago.
    Only one node is tested at a time, so that the others stay available."""
    due = burnins.stale(tx, now - site.burnin.every) if site.burnin.every else None
    node = nodes.get(tx, due, lock=True) if due is not None else None
    if node is None or node.state != NodeState.INACTIVE or node.vcluster_id is not None:
        return
    core.ask(tx, node, site, now, cause=core.AGAIN, actor="deadline")
    row = burnins.wanted(tx, node.id)
    assert row is not None
    reservations.drop(tx, [node.id])
    yield node, burnin.begin(node, row)


def _due(tx: Tx, site: Site, now: float, started: float) -> Iterator[tuple[Node, Step | None]]:
    """Yield each node with something due, and its step; None if only the node's deadline was
    moved."""
    patience = SILENCE * site.policy.heartbeat
    for node in sessions.to_settle(tx, now - patience):
        if lifecycle.rested(node, site.policy, now):
            core.ask_after_failures(tx, node, site, now)
            wanted, work = holding.assignment(tx, node), burnins.what_waits(tx, node.id)
            tables = site.policy.wipe == Wipe.TABLES
            yield node, lifecycle.settle(node, wanted, work.capture, work.burnin, tables=tables)
    if site.policy.wipe == Wipe.TABLES:  # otherwise no node is kept for long
        for node in nodes.kept_for_nobody(tx):
            yield node, Step(NodeEvent.WIPE_ORDERED, lifecycle.KEPT_FOR_NOBODY)
    if now >= started + patience:
        for node in nodes.overdue(tx, now):
            if node.state == NodeState.QUARANTINED:
                if nodes.get(tx, node.id, lock=True) != node:
                    continue  # its time out of service may have been extended since it was read
                core.ask_on_return(tx, node, site, now, "deadline")
                because = f"its time out of service is over: {node.reason}"
                yield node, lifecycle.restored(node, because)
            else:
                waits = _waits(tx, node, site, now)
                yield node, None if waits else _overdue(tx, node, site, now)
        for node in sessions.silent(tx, now - patience):
            sessions.forget(tx, node.id)
            yield node, Step(NodeEvent.LOST, "nothing was heard of it", {"reason": "lost"})
    yield from _test_again(tx, site, now)


def _waits(tx: Tx, node: Node, site: Site, now: float) -> bool:
    """Suspend the node's deadline while its switch, file server or power driver does not answer or
    its keytab is not made; return whether it is suspended. Afterwards the node has a whole deadline
    again."""
    way, since = isolation.way_down(tx, node)
    way = way or volumes.way_down(tx, node)
    if not way and node.waits_for == POWER_CONTROL and power.newest(tx, node.id) is not None:
        if _waited_enough(tx, node, now):
            return False
        way = POWER_CONTROL
    if not way and node.state == NodeState.PRIME and node.id in keytabs.awaiting(tx, site):
        way = KERBEROS
    if not way and not node.waits_for:
        return False
    values = {"waits_for": way, "waits_since": node.waits_since or since or now if way else None}
    nodes.change(tx, node, **values)
    whole = NODE_RULES[NodeState(node.state)].deadline or 0.0
    nodes.set_deadline(tx, node, now + whole * site.policy.patience)
    return True


def _waited_enough(tx: Tx, node: Node, now: float) -> bool:
    """Return whether the node has waited so long for its power driver that its holder gets another
    node. A node is not replaced if it has the holder's system on its disks or is to be captured."""
    waited = now - (node.waits_since or now)
    data = node.disk == Disk.SYSTEM or captures.is_wanted(tx, node.id)
    return node.vcluster_id is not None and not data and waited >= HOLDER_WAITS


def _overdue(tx: Tx, node: Node, site: Site, now: float) -> Step:
    if node.waits_for == POWER_CONTROL:
        reason = f"power control has not answered for {now - (node.waits_since or now):.0f} s"
        return lifecycle.given_back(NodeEvent.TIMED_OUT, reason, node.power_wanted, Fault.WAY)
    power_trouble, port_trouble = power.trouble(tx, node), isolation.trouble(tx, node)
    rule = NODE_RULES[NodeState(node.state)]
    # in a working state, each sign of progress moves the deadline
    if node.state in WORKING or node.deadline is None:
        waited = (rule.deadline or 0.0) * site.policy.patience
    else:
        waited = node.deadline - node.since
    reason = f"no sign of progress for {waited:.0f} s in state {node.state} ({rule.about})"
    if power_trouble:
        reason += f"; power: {power_trouble}"
    if port_trouble:
        reason += f"; {port_trouble}"
    if node.state == NodeState.BOOT and (
        other := conflicts.newest(tx, "dhcp", node.boot_mac, node.since - OTHER_AGAIN)
    ):
        reason += f"; {other}"
    step = blame.on_trouble(tx, node, NodeEvent.TIMED_OUT, reason, site.policy)
    if node.state != NodeState.TRAMPOLINE or step.event is not NodeEvent.TIMED_OUT:
        return step
    # The node is switched on once more: its deadline is that of a single node that is woken, and
    # later than the end of its rest.
    again = max(reserve_pool.wake_deadline(site.energy, 1), 2 * lifecycle.rest(node.attempts + 1))
    return replace(step, columns={**step.columns, "deadline": now + again * site.policy.patience})
