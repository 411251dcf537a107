"""A node's transitions, and the rows that go with them. `apply` carries out a step that
`policy.nodes.lifecycle` has decided, and `move` writes one transition. `asked_all`, `register` and
`core.nodes.grants` write many transitions at once. All of them take the node's columns from
`changes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cod import notice_texts
from cod.choices import CANNOT_SWITCH_OFF, Wipe
from cod.core import notices, requests, vcm_outbox
from cod.core.networks import switch_ports
from cod.core.nodes import blame
from cod.model import Assignment, Effect, FlowContext, Group, Node, Policy
from cod.policy.hardware import wiping
from cod.policy.nodes import lifecycle, place, template
from cod.states import (
    ARRIVED,
    IMAGE_SERVER,
    KERBEROS,
    NODE_RULES,
    NODE_TRANSITIONS,
    OWN_SYSTEM,
    POWER_CONTROL,
    WORKING,
    BurninState,
    CaptureState,
    Disk,
    NodeEvent,
    NodeState,
    Step,
    VclusterState,
)
from cod.store import stories, volumes, watermarks
from cod.store.engine import Tx
from cod.store.nodes import (
    bindings,
    burnins,
    captures,
    failures,
    holding,
    host_keys,
    nodes,
    sessions,
    types,
)
from cod.store.people import groups
from cod.store.scheduler import reservations, vclusters

BY_HAND = "its system runs until somebody reboots it: no power driver can switch it off"
FOR_CAPTURE = "waits to be captured: reboot it, no power driver can"
# States in which COD orders no boot: a node that boots was reset or switched on by somebody else.
UNORDERED = WORKING | {NodeState.OFF, NodeState.INACTIVE}
# States that end a capture: the node's disk is overwritten, or COD may not read it any more.
ENDS_CAPTURE = frozenset(
    {NodeState.WIPE, NodeState.PRIME, NodeState.QUARANTINED, NodeState.RETIRED}
)
# Events whose orders make an agent write to disks: they wait while the site is held.
WRITES = frozenset({NodeEvent.WIPE_ORDERED, NodeEvent.PRIME_ORDERED, NodeEvent.BURNIN_ORDERED})
# Events that end the doubt about a held node: an administrator decided, or COD wrote its disks.
ENDS_STORY = frozenset({NodeEvent.RESTORED, NodeEvent.RETIRED, NodeEvent.WIPED, NodeEvent.PRIMED})
# States in which a node may wait for a part of the site, and `waits_since` says since when.
ON_THE_WAY = frozenset({NodeState.TRAMPOLINE, NodeState.PRIME, NodeState.CAPTURE, NodeState.BOOT})
ENDS_BURNIN = frozenset({NodeState.QUARANTINED, NodeState.RETIRED})
# The events of a node that comes back to the reserve and is erased at the first try.
_CAME_BACK = (NodeEvent.RELEASED, NodeEvent.WIPE_ORDERED, NodeEvent.WIPED, NodeEvent.IDLED)


def apply(
    tx: Tx,
    node: Node,
    step: Step,
    *,
    now: float,
    actor: str,
    policy: Policy,
    waits: burnins.WhatWaits | None = None,
) -> Node:
    """Apply `step` to `node`; return the node as it is now. Raises as `move` does. `waits`: what
    waits for the node, where this transaction has read it.

    The following is written with the transition: the power wish; the beginning or end of the node's
    installation; the progress or end of its capture and its burn-in. A node that the step puts out
    of service or frees also loses its reservation and its holder. The holder is told, and a request
    for another node in its place is added, which the step may stop. The site's administrators are
    told of a quarantine.
    """
    target = NODE_TRANSITIONS[NodeState(node.state), step.event]
    _note_installation(tx, node, step, target, now)
    if waits is None or waits.has_work:
        note_capture(tx, node, step.event, step.cause, now)
        _note_burnin(tx, node, step, target, now)
    if step.fault is not None:
        blame.note(tx, node, step, now)
    if step.event in (NodeEvent.RESTORED, NodeEvent.RETIRED):
        failures.looked_at(tx, node.id)
    if step.event in ENDS_STORY:
        stories.forget(tx, node.id)
    # a person who quarantines a node (user:NAME) is not told
    if target is NodeState.QUARANTINED and ":" not in actor and not step.notified:
        notices.add(tx, **notice_texts.quarantined(node.name, step.cause), group_id=None, now=now)
    if target in (NodeState.QUARANTINED, NodeState.RETIRED) or step.frees:
        node = _lose(tx, node, step, now, policy)
    columns = step.columns
    if target in (NodeState.PRIME, NodeState.BOOT):
        columns = {**columns, "wipe": asked_wipe(tx, node, holding.assignment(tx, node))}
    elif target is NodeState.WIPE:
        tested = (waits.burnin if waits else burnins.wanted(tx, node.id)) is not None
        columns = {**columns, "wipe": wiping.begin(node, policy, whole=tested)}
    moved = move(
        tx,
        node,
        step.event,
        now=now,
        cause=step.cause,
        actor=actor,
        patience=policy.patience,
        erased=step.erased,
        connects=step.connects,
        **columns,
    )
    if step.event is NodeEvent.IDLED and node.released:
        _learn_turnaround(tx, moved, policy)
    power = step.power
    if target not in OWN_SYSTEM and (node.state in OWN_SYSTEM or target is NodeState.TRAMPOLINE):
        stranded = (
            switch_ports.leave(tx, moved, now)
            and node.state in OWN_SYSTEM
            and target is NodeState.TRAMPOLINE
        )
        # its firmware may have given up on DHCP in the vcluster's network
        if stranded and policy.power_cycle:
            power = power or "cycle"
    if power and nodes.wish_power(tx, moved, power, now):
        moved = replace(moved, power_wanted=power, power_seq=moved.power_seq + 1)
        if power == "on":  # if the node is up after all, its agent has to come back and report
            sessions.forget(tx, node.id)
        elif target is not NodeState.OFF:
            # in state off, the agent is told to power down, and has time for it
            sessions.forget_reports(tx, [node.id])
    return moved


def _lose(tx: Tx, node: Node, step: Step, now: float, policy: Policy) -> Node:
    """Take the node from its holder, which is told, and request another one in its place."""
    vcluster = vclusters.get(tx, node.vcluster_id) if node.vcluster_id is not None else None
    if vcluster is not None and not (step.stops or step.notified):
        name = node.name if node.hostname is None else f"{node.hostname} ({node.name})"
        notices.tell(tx, vcluster, notice_texts.node_lost(vcluster, name, step.cause), now)
    reservations.drop(tx, [node.id])
    runs = holding.assignment(tx, node)
    replacement = requests.replace(tx, node, runs, now)
    if step.stops and replacement is not None:
        requests.stop(tx, replacement, step.stops, now)
    vcm_outbox.moved(tx, node, node.vcluster_id, "lost", step.cause, now)
    up_until = now + policy.binding_time if is_stuck(node) else None
    return holding.give_back(tx, node, up_until=up_until, wipe=asked_wipe(tx, node, runs))


def apply_for(tx: Tx, context: FlowContext, node: Node, step: Step) -> Node:
    """Apply `step` as `apply` does, with the actor, time and site of the flow's context."""
    return apply(tx, node, step, now=context.now, actor=context.actor, policy=context.site.policy)


