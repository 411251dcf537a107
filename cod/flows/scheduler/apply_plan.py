"""Execution of the manager's plan: one short transaction for each of its parts.

Between the snapshot and an act anything may have happened, so each act confirms the manager's claim
and looks at its rows again, one by one: an act whose rows have changed does nothing (`Stale`), and
the next pass plans anew. An act that is run twice, because nobody knows whether it was committed,
does its work once. A pass can be cut short anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cod import notice_texts
from cod.core import (
    advance_reservations,
    notices,
    preemption,
)
from cod.core import leases as core_leases
from cod.core import requests as core_requests
from cod.core.nodes import assignment, grants, transitions
from cod.core.nodes.reclaim_batch import ReclaimBatch
from cod.model import Effect, Node, Reclaim, Refused, Result, Site, Vcluster
from cod.policy.scheduler import leases
from cod.policy.scheduler.snapshot import (
    PassPlan,
    PowerChange,
    Preempt,
    PreemptLess,
    RequestGrant,
    RequestRefusal,
)
from cod.states import NodeEvent, NodeState, ReclaimState, Step
from cod.store import claims
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.people import groups
from cod.store.scheduler import node_picks, reclaims, requests, vclusters

ACTOR = "manager"
SWITCHED = 50  # nodes woken or put to sleep by one transaction: tens of milliseconds
GRANTED = 200  # nodes given by one transaction, where many requests are granted
TAKEN = 100  # preemptions carried out by one transaction
REFUSALS_AT_ONCE = 100  # requests
Claim = claims.Claim
Lost = claims.Lost
Stale = nodes.Stale


@dataclass(frozen=True, slots=True)
class Act:
    """One act of a plan: `flow(tx, claim=..., now=...)` does it.

    request_id  the request to tell if a rule refuses the act
    parts       of an act in bulk: single acts that do the same together; see `left`
    committed   called by `left` if the act's transaction is committed
    """

    name: str
    flow: Callable[..., Result[Any]]
    request_id: int | None = None
    parts: tuple[Act, ...] = ()
    committed: Callable[[], None] | None = None

    def left(self, done: Result[Any] | None) -> tuple[Act, ...]:
        """Return the parts of an act in bulk that have to run one by one. `done` is the act's
        result, after its commit: its value is the indices of these parts. None: the act failed, and
        all parts have to run."""
        if done is None or not self.parts:
            return self.parts
        if self.committed is not None:
            self.committed()
        return tuple(self.parts[place] for place in done.value)


def acts(plan: PassPlan, site: Site, *, bulk: bool = False) -> Iterator[Act]:
    """Yield the acts that carry out `plan`, in order; each runs in a transaction of its own. With
    `bulk` many grants are one act, and so are many preemptions.

    Grants and reductions of reclaims go before overdue reclaims, so that no node is seized that is
    not needed any more. An act raises `Lost` when the claim is gone (the pass is over), `Stale`
    when its rows have changed (the next act can run) and `Refused` when a rule forbids it (`waits`
    tells the request why).
    """
    for one, ahead in plan.warnings:
        yield Act(f"warn vcluster {one}", partial(warn, vcluster_id=one, seconds=ahead))
    for one in plan.drains:
        yield Act(f"drain vcluster {one}", partial(drain, vcluster_id=one, site=site))
    for one in plan.expired:
        yield Act(f"expire vcluster {one}", partial(expire, vcluster_id=one, site=site))
    for one in plan.deserted:
        yield Act(f"end vcluster {one}", partial(end, vcluster_id=one))
    if plan.odd:
        yield Act("remember odd nodes", partial(remember_odd, plan=plan))
    if bulk:
        yield from _granted_in_bulk(plan, site)
    else:
        yield from (_grant(granted, plan, site) for granted in plan.grants)
    for less in plan.reductions:
        yield Act(f"ease reclaim {less.reclaim_id}", partial(ease, eased=less))
    for one in plan.overdue:
        yield Act(f"seize by reclaim {one}", partial(seize, reclaim_id=one, plan=plan, site=site))
    if bulk:
        yield from _taken_in_bulk(plan, site)
    else:
        yield from (_take(preempt, plan, site) for preempt in plan.preemptions)
    for start in range(0, len(plan.refusals), REFUSALS_AT_ONCE):
        some = plan.refusals[start : start + REFUSALS_AT_ONCE]
        yield Act("tell requests why not", partial(tell, refusals=some))
    for change in plan.power_changes:
        name = "put nodes to sleep" if change.sleep else "wake nodes"
        for start in range(0, change.count, SWITCHED):
            part = replace(change, count=min(SWITCHED, change.count - start))
            yield Act(name, partial(change_power, part=part, site=site))


def _grant(one: RequestGrant, plan: PassPlan, site: Site) -> Act:
    flow = partial(grant, granted=one, plan=plan, site=site)
    return Act(f"grant request {one.request_id}", flow, one.request_id)


def _granted_in_bulk(plan: PassPlan, site: Site) -> Iterator[Act]:
    """Yield acts of grants of about `GRANTED` nodes each."""
    candidates = grants.candidates(plan, site)
    some: list[RequestGrant] = []
    size = 0
    for place, one in enumerate(plan.grants, 1):
        some.append(one)
        size += sum(share.count for share in one.shares)
        if size >= GRANTED or place == len(plan.grants):
            flow = partial(grant_all, granted=some, candidates=candidates, plan=plan, site=site)
            alone = tuple(_grant(each, plan, site) for each in some)
            name = f"grant {len(some)} requests" if len(some) > 1 else alone[0].name
            bulk = Act(name, flow, parts=alone, committed=candidates.committed)
            yield bulk if size > 1 else alone[0]
            some, size = [], 0


def _take(one: Preempt, plan: PassPlan, site: Site) -> Act:
    flow = partial(take, taken=one, plan=plan, site=site)
    return Act(f"take for request {one.request_id}", flow, one.request_id)


def _taken_in_bulk(plan: PassPlan, site: Site) -> Iterator[Act]:
    """Yield acts that carry out the plan's preemptions, `TAKEN` in one transaction."""
    for start in range(0, len(plan.preemptions), TAKEN):
        some = plan.preemptions[start : start + TAKEN]
        alone = tuple(_take(one, plan, site) for one in some)
        flow = partial(take_all, taken=some, plan=plan, site=site)
        yield Act(f"take for {len(some)} requests", flow, parts=alone) if alone[1:] else alone[0]


