"""Carrying out a step (`states.Step`): the transition, and the rows that go with it. Every flow that moves a node by a
decision of `policy.nodes.lifecycle` does it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from sqlalchemy import func, select, update

from cod import notice_texts
from cod.core import vcm_outbox
from cod.model import Assignment, Effect, Node, Policy
from cod.states import NODE_TRANSITIONS, OWN_SYSTEM, NodeEvent, NodeState, Step, after
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import captures, holding, nodes, sessions
from cod.store.notices import notices
from cod.store.scheduler import requests, reservations, vclusters

BY_HAND = "its system runs until somebody reboots it: no power driver can switch it off"
FOR_CAPTURE = "waits to be captured: reboot it, no power driver can"
CANNOT_SWITCH_OFF = ("none", "wol")


def apply(tx: Tx, node: Node, step: Step, *, now: float, actor: str, policy: Policy) -> Node:
    """Apply `step` to `node`; returns the node as it is now.

    With the transition go: the power wish; the installation that a prime order begins or that trouble ends; the capture
    that it brings nearer or ends, of which its owner is told; and for a node that is set aside or that the step frees,
    the end of its holder's hold on it, with a request for another in its place, and of its reservation. Its holder is
    told, and of a quarantine the site's administrators.
    Raises as `nodes.move` does.
    """
    target = after(NodeState(node.state), step.event)
    _note_installation(tx, node, step, target, now)
    _note_capture(tx, node, step, target, now)
    aside = target in (NodeState.QUARANTINED, NodeState.RETIRED)
    if target is NodeState.QUARANTINED and ":" not in actor:  # not if it was a person, user:NAME: they know
        notices.add(tx, **notice_texts.quarantined(node.name, step.cause), group_id=None, now=now)
    if aside or step.frees:
        _tell_loss(tx, node, step.cause, now)
        reservations.drop(tx, [node.id])
        requests.replace(tx, node, now)
        vcm_outbox.moved(tx, node, node.vcluster_id, "lost", step.cause, now)
        node = holding.give_back(tx, node, up_until=_up_until(node, now, policy))
    moved = nodes.move(
        tx, node, step.event, now=now, cause=step.cause, actor=actor, patience=policy.patience, **step.columns)
    if step.power and nodes.wish_power(tx, moved, step.power, now):
        moved = replace(moved, power_wanted=step.power, power_seq=moved.power_seq + 1)
        if step.power == "on":  # should it be up after all, its agent has to come back and report
            sessions.forget(tx, node.id)
        elif target is not NodeState.OFF:  # there its agent is told to power down, and has time for it
            sessions.forget_report(tx, node.id)
    return moved


def booted(tx: Tx, node: Node, cause: str, *, now: float, actor: str, policy: Policy, unseen: bool = False) -> Node:
    """Make a booting node active; its group is told when it was the last of its vcluster. Returns the node now.

    unseen  nobody has heard of its system: its firmware may still be on its way through its boot options
    """
    columns = {"boot_served_at": node.boot_served_at} if unseen else {}
    moved = apply(tx, node, Step(NodeEvent.BOOTED, cause, columns), now=now, actor=actor, policy=policy)
    ready = vclusters.first_ready(tx, node.vcluster_id, now)
    if ready is not None:
        said = notice_texts.vcluster_ready(ready, ready.size)
        notices.add(tx, **said, group_id=ready.group_id, vcluster_id=ready.id, now=now)
    return moved


def _note_capture(tx: Tx, node: Node, step: Step, target: NodeState, now: float) -> None:
    failed = captures.note(tx, node, step, target, now)
    if failed is not None:
        said = notice_texts.capture_failed(node.name, failed.image, failed.reason)
        notices.add(tx, **said, group_id=failed.group_id, vcluster_id=node.vcluster_id, now=now)


def _tell_loss(tx: Tx, node: Node, cause: str, now: float) -> None:
    """Tell who holds the node that it goes. Call it before `holding.give_back`."""
    vcluster = vclusters.get(tx, node.vcluster_id) if node.vcluster_id is not None else None
    if vcluster is not None:
        name = node.name if node.hostname is None else f"{node.hostname} ({node.name})"
        notices.add(tx, **notice_texts.node_lost(vcluster, name, cause), group_id=vcluster.group_id,
                    vcluster_id=vcluster.id,
                    now=now)


def release(
    tx: Tx, held: Iterable[Node], may_keep: Callable[[Node, str], bool], *, cause: str, now: float, actor: str,
    policy: Policy,
) -> tuple[Effect, ...]:
    """Take nodes from their vcluster and back to the trampoline, by their power; returns who should look at once.

    may_keep(node, its template's document) says whether the disk may be kept (`lifecycle.may_keep_disk`). A node
    that is in the trampoline already, or on its way there, only loses its holder: it is settled when it reports.
    """
    effects = {Effect("wake", "manager")}
    for node in held:
        stuck = _stuck(node)
        step = Step(NodeEvent.RELEASED, cause, {"attempts": 0, "reason": BY_HAND if stuck else ""}, "cycle")
        runs = wanted(tx, node)
        vcm_outbox.moved(tx, node, node.vcluster_id, "lost", cause, now)
        kept = runs is not None and may_keep(node, runs.document)
        given = holding.give_back(tx, node, up_until=_up_until(node, now, policy), keep_disk=kept)
        if (NodeState(node.state), NodeEvent.RELEASED) in NODE_TRANSITIONS:
            moved = apply(tx, given, step, now=now, actor=actor, policy=policy)
            effects.update(wakes(node, moved))
    return tuple(sorted(effects, key=lambda effect: effect.what))


def _stuck(node: Node) -> bool:
    """Does it run a system that only somebody by hand can end?"""
    return node.power_driver in CANNOT_SWITCH_OFF and node.state in OWN_SYSTEM


def _up_until(node: Node, now: float, policy: Policy) -> float | None:
    return now + policy.binding_time if _stuck(node) else None


def _note_installation(tx: Tx, node: Node, step: Step, target: NodeState, now: float) -> None:
    if target is NodeState.PRIME:
        _installation(tx, node.id, "pending", "", now, generation=node.generation + 1)
    elif step.event is NodeEvent.PRIMED or (target is NodeState.BOOT and node.state != NodeState.PRIME):
        _installation(tx, node.id, "done", "", now)
    elif node.state == NodeState.PRIME:
        _installation(tx, node.id, "failed", step.cause, now)


def _installation(tx: Tx, node_id: int, state: str, reason: str, now: float, **columns: int) -> None:
    i = t.install_images
    tx.execute(update(i).where(i.c.node_id == node_id).values(state=state, reason=reason, at=now, **columns))


def wanted(tx: Tx, node: Node) -> Assignment | None:
    """What the node is to run for its holder; None when nobody holds it."""
    if node.vcluster_id is None or node.template_id is None:
        return None
    c, v, k, r = t.config_templates.c, t.vclusters.c, t.node_types.c, t.request_tuples.c
    hardware = func.coalesce(select(k.attributes).where(k.id == node.type_id).scalar_subquery(), "")
    query = (select(c.id, c.document, v.group_id, hardware, c.name)
             .join_from(t.config_templates, t.vclusters, v.id == node.vcluster_id).where(c.id == node.template_id))
    of_it = r.template_id == node.template_id if node.position is None else r.position == node.position
    asked = select(r.attributes).where(r.request_id == node.request_id, of_it)
    found = Assignment(*tx.execute(query).one(), tuple(tx.scalars(asked.distinct())))
    return replace(found, document=templates.with_known(tx, {0: (found.name, found.document)})[0])


def wakes(before: Node, after_: Node) -> tuple[Effect, ...]:
    """Who should look at once, after a node came from `before` to `after_`."""
    effects = []
    if after_.generation != before.generation:
        effects.append(Effect("wake", "orders"))
        if after_.vcluster_id is not None:
            effects.append(Effect("wake", "vcms"))
    if after_.state != before.state and after_.state in (NodeState.INACTIVE, NodeState.QUARANTINED, NodeState.OFF):
        effects.append(Effect("wake", "manager"))
    if after_.power_seq != before.power_seq:
        effects.append(Effect("wake", "power"))
    return tuple(effects)
