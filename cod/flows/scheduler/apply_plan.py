"""What carries out the manager's plan: one short transaction for each of its parts.

Between the snapshot and an act anything may have happened, so each act confirms the manager's claim
and looks at its rows again, one by one: an act whose rows have changed does nothing (`Stale`), and
the next pass plans anew. An act that is run twice, because nobody knows whether it was committed,
does its work once. A pass can be cut short anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cod import notice_texts
from cod.core import (
    advance_reservations,
    entitlements,
    node_hours,
    notices,
    preemption,
    vcm_outbox,
)
from cod.core import leases as core_leases
from cod.core import requests as core_requests
from cod.core.networks import address_blocks
from cod.core.nodes import assignment, transitions
from cod.model import Effect, Group, Node, Reclaim, Refused, Request, Result, Site, Vcluster
from cod.policy.nodes import lifecycle
from cod.policy.scheduler import leases, reserve_pool
from cod.policy.scheduler.snapshot import (
    WARM,
    FreeNodes,
    PassPlan,
    PowerChange,
    Preempt,
    PreemptLess,
    RequestGrant,
    RequestRefusal,
    Share,
)
from cod.states import NodeEvent, NodeState, ReclaimState, RequestState, Step, VclusterState
from cod.store import claims, watermarks
from cod.store.engine import Tx
from cod.store.nodes import holding, nodes
from cod.store.people import groups
from cod.store.scheduler import node_counts, reclaims, requests, vclusters

ACTOR = "manager"
SWITCHED = 50  # nodes woken or put to sleep by one transaction: tens of milliseconds
TOLD = 100  # requests
Claim = claims.Claim
Lost = claims.Lost
Stale = nodes.Stale


@dataclass(frozen=True, slots=True)
class Act:
    """One act of a plan: `flow(tx, claim=..., now=...)` does it. `request_id`: whom to tell if a
    rule refuses it."""

    name: str
    flow: Callable[..., Result[int]]
    request_id: int | None = None


def acts(plan: PassPlan, site: Site) -> list[Act]:
    """Return the acts that carry out `plan`, in order; each runs in a transaction of its own.

    Grants and reductions of reclaims go before overdue reclaims, so that no node is seized that is
    not needed any more. An act raises `Lost` when the claim is gone (the pass is over), `Stale`
    when its rows have changed (the next act can run) and `Refused` when a rule forbids it (`waits`
    tells the request why).
    """
    return [
        *(
            Act(f"warn vcluster {one}", partial(warn, vcluster_id=one, seconds=ahead))
            for one, ahead in plan.warnings
        ),
        *(
            Act(f"drain vcluster {one}", partial(drain, vcluster_id=one, site=site))
            for one in plan.drains
        ),
        *(
            Act(f"expire vcluster {one}", partial(expire, vcluster_id=one, site=site))
            for one in plan.expired
        ),
        *(Act(f"end vcluster {one}", partial(end, vcluster_id=one)) for one in plan.deserted),
        *([Act("remember odd nodes", partial(remember_odd, plan=plan))] if plan.odd else ()),
        *(
            Act(
                f"grant request {one.request_id}",
                partial(grant, granted=one, plan=plan, site=site),
                one.request_id,
            )
            for one in plan.grants
        ),
        *(
            Act(f"ease reclaim {one.reclaim_id}", partial(ease, eased=one))
            for one in plan.reductions
        ),
        *(
            Act(f"seize by reclaim {one}", partial(seize, reclaim_id=one, plan=plan, site=site))
            for one in plan.overdue
        ),
        *(
            Act(
                f"take for request {one.request_id}",
                partial(take, taken=one, plan=plan, site=site),
                one.request_id,
            )
            for one in plan.preemptions
        ),
        *(
            Act(
                "tell requests why not", partial(tell, refusals=plan.refusals[start : start + TOLD])
            )
            for start in range(0, len(plan.refusals), TOLD)
        ),
        *(
            Act(
                "put nodes to sleep" if part.sleep else "wake nodes",
                partial(change_power, part=part, site=site),
            )
            for one in plan.power_changes
            for start in range(0, one.count, SWITCHED)
            for part in [replace(one, count=min(SWITCHED, one.count - start))]
        ),
    ]


# ---------------------------------------------------------------- giving nodes


def grant(
    tx: Tx, *, granted: RequestGrant, plan: PassPlan, claim: Claim, site: Site, now: float
) -> Result[int]:
    """Give the request its nodes: all of them, or `Stale` is raised and none. A move gets those
    that have come."""
    claims.confirm(tx, claim, now)
    request = requests.get(tx, granted.request_id, lock=True)
    if request is None or request.state != RequestState.PENDING:
        return Result(0)
    vcluster = vclusters.get(tx, request.vcluster_id, lock=True)
    alive = vcluster is not None and vcluster.state in (VclusterState.PENDING, VclusterState.ACTIVE)
    if vcluster is None or not alive or vcluster.drain_until is not None:
        raise nodes.Changed(f"vcluster {request.vcluster_id} gets no nodes any more")
    if watermarks.version(tx, watermarks.RESERVED, lock=True) != plan.version:
        raise nodes.Changed("what reservations in advance leave to others has changed")
    seats = _seats(tx, granted.shares, site, vcluster.group_id)
    if request.source_id is None:
        core_requests.decide(tx, request.id, RequestState.GRANTED, "", now)
    vcluster = _admit(tx, vcluster, request, [node for node, _ in seats], plan, site, now)
    address_blocks.extend(tx, vcluster, vcluster.size, site, now=now)
    hostnames = vclusters.free_hostnames(tx, vcluster.id)
    effects: set[Effect] = set()
    slow = now + _wake_time(tx, sum(node.state == NodeState.OFF for node, _ in seats), site)
    for node, share in seats:
        held = holding.take(
            tx,
            node,
            vcluster=vcluster,
            request_id=request.id,
            position=share.position,
            template_id=share.template_id,
            hostname=next(hostnames),
            now=now,
        )
        effects.update(_set_going(tx, node, held, vcluster, slow, site, now))
    vcm_outbox.granted(
        tx, request, vclusters.get(tx, vcluster.id) or vcluster, [node.id for node, _ in seats], now
    )
    if request.source_id is not None:
        requests.count_granted(tx, request.id, len(seats))
        core_requests.conclude_move(tx, request.id, now)
    return Result(len(seats), tuple(effects))


def _seats(tx: Tx, shares: Sequence[Share], site: Site, group_id: int) -> list[tuple[Node, Share]]:
    """Return each granted node with its share. Tuples that are served from one pool get different
    nodes of it."""
    wanted: Counter[FreeNodes] = Counter()
    for share in shares:
        wanted[share.free_nodes] += share.count
    many = len(site.subnets) > 1
    picked = {
        free: iter(node_counts.pick_free(tx, _key(free), count, many, group_id=group_id))
        for free, count in wanted.items()
    }
    return [(next(picked[share.free_nodes]), share) for share in shares for _ in range(share.count)]


def _key(free: FreeNodes) -> node_counts.FreeKey:
    template, group = free.cache or (None, None)
    state = NodeState.INACTIVE if free.readiness == WARM else NodeState.OFF
    return node_counts.FreeKey(
        state, node_counts.NodeKindRow(*free.kind), template, group, free.reserved
    )


def _set_going(
    tx: Tx, node: Node, held: Node, vcluster: Vcluster, slow: float, site: Site, now: float
) -> tuple[Effect, ...]:
    """Have the holder's software primed or booted on a node that is awake; wake a node that is
    off."""
    wanted = holding.assignment(tx, held)
    assert wanted is not None
    if node.state == NodeState.OFF:
        step = Step(
            NodeEvent.WOKEN, f"woken for vcluster {vcluster.name}", {"deadline": slow}, "on"
        )
    else:
        step = lifecycle.assign(held, wanted)
    return transitions.wakes(
        node, transitions.apply(tx, held, step, now=now, actor=ACTOR, policy=site.policy)
    )


def _admit(
    tx: Tx,
    vcluster: Vcluster,
    request: Request,
    granted: Sequence[Node],
    plan: PassPlan,
    site: Site,
    now: float,
) -> Vcluster:
    owner = groups.get(tx, vcluster.group_id)
    if vcluster.state == VclusterState.PENDING:
        asked = until = now + vcluster.lease_time
        if request.starts_at is None:  # else its node-hours were checked when it was reserved
            until = min(asked, _until(tx, vcluster, owner, len(granted), asked, site, now))
        began = vclusters.change(
            tx,
            vcluster,
            now,
            state=VclusterState.ACTIVE,
            leased_at=now,
            expires_at=until,
            warned=leases.begun(until - now, site.policy),
            creation_size=entitlements.creation_size(
                tx, vcluster, Counter(node.type_id or 0 for node in granted), plan.sharing
            ),
        )
        notices.tell(tx, began, notice_texts.lease_began(began, cut=until < asked), now)
        advance_reservations.tell_begun(tx, began, request, now)
        return began
    _check_hours(tx, vcluster, request, owner, len(granted), site, now)
    if request.kind in ("grow", "move"):
        grown = vclusters.change(tx, vcluster, now, size=vcluster.size + len(granted))
        if request.starts_at is not None:
            advance_reservations.begin(tx, grown, request, site.policy, now)
        return grown
    return vcluster


def _check_hours(
    tx: Tx, vcluster: Vcluster, request: Request, owner: Group, nodes_: int, site: Site, now: float
) -> None:
    """Raise `Refused` if the group's remaining node-hours are too few for the request."""
    if vcluster.state == VclusterState.PENDING and request.starts_at is None:
        _until(tx, vcluster, owner, nodes_, now + vcluster.lease_time, site, now)
    elif request.kind == "grow" and request.starts_at is None:
        end = leases.end(vcluster, now)
        node_hours.check(tx, owner, nodes_, end, now, field="size", waits=False)


