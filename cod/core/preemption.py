"""Reclaims, by which nodes are taken from a vcluster for a request of higher priority.

`policy.scheduler.preemption` decides which nodes may be taken. This module applies that rule to the
present rows, and carries reclaims out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cod import notice_texts
from cod.core import entitlements, notices, vcm_outbox
from cod.model import Group, Node, NodeView, Policy, Reclaim, Request, Vcluster
from cod.policy.scheduler import leases, preemption
from cod.policy.scheduler.snapshot import OTHERS, USABLE, Sharing, effective
from cod.states import ReclaimState, VclusterState
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.people import groups
from cod.store.scheduler import node_picks, reclaims, requests, reservations, vclusters
from cod.store.scheduler.node_kinds import NodeKindRow

NO_SHARES = Sharing()


class PreemptionRows:
    """Holdings of vclusters and entitlements of their groups, read once for many preemptions and
    updated after each.

    losers   vclusters that lose nodes; asking: vclusters whose requests get the nodes
    sharing  the plan's (`PassPlan.sharing`)
    """

    def __init__(
        self,
        tx: Tx,
        losers: Sequence[Vcluster],
        asking: Sequence[Vcluster],
        now: float,
        *,
        sharing: Sharing = NO_SHARES,
    ) -> None:
        self.groups = {one.id: one for one in groups.every(tx)}
        self._sharing, self._now = sharing, now
        ids = [one.id for one in losers]
        self._held = vclusters.held_each(tx, ids)
        self._leaving = reclaims.leaving_each(tx, ids)
        of_groups = {one.group_id for one in (*losers, *asking)}
        self._kept = entitlements.Kept(tx, self.groups, of_groups, sharing, now)

    def takeable(
        self,
        vcluster: Vcluster,
        asking: Vcluster,
        request: Request,
        count: int,
        type_id: int,
        open_: int = 0,
    ) -> int:
        """Return how many of `count` nodes of a type the request of `asking` may take from the
        vcluster now, by the planner's own rule. `open_`: nodes that leave the vcluster for this
        request already."""
        if vcluster.state != VclusterState.ACTIVE:
            return 0
        held, leaving = self._held[vcluster.id], self._leaving[vcluster.id]
        if request.source_id == vcluster.id:
            return min(count, preemption.movable(held, leaving - open_))
        size = sum(one.count for one in request.tuples)
        own = self.groups[vcluster.group_id].priority
        holder = preemption.holder(vcluster, own, held, leaving)
        priority = effective(request.priority, asking.preemptible)
        beyond, within = self._kept.between(
            vcluster.group_id,
            asking.group_id,
            self._sharing.parts.get(request.id) or ((OTHERS, size),),
            type_id,
            equals=priority == holder.priority,
            open_=open_,
        )
        return preemption.takeable(
            holder,
            count,
            priority,
            asking.id,
            self._now,
            open_=open_,
            beyond=preemption.EVERYTHING if vcluster.preemptible else beyond,
            within="" if asking.preemptible else within,
        )

    def leave(self, vcluster: Vcluster, type_id: int, count: int) -> None:
        """Count `count` nodes of a type as taken from the vcluster."""
        self._leaving[vcluster.id] += count
        if not vcluster.preemptible:  # nodes of preemptible vclusters do not count for the group
            self._kept.leave(vcluster.group_id, type_id, count)


def takeable(
    tx: Tx,
    vcluster: Vcluster,
    request: Request,
    count: int,
    now: float,
    *,
    type_id: int = 0,
    sharing: Sharing = NO_SHARES,
    open_: int = 0,
) -> int:
    """Return how many nodes one request may take from a vcluster: see `PreemptionRows`."""
    asking = vclusters.get(tx, request.vcluster_id)
    if asking is None:
        return 0
    rows = PreemptionRows(tx, [vcluster], [asking], now, sharing=sharing)
    return rows.takeable(vcluster, asking, request, count, type_id, open_)


def protected_since(vcluster: Vcluster, group: Group, policy: Policy, now: float) -> float:
    """Return the time after which a node must have been assigned to the vcluster to be protected
    now by its inertia."""
    return now - preemption.inertia(effective(group.priority, vcluster.preemptible), policy)


def victims(
    tx: Tx,
    vcluster: Vcluster,
    kind: NodeKindRow,
    count: int,
    many: bool,
    policy: Policy,
    now: float,
) -> list[Node]:
    """Return `count` nodes of the kind to take from the vcluster, locked; fewer if there are fewer.
    Nodes that their inertia protects and nodes that are leaving already stay.

    many  the site has more than one subnet
    """
    by = protected_since(vcluster, groups.get(tx, vcluster.group_id), policy, now)
    return leases.victims(node_picks.pick_held(tx, vcluster.id, kind, many, by), count)


def deadline(tx: Tx, vcluster: Vcluster, policy: Policy, now: float) -> float:
    """Return the deadline of a reclaim from the vcluster that is made now, by the grace of its
    group."""
    return now + preemption.grace(groups.get(tx, vcluster.group_id), policy)


def kind_of(tx: Tx, reclaim: Reclaim) -> NodeKindRow:
    """Return the kind of nodes that the reclaim takes. A request of an isolated vcluster takes only
    nodes with usable switch ports."""
    request = requests.get(tx, reclaim.request_id)
    asking = vclusters.get(tx, request.vcluster_id) if request else None
    port = USABLE if asking is not None and asking.isolated else ""
    return NodeKindRow(reclaim.type_id, reclaim.block_id or 0, reclaim.subnet, port)


def fitting(tx: Tx, reclaim: Reclaim, nodes_: Iterable[Node]) -> list[Node]:
    """Return those of the nodes that are of the kind which the reclaim takes."""
    alike = [node for node in nodes_ if preemption.fits(reclaim, node)]
    if not alike or kind_of(tx, reclaim).port != USABLE:
        return alike
    usable = node_picks.with_usable_ports(tx, [node.id for node in alike])
    return [node for node in alike if node.id in usable]


def protected(found: Sequence[NodeView], policy: Policy | None) -> list[NodeView]:
    """Return the views of nodes, each with the time until which its inertia protects it from being
    taken; unchanged if `policy` is None."""
    return [
        (
            view
            if policy is None or view.priority is None or view.node.assigned_at is None
            else replace(
                view, immune_until=view.node.assigned_at + preemption.inertia(view.priority, policy)
            )
        )
        for view in found
    ]


def answer(tx: Tx, reclaim: Reclaim, given: Sequence[Node], now: float) -> Reclaim:
    """Count `given`, nodes that leave their vcluster, as an answer to the reclaim; return the
    reclaim as it is now. The nodes must fit the reclaim, and be no more than it still takes.

    For each node that was given without having been chosen, a chosen node may stay; promised nodes
    are the last to stay.
    """
    chosen = reclaims.chosen_ids(tx, reclaim)
    instead = [node.id for node in given if node.id not in chosen]
    promised = reservations.promises(tx, reclaim.id)
    staying = set(reclaims.held_ids(tx, reclaim)) - {node.id for node in given}
    spared = sorted(staying, key=lambda one: (one in promised, one))[: len(instead)]
    reservations.drop(tx, [*spared, *instead])
    reservations.add(tx, instead, reclaim.request_id, reclaim.id, now)
    answered = reclaims.change(tx, reclaim, given=reclaim.given + len(given))
    if answered.given < answered.count:
        return answered
    vcm_outbox.over(tx, reclaim, ReclaimState.DONE, now)
    return reclaims.change(tx, answered, state=ReclaimState.DONE, ended_at=now)


def answer_all(tx: Tx, vcluster_id: int, leaving: Sequence[Node], now: float) -> None:
    """Count nodes that leave the vcluster, for whatever reason, as answers to its open reclaims.
    Call it before `holding.give_back`.
    """
    open_reclaims = reclaims.open_(tx, vcluster_id, lock=True)
    if not open_reclaims:
        return
    chosen = reservations.of_reclaims(tx, [reclaim.id for reclaim in open_reclaims])
    left = list(leaving)
    for reclaim in open_reclaims:
        own = [node for node in left if chosen.get(node.id) == reclaim.id]
        others = fitting(tx, reclaim, (node for node in left if node.id not in chosen))
        given = (own + others)[: reclaim.count - reclaim.given]
        left = [node for node in left if node not in given]
        answer(tx, reclaim, given, now)


def deserted(tx: Tx, vcluster_id: int, held: Sequence[Node], now: float) -> None:
    """End the open reclaims from a vcluster that loses all its nodes, `held`: the nodes count as
    answers to the reclaims, and no more can be taken."""
    answer_all(tx, vcluster_id, held, now)
    for reclaim in reclaims.open_(tx, vcluster_id):
        close(tx, reclaim, now)


def promise(tx: Tx, reclaim: Reclaim, nodes_: Sequence[tuple[Node, float]], now: float) -> None:
    """Note which nodes the vcluster promises to give for a reclaim, each with the time by which. At
    the deadline, promised nodes are taken in place of other chosen ones. Earlier promises that are
    not repeated end."""
    existing = {one.node_id: one.reclaim_id for one in reservations.every(tx)}
    left = reclaim.count - reclaim.given
    able = [
        node.id
        for node in fitting(tx, reclaim, (node for node, _ in nodes_))
        if existing.get(node.id, reclaim.id) == reclaim.id
    ]
    promised = able[:left]
    others = sorted(node.id for node in reclaims.chosen(tx, reclaim) if node.id not in promised)
    reservations.drop(tx, others[left - len(promised) :])
    reservations.add(
        tx, [one for one in promised if one not in existing], reclaim.request_id, reclaim.id, now
    )
    reservations.promise(
        tx, reclaim.id, {node.id: at for node, at in nodes_ if node.id in promised}
    )


def ease(tx: Tx, reclaim_id: int, count: int, left: int, now: float) -> int:
    """Reduce a reclaim by `count` nodes, so that it takes `left` more; return the reduction, 0 if
    it was made before.

    Chosen nodes that are not needed any more may stay: first nodes that are not promised, and among
    these the last in the order of `leases.victims`. A reclaim that takes no more nodes ends. Raises
    `Changed` if the reclaim would have taken another number of nodes than `count` + `left`.
    """
    current = reclaims.get(tx, reclaim_id)
    vcluster = vclusters.get(tx, current.vcluster_id, lock=True) if current else None
    reclaim = reclaims.get(tx, reclaim_id, lock=True)
    if vcluster is None or reclaim is None or reclaim.state != ReclaimState.OPEN:
        return 0
    open_now = reclaim.count - reclaim.given
    if open_now == left:
        return 0
    if open_now != left + count:
        raise nodes.Changed(f"reclaim {reclaim.id} needs {open_now} more nodes, not {left + count}")
    eased = reclaims.change(tx, reclaim, count=reclaim.count - count)
    _tell_spared(tx, reclaim, count, now)
    if not left:
        close(tx, eased, now)
        return count
    held, promised = reclaims.chosen(tx, reclaim), reservations.promises(tx, reclaim.id)
    first = sorted(leases.victims(held, len(held)), key=lambda node: node.id not in promised)
    reservations.drop(tx, [node.id for node in first[left:]])
    would_do = fitting(tx, reclaim, nodes.every(tx, vcluster_id=vcluster.id))
    vcm_outbox.reclaimed(
        tx, eased, f"request {reclaim.request_id} is short of fewer", would_do, now
    )
    return count


def close(tx: Tx, reclaim: Reclaim, now: float, given: Sequence[Node] = ()) -> None:
    """End the reclaim: chosen nodes that the vcluster still holds may stay, except the nodes
    `given`, which are leaving."""
    going = {node.id for node in given}
    reservations.drop(tx, [one for one in reclaims.held_ids(tx, reclaim) if one not in going])
    # even if some nodes were given: the VCM may use the others again
    vcm_outbox.over(tx, reclaim, ReclaimState.CANCELLED, now)
    state = ReclaimState.DONE if reclaim.given else ReclaimState.CANCELLED
    reclaims.change(tx, reclaim, state=state, ended_at=now)


def cancel(tx: Tx, request_ids: Sequence[int], now: float) -> None:
    """Cancel the open reclaims for those requests, which have ended."""
    for reclaim in reclaims.open_for(tx, request_ids):
        vcm_outbox.over(tx, reclaim, ReclaimState.CANCELLED, now)
        spared(tx, reclaim, now)
        reclaims.change(tx, reclaim, state=ReclaimState.CANCELLED, ended_at=now)


def spared(tx: Tx, reclaim: Reclaim, now: float) -> None:
    """Tell the vcluster's group that the nodes which the reclaim would still have taken may
    stay."""
    _tell_spared(tx, reclaim, reclaim.count - reclaim.given, now)


def _tell_spared(tx: Tx, reclaim: Reclaim, left: int, now: float) -> None:
    vcluster = vclusters.get(tx, reclaim.vcluster_id)
    if vcluster is not None and vcluster.state == VclusterState.ACTIVE and left > 0:
        notices.tell(tx, vcluster, notice_texts.reclaim_dropped(vcluster, left), now)