def _learn_turnaround(tx: Tx, node: Node, policy: Policy) -> None:
    """Record with the node's type how long the node took to come back to the reserve. Do so only if
    the node was erased on the way, and neither failed nor waited past its deadline for its BMC or a
    switch."""
    past = nodes.history(tx, node.id, len(_CAME_BACK))
    if tuple(row["event"] for row in past) != _CAME_BACK or node.type_id is None:
        return
    longest = (NODE_RULES[NodeState.TRAMPOLINE].deadline or 0.0) * policy.patience
    if past[1]["at"] - past[0]["at"] > longest:
        return
    known = types.get(tx, node.type_id).turnaround
    now = wiping.learnt(known, past[-1]["at"] - past[0]["at"])
    if now != known:
        types.change(tx, node.type_id, turnaround=now)


def asked_wipe(tx: Tx, node: Node, runs: Assignment | None) -> str:
    """Return the strictest way of erasing the node's disks that anybody requested: those who held
    the node since its disks were erased last (`node.wipe`), or the group and the template of its
    present assignment, `runs`."""
    if runs is None or node.wipe == wiping.WAYS[-1]:
        return node.wipe
    return wipe_for(node, runs.document, groups.get(tx, runs.group_id))


def wipe_for(node: Node, document: str, group: Group) -> str:
    """Return what `asked_wipe` would for a node that runs the template `document` for that
    group."""
    return wiping.strictest(node.wipe, group.wipe, template.parse(document).wipe)