def _until(
    tx: Tx, vcluster: Vcluster, owner: Group, nodes_: int, asked: float, site: Site, now: float
) -> float:
    """Return when a lease that begins now ends, so that its nodes stay within the group's
    node-hours. Raise `Refused` where it would be over before its nodes could be of use."""
    found = node_hours.bound(tx, owner, nodes_, asked, now)
    if found is None:
        return asked
    if found.end < now + site.policy.turnaround:
        node_hours.check(tx, owner, nodes_, asked, now, field="lease", waits=False)
    return found.end


def tell(tx: Tx, *, refusals: Sequence[RequestRefusal], claim: Claim, now: float) -> Result[int]:
    """Tell requests why they wait or are rejected. A vcluster whose first request is rejected
    ends."""
    claims.confirm(tx, claim, now)
    for refusal in refusals:
        if not refusal.final:
            if refusal.code == "late":
                advance_reservations.late(tx, refusal.request_id, refusal.sentence, now)
            requests.explain(tx, refusal.request_id, refusal.sentence)
        elif refusal.code == "ended":
            core_requests.conclude_move(tx, refusal.request_id, now)
        else:
            core_requests.reject(tx, refusal.request_id, refusal.sentence, now)
    return Result(len(refusals))


def waits(tx: Tx, request_id: int, refused: Refused, now: float) -> None:
    """A rule stood against a granted request when it was applied: say so on the request, which is
    rejected if it may not wait."""
    request = requests.get(tx, request_id)
    if request is not None and not request.may_wait:
        core_requests.reject(tx, request_id, refused.sentence, now)
    else:
        requests.explain(tx, request_id, refused.sentence)


