"""An administrator's actions on a node. A flow returns the node's row after the action; `shown`
turns it into the view that `flows.views.node` shows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from cod.choices import PowerVerb
from cod.core import preemption
from cod.core.nodes import burnins, kept_disks, node_settings, transitions
from cod.model import (
    Effect,
    FlowContext,
    Node,
    NodePlace,
    NodeView,
    Policy,
    PowerAction,
    Refused,
    Result,
    Site,
)
from cod.policy.hardware import equal
from cod.policy.hardware import keep_marks as policy
from cod.policy.hardware import phrase as phrases
from cod.policy.nodes import lifecycle, place
from cod.policy.people import names
from cod.states import (
    NODE_TRANSITIONS,
    UNAPPROVED,
    UNREPORTED,
    WORKING,
    Disk,
    NodeEvent,
    NodeState,
    Step,
    StoryVerdict,
)
from cod.store import stories, views, watermarks
from cod.store.engine import Tx
from cod.store.nodes import nodes, sessions
from cod.store.nodes import power as wishes
from cod.store.scheduler import maintenance as windows

BATCH = 100  # nodes that one transaction looks at
HOME = 0  # stands for the id of the place that is stored in the node's row
SHOWN = 20  # power wishes of a node that are shown


def hardware(node: Node) -> list[tuple[str, str]]:
    """Return the node's last hardware report for people, as pairs such as ('memory/mib',
    '4096 MiB'); [] before its first report."""
    return equal.facts(node.attributes) if node.attributes else []


def phrase(node: Node, name_of: Callable[[str, str], str]) -> str:
    """Return a summary of the node's hardware, '96 CPUs, 2 TiB, 4 x A100 PCIe 40GB, 25 Gb/s'; ''
    before it has reported. `name_of` returns the name of a PCI device by the ids of vendor and
    device."""
    return phrases.phrase(node.attributes, name_of) if node.attributes else ""


def waiting(tx: Tx) -> int:
    """Return how many machines wait for approval."""
    return nodes.count_in(tx, NodeState.REGISTERING)


def parts(node: Node, tag: str) -> list[Mapping[str, str]]:
    """Return the attributes of each part of a kind, such as 'pci' or 'disk', in the node's last
    report."""
    return equal.elements(node.attributes, tag) if node.attributes else []


def kept(node: Node) -> tuple[str, ...]:
    """Return the node's disks that are never written nor erased, for people: 'sdb (serial X)'."""
    return policy.kept(node.attributes)


def power_wishes(tx: Tx, *, name: str) -> list[PowerAction]:
    """Return the node's last power wishes and their outcomes, newest first. Raises `Refused`."""
    return wishes.of_node(tx, nodes.named(tx, name).id, SHOWN)


def approve(tx: Tx, context: FlowContext, *, name: str) -> Result[Node]:
    """Accept a new machine into the site: from now on its disks are COD's to write. If the machine
    registered before the site was held last, it is held until it has told what its disks hold."""
    node = nodes.named(tx, name, lock=True)
    if node.state in UNREPORTED:
        raise Refused(
            "conflict", f"node {name} has not reported yet: let it boot from the network", "name"
        )
    if node.state != NodeState.REGISTERING:
        raise Refused("conflict", f"node {name} needs no approval: it is {node.state}", "name")
    approval = Step(NodeEvent.APPROVED, f"approved by {context.actor}")
    approved = _into_service(tx, context, node, approval)
    burnins.ask_of_new(tx, node, context.site, context.now, context.actor)
    session = sessions.get(tx, node.id)
    if session is not None and session.reported:
        approved = transitions.settle(tx, approved, now=context.now, policy=context.site.policy)
    return Result(approved, transitions.wakes(node, approved))