# ---------------------------------------------------------------- giving nodes


def grant(
    tx: Tx, *, granted: RequestGrant, plan: PassPlan, claim: Claim, site: Site, now: float
) -> Result[int]:
    """Give one request its nodes: see `core.nodes.grants.give`."""
    claims.confirm(tx, claim)
    return grants.give(tx, granted, plan, site, now)


def grant_all(
    tx: Tx,
    *,
    granted: Sequence[RequestGrant],
    candidates: node_picks.FreeCandidates,
    plan: PassPlan,
    claim: Claim,
    site: Site,
    now: float,
) -> Result[list[int]]:
    """Give many requests their nodes; return the indices of the grants that have to be made one by
    one: see `core.nodes.grants.give_all`."""
    claims.confirm(tx, claim)
    done = grants.give_all(tx, granted, candidates, plan, site, now)
    left = set(done.value)
    places = [place for place, one in enumerate(granted) if one.request_id in left]
    return Result(places, done.effects)


def tell(tx: Tx, *, refusals: Sequence[RequestRefusal], claim: Claim, now: float) -> Result[int]:
    """Tell requests why they wait or are rejected. A vcluster whose first request is rejected
    ends."""
    claims.confirm(tx, claim)
    for refusal in refusals:
        if refusal.code == "late" and not refusal.final:
            advance_reservations.late(tx, refusal.request_id, refusal.sentence, now)
        elif refusal.final and refusal.code == "ended":
            core_requests.conclude_move(tx, refusal.request_id, now)
        elif refusal.final:
            core_requests.reject(tx, refusal.request_id, refusal.sentence, now)
    # last: whether `late` tells the group depends on what the request said before
    waiting = [refusal for refusal in refusals if not refusal.final]
    requests.explain(tx, {one.request_id: one.sentence for one in waiting})
    return Result(len(refusals))


def waits(tx: Tx, request_id: int, refused: Refused, now: float) -> None:
    """Record on a request why a rule forbade its grant when the plan was applied. A request that
    may not wait is rejected."""
    request = requests.get(tx, request_id)
    if request is not None and not request.may_wait:
        core_requests.reject(tx, request_id, refused.sentence, now)
    else:
        requests.explain(tx, {request_id: refused.sentence})


def remember_odd(tx: Tx, *, plan: PassPlan, claim: Claim, now: float) -> Result[int]:
    """Store the turn in which each group got one of the nodes that cannot be divided evenly: the
    group keeps this node for the turn."""
    claims.confirm(tx, claim)
    groups.have_odd(tx, dict(plan.odd))
    return Result(len(plan.odd))


# ---------------------------------------------------------------- taking nodes


