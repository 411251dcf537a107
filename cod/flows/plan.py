"""The resource manager's pass: snapshot -> plan -> apply.

`snapshot` reads, `decide` plans with no transaction open, and `acts` cuts the plan into flows, each a short transaction
of its own. Between the snapshot and an act anything may have happened, so each act confirms the manager's claim and
looks at its rows again: an act whose rows have changed does nothing, and the next pass plans anew. A pass can be cut
short after any act.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cod.model import Effect, Node, Refused, Request, Result, Site, Vcluster
from cod.policy import allocate, lifecycle
from cod.policy.allocate import COLD, WARM, FreeNode, Grant, No, Plan, Snapshot, Wish
from cod.policy.spread import Kind
from cod.states import NodeEvent, NodeState, RequestState, Step, VclusterState
from cod.store import census, claims, holding, nodes, requests, steps, templates, types, vclusters
from cod.store.engine import Tx

ACTOR = "manager"
Claim = claims.Claim
Lost = claims.Lost
Stale = nodes.Stale

# ---------------------------------------------------------------- reading and planning


def hold(tx: Tx, owner: str, now: float, seconds: float, held: Claim | None = None) -> Claim | None:
    """Become, or with `held` stay, the one manager for `seconds`; None while another server is."""
    return claims.hold(tx, "manager", owner, now, seconds, held)


def give_up(tx: Tx, claim: Claim) -> None:
    """Stop being the manager."""
    claims.give_up(tx, claim)


def pulse(tx: Tx, now: float) -> tuple[object, ...]:
    """A value that changes whenever a pass may have something to do."""
    return census.pulse(tx, now)


def snapshot(tx: Tx, site: Site) -> Snapshot:
    """The site as the planner sees it."""
    pending = requests.every(tx, states=[RequestState.PENDING])
    live = {vcluster.id: vcluster for vcluster in vclusters.every(tx)}
    # Where there is one subnet only, every node is on it.
    subnets = census.subnets(tx) if len(site.subnets) > 1 else {}
    coming: dict[Kind, int] = {}
    for node_id, type_id in census.coming(tx):
        kind = type_id, subnets.get(node_id, "")
        coming[kind] = coming.get(kind, 0) + 1
    own = census.by_holder(tx, {request.vcluster_id for request in pending})
    return Snapshot(
        types={kind.id: kind for kind in types.every(tx)},
        free=[_free(row, subnets) for row in census.free(tx)],
        coming=coming,
        site=census.by_type(tx),
        wishes=[_wish(request, live[request.vcluster_id], own.get(request.vcluster_id, {})) for request in pending
                if request.vcluster_id in live],
        templates=templates.documents(tx, {one.template_id for request in pending for one in request.tuples}),
        leases=[(vcluster.id, vcluster.expires_at) for vcluster in live.values()
                if vcluster.state == VclusterState.ACTIVE and vcluster.expires_at is not None],
        deserted=[vcluster.id for vcluster in vclusters.deserted(tx)],
    )


def _free(row: Sequence[Any], subnets: dict[int, str]) -> FreeNode:
    node_id, generation, type_id, state, template_id, group_id = row
    return FreeNode(node_id, generation, (type_id, subnets.get(node_id, "")),
                    WARM if state == NodeState.INACTIVE else COLD,
                    None if template_id is None else (template_id, group_id))


def _wish(request: Request, vcluster: Vcluster, own: dict[int, int]) -> Wish:
    return Wish(request.id, request.priority, request.submitted_at, vcluster.group_id, vcluster.subnet or "",
                request.tuples, own, request.reason)


def decide(seen: Snapshot, now: float) -> Plan:
    """The plan for what was seen; no transaction is open."""
    return allocate.plan(seen, now)


# ---------------------------------------------------------------- for people


@dataclass(frozen=True, slots=True)
class Planned:
    """One thing that the next pass would do, with names in place of ids.

    kind        'warn', 'drain', 'expire', 'end', 'seize', 'grant', 'take', 'reject', 'wait', 'wake' or 'sleep'
    vcluster    whom it concerns: for 'take' and 'seize' the one that loses nodes; '' for 'wake' and 'sleep'
    request_id  the request that it is done for; None where there is none
    nodes       how many
    type, block, subnet  of which nodes; '' where it says nothing
    about       a sentence
    """

    kind: str
    vcluster: str = ""
    request_id: int | None = None
    nodes: int = 0
    type: str = ""
    block: str = ""
    subnet: str = ""
    about: str = ""


def preview(tx: Tx, *, site: Site, now: float) -> list[Planned]:
    """What a pass at `now` would do, in order, without doing it. A grant of several kinds of nodes is several lines."""
    raise NotImplementedError


def explain(tx: Tx, *, request_id: int, site: Site, now: float) -> Any:
    """Why a request waits: what `policy.explain.explain(snapshot, request_id, site.policy, site.energy, now)` says.

    Raises `Refused` ('not_found') when there is no such request; one that does not wait is explained by its reason.
    """
    raise NotImplementedError


# ---------------------------------------------------------------- applying


@dataclass(frozen=True, slots=True)
class Act:
    """One act of a plan: `flow(tx, claim=..., now=...)` does it. `request_id`: whom to tell if a rule refuses it."""

    name: str
    flow: Callable[..., Result]
    request_id: int | None = None


def acts(plan: Plan, site: Site) -> list[Act]:
    """What carries out `plan`, in order; each act is run in a transaction of its own.

    It raises `Lost` when the claim is gone (then the pass is over), `Stale` when its rows have changed (then the next
    act can go on) and `Refused` when a rule stands against it (then `waits` tells the request why).
    """
    return [
        *(Act(f"expire vcluster {one}", partial(expire, vcluster_id=one, site=site)) for one in plan.expired),
        *(Act(f"end vcluster {one}", partial(end, vcluster_id=one)) for one in plan.deserted),
        *(Act(f"grant request {one.request_id}", partial(grant, granted=one, site=site), one.request_id)
          for one in plan.grants),
        *(Act("tell requests why not", partial(tell, noes=part)) for part in _batches(plan.noes)),
    ]


def _batches(noes: Sequence[No], size: int = 100) -> list[tuple[No, ...]]:
    return [tuple(noes[start:start + size]) for start in range(0, len(noes), size)]


def grant(tx: Tx, *, granted: Grant, claim: Claim, site: Site, now: float) -> Result:
    """Give the request its nodes: all of them, or `Stale` is raised and none."""
    claims.confirm(tx, claim, now)
    request = requests.get(tx, granted.request_id)
    if request is None or not requests.decide(tx, request.id, RequestState.GRANTED, "", now):
        return Result(0)
    vcluster = vclusters.get(tx, request.vcluster_id, lock=True)
    if vcluster is None or vcluster.state not in (VclusterState.PENDING, VclusterState.ACTIVE):
        raise nodes.Outdated(granted.seats[0].node_id, granted.seats[0].generation)
    _admit(tx, vcluster, request, now)
    names = _free_names(vclusters.hostnames(tx, vcluster.id))
    effects: set[Effect] = set()
    for seat in granted.seats:
        node = _free_node(tx, seat)
        moved = _seat(tx, node, seat, vcluster, request.id, next(names), site, now)
        effects.update(steps.wakes(node, moved))
    return Result(len(granted.seats), tuple(effects))


def _free_node(tx: Tx, seat: allocate.Seat) -> Node:
    node = nodes.get(tx, seat.node_id, lock=True)
    if node is None or node.generation != seat.generation or node.vcluster_id is not None:
        raise nodes.Outdated(seat.node_id, seat.generation)
    return node


def _seat(
    tx: Tx, node: Node, seat: allocate.Seat, vcluster: Vcluster, request_id: int, hostname: str, site: Site, now: float
) -> Node:
    """Take one node for the vcluster and set it going: primed or booted if it is awake, woken if it is off."""
    held = holding.take(tx, node, vcluster=vcluster, request_id=request_id, template_id=seat.template_id,
                        hostname=hostname, now=now)
    wanted = steps.wanted(tx, held)
    assert wanted is not None
    if node.state == NodeState.OFF:
        step = Step(NodeEvent.WOKEN, f"woken for vcluster {vcluster.name}", power="on")
    else:
        step = lifecycle.assign(held, wanted)
    return steps.apply(tx, held, step, now=now, actor=ACTOR, policy=site.policy)


def _admit(tx: Tx, vcluster: Vcluster, request: Request, now: float) -> None:
    if vcluster.state == VclusterState.PENDING:
        vclusters.change(tx, vcluster, state=VclusterState.ACTIVE, expires_at=now + vcluster.lease_time)
    elif request.kind == "grow":
        vclusters.change(tx, vcluster, size=vcluster.size + sum(one.count for one in request.tuples))


def _free_names(taken: set[str]) -> itertools.filterfalse[str]:
    return itertools.filterfalse(taken.__contains__, (f"n{number}" for number in itertools.count(1)))


def tell(tx: Tx, *, noes: Sequence[No], claim: Claim, now: float) -> Result:
    """Tell requests why they wait or are rejected. A vcluster whose first request is rejected ends."""
    claims.confirm(tx, claim, now)
    for no in noes:
        if not no.final:
            requests.explain(tx, no.request_id, no.sentence)
        elif requests.decide(tx, no.request_id, RequestState.REJECTED, no.sentence, now):
            _do_without(tx, no.request_id, now)
    return Result(len(noes))


def _do_without(tx: Tx, request_id: int, now: float) -> None:
    request = requests.get(tx, request_id)
    assert request is not None
    vcluster = vclusters.get(tx, request.vcluster_id, lock=True)
    assert vcluster is not None
    if vcluster.state == VclusterState.PENDING:
        vclusters.end(tx, vcluster, now)
    elif request.kind == "replace":
        vclusters.change(tx, vcluster, size=vcluster.size - 1)


def waits(tx: Tx, request_id: int, refused: Refused) -> None:
    """A rule stood against a granted request when it was applied: say so on the request."""
    requests.explain(tx, request_id, refused.sentence)


def expire(tx: Tx, *, vcluster_id: int, claim: Claim, site: Site, now: float) -> Result:
    """The vcluster's lease has run out: take its nodes back."""
    claims.confirm(tx, claim, now)
    vcluster = vclusters.get(tx, vcluster_id, lock=True)
    if vcluster is None or vcluster.state != VclusterState.ACTIVE or (vcluster.expires_at or now + 1) > now:
        return Result(0)
    requests.withdraw(tx, vcluster.id, "the vcluster's lease ran out", now)
    held = nodes.every(tx, vcluster_id=vcluster.id, lock=True)
    effects = steps.release(tx, held, lifecycle.may_keep_disk, cause="the lease ran out", now=now, actor=ACTOR,
                            policy=site.policy)
    vclusters.change(tx, vcluster, state=VclusterState.RELEASING)
    return Result(1, effects)


def end(tx: Tx, *, vcluster_id: int, claim: Claim, now: float) -> Result:
    """The last node of a releasing vcluster is back: its name and its addresses are free."""
    claims.confirm(tx, claim, now)
    if vcluster_id not in {vcluster.id for vcluster in vclusters.deserted(tx)}:
        return Result(0)
    vcluster = vclusters.get(tx, vcluster_id, lock=True)
    assert vcluster is not None
    vclusters.end(tx, vcluster, now)
    return Result(1)
