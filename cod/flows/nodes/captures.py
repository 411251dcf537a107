"""Captures: a node's disk becomes an image.

An active node leaves its vcluster's system by a power cycle and is captured in the trampoline; a
node that no power driver can switch waits until somebody reboots it (`flows.boot.script`). A node
of the reserve is captured where it is. The agent's order (`flows.agents.orders`) has a secret, with
which the agent sends the disk to the image server. The image server asks this module whether the
agent still may. Nobody sees anything of the image until `keep`, which creates the image and its
template and ends the capture in one transaction.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import asdict, replace

from cod import notice_texts
from cod.choices import CANNOT_SWITCH_OFF
from cod.core import image_quota, image_users, notices
from cod.core.nodes import transitions
from cod.model import (
    Capture,
    CapturedPartition,
    CaptureLimits,
    CaptureView,
    Effect,
    FlowContext,
    ImageRules,
    Ingested,
    Node,
    Refused,
    Result,
)
from cod.policy.nodes import capture, lifecycle
from cod.policy.nodes.template import parse
from cod.policy.people import names
from cod.states import CaptureState, NodeEvent, NodeState, Step
from cod.store.engine import Tx
from cod.store.images import images, templates
from cod.store.nodes import captures, holding, nodes, sessions
from cod.store.people import groups
from cod.store.scheduler import reservations, vclusters

ANEW = "The server that took it in does not answer: all of it is sent to another."

under_way = captures.under_way


def want(
    tx: Tx,
    context: FlowContext,
    *,
    name: str,
    image: str,
    template: str | None = None,
    group: str | None = None,
    what: str = "",
    secret: str,
) -> Result[CaptureView]:
    """Have the disk of the node `name` saved as an image; return the capture. Raises `Refused`.

    image     name of the image, as `names.full` accepts it
    template  name of a new template that writes the image; None: as the image's, '': no template
    group     owner of both; None: the group that holds the node, '' or 'site': the site
    what      as in `orders.Deposit`; a partition alone, or the map alone, gets no template
    secret    32 random bytes in hex, with which the agent sends the disk
    """
    node = nodes.named(tx, name, lock=True)
    before = captures.get(tx, node.id)
    if before and before.state in captures.OPEN:
        raise Refused(
            "conflict", f"node {name} is being captured as {before.image!r} already", "name"
        )
    source = node.template_id if node.vcluster_id is not None else node.cached_template_id
    runs = templates.get(tx, node.template_id) if node.template_id is not None else None
    capture.check(node, parse(runs.document) if runs else None)
    owner = _owner(tx, node, group)
    prefix = groups.prefix(tx, owner)
    if what and template:
        raise Refused(
            "invalid",
            "a template is made of a whole disk alone: write one with the captured map and "
            "partitions (docs/capture)",
            "template",
        )
    wanted = image if template is None and not what else template
    image = names.full(prefix, image, "image")
    wanted = names.full(prefix, wanted, "template") if wanted else ""
    images.check_free(tx, image, owner)
    image_quota.check(tx, owner, 1, context.site.images)
    image_quota.check_capture(tx, owner, context.site.images)
    captures.put(
        tx,
        node.id,
        image=image,
        template=wanted,
        group_id=owner,
        source_id=source,
        what=what,
        state=CaptureState.WANTED,
        secret=secret,
        actor=context.actor,
        asked_at=context.now,
    )
    moved = _set_out(tx, context, node)
    return Result(show(tx, name=name), transitions.wakes(node, moved))


def _set_out(tx: Tx, context: FlowContext, node: Node) -> Node:
    cause = f"to be captured: {context.actor} wants its disk as an image"
    if node.state == NodeState.ACTIVE and node.power_driver in CANNOT_SWITCH_OFF:
        return nodes.change(tx, node, reason=transitions.FOR_CAPTURE)
    if node.state == NodeState.ACTIVE:
        step = capture.leave(cause, "cycle")
    elif node.state == NodeState.OFF:
        step = Step(NodeEvent.WOKEN, cause, power="on")
    else:
        step = Step(NodeEvent.CAPTURE_ORDERED, cause)
    reservations.drop(tx, [node.id])  # a request that it was kept for gets another node, sooner
    return transitions.apply_for(tx, context, node, step)


def _owner(tx: Tx, node: Node, group: str | None) -> int | None:
    if group is not None:
        return groups.owner_id(tx, group)
    holder = vclusters.get(tx, node.vcluster_id) if node.vcluster_id is not None else None
    return holder.group_id if holder else node.cached_group_id


def cancel(tx: Tx, context: FlowContext, *, name: str) -> Result[CaptureView]:
    """Cancel the node's capture; return the capture. The node goes back to its vcluster's system or
    to the reserve. Raises `Refused`."""
    node = nodes.named(tx, name, lock=True)
    row = captures.get(tx, node.id)
    if row is None or row.state not in captures.OPEN:
        raise Refused("conflict", f"node {name} is not being captured", "name")
    moved, cause = node, f"cancelled by {context.actor}"
    if node.state == NodeState.CAPTURE:
        step = Step(NodeEvent.CANCELLED, cause, {"reason": "", "attempts": 0})
        moved = transitions.apply_for(tx, context, node, step)
        session = sessions.get(tx, node.id)
        if session is not None and session.reported:
            on = lifecycle.settle(moved, holding.assignment(tx, moved))
            moved = transitions.apply_for(tx, context, moved, on)
    else:  # not in the trampoline yet: the node is settled when it reports
        captures.end(tx, node.id, CaptureState.CANCELLED, cause, context.now)
        if node.reason == transitions.FOR_CAPTURE:
            nodes.change(tx, node, reason="")
    return Result(show(tx, name=name), transitions.wakes(node, moved))


def show(tx: Tx, *, name: str, groups: frozenset[int] | None = None) -> CaptureView:
    """Return the newest capture of a node. Raises `Refused` if the node has no capture, or if the
    capture is not for one of `groups` (None: all)."""
    node = nodes.by_name(tx, name)
    row = captures.get(tx, node.id) if node else None
    if node is None or row is None or (groups is not None and row.group_id not in groups):
        raise Refused("not_found", f"no capture of a node {name!r} is known", "name")
    return _view(tx, node, row)


def every(tx: Tx, *, groups: frozenset[int] | None = None) -> list[CaptureView]:
    """Return the newest capture of each node, by the nodes' names; those of `groups` only (None:
    all)."""
    return [_view(tx, node, row) for node, row in captures.every(tx, groups)]


def _view(tx: Tx, node: Node, row: Capture) -> CaptureView:
    runs = row.state == CaptureState.RUNNING and node.generation == row.generation
    owner = groups.get(tx, row.group_id).name if row.group_id is not None else ""
    done, total, rate = (
        (node.progress_done, node.progress_total, node.progress_rate) if runs else (0, 0, 0.0)
    )
    return CaptureView(
        node.name,
        row.image,
        row.template,
        owner,
        row.state,
        row.actor,
        row.asked_at,
        row.ended_at,
        ANEW if runs and node.progress_phase == "capture anew" else row.reason,
        node.state,
        done,
        total,
        rate,
        row.what,
    )


# ---------------------------------------------------------------- what the image server asks


def receiving(tx: Tx, *, order: str, address: str, secret: str) -> Capture:
    """Return the capture of the order with the id `order`, if a sender at `address` with `secret`
    may send it. Raises `Refused`, with the same sentence whatever is wrong."""
    node_id, _, generation = order.partition(".")
    node = nodes.get(tx, int(node_id)) if node_id.isdecimal() and len(node_id) < 19 else None
    row = captures.get(tx, node.id) if node else None
    session = sessions.get(tx, node.id) if node else None
    good = (
        node is not None
        and row is not None
        and session is not None
        and node.state == NodeState.CAPTURE
        and generation == str(node.generation) == str(row.generation)
        and session.address == address
        and row.state in (CaptureState.RUNNING, CaptureState.DONE)
        and row.secret
        and hmac.compare_digest(row.secret, secret)
    )
    if not good or row is None:
        raise Refused(
            "forbidden", "no capture is under way by that order and that secret from there"
        )
    return row


def limits(tx: Tx, *, order: str, address: str, secret: str, rules: ImageRules) -> CaptureLimits:
    """Return the limits of a capture's size. Raises `Refused`."""
    row = receiving(tx, order=order, address=address, secret=secret)
    disk = capture.largest_disk(nodes.known(tx, row.node_id).attributes)
    return CaptureLimits(disk, image_quota.left(tx, row.group_id, rules))