def settle(
    tx: Tx, node: Node, *, now: float, policy: Policy, columns: Mapping[str, Any] | None = None
) -> Node:
    """Settle a node in the trampoline whose agent has reported, once it has rested after its last
    failure (`lifecycle.settle`); return the node as it is now. Any other node keeps its state, and
    while the site is held, so does a node whose disks would be written. `columns` are written to
    the node's row in any case; `node` has these values already."""
    settling = _settling(tx, node, now, policy)
    if settling is None:
        return nodes.change(tx, node, **columns) if columns else node
    step, waits = settling
    if columns:
        step = replace(step, columns={**columns, **step.columns})
    return apply(tx, node, step, now=now, actor="agent", policy=policy, waits=waits)


def _settling(
    tx: Tx, node: Node, now: float, policy: Policy
) -> tuple[Step, burnins.WhatWaits] | None:
    """Return the step that settles the node, and what waits for the node; None if the node keeps
    its state."""
    if node.state != NodeState.TRAMPOLINE:
        return None
    if node.released:
        bindings.returned(tx, node.id)
    if not lifecycle.rested(node, policy, now):
        return None
    wanted = None if node.vcluster_id is None else holding.assignment(tx, node)
    waits = burnins.what_waits(tx, node.id)
    step = lifecycle.settle(
        node, wanted, waits.capture, waits.burnin, tables=policy.wipe == Wipe.TABLES
    )
    if waits.held:
        return None  # settled when its machine has told what it holds
    if step.event in WRITES and waits.site_held:
        return None  # settled when the hold ends
    return step, waits


def is_stuck(node: Node) -> bool:
    """Return whether the node runs its own system, which can only be switched off by hand."""
    return node.power_driver in CANNOT_SWITCH_OFF and node.state in OWN_SYSTEM


def _note_installation(tx: Tx, node: Node, step: Step, target: NodeState, now: float) -> None:
    if target is NodeState.PRIME:
        holding.set_installation(tx, node.id, "pending", "", now, generation=node.generation + 1)
    elif step.event is NodeEvent.PRIMED or (
        target is NodeState.BOOT and node.state != NodeState.PRIME
    ):
        holding.set_installation(tx, node.id, "done", "", now)
    elif node.state == NodeState.PRIME:
        holding.set_installation(tx, node.id, "failed", step.cause, now)


def note_capture(tx: Tx, node: Node, event: NodeEvent, cause: str, now: float) -> None:
    """Update the capture of a node to which `event` is applied; tell the capture's owner if the
    event ends it without an image. `node` is the node before the event."""
    target = NODE_TRANSITIONS[NodeState(node.state), event]
    if not (NodeState.CAPTURE in (node.state, target) or target in ENDS_CAPTURE):
        return
    capture = captures.get(tx, node.id)
    if capture is not None and capture.state == CaptureState.DONE:
        captures.change(tx, node.id, secret="")
    if capture is None or capture.state not in captures.OPEN:
        return
    if target is NodeState.CAPTURE:
        captures.change(
            tx, node.id, state=CaptureState.RUNNING, generation=node.generation + 1, digest=""
        )
    elif event is NodeEvent.CANCELLED:
        captures.end(tx, node.id, CaptureState.CANCELLED, cause, now)
    elif target in ENDS_CAPTURE or event in (NodeEvent.EXHAUSTED, NodeEvent.CAPTURED):
        captures.end(tx, node.id, CaptureState.FAILED, cause, now)
        notice = notice_texts.capture_failed(node.name, capture.image, cause)
        notices.add(tx, **notice, group_id=capture.group_id, vcluster_id=node.vcluster_id, now=now)
    else:
        captures.change(tx, node.id, state=CaptureState.WANTED, reason=cause)