def power(tx: Tx, context: FlowContext, *, name: str, desired: str) -> Result[Node]:
    """Record the wish to switch the node 'on', 'off', 'soft' (off, after its system was asked to
    shut down) or to 'cycle' its power. A free node that is switched off joins the cold reserve, and
    leaves it when it is switched on."""
    node = nodes.named(tx, name, lock=True)
    if desired not in PowerVerb.names():
        raise Refused("invalid", f"power is {', '.join(PowerVerb)}, not {desired!r}", "desired")
    if node.power_driver == "none":
        raise Refused(
            "conflict",
            f"node {name} has no power driver: set power_driver and power_address first",
            "name",
        )
    if node.state == NodeState.INACTIVE and desired in ("off", "soft"):
        step = Step(NodeEvent.POWERED_DOWN, f"switched off by {context.actor}", power=desired)
    elif node.state == NodeState.OFF and desired in ("on", "cycle"):
        step = Step(NodeEvent.WOKEN, f"switched on by {context.actor}", power="on")
    else:
        nodes.wish_power(tx, node, desired, context.now)
        if desired in ("cycle", "off"):  # the agent's connection belongs to the boot that ends now
            sessions.forget_reports(tx, [node.id], newer=True)
        return Result(nodes.known(tx, node.id), (Effect("wake", "power"),))
    moved = transitions.apply_for(tx, context, node, step)
    return Result(moved, transitions.wakes(node, moved))


def quarantine(
    tx: Tx, context: FlowContext, *, name: str, reason: str, until: float | None = None
) -> Result[Node]:
    """Put the node out of service `until` that time, or (None) until it is restored by hand. A node
    that a vcluster holds is switched off, and a request for a replacement is made. If the node is
    out of service already, replace its reason and time. Raises `Refused`."""
    node = nodes.named(tx, name, lock=True)
    check_until(until, context.now)
    if until is not None and not _is_approved(tx, node):
        why = f"node {name} is not approved: it cannot return by itself"
        raise Refused("conflict", why, "until")
    windows.let_go(tx, node.id)
    if node.state == NodeState.QUARANTINED:
        nodes.change(tx, node, reason=reason)
        nodes.set_deadline(tx, node, until)
        return Result(nodes.known(tx, node.id))
    power_ = "off" if node.vcluster_id is not None else None
    aside = {"reason": reason, "deadline": until}
    step = Step(NodeEvent.QUARANTINED, f"{context.actor}: {reason}", aside, power_)
    return _move(tx, context, node, step)


def check_until(until: float | None, now: float) -> None:
    """Raise `Refused` if the time of the return to service is over."""
    if until is not None and until <= now:
        raise Refused("invalid", "that time is over: name a later one", "until")


def _is_approved(tx: Tx, node: Node) -> bool:
    """Return whether an administrator, or the site's rule, has ever taken the node into service."""
    state = node.state
    if state == NodeState.QUARANTINED:  # the node may have been unapproved before
        state = nodes.history(tx, node.id, limit=1)[0]["from_state"]
    return state not in UNAPPROVED and _is_known(node)


def _is_known(node: Node) -> bool:
    """Return whether the node's machine has ever reported, so that the node can be in service."""
    return node.reported_at is not None or node.type_id is not None


def restore(tx: Tx, context: FlowContext, *, name: str) -> Result[Node]:
    """Give a node that was taken out of service or retired another chance: it boots into the
    trampoline. If its agent has told nothing since the site was held last, it is held until the
    agent has told what its disks hold."""
    node = nodes.named(tx, name, lock=True)
    if not _is_known(node):
        why = f"node {name} has never reported: delete it, and add it again"
        raise Refused("conflict", why, "name")
    burnins.ask_on_return(tx, node, context.site, context.now, context.actor)
    _check_move(node, NodeEvent.RESTORED)
    step = lifecycle.restored(node, f"restored by {context.actor}")
    restored = _into_service(tx, context, node, step)
    return Result(restored, transitions.wakes(node, restored))


def _into_service(tx: Tx, context: FlowContext, node: Node, step: Step) -> Node:
    """Apply the step that brings a node into service, and return the node. Hold it if its agent has
    not told what its disks hold since the site was held last."""
    known = _untold(tx, node)
    returned = transitions.apply_for(tx, context, node, step)
    if known is not None:
        stories.include(tx, node.id, known)
    return returned