def note_digest(tx: Tx, *, order: str, address: str, secret: str, digest: str) -> None:
    """Record the digest under which the image is about to be published, so that its folder is not
    removed meanwhile. Raises `Refused`."""
    row = receiving(tx, order=order, address=address, secret=secret)
    captures.change(tx, row.node_id, digest=digest)


def keep(
    tx: Tx,
    *,
    order: str,
    address: str,
    secret: str,
    ingested: Ingested,
    partitions: Sequence[CapturedPartition],
    rules: ImageRules,
    now: float,
) -> Result[None]:
    """Publish the image and its template, which can be seen from now on. A repeated call does no
    harm. Raises `Refused`."""
    row = receiving(tx, order=order, address=address, secret=secret)
    if row.state == CaptureState.DONE:
        return Result(None)
    if row.what.isdecimal():  # a single partition, whatever its first bytes look like
        ingested = replace(ingested, content="partition", ends_at=0)
    node = nodes.known(tx, row.node_id, lock=True)
    image_quota.check(tx, row.group_id, ingested.stored, rules)
    captures.end(tx, node.id, CaptureState.DONE, "", now)
    images.make_room(tx, row.image, row.group_id)
    columns = {"name": row.image, "group_id": row.group_id, "created_at": now, **asdict(ingested)}
    image = images.add(tx, state="ingesting", **columns)
    if row.group_id is not None:
        image_users.check(tx, replace(image, state="ready"))
    images.change(tx, image.id, state="ready")
    name = ""
    if row.template:
        source = templates.get(tx, row.source_id) if row.source_id is not None else None
        document = capture.document(
            row.template.rpartition("/")[2],
            row.image,
            ingested.size,
            partitions,
            node,
            source.document if source else None,
        )
        made = templates.append(tx, row.template, document, row.group_id, now)
        name = f"{made.name}@{made.revision}"
    notice = notice_texts.captured(node.name, row.image, name)
    notices.add(tx, **notice, group_id=row.group_id, vcluster_id=node.vcluster_id, now=now)
    return Result(None, (Effect("wake", "notices"),))