def _note_burnin(tx: Tx, node: Node, step: Step, target: NodeState, now: float) -> None:
    """Update the burn-in of a node to which `step` is applied."""
    if NodeState.BURNIN not in (node.state, target) and target not in ENDS_BURNIN:
        return
    burnin = burnins.open_of(tx, node.id)
    if burnin is None:
        return
    if target is NodeState.BURNIN:
        burnins.change(
            tx, burnin.id, state=BurninState.RUNNING, generation=node.generation + 1, started_at=now
        )
    elif step.event is NodeEvent.BURNED_IN:
        burnins.end(tx, burnin.id, BurninState.PASSED, "", now)
    elif step.event is NodeEvent.CANCELLED:
        burnins.end(tx, burnin.id, BurninState.CANCELLED, step.cause, now)
    elif target in ENDS_BURNIN:
        burnins.end(tx, burnin.id, BurninState.FAILED, step.cause, now)
    else:
        burnins.change(tx, burnin.id, state=BurninState.WANTED, reason=step.cause)


def changes(
    node: Node, event: NodeEvent, *, now: float, patience: float, columns: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the columns that `event` changes in the node's row, with `columns`: see `move`. Raises
    `states.WrongEvent`."""
    target = NODE_TRANSITIONS[NodeState(node.state), event]
    rule = NODE_RULES[target]
    values: dict[str, Any] = {
        "state": target,
        "since": now,
        "generation": node.generation + 1,
        "deadline": None if rule.deadline is None else now + rule.deadline * patience,
        "attempts": 0 if target in ARRIVED else node.attempts,
        "progress_done": 0,
        "progress_total": 0,
        "progress_rate": 0.0,
        "progress_phase": "",
        "progress_source": "",
        "boot_served_at": None,
    }
    # the node has come up, whoever switched it on: it does not wait for a power command any more
    came = node.waits_for == POWER_CONTROL and target is not NodeState.TRAMPOLINE
    needs_no_image = node.vcluster_id is None and NodeState.CAPTURE not in (node.state, target)
    given_back = node.waits_for == IMAGE_SERVER and needs_no_image
    over = came or given_back or node.waits_for == KERBEROS  # a wait of the former order alone
    if target not in ON_THE_WAY or event in (NodeEvent.PRIMED, NodeEvent.CAPTURED) or over:
        values |= {"waits_for": "", "waits_since": None}
    elif columns.get("waits_for"):
        values |= {"waits_since": node.waits_since or now}
    if node.state in UNORDERED and event in (NodeEvent.ASKED, NodeEvent.LOST):
        values |= {"boot_unordered": True}
    elif node.state in OWN_SYSTEM or event is NodeEvent.WOKEN:
        values |= {"boot_unordered": False}  # the boot that follows is ordered
    elif event in (NodeEvent.APPROVED, NodeEvent.RESTORED):
        values |= {"boot_unordered": False, **place.FORGOTTEN}  # an administrator decided this
        if event is NodeEvent.APPROVED:
            values |= {
                "home_at": now,
                "home_subnet": node.subnet,
                "home_circuit": node.circuit,
                "home_remote": node.remote,
            }
    if node.state in (NodeState.WIPE, NodeState.PRIME):
        values |= {"disk": Disk.DIRTY, "cached_template_id": None, "cached_group_id": None}
    elif node.state == NodeState.BURNIN and node.disk == Disk.CLEAN:
        values |= {"disk": Disk.DIRTY}
    return {**values, **columns}


def move(
    tx: Tx,
    node: Node,
    event: NodeEvent,
    *,
    now: float,
    cause: str,
    actor: str,
    patience: float = 1.0,
    erased: str | None = None,
    connects: bool = False,
    **columns: Any,
) -> Node:
    """Apply `event` to `node`, with further `columns` to set; return the node as it is now.

    Writes the transition to the history, sets the new state's deadline (times `patience`), restores
    the retry budget on arrival, and adds one to the generation, which invalidates every effect and
    order of the former state. During wipe and prime, the column `disk` says what the order found.
    When these states end, in whatever way, the disks are dirty, unless `columns` says otherwise;
    clean disks are also dirty after a burn-in, which writes to them. Raises `states.WrongEvent`
    when the table has no such arrow, `Stale` when the row has changed since it was read.
    """
    values = changes(node, event, now=now, patience=patience, columns=columns)
    moved = nodes.set_state(tx, node, values, event=event, cause=cause, actor=actor, erased=erased)
    if node.state == NodeState.PRIME:  # its row is locked now: no keytab is added after this
        host_keys.written(tx, node.id)
    # the node reboots: its agent's report holds no longer
    if not connects and (node.state in OWN_SYSTEM or event is NodeEvent.ASKED):
        # A query may be forged: an agent that is connected all the same has to report again.
        sessions.forget_reports(tx, [node.id], newer=event is NodeEvent.ASKED)
    vcm_outbox.moved(tx, moved, moved.vcluster_id, moved.state, cause, now)
    return moved


def asked_all(
    tx: Tx, asked: Sequence[tuple[Node, str]], *, now: float, actor: str, policy: Policy
) -> None:
    """Apply the event `ASKED` to inactive nodes that nobody holds, each given with its cause. The
    result is that of `apply`, but one statement writes all of them. Raises as `nodes.set_states`
    does."""
    moves = []
    for node, cause in asked:
        values = changes(node, NodeEvent.ASKED, now=now, patience=policy.patience, columns={})
        moved = nodes.changed(node, values)
        moves.append(nodes.NodeMove(node, moved, values, NodeEvent.ASKED, cause, ""))
    nodes.set_states(tx, moves, actor, now)
    sessions.forget_reports(tx, [node.id for node, _ in asked], newer=True)
    switch_ports.leave_all(tx, [one.moved for one in moves], now)


def register(
    tx: Tx, node: Node, steps: Sequence[Step], *, now: float, actor: str, policy: Policy
) -> Node:
    """Apply the first steps of a new machine, which has never had a holder, one after the other;
    return the node as it is now. The steps must not have a power wish. The caller makes the node's
    switch port leave its VLAN."""
    written, at = [], node
    for step in steps:
        columns = changes(at, step.event, now=now, patience=policy.patience, columns=step.columns)
        written.append((step.event, step.cause, columns))
        at = nodes.changed(at, columns)
    return nodes.set_last_state(tx, node, written, actor)


def booted(
    tx: Tx, node: Node, cause: str, *, now: float, actor: str, policy: Policy, unseen: bool = False
) -> Node:
    """Make a booting node active, and return the node as it is now. Its group is told if it was the
    last node of its vcluster to become active.

    unseen  nothing was heard of the node's system: its firmware may still be trying its boot
            options
    """
    columns = {"boot_served_at": node.boot_served_at} if unseen else {}
    moved = apply(
        tx, node, Step(NodeEvent.BOOTED, cause, columns), now=now, actor=actor, policy=policy
    )
    if node.template_id is not None:
        failures.succeeded(tx, node.template_id)
    tell_if_ready(tx, node.vcluster_id, now)
    return moved


def tell_if_ready(tx: Tx, vcluster_id: int | None, now: float) -> None:
    """Tell a vcluster's group, once, that all its nodes are active and all mounts are there.
    To be called whenever a node has become active, or a file server has carried out a change.

    If two servers see its last two nodes become active, the second server sees both.
    """
    vcluster = None if vcluster_id is None else vclusters.get(tx, vcluster_id, lock=True)
    if vcluster is None or vcluster.ready_at is not None or vcluster.state != VclusterState.ACTIVE:
        return
    watermarks.one_at_a_time(tx, "ready")
    if volumes.awaited_mounts(tx, [vcluster.id]):
        return
    if vclusters.active_nodes(tx, vcluster.id) == vcluster.size:
        ready = vclusters.change(tx, vcluster, now, ready_at=now)
        notices.tell(tx, ready, notice_texts.vcluster_ready(ready, ready.size), now)


def wakes(before: Node, after_: Node, *, look: bool = True) -> tuple[Effect, ...]:
    """Return the services to wake after a node came from `before` to `after_`. `look`: its order
    has to be looked for; False: the agent gets it with the answer to its message, or none yet."""
    effects = []
    if after_.generation != before.generation:
        if look:
            effects.append(Effect("wake", "orders"))
        if after_.vcluster_id is not None:
            effects.append(Effect("wake", "vcms"))
    if after_.state != before.state and after_.state in (
        NodeState.INACTIVE,
        NodeState.QUARANTINED,
        NodeState.OFF,
    ):
        effects.append(Effect("wake", "manager"))
    if after_.power_seq != before.power_seq:
        effects.append(Effect("wake", "power"))
    return tuple(effects)