def remember_odd(tx: Tx, *, plan: PassPlan, claim: Claim, now: float) -> Result[int]:
    """Remember which groups have an odd node of their share, so that they keep it for a turn."""
    claims.confirm(tx, claim, now)
    groups.have_odd(tx, dict(plan.odd))
    return Result(len(plan.odd))


# ---------------------------------------------------------------- taking nodes


def take(
    tx: Tx, *, taken: Preempt, plan: PassPlan, claim: Claim, site: Site, now: float
) -> Result[int]:
    """Open a reclaim of a vcluster's nodes, and choose the nodes that go unless the owner or the
    VCM names others. Raises `Refused` if the requesting group lacks node-hours to use them."""
    claims.confirm(tx, claim, now)
    request = requests.get(tx, taken.request_id, lock=True)
    vcluster = vclusters.get(tx, taken.vcluster_id, lock=True)
    kind, block = taken.kind, taken.kind.block or None
    if request is None or vcluster is None or request.state != RequestState.PENDING:
        return Result(0)
    if reclaims.written(tx, request.id, vcluster.id, kind.type, block, now):
        return Result(0)
    if (asking := vclusters.get(tx, request.vcluster_id)) is not None:
        wanted = sum(one.count for one in request.tuples)
        owner = groups.get(tx, asking.group_id)
        _check_hours(tx, asking, request, owner, wanted, site, now)
    able = preemption.takeable(
        tx, vcluster, request, taken.count, now, type_id=kind.type, sharing=plan.sharing
    )
    if able < taken.count:
        raise nodes.Changed(
            f"vcluster {vcluster.name} has not {taken.count} nodes to spare any more"
        )
    key, many = node_counts.NodeKindRow(*kind), len(site.subnets) > 1
    chosen = preemption.victims(tx, vcluster, key, taken.count, many, site.policy, now)
    if len(chosen) < taken.count:
        raise nodes.Changed(
            f"vcluster {vcluster.name} has not {taken.count} such nodes outside their inertia any"
            " more"
        )
    attributes = {one.attributes for one in request.tuples}
    made = reclaims.add(
        tx,
        vcluster_id=vcluster.id,
        request_id=request.id,
        type_id=kind.type,
        block_id=block,
        subnet=kind.subnet,
        attributes=attributes.pop() if len(attributes) == 1 else "",
        nodes=chosen,
        deadline=preemption.deadline(tx, vcluster, site.policy, now),
        now=now,
    )
    notices.tell(
        tx,
        vcluster,
        notice_texts.reclaim(vcluster, [node.name for node in chosen], made.count, made.deadline),
        now,
    )
    would_do = node_counts.pick_held(tx, vcluster.id, key, many, now)
    why = (
        f"request {request.id} needs these nodes; {vcluster.name} is preemptible"
        if vcluster.preemptible
        else (f"request {request.id} has priority {request.priority}")
    )
    vcm_outbox.reclaimed(tx, made, why, [*chosen, *would_do], now)
    return Result(made.count)


