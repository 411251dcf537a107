"""Moving nodes from one vcluster to another of the same owner.

A move is a request, of kind 'move', of the vcluster that gets the nodes, together with reclaims
from the vcluster that loses them. The nodes are reserved for the request from the beginning, so
that no other request gets them meanwhile. The source's owner or VCM is told the deadline, and gives
nodes back, as for any reclaim; nodes that are still held at the deadline are taken. Nodes are
granted as they become free. Withdrawing the request ends the move.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from cod import notice_texts
from cod.core import admission, advance_reservations, entitlements, notices, vcm_outbox
from cod.core import preemption as core_preemption
from cod.core.networks import address_blocks
from cod.model import (
    Effect,
    FlowContext,
    Node,
    NodeType,
    Refused,
    RequestTuple,
    RequestView,
    Result,
    Site,
    Vcluster,
)
from cod.policy.scheduler import leases, preemption
from cod.policy.scheduler.feasibility import lacking
from cod.policy.scheduler.snapshot import NodeKind
from cod.policy.scheduler.whatif import OTHERS
from cod.quantity import span
from cod.states import VclusterState
from cod.store import views
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import nodes, types
from cod.store.people import groups
from cod.store.scheduler import node_picks, reclaims, requests, reservations, vclusters


def start(
    tx: Tx,
    context: FlowContext,
    *,
    source: str,
    target: str,
    count: int,
    within: float | None = None,
    only: Sequence[str] = (),
) -> Result[RequestView]:
    """Move `count` nodes of the vcluster `source` to `target`; return the request as the caller's
    groups see it. Raises `Refused`.

    within  seconds that the source has to give the nodes back; None: the grace of its group
    only    names of node types that may move; empty: all types that meet the requirements of
            `target`
    """
    site, now, actor, seen = context.site, context.now, context.actor, context.who.groups
    if before := admission.asked_before(tx, context.key, target, kind="move"):
        return Result(views.request(tx, before.id, seen))
    loser, taker = _both(tx, source, target)
    # reservations that cannot be met already do not forbid the move
    late = advance_reservations.failing(tx, site, now)
    deadline = (
        core_preemption.deadline(tx, loser, site.policy, now) if within is None else now + within
    )
    _check_lease(taker, deadline, now)
    _check_count(tx, loser, count)
    able = _able(tx, loser, taker, count, only, site)
    chosen = leases.victims(able, count)
    owner = groups.get(tx, taker.group_id)
    if loser.group_id != owner.id:
        types_ = Counter(node.type_id or 0 for node in chosen)
        entitlements.check_room(tx, owner, types_, site.policy, now)
    address_blocks.extend(
        tx, taker, taker.size + address_blocks.asked(tx, taker.id) + count, site, "nodes", now=now
    )
    request = requests.add(
        tx,
        vcluster_id=taker.id,
        kind="move",
        priority=owner.priority,
        now=now,
        key=context.key,
        tuples=[RequestTuple(count, taker.attributes, taker.template_id)],
        source_id=loser.id,
        deadline=deadline,
    )
    # names of vclusters are not told to other groups
    named = taker.name if loser.group_id == owner.id else ""
    reason = f"{actor} moves nodes to {f'vcluster {named}' if named else OTHERS}"
    leaving: defaultdict[NodeKind, list[Node]] = defaultdict(list)
    for node in chosen:
        leaving[_kind(node, site)].append(node)
    for kind, alike in sorted(leaving.items()):
        made = reclaims.add(
            tx,
            vcluster_id=loser.id,
            request_id=request.id,
            type_id=kind.type,
            block_id=kind.block or None,
            subnet=kind.subnet,
            attributes=taker.attributes,
            nodes=alike,
            deadline=deadline,
            now=now,
        )
        candidates = [node for node in able if _kind(node, site) == kind]
        vcm_outbox.reclaimed(tx, made, reason, candidates, now)
    advance_reservations.check_kept(tx, late, taker.group_id, site, now)
    names = [node.name for node in chosen]
    notices.tell(tx, loser, notice_texts.move(loser, names, named, actor, deadline), now)
    return Result(views.request(tx, request.id, seen), (Effect("wake", "manager"),))


def _both(tx: Tx, source: str, target: str) -> tuple[Vcluster, Vcluster]:
    """Return both vclusters, locked in the order of their ids: two moves in opposite directions
    wait for each other."""
    sides = {"name": vclusters.named(tx, source), "to": vclusters.named(tx, target, "to")}
    if source == target:
        raise Refused(
            "invalid", f"the nodes are in vcluster {source} already: name another vcluster", "to"
        )
    locked = vclusters.lock(tx, [one.id for one in sides.values()])
    for field, before in sides.items():
        state = locked[before.id].state
        if state != VclusterState.ACTIVE:
            raise Refused("conflict", f"vcluster {before.name} is {state}, not active", field)
    return locked[sides["name"].id], locked[sides["to"].id]


def _check_lease(taker: Vcluster, deadline: float, now: float) -> None:
    if taker.drain_until is not None or (
        taker.expires_at is not None and taker.expires_at <= deadline
    ):
        ends = max(0.0, (taker.expires_at or now) - now)
        raise Refused(
            "conflict",
            f"the lease of vcluster {taker.name} "
            + (f"ends in {span(ends)}, before the nodes would be there" if ends else "has run out")
            + ": extend it first, or choose a shorter time",
            "within",
        )


def _check_count(tx: Tx, loser: Vcluster, count: int) -> None:
    """Raise `Refused` if the source would be left without a node."""
    held, leaving = min(vclusters.held(tx, loser.id), loser.size), reclaims.leaving(tx, loser.id)
    most = preemption.movable(held, leaving)
    if count > most:
        some = f", of which {leaving} leave already" if leaving else ""
        raise Refused(
            "conflict",
            f"vcluster {loser.name} has {held} nodes{some}, and one stays: {most} can move at "
            "most. To move all, grow the other vcluster and delete this one",
            "nodes",
        )


def _able(
    tx: Tx, loser: Vcluster, taker: Vcluster, count: int, only: Sequence[str], site: Site
) -> list[Node]:
    """Return the source's nodes that may move: those that meet the target's requirements and are
    not leaving already. Raise `Refused` if they are fewer than `count`."""
    kinds = {one.id: one for one in types.every(tx)}
    if unknown := sorted(set(only) - {one.name for one in kinds.values()}):
        raise Refused("not_found", f"there is no node type {unknown[0]!r}", "types")
    held = nodes.every(tx, vcluster_id=loser.id, lock=True)
    lacks = _lacks(
        tx, taker, {one: kinds[one] for one in {node.type_id for node in held} if one is not None}
    )
    kept = {one.node_id for one in reservations.every(tx)}
    ported = (
        node_picks.with_usable_ports(tx, [node.id for node in held]) if taker.isolated else None
    )
    why: Counter[str] = Counter()
    able = []
    for node in held:
        kind = kinds.get(node.type_id or 0)
        if kind is None or (only and kind.name not in only):
            why["of another type"] += 1
        elif lacks[kind.id]:
            why[f"{kind.name} lacks {lacks[kind.id]}"] += 1
        elif node.id in kept:
            why["leaving already"] += 1
        elif len(site.subnets) > 1 and node.subnet != taker.subnet:
            why[f"not on subnet {taker.subnet}"] += 1
        elif ported is not None and node.id not in ported:
            why[f"without a known switch port, which the isolated vcluster {taker.name} needs"] += 1
        else:
            able.append(node)
    if len(able) < count:
        reasons = "; ".join(f"{number}: {phrase}" for phrase, number in sorted(why.items()))
        raise Refused(
            "conflict",
            f"{len(able)} of the {len(held)} nodes of vcluster {loser.name} match, {count} were "
            f"asked for ({reasons})",
            "nodes",
        )
    return able


def _lacks(tx: Tx, taker: Vcluster, kinds: Mapping[int, NodeType]) -> dict[int, str]:
    """Return why nodes of each type cannot move to the target, '' where they can."""
    document = templates.for_matching(tx, [taker.template_id])[taker.template_id]
    return {
        one: "; ".join(map(str, lacking(taker.attributes, document, kind.attributes)[:3]))
        for one, kind in kinds.items()
    }


def _kind(node: Node, site: Site) -> NodeKind:
    return NodeKind(
        node.type_id or 0, node.block_id or 0, (node.subnet or "") if len(site.subnets) > 1 else ""
    )