def _untold(tx: Tx, node: Node) -> int | None:
    """Return the generation that the disk of a node out of service can have at most, if its agent
    has not told what the disk holds since the site was held last; otherwise None."""
    story = stories.get(tx, node.id)
    if story is not None:
        is_told = story.source == "agent" or story.verdict == StoryVerdict.AGREES
        return None if is_told else story.known
    last = watermarks.at(tx, watermarks.LAST_HOLD)
    was_out = last is not None and nodes.history(tx, node.id, limit=1)[0]["id"] <= last
    return node.generation - 1 if was_out else None


def moved(tx: Tx, context: FlowContext, *, name: str, also: int | None = None) -> Result[Node]:
    """Confirm that the node was moved: forget all places where it may boot, and have the next place
    where it boots recorded as its own.

    also  the id of a further place where the node was heard: the node may boot there, too, and no
          place is forgotten
    """
    node = nodes.named(tx, name, lock=True)
    if also is None:
        nodes.forget_places(tx, node.id)
        nodes.change(tx, node, **place.FORGOTTEN)
        return Result(nodes.known(tx, node.id))
    known = _places(tx, node)
    if also not in {each.id for each in known} - {HOME}:
        raise Refused("not_found", f"node {name} was heard in no place {also}", "also")
    for each in known:
        if each.id == HOME:  # a row of its own keeps this place when the node's columns change
            here = {key: getattr(each, key) for key in place.FIELDS}
            nodes.add_place(tx, node.id, context.now, approved=True, **here)
    nodes.change_place(tx, also, approved=True)
    return Result(nodes.known(tx, node.id))


def places_of(tx: Tx, *, name: str) -> list[NodePlace]:
    """Return the places where the node may boot, and those where its MAC was heard. Raises
    `Refused`."""
    return _places(tx, nodes.named(tx, name))


def _places(tx: Tx, node: Node) -> list[NodePlace]:
    """Return the node's places. The place that the node's row has as its own comes first with the
    id `HOME`, unless it is among the approved places."""
    known = nodes.places(tx, node.id)
    here = (node.home_subnet, node.home_circuit, node.home_remote, node.home_port)
    listed = any(  # a place that is known by option 82 may have got its port since
        each.approved
        and (each.subnet, each.circuit, each.remote) == here[:3]
        and node.home_port in (None, each.port)
        for each in known
    )
    if node.home_at is None or listed:
        return known
    return [NodePlace(HOME, node.id, *here, node.home_at, True), *known]


def retire(tx: Tx, context: FlowContext, *, name: str) -> Result[Node]:
    """Take the node out of the site for good. Raise `Refused` while a vcluster holds it."""
    node = nodes.named(tx, name, lock=True)
    if node.vcluster_id is not None:
        raise Refused(
            "conflict", f"node {name} is held by a vcluster: release or quarantine it first", "name"
        )
    step = Step(NodeEvent.RETIRED, f"retired by {context.actor}", {"reason": ""})
    return _move(tx, context, node, step)


def change(tx: Tx, context: FlowContext, *, name: str, changes: Mapping[str, Any]) -> Result[Node]:
    """Change an administrator's settings of a node. `changes` has columns, of which None leaves the
    present value, and these: `name`; `block`, which is created if need be ('' takes the node out of
    its block); `power_account` ('' removes it); `keep`, all marks of disks that are never written,
    with `keep_was`, the marks that are replaced. Raises `Refused`, also if the node's marks are not
    `keep_was` any more."""
    node = nodes.named(tx, name, lock=True)
    settings = dict(changes)
    keep, keep_was = settings.pop("keep", None), settings.pop("keep_was", None)
    columns = node_settings.columns(tx, settings, context.site)
    new_name = columns.get("name", name)
    if new_name != name and nodes.by_name(tx, new_name):
        raise Refused("conflict", f"there is a node {new_name!r} already", "name")
    node = node_settings.change(tx, node, columns)
    effects = _keep(tx, context, node, keep, keep_was) if keep is not None else ()
    return Result(
        nodes.known(tx, node.id) if keep is not None else node,
        (Effect("wake", "manager"), *effects),
    )