def take(
    tx: Tx, *, taken: Preempt, plan: PassPlan, claim: Claim, site: Site, now: float
) -> Result[int]:
    """Open a reclaim of a vcluster's nodes: see `ReclaimBatch`. Raises as its `open` does."""
    claims.confirm(tx, claim)
    batch = ReclaimBatch(tx, [taken], plan, site, now)
    count = batch.open(taken)
    batch.write()
    return Result(count)


def take_all(
    tx: Tx, *, taken: Sequence[Preempt], plan: PassPlan, claim: Claim, site: Site, now: float
) -> Result[list[int]]:
    """Open many reclaims; return the indices of those that cannot be opened, because their rows
    have changed or a rule forbids them."""
    claims.confirm(tx, claim)
    batch = ReclaimBatch(tx, taken, plan, site, now)
    left = []
    for place, one in enumerate(taken):
        try:
            batch.open(one)
        except (Stale, Refused):
            left.append(place)
    batch.write()
    return Result(left)


def ease(tx: Tx, *, eased: PreemptLess, claim: Claim, now: float) -> Result[int]:
    """Reduce the number of nodes that a reclaim takes: see `core.preemption.ease`."""
    claims.confirm(tx, claim)
    return Result(preemption.ease(tx, eased.reclaim_id, eased.count, eased.left, now))


def seize(
    tx: Tx, *, reclaim_id: int, plan: PassPlan, claim: Claim, site: Site, now: float
) -> Result[int]:
    """Take the nodes that a reclaim still lacks after its deadline, without asking their owner; at
    most as many as the rules still allow."""
    claims.confirm(tx, claim)
    current = reclaims.get(tx, reclaim_id)
    vcluster = vclusters.get(tx, current.vcluster_id, lock=True) if current else None
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
    """Return the nodes to take, as many as the rules still allow: nodes that were chosen for the
    reclaim, and others in place of chosen nodes that have left the vcluster."""
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
    claims.confirm(tx, claim)
    return Result(int(core_leases.warn(tx, vcluster_id, seconds, now)))


def drain(tx: Tx, *, vcluster_id: int, claim: Claim, site: Site, now: float) -> Result[int]:
    """Begin to drain a vcluster whose lease has run out: its owner has `drain_grace` seconds to
    save data."""
    claims.confirm(tx, claim)
    return Result(int(core_leases.drain(tx, vcluster_id, site.policy.drain_grace, now)))


def expire(tx: Tx, *, vcluster_id: int, claim: Claim, site: Site, now: float) -> Result[int]:
    """Take back all nodes of a vcluster: the grace after its lease is over."""
    claims.confirm(tx, claim)
    effects = core_leases.expire(tx, vcluster_id, now=now, actor=ACTOR, policy=site.policy)
    return Result(0) if effects is None else Result(1, effects)


def end(tx: Tx, *, vcluster_id: int, claim: Claim, now: float) -> Result[int]:
    """End a releasing vcluster whose last node is back: its name and its addresses are free."""
    claims.confirm(tx, claim)
    if vcluster_id not in {vcluster.id for vcluster in vclusters.deserted(tx)}:
        return Result(0)
    vcluster = vclusters.known(tx, vcluster_id, lock=True)
    vclusters.end(tx, vcluster, now)
    return Result(1)


# ---------------------------------------------------------------- the reserve


def change_power(tx: Tx, *, part: PowerChange, claim: Claim, site: Site, now: float) -> Result[int]:
    """Wake nodes of the cold reserve, or put nodes of the warm reserve to sleep."""
    claims.confirm(tx, claim)
    key, many = grants.pool_key(part.free_nodes), len(site.subnets) > 1
    if node_picks.switched(
        tx, key, NodeState.OFF if part.sleep else NodeState.TRAMPOLINE, many, now
    ):
        return Result(0)  # this very act was committed before
    idle_since = now - site.energy.idle_time if part.sleep else None
    picked = node_picks.pick_free(tx, key, part.count, many, idle_since)
    if part.sleep:
        step = Step(NodeEvent.POWERED_DOWN, f"put to sleep: {part.why}", power="off")
    else:
        until = now + grants.wake_time(tx, len(picked), site)
        step = Step(NodeEvent.WOKEN, f"woken: {part.why}", {"deadline": until}, "on")
    effects: set[Effect] = set()
    for node in picked:
        moved = transitions.apply(tx, node, step, now=now, actor=ACTOR, policy=site.policy)
        effects.update(transitions.wakes(node, moved))
    return Result(len(picked), tuple(effects))
