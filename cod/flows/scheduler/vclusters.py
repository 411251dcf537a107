"""Owners' actions on their virtual clusters: create, resize, extend, release, delete.

Each flow only changes rows; nodes follow in the manager's pass and by their own transitions. A flow
returns the vcluster as `flows.views.vcluster` shows it: a view and its nodes' views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cod import notice_texts
from cod.core import (
    admission,
    advance_reservations,
    node_hours,
    notices,
    preemption,
    vcluster_names,
    vcm_outbox,
)
from cod.core import requests as core_requests
from cod.core import volumes as core_volumes
from cod.core.networks import address_blocks, sources
from cod.core.networks import isolation as core_isolation
from cod.core.nodes import assignment, transitions
from cod.model import (
    AskedVcluster,
    Effect,
    FlowContext,
    Group,
    Node,
    NodeView,
    Refused,
    RequestTuple,
    Result,
    Site,
    Vcluster,
    VclusterView,
    set_values,
)
from cod.policy.hardware import match
from cod.policy.nodes import isolation
from cod.policy.scheduler import leases
from cod.states import UNDECIDED, VclusterState
from cod.store import vcms, views
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import nodes
from cod.store.people import groups
from cod.store.scheduler import reclaims, requests, reservations, vclusters

_WAKE = (Effect("wake", "manager"),)
MOST_NAMES = 10  # former names of a vcluster, which no other vcluster gets


def create(
    tx: Tx, context: FlowContext, asked: AskedVcluster, *, possible: bool = False
) -> Result[tuple[VclusterView, list[NodeView]]]:
    """Create a vcluster, and return it. It is pending until the manager grants its request, all
    nodes at once. Its nodes count as usage of the group by the user who asks. Raises `Refused`.

    possible  refuse a request that no machines of the site could ever meet (`core.admission`);
              otherwise the manager's pass rejects such a request
    """
    site, now = context.site, context.now
    if before := _asked_before(tx, context, asked.name):
        return Result(before)
    leases.check(asked.lease)
    owner = groups.named(tx, asked.group, "group")
    admission.check_waiting(tx, owner, site.policy)
    wanted = templates.usable(tx, asked.template, owner.id)
    vcluster_names.check_new(tx, asked.name)
    match.check(asked.attributes, site.types)
    first = RequestTuple(asked.size, asked.attributes, wanted.id)
    tuples = [first, *admission.tuples(tx, asked.also, "also", first, owner.id, site.types)]
    lease_time = leases.granted_time(asked.lease, owner, site.policy)
    duration = None if asked.starts_at is None else lease_time
    count = sum(one.count for one in tuples)
    _check_size(count)
    if duration is None:
        node_hours.check(tx, owner, count, now + lease_time, now, field="lease")
    prefix = core_isolation.asked_prefix(asked, count, site)
    # a waiting vcluster takes no addresses, VLAN or subnet from others: it gets them with its nodes
    vcluster = vclusters.add(
        tx,
        name=asked.name,
        group_id=owner.id,
        template_id=wanted.id,
        size=count,
        attributes=asked.attributes,
        lease_time=lease_time,
        subnet=sources.choose(tx, site, tuples, isolated=prefix is not None),
        addresses=False,
        isolated=prefix is not None,
        network_prefix=prefix,
        user_id=context.who.user_id,
        now=now,
        **set_values(Vcluster, asked),
    )
    assert vcluster is not None, "it wants no block that could be taken"
    if possible:
        admission.check_possible(tx, vcluster, tuples, spread=asked.spread, site=site, field="size")
    if duration is not None:
        address_blocks.extend(tx, vcluster, count, site, now=now)
        advance_reservations.check(tx, vcluster, tuples, asked, asked.starts_at, duration, context)
    requests.add(
        tx,
        vcluster_id=vcluster.id,
        kind="create",
        priority=owner.priority,
        now=now,
        key=context.key,
        may_wait=asked.wait,
        may_spread=asked.spread,
        tuples=tuples,
        starts_at=asked.starts_at,
        duration=duration,
    )
    core_volumes.attach_asked(tx, vcluster, owner, asked, context)
    return Result(_shown(tx, vcluster, site), _WAKE)


def network_sizes(site: Site) -> list[tuple[int, int]]:
    """Return the sizes that an isolated vcluster's network can have, as prefix lengths, each with
    the number of nodes it has addresses for; none where the site has no VLANs."""
    rules = site.isolation
    if rules is None:
        return []
    return [
        (prefix, isolation.room(prefix, rules))
        for prefix in range(isolation.SMALLEST, rules.largest_size - 1, -1)
    ]


def resize(
    tx: Tx,
    context: FlowContext,
    *,
    name: str,
    size: int,
    seen_size: int | None = None,
    spread: bool = False,
    wait: bool = True,
    possible: bool = False,
) -> Result[tuple[VclusterView, list[NodeView]]]:
    """Resize the vcluster to `size` nodes: request more (`spread`, `wait` as in `AskedVcluster`,
    `possible` as in `create`), or give some back: first nodes that are chosen for reclaims, then
    others in the order of `leases.victims`.

    An earlier request to grow that has not been granted is withdrawn. Raises `Refused`, also if the
    vcluster's size is not `seen_size` any more: a caller that means to grow the vcluster must not
    shrink it.
    """
    if before := _asked_before(tx, context, name):
        return Result(before)
    site, now = context.site, context.now
    vcluster = _active(tx, name)
    _check_size(size)
    if seen_size not in (None, vcluster.size):
        raise Refused(
            "conflict",
            f"vcluster {name} has the size {vcluster.size} now, not {seen_size}: look again",
            "size",
        )
    core_requests.withdraw(tx, vcluster.id, "the vcluster was resized anew", now, kind="grow")
    if size > vcluster.size:
        address_blocks.check(tx, vcluster, size, site)
        owner = groups.get(tx, vcluster.group_id)
        more = RequestTuple(size - vcluster.size, vcluster.attributes, vcluster.template_id)
        node_hours.check(tx, owner, more.count, leases.end(vcluster, now), now, field="size")
        if possible:
            admission.check_possible(tx, vcluster, [more], spread=spread, site=site, field="size")
        requests.add(
            tx,
            vcluster_id=vcluster.id,
            kind="grow",
            priority=owner.priority,
            tuples=[more],
            now=now,
            key=context.key,
            may_wait=wait,
            may_spread=spread,
        )
        return Result(_shown(tx, vcluster, site), _WAKE)
    held = nodes.every(tx, vcluster_id=vcluster.id, lock=True)
    chosen = reservations.of_reclaims(tx, [one.id for one in reclaims.open_(tx, vcluster.id)])
    first = leases.victims([node for node in held if node.id in chosen], len(held) - size)
    rest = leases.victims(
        [node for node in held if node.id not in chosen], len(held) - size - len(first)
    )
    victims = first + rest
    return _shrink(tx, context, vcluster, size, victims, f"the vcluster shrank to {size}")


def release(
    tx: Tx,
    context: FlowContext,
    *,
    name: str,
    nodes_: Sequence[str],
    passing_over: bool = False,
    cause: str = "its owner gave it back",
) -> Result[tuple[VclusterView, list[NodeView]]]:
    """Give back the nodes of those names (host names in the vcluster, or the site's names). Raises
    `Refused`.

    cause         the reason that the nodes' histories show
    passing_over  ignore names of which the vcluster has no node, because a VCM may repeat a
                  message. When a repeat is late, another node may have got the name: a node whose
                  grant the VCM has not acknowledged is ignored, too
    """
    vcluster = _active(tx, name)
    held = nodes.every(tx, vcluster_id=vcluster.id, lock=True)
    unacknowledged = vcms.unacknowledged_grants(tx, vcluster.id) if passing_over else set()
    names = {one for node in held for one in (node.hostname, node.name)}
    wanted = [one for one in dict.fromkeys(nodes_) if not passing_over or one in names]
    named = dict.fromkeys(_member(vcluster, held, one) for one in wanted)
    leaving = [node for node in named if node.name not in unacknowledged]
    if not leaving:
        return Result(_shown(tx, vcluster, context.site))
    if vcluster.size - len(leaving) < (0 if vcluster.preemptible else 1):
        raise Refused(
            "conflict", f"vcluster {name} would have no node left; delete it instead", "nodes"
        )
    return _shrink(tx, context, vcluster, vcluster.size - len(leaving), leaving, cause)


def extend(
    tx: Tx, context: FlowContext, *, name: str, lease: float, clip: bool = False
) -> Result[tuple[VclusterView, list[NodeView]]]:
    """Let the lease last `lease` seconds from now; it never becomes shorter. The group's maximum
    bounds the whole lease. Raises `Refused`.

    clip  extend as far as the maximum allows, instead of refusing a longer extension
          (`policy.scheduler.leases.extended`)

    A vcluster that was draining is active again; its group is warned anew before the new end.
    """
    leases.check(lease)
    site, now = context.site, context.now
    vcluster = _active(tx, name)
    began, ends = vcluster.leased_at or vcluster.created_at, vcluster.expires_at or now
    owner = groups.get(tx, vcluster.group_id)
    until = leases.extended(lease, ends, began, owner, site.policy, now, clip=clip)
    until = _within_hours(tx, vcluster, owner, until, clip=clip, now=now)
    until = advance_reservations.bounded(tx, vcluster, until, clip=clip, site=site, now=now)
    if until > (vcluster.expires_at or now):
        vcluster = vclusters.change(
            tx,
            vcluster,
            now,
            expires_at=until,
            drain_until=None,
            warned=leases.begun(until - now, site.policy),
        )
        notices.tell(tx, vcluster, notice_texts.extended(vcluster), now)
        vcm_outbox.leased(tx, vcluster, "extended", now)
    return Result(_shown(tx, vcluster, site), _WAKE)


def describe(
    tx: Tx, context: FlowContext, *, name: str, changes: Mapping[str, str]
) -> Result[tuple[VclusterView, list[NodeView]]]:
    """Change a vcluster's `description`, `tags` or `name`. The DNS names of its nodes contain its
    name. Raises `Refused`."""
    vcluster, values = vclusters.named(tx, name, lock=True), dict(changes)
    new = values.pop("name", name)
    if new != name:
        vcluster = _renamed(tx, vcluster, new, context.now)
    vcluster = vclusters.change(tx, vcluster, context.now, **values)
    return Result(_shown(tx, vcluster, context.site))


def _renamed(tx: Tx, vcluster: Vcluster, name: str, now: float) -> Vcluster:
    """Rename a vcluster, and tell its group. Raise `Refused` if it has a VCM, whose certificate
    contains the old name."""
    former = vclusters.former_names(tx, vcluster.id)
    if name not in former and len(former) >= MOST_NAMES:
        raise Refused(
            "conflict",
            f"vcluster {vcluster.name} was renamed {MOST_NAMES} times: give it one of its former"
            f" names ({', '.join(former)})",
            "name",
        )
    vcluster_names.check_new(tx, name, vcluster.name)
    if vcms.get(tx, vcluster.id) is not None:
        raise Refused(
            "conflict",
            f"the VCM of vcluster {vcluster.name} is known by this name: revoke it, and enrol it"
            " anew afterwards",
            "name",
        )
    renamed = vclusters.rename(tx, vcluster, name, now)
    notices.tell(tx, renamed, notice_texts.renamed(renamed, vcluster.name), now)
    return renamed


def delete(
    tx: Tx, context: FlowContext, *, name: str
) -> Result[tuple[VclusterView, list[NodeView]]]:
    """End the vcluster: withdraw its requests and release its nodes. The vcluster has ended when
    the last node is back in the reserve.

    Deleting it again changes nothing.
    """
    now, actor = context.now, context.actor
    vcluster = vclusters.named(tx, name, lock=True)
    core_requests.withdraw(tx, vcluster.id, "the vcluster was deleted", now)
    held = nodes.every(tx, vcluster_id=vcluster.id, lock=True)
    preemption.deserted(tx, vcluster.id, held, now)
    effects = assignment.release(
        tx, held, cause="its vcluster was deleted", now=now, actor=actor, policy=context.site.policy
    )
    if vcluster.state != VclusterState.RELEASING:
        notices.tell(tx, vcluster, notice_texts.deleted(vcluster, actor), now)
    if vcluster.state == VclusterState.PENDING:
        vcluster = core_requests.end(tx, vcluster, now)
    else:
        core_volumes.detach_all(tx, vcluster, now)
        vcluster = vclusters.change(tx, vcluster, now, state=VclusterState.RELEASING)
    return Result(_shown(tx, vcluster, context.site), effects)


# ---------------------------------------------------------------- steps


def _within_hours(
    tx: Tx, vcluster: Vcluster, owner: Group, until: float, *, clip: bool, now: float
) -> float:
    """Return until when the group's node-hours let the lease be extended: `until` at most, and its
    present end at least. If the node-hours do not last `until` then, raise `Refused`, unless
    `clip`."""
    ends = vcluster.expires_at or now
    if until <= ends:
        return until
    if clip:
        found = node_hours.bound(tx, owner, vcluster.size, until, now, without=vcluster.id)
        return until if found is None else max(found.end, ends)
    node_hours.check(
        tx, owner, vcluster.size, until, now, field="lease", without=vcluster.id, waits=False
    )
    return until


def _shrink(
    tx: Tx, context: FlowContext, vcluster: Vcluster, size: int, leaving: Sequence[Node], cause: str
) -> Result[tuple[VclusterView, list[NodeView]]]:
    """Shrink the vcluster to `size` nodes: release the nodes `leaving`, and withdraw requests for
    replacements beyond that size.

    The released nodes count as answers to the vcluster's open reclaims.
    """
    site, now = context.site, context.now
    preemption.answer_all(tx, vcluster.id, leaving, now)
    effects = assignment.release(
        tx, leaving, cause=cause, now=now, actor=context.actor, policy=site.policy
    )
    lacking = max(size - vclusters.held(tx, vcluster.id), 0)
    open_ = requests.every(tx, states=UNDECIDED, vcluster_id=vcluster.id)
    for request in [one for one in open_ if one.kind == "replace"][lacking:]:
        core_requests.take_back(tx, request, cause, now)
    smaller = vclusters.change(tx, vcluster, now, size=size)
    address_blocks.trim(tx, vcluster.id)
    transitions.tell_if_ready(tx, vcluster.id, now)  # without the nodes that were not active yet
    return Result(_shown(tx, smaller, site), effects)


def _shown(tx: Tx, vcluster: Vcluster, site: Site) -> tuple[VclusterView, list[NodeView]]:
    # another vcluster may have its name now
    [view] = views.vclusters(tx, name=f"{vcluster.name}@{vcluster.id}", ended=True)
    held = views.members(tx, vcluster.name) if view.vcluster.ended_at is None else []
    return view, preemption.protected(held, site.policy)


def _asked_before(
    tx: Tx, context: FlowContext, name: str
) -> tuple[VclusterView, list[NodeView]] | None:
    """Return the vcluster of an earlier request with the same key; None if there was none."""
    before = admission.asked_before(tx, context.key, name)
    if before is None:
        return None
    return _shown(tx, vclusters.known(tx, before.vcluster_id), context.site)


# ---------------------------------------------------------------- checks


def _check_size(size: int) -> None:
    if size < 1:
        raise Refused(
            "invalid", "a vcluster has at least one node; delete it to give back all", "size"
        )


def _active(tx: Tx, name: str) -> Vcluster:
    vcluster = vclusters.named(tx, name, lock=True)
    if vcluster.state != VclusterState.ACTIVE:
        why = (
            "is still waiting for its nodes"
            if vcluster.state == VclusterState.PENDING
            else "is ending"
        )
        raise Refused("conflict", f"vcluster {name} {why}", "name")
    return vcluster


def _member(vcluster: Vcluster, held: Sequence[Node], name: str) -> Node:
    for node in [
        *(node for node in held if node.hostname == name),
        *(node for node in held if node.name == name),
    ]:
        return node
    raise Refused("not_found", f"vcluster {vcluster.name} has no node {name!r}", "nodes")