def ease(tx: Tx, *, eased: PreemptLess, claim: Claim, now: float) -> Result[int]:
    """Lower what a reclaim wants: of the nodes that were chosen the last may stay."""
    claims.confirm(tx, claim, now)
    return Result(preemption.ease(tx, eased.reclaim_id, eased.count, eased.left, now))


def seize(
    tx: Tx, *, reclaim_id: int, plan: PassPlan, claim: Claim, site: Site, now: float
) -> Result[int]:
    """Take the nodes that a reclaim still lacks after its deadline, without asking their owner; at
    most as many as the rules still allow."""
    claims.confirm(tx, claim, now)
    there = reclaims.get(tx, reclaim_id)
    vcluster = vclusters.get(tx, there.vcluster_id, lock=True) if there else None
    reclaim = reclaims.get(tx, reclaim_id, lock=True)
    if (
        vcluster is None
        or reclaim is None
        or reclaim.state != ReclaimState.OPEN
        or reclaim.deadline > now
    ):
        return Result(0)
    leaving = _seized(tx, reclaim, vcluster, plan, site, now)
    answered = preemption.answer(tx, reclaim, leaving, now)
    if answered.state == ReclaimState.OPEN:
        preemption.close(tx, answered, now, leaving)
        preemption.spared(tx, answered, now)
    request = requests.get(tx, reclaim.request_id)
    moves = request is not None and request.source_id is not None
    cause = (
        f"moved by request {reclaim.request_id}"
        if moves
        else (f"taken for request {reclaim.request_id}, of higher priority")
    )
    effects = assignment.release(tx, leaving, cause=cause, now=now, actor=ACTOR, policy=site.policy)
    if leaving:
        smaller = vclusters.change(tx, vcluster, now, size=vcluster.size - len(leaving))
        names = [node.name for node in leaving]
        notices.tell(
            tx,
            smaller,
            notice_texts.moved(smaller, names) if moves else notice_texts.reclaimed(smaller, names),
            now,
        )
    return Result(len(leaving), effects)