def tag(
    tx: Tx,
    context: FlowContext,
    *,
    name: str,
    add: Collection[str] = (),
    remove: Collection[str] = (),
) -> Result[Node]:
    """Add tags to the node, and take others away. Raises `Refused`."""
    tags = set(nodes.named(tx, name, lock=True).tags.split())
    tags = (tags | set(names.checked_tags(add))) - set(names.checked_tags(remove))
    return change(tx, context, name=name, changes={"tags": tags})


def _keep(
    tx: Tx, context: FlowContext, node: Node, marks: Sequence[str], was: Sequence[str] | None
) -> tuple[Effect, ...]:
    if node.state in WORKING:
        raise Refused(
            "conflict",
            f"node {node.name} is in state {node.state}: its disks are at work, by the marks "
            "that they had; change them when that is over",
            "keep",
        )
    own = "\n".join(dict.fromkeys(map(policy.check, marks)))
    if len(own) > policy.MOST:
        raise Refused(
            "invalid",
            f"the marks have {len(own)} characters; at most {policy.MOST} are kept",
            "keep",
        )
    if was is not None and node.keep not in ("\n".join(was), own):
        present = ", ".join(node.keep.split("\n")) if node.keep else "none"
        raise Refused(
            "conflict",
            f"somebody changed the marks of {node.name} meanwhile; the present marks are: "
            f"{present}. Send the list again to replace the present marks with it",
            "keep",
        )
    node = nodes.change(tx, node, keep=own)
    return _look_again(tx, node, context.site, context.now, context.actor)


def _look_again(tx: Tx, node: Node, site: Site, now: float, actor: str) -> tuple[Effect, ...]:
    """Apply changed keep marks to a node that has reported: the node may get another type, and a
    free node is wiped if one of its disks is not kept any more."""
    was, node = node, kept_disks.remark(tx, node, site, now)
    if node is was or node.state != NodeState.INACTIVE or node.disk != Disk.DIRTY:
        return ()
    step = Step(
        NodeEvent.WIPE_ORDERED, "a disk of it is kept no longer: it may hold anybody's data"
    )
    return transitions.wakes(
        node, transitions.apply(tx, node, step, now=now, actor=actor, policy=site.policy)
    )


def look_again(tx: Tx, *, after: int, site: Site, now: float) -> Result[int | None]:
    """Apply the site's rules for kept disks to the next `BATCH` nodes with an id above `after`.
    Return the id of the last of these nodes, None after the end."""
    batch = nodes.reported_after(tx, after, BATCH, holding="" if site.keep else policy.KEPT)
    effects: list[Effect] = []
    for node in batch:
        # a node at work keeps the marks of its order, and is looked at when the order ends
        if node.state not in WORKING:
            effects += _look_again(tx, node, site, now, "site file")
    return Result(batch[-1].id if len(batch) == BATCH else None, tuple(dict.fromkeys(effects)))


def _check_move(node: Node, event: NodeEvent) -> None:
    if (NodeState(node.state), event) not in NODE_TRANSITIONS:
        raise Refused(
            "conflict", f"node {node.name} is {node.state}: it cannot be {event} now", "name"
        )


def _move(tx: Tx, context: FlowContext, node: Node, step: Step) -> Result[Node]:
    _check_move(node, step.event)
    moved = transitions.apply_for(tx, context, node, step)
    return Result(moved, transitions.wakes(node, moved))


def shown(tx: Tx, *, flow: Callable[[Tx], Result[Node]], policy: Policy) -> Result[NodeView]:
    """Run one of these flows; return its result, with the node's view in place of its row. A flow
    for many nodes makes no views: that would take longer than the change."""
    done = flow(tx)
    [view] = preemption.protected(views.nodes(tx, name=done.value.name), policy)
    return Result(view, done.effects)
