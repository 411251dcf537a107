"""Hardware reports: they set a node's attributes, type and NICs, and may change its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cod import notice_texts
from cod.core import notices
from cod.core.networks import switch_ports
from cod.core.nodes import boot_evidence, burnins, next_order, node_places, transitions
from cod.model import Effect, Node, NodeType, Peer, Refused, Result, Site
from cod.orders import Order
from cod.policy.hardware import equal, identity, keep_marks
from cod.policy.nodes import lifecycle, place
from cod.states import UNAPPROVED, Disk, NodeEvent, NodeState, Step
from cod.store import stories
from cod.store.engine import Tx
from cod.store.nodes import conflicts, holding, nodes, sessions, types
from cod.store.scheduler import reservations, vclusters

AGAIN = 3600.0  # seconds in which the same machine's conflict is recorded once


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    """The agent's connection, whose node may be another one now, and the order that the agent gets
    with the answer to its report; None: it gets none yet."""

    peer: Peer
    order: Order | None


_REGISTERED = Step(NodeEvent.REGISTERED, "its first hardware report")
_APPROVED = Step(NodeEvent.APPROVED, "the site approves new machines by itself")


def report(
    tx: Tx,
    peer: Peer,
    document: str,
    site: Site,
    now: float,
    *,
    heard_on: Sequence[tuple[str, ...]] = (),
) -> Result[ReportAnswer | str]:
    """Store a hardware report; `document` was checked against its schema. Return a `ReportAnswer`,
    or, as a string, the sentence with which the report is refused.

    A report is stored in every state of its node. It changes the state only of a node that waits
    for it: a new machine is registered, a node in the trampoline is settled. A repeated report
    updates the time of the last report alone.

    heard_on  the ports at which the switches' MAC address tables show the NIC, each with all its
              names
    """
    node, session = sessions.of_peer(tx, peer)
    if session.reported and _tells_nothing_new(tx, node, peer, document, site):
        if node.reported_at == now:  # an earlier run of this flow has been committed
            answer = next_order.answer(tx, node, session, peer, site, now)
            return Result(ReportAnswer(peer, answer))
        nodes.change(tx, node, reported_at=now, last_seen=now)
        return Result(ReportAnswer(peer, None))
    hardware = identity.read(document)
    near = nodes.neighbours(tx, node.id, hardware.macs, hardware.uuid, hardware.serial)
    joining = _join(tx, node, peer, hardware, near.owners, near.twins, site, now)
    if joining.refused:
        return Result(joining.refused)
    owner = (nodes.get(tx, joining.heir) if joining.heir is not None else None) or node
    absorbed = [each for one in joining.absorb if (each := nodes.get(tx, one)) is not None]
    kept = keep_marks.together(each.keep for each in (owner, *absorbed))
    document = equal.steady(document, node.attributes)
    document = keep_marks.stored(document, replace(owner, keep=kept), site.keep)
    try:
        kind = _type_of(tx, owner, document, site, now)
    except Refused as refused:
        return Result(refused.sentence)
    node, peer = _unite(tx, node, peer, joining, site, now)
    here = place.subnet_at(site.subnets, session.address)
    columns = {
        **keep_marks.changed(node, document),
        "attributes": document,
        "reported_at": now,
        "last_seen": now,
        "uuid": joining.uuid,
        "serial": hardware.serial or node.serial,
        "firmware": hardware.firmware,
        "type_id": kind.id,
        "subnet": here.name if here else node.subnet,
        "keep": kept,
        "boot_mac": node.boot_mac if node.vcluster_id else peer.mac,
    }
    stored = nodes.changed(node, columns)
    if node.type_id is not None and kind.id != node.type_id:
        # the reservation that the node was kept for may have no use for its new type
        reservations.drop(tx, [node.id])
        _tell_change(tx, node, stored, kind, site, now)
    if joining.heir is not None or near.owners or near.macs != set(hardware.macs):
        nodes.set_macs(tx, node.id, hardware.macs)
    others = joining.heir is not None  # these are labels and places of another row
    nodes.set_labels(tx, node.id, hardware.labels, None if others else near.labels)
    placed = near.placed or others
    remembered, moved = _place(tx, stored, peer, hardware, site, now, heard_on, placed=placed)
    columns.update(remembered)
    stored = nodes.changed(node, columns)
    after = _move_on(tx, stored, columns, moved, site, now, is_doubtful=near.is_doubtful)
    order = next_order.answer(tx, after, session, peer, site, now, reports=True)
    effects = transitions.wakes(stored, after, look=order is None)
    # after a transition, `wakes` has this effect already
    if order is None and not session.reported and after.generation == stored.generation:
        effects = (*effects, Effect("wake", "orders"))
    return Result(ReportAnswer(peer, order), effects)


def _tells_nothing_new(tx: Tx, node: Node, peer: Peer, document: str, site: Site) -> bool:
    """Return whether a report need not be processed: it equals the node's last one, the node waits
    for no report, and there is nothing to compare the report with, such as keep marks, switch
    ports, places of the node, or nodes with the same UUID or serial number."""
    if (
        document != node.attributes
        or node.boot_mac != peer.mac
        or node.boot_unordered
        or node.state in (NodeState.TRAMPOLINE, *UNAPPROVED)
        or node.uuid is None
        or node.keep
        or site.keep
        or site.switches
    ):
        return False
    near = nodes.neighbours(tx, node.id, (), node.uuid, node.serial)
    return not (near.twins or near.placed)


def _join(
    tx: Tx,
    node: Node,
    peer: Peer,
    hardware: identity.Hardware,
    owners: Mapping[str, Node],
    twins: Sequence[Node],
    site: Site,
    now: float,
) -> identity.Joining:
    """Return which other nodes are the same machine as the reporting node, by MACs, UUID and serial
    number. Record as conflicts what an administrator has to check."""
    connected = sessions.connected(tx, [other.id for other in (*owners.values(), *twins)])
    joining = identity.join(node, peer.mac, hardware, owners, twins, connected)
    if joining.refused:
        conflicts.add_once(tx, "identity", joining.refused, now, within=AGAIN, mac=peer.mac)
        return joining
    if joining.doubtful and not site.policy.auto_approve:
        joining = identity.Joining()  # the machine stays a node of its own, and waits for approval
    same = [twin for twin in twins if hardware.uuid and twin.uuid == hardware.uuid]
    awaited = [twin for twin in twins if hardware.serial and twin.serial == hardware.serial]
    if same and joining.uuid is None:
        _record(
            tx,
            node,
            f"{node.name} reports the UUID of {_names(same)}, {same[0].uuid}, but none of its"
            " network cards: it stays a node of its own. If it is the same machine, retire the"
            " older node",
            now,
        )
    elif awaited and joining.heir is None:
        _record(
            tx,
            node,
            f"{node.name} reports the serial number of {_names(awaited)}, {hardware.serial}, and"
            " is not that machine by the rest of what was entered: it stays a node of its own. If"
            f" it is the same machine, delete {_names(awaited)}, or correct the list",
            now,
        )
    if node.state == NodeState.EXPECTED and (
        differs := identity.unexpected(node, peer.mac, hardware)
    ):
        expected = ", ".join(f"the {what} {was}" for what, was, _ in differs)
        reports = ", ".join(f"the {what} {is_}" for what, _, is_ in differs)
        _record(
            tx,
            node,
            f"{node.name} is expected with {expected}; its machine reports {reports}: compare them"
            " before you approve it",
            now,
        )
    return joining


def _names(nodes_: Sequence[Node]) -> str:
    return ", ".join(sorted(node.name for node in nodes_))


def _record(tx: Tx, node: Node, about: str, now: float) -> None:
    conflicts.add_of(tx, node, "identity", about, now, within=AGAIN)


def _type_of(tx: Tx, node: Node, document: str, site: Site, now: float) -> NodeType:
    """Return the type of the node by its new marked report. A type that is new only because
    trampolines report more than they did takes over the cost and marks of the node's former
    type."""
    canonical = equal.canonical(document, site.types)
    known = types.known(tx, canonical)
    if known is not None:
        return known
    before = types.get(tx, node.type_id) if node.type_id is not None else None
    like = before if before is not None and equal.tells_more(before.attributes, canonical) else None
    return types.of(tx, canonical, now, system=equal.system(canonical), like=like)


def _tell_change(tx: Tx, before: Node, after: Node, kind: NodeType, site: Site, now: float) -> None:
    """Report that a node's hardware has changed, by a conflict and by notices to the administrators
    and to the node's holder.

    Do nothing if the node's type differs only because the site's rules for types have changed: both
    reports are equal by the new rules.
    """
    if before.type_id is None or before.attributes is None:
        return
    marked = keep_marks.marked(before.attributes, keep_marks.marks(after, site.keep))
    was = equal.canonical(marked, site.types)
    changes = equal.differences(was, kind.attributes)
    about = f"{after.name}: {equal.sentence(changes)}"
    if not changes or not conflicts.add_of(tx, after, "hardware", about, now, within=AGAIN):
        return
    holder = vclusters.get(tx, after.vcluster_id) if after.vcluster_id is not None else None
    wanted = holding.assignment(tx, after)
    notice = notice_texts.hardware_changed(
        after.name,
        types.get(tx, before.type_id).name,
        kind.name,
        holder.name if holder else None,
        lifecycle.lacks(wanted) if wanted else "",
        equal.sentence(changes),
    )
    for group_id in (None, holder.group_id) if holder else (None,):
        notices.add(
            tx, **notice, group_id=group_id, vcluster_id=holder.id if holder else None, now=now
        )


def _unite(
    tx: Tx, node: Node, peer: Peer, joining: identity.Joining, site: Site, now: float
) -> tuple[Node, Peer]:
    """Merge the rows that belong to one machine. Return its node, locked, and its agent's
    connection."""
    if joining.heir is not None:
        heir = nodes.known(tx, joining.heir, lock=True)
        if heir.state == NodeState.OFF:
            heir = _apply(
                tx, heir, Step(NodeEvent.ASKED, "it came up by a NIC not known before"), site, now
            )
        node, peer = heir, sessions.hand_over(tx, peer, heir.id)
    for shadow in joining.absorb:
        nodes.absorb(tx, shadow, node.id)
    if node.state == NodeState.EXPECTED:
        node = _apply(tx, node, Step(NodeEvent.SEEN, "it reported"), site, now)
    return node, peer


def _place(
    tx: Tx,
    stored: Node,
    peer: Peer,
    hardware: identity.Hardware,
    site: Site,
    now: float,
    heard_on: Sequence[tuple[str, ...]],
    *,
    placed: bool,
) -> tuple[dict[str, object], str]:
    """Record the place on the network from which the node reports. Return the columns of the node's
    row that remember this place, and a sentence why it is not the node's own place; '' if it is, or
    if that is not known.

    placed  whether further places of the node are known
    """
    document = stored.attributes or ""
    port = by_lldp = place.port_of(document, peer.mac, site.switches)
    source = "LLDP"
    if heard_on:
        known = (*node_places.ports(tx, stored.id), by_lldp)
        by_switch = place.by_switch(heard_on, stored.home_port, known, site.switches)
        if by_switch is not None:
            port, source = by_switch, "the switch's table of MAC addresses"
    approved = node_places.of_report(tx, stored, port) if placed else None
    moved = "" if approved else place.moved(stored, port, site.policy, source)
    if moved:  # the node's row must not mix facts about two places
        here = {"subnet": stored.subnet, "circuit": stored.circuit, "remote": stored.remote}
        node_places.heard(tx, stored.id, now, **here, port=port)
        return {}, moved
    if site.switches:
        switch_ports.sighted(tx, stored, document, hardware.macs, site.switches, now)
    if approved is None or stored.home_at is None:
        return place.remembered(stored, port, site.policy, now), ""
    return {}, ""


def _move_on(
    tx: Tx,
    node: Node,
    columns: dict[str, Any],
    moved: str,
    site: Site,
    now: float,
    *,
    is_doubtful: bool,
) -> Node:
    """Write the `columns` of the node's report; return the node in the state into which the report
    leads.

    moved        why the node is not at its place, or ''
    is_doubtful  `nodes.Neighbours.is_doubtful`: what the database has of a new machine may be out
                 of date
    """
    step: Step | None = None
    if moved and node.state == NodeState.TRAMPOLINE:
        step = Step(NodeEvent.QUARANTINED, moved, {"reason": moved})
    elif node.boot_unordered:
        step = boot_evidence.unproven(tx, node, site, now)
    if step is not None:
        return _apply(tx, nodes.change(tx, node, **columns), step, site, now)
    if node.state == NodeState.TRAMPOLINE:  # as for most reports: one statement writes all
        return transitions.settle(tx, node, now=now, policy=site.policy, columns=columns)
    if node.state == NodeState.NEW and not is_doubtful and _is_free_at_once(node, site):
        steps = replace(_REGISTERED, columns=columns), _APPROVED, lifecycle.IDLE
        ready = transitions.register(tx, node, steps, now=now, actor="agent", policy=site.policy)
        if site.switches:
            switch_ports.leave(tx, ready, now)
        return ready
    node = nodes.change(tx, node, **columns)
    if is_doubtful and node.state in (NodeState.NEW, NodeState.REGISTERING):
        stories.include(tx, node.id)
    if node.state == NodeState.NEW:
        node = _apply(tx, node, _REGISTERED, site, now)
    if node.state == NodeState.REGISTERING and site.policy.auto_approve:
        node = _apply(tx, node, _APPROVED, site, now)
        burnins.ask_of_new(tx, node, site, now, "agent")
    return transitions.settle(tx, node, now=now, policy=site.policy)


def _is_free_at_once(node: Node, site: Site) -> bool:
    """Return whether a new machine is free at once: COD has not written to its disks, and the site
    approves new machines by itself and without a burn-in. Nobody can have asked for a capture or a
    burn-in of a machine that had not reported."""
    unwritten = node.disk == Disk.FOREIGN
    return unwritten and site.policy.auto_approve and not site.burnin.at_registration


def _apply(tx: Tx, node: Node, step: Step, site: Site, now: float) -> Node:
    return transitions.apply(tx, node, step, now=now, actor="agent", policy=site.policy)