def _seized(
    tx: Tx, reclaim: Reclaim, vcluster: Vcluster, plan: PassPlan, site: Site, now: float
) -> list[Node]:
    """Return as many nodes as may still be taken: the chosen ones, and others in place of those
    that have gone."""
    request = requests.get(tx, reclaim.request_id)
    assert request is not None
    left = reclaim.count - reclaim.given
    count = preemption.takeable(
        tx,
        vcluster,
        request,
        left,
        now,
        type_id=reclaim.type_id,
        sharing=plan.sharing,
        open_=left,
    )
    goes = leases.victims(reclaims.chosen(tx, reclaim), count)
    if len(goes) < count:
        kind = preemption.kind_of(tx, reclaim)
        goes += preemption.victims(
            tx, vcluster, kind, count - len(goes), len(site.subnets) > 1, site.policy, now
        )
    return goes


# ---------------------------------------------------------------- leases


def warn(tx: Tx, *, vcluster_id: int, seconds: float, claim: Claim, now: float) -> Result[int]:
    """Tell the group, once, that the vcluster's lease ends within `seconds`."""
    claims.confirm(tx, claim, now)
    return Result(int(core_leases.warn(tx, vcluster_id, seconds, now)))


def drain(tx: Tx, *, vcluster_id: int, claim: Claim, site: Site, now: float) -> Result[int]:
    """Begin to drain a vcluster whose lease has run out: its owner has `drain_grace` seconds to
    save data."""
    claims.confirm(tx, claim, now)
    return Result(int(core_leases.drain(tx, vcluster_id, site.policy.drain_grace, now)))


def expire(tx: Tx, *, vcluster_id: int, claim: Claim, site: Site, now: float) -> Result[int]:
    """Take the nodes back by power: the grace after the lease is over."""
    claims.confirm(tx, claim, now)
    effects = core_leases.expire(tx, vcluster_id, now=now, actor=ACTOR, policy=site.policy)
    return Result(0) if effects is None else Result(1, effects)


def end(tx: Tx, *, vcluster_id: int, claim: Claim, now: float) -> Result[int]:
    """End a releasing vcluster whose last node is back: its name and its addresses are free."""
    claims.confirm(tx, claim, now)
    if vcluster_id not in {vcluster.id for vcluster in vclusters.deserted(tx)}:
        return Result(0)
    vcluster = vclusters.get(tx, vcluster_id, lock=True)
    assert vcluster is not None
    vclusters.end(tx, vcluster, now)
    return Result(1)


# ---------------------------------------------------------------- the reserve


def change_power(tx: Tx, *, part: PowerChange, claim: Claim, site: Site, now: float) -> Result[int]:
    """Wake nodes of the cold reserve, or put some of the warm one to sleep."""
    claims.confirm(tx, claim, now)
    key, many = _key(part.free_nodes), len(site.subnets) > 1
    if node_counts.switched(
        tx, key, NodeState.OFF if part.sleep else NodeState.TRAMPOLINE, many, now
    ):
        return Result(0)  # this very act was committed before
    idle_since = now - site.energy.idle_time if part.sleep else None
    picked = node_counts.pick_free(tx, key, part.count, many, idle_since)
    if part.sleep:
        step = Step(NodeEvent.POWERED_DOWN, f"put to sleep: {part.why}", power="off")
    else:
        until = now + _wake_time(tx, len(picked), site)
        step = Step(NodeEvent.WOKEN, f"woken: {part.why}", {"deadline": until}, "on")
    effects: set[Effect] = set()
    for node in picked:
        moved = transitions.apply(tx, node, step, now=now, actor=ACTOR, policy=site.policy)
        effects.update(transitions.wakes(node, moved))
    return Result(len(picked), tuple(effects))


def _wake_time(tx: Tx, count: int, site: Site) -> float:
    """Return seconds that `count` nodes more have for waking, together with those that are waking
    already."""
    if not count:
        return 0.0
    return (
        reserve_pool.wake_deadline(site.energy, node_counts.waking(tx) + count)
        * site.policy.patience
    )
