"""Grants: requests get the nodes that a plan has counted for them. `give` grants one request,
`give_all` grants many with a few statements.

Both write the same rows. `give_all` leaves rare cases to `give`: moves, reservations in advance,
vclusters with a VCM, kinds of nodes that depend on switch ports or maintenance, nodes that have to
be erased first, and requests that a rule forbids or that have changed since the plan was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cod import notice_texts
from cod.core import advance_reservations, entitlements, node_hours, notices, vcm_outbox
from cod.core import requests as core_requests
from cod.core.networks import address_blocks, switch_ports
from cod.core.nodes import transitions
from cod.model import Assignment, Effect, Group, Node, Refused, Request, Result, Site, Vcluster
from cod.policy.nodes import lifecycle
from cod.policy.scheduler import leases, reserve_pool
from cod.policy.scheduler.snapshot import WARM, FreeNodes, PassPlan, RequestGrant, Share
from cod.states import NodeEvent, NodeState, RequestState, Step, VclusterState
from cod.store import vcms, watermarks
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import captures, holding, nodes, sessions
from cod.store.people import groups
from cod.store.scheduler import address_blocks as block_rows
from cod.store.scheduler import node_counts, node_kinds, node_picks, requests, vclusters

ACTOR = "manager"
Seat = tuple[Node, Share]


def give(tx: Tx, granted: RequestGrant, plan: PassPlan, site: Site, now: float) -> Result[int]:
    """Give the request the nodes that the plan granted to it, and return their number. A move gets
    the nodes that are ready, other requests get all their nodes at once. If a node, or anything
    else that the plan counted on, has changed, `Stale` is raised. Raises `Refused` where a rule
    forbids the grant."""
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
    owner, guarantees = groups.get(tx, vcluster.group_id), entitlements.guaranteed(tx)
    chosen = [node for node, _ in seats]
    columns = _admission(tx, vcluster, request, owner, chosen, guarantees, plan, site, now)
    began = vcluster.state == VclusterState.PENDING
    if columns:
        vcluster = vclusters.change(tx, vcluster, now, **columns)
    if began:
        notices.tell(tx, vcluster, _began(vcluster, now), now)
        advance_reservations.tell_begun(tx, vcluster, request, now)
    elif columns and request.starts_at is not None:
        advance_reservations.begin(tx, vcluster, request, site.policy, now)
    address_blocks.extend(tx, vcluster, vcluster.size, site, now=now)
    hostnames = vclusters.free_hostnames(tx, [vcluster.id])[vcluster.id]
    effects: set[Effect] = set()
    slow = now + wake_time(tx, sum(node.state == NodeState.OFF for node, _ in seats), site)
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
    """Return each granted node with its share. Shares of the same pool get different nodes."""
    wanted: Counter[FreeNodes] = Counter()
    for share in shares:
        wanted[share.free_nodes] += share.count
    many = len(site.subnets) > 1
    picked = {
        free: iter(node_picks.pick_free(tx, pool_key(free), count, many, group_id=group_id))
        for free, count in wanted.items()
    }
    return [(next(picked[share.free_nodes]), share) for share in shares for _ in range(share.count)]


def pool_key(free: FreeNodes) -> node_kinds.FreeKey:
    """Return the key by which the store finds the nodes of a pool."""
    template, group = free.cache or (None, None)
    state = NodeState.INACTIVE if free.readiness == WARM else NodeState.OFF
    return node_kinds.FreeKey(
        state, node_kinds.NodeKindRow(*free.kind), template, group, free.reserved
    )


def _set_going(
    tx: Tx, node: Node, held: Node, vcluster: Vcluster, slow: float, site: Site, now: float
) -> tuple[Effect, ...]:
    """Prime or boot the holder's software on a node that is awake; wake a node that is off."""
    wanted = holding.assignment(tx, held)
    assert wanted is not None
    step = _first_step(node, wanted, vcluster, slow)
    return transitions.wakes(
        node, transitions.apply(tx, held, step, now=now, actor=ACTOR, policy=site.policy)
    )


def _first_step(node: Node, wanted: Assignment, vcluster: Vcluster, slow: float) -> Step:
    if node.state == NodeState.OFF:
        cause = f"woken for vcluster {vcluster.name}"
        return Step(NodeEvent.WOKEN, cause, {"deadline": slow}, "on")
    return lifecycle.assign(node, wanted)


def _admission(
    tx: Tx,
    vcluster: Vcluster,
    request: Request,
    owner: Group,
    granted: Sequence[Node],
    guarantees: Mapping[int, Mapping[int, int]],
    plan: PassPlan,
    site: Site,
    now: float,
) -> dict[str, Any]:
    """Return the columns that the grant of those nodes changes in the vcluster's row: a pending
    vcluster's lease begins, any other vcluster grows. Raises `Refused` as `check_hours` does.
    `guarantees`: as `entitlements.guaranteed` returns them."""
    if vcluster.state != VclusterState.PENDING:
        check_hours(tx, vcluster, request, owner, len(granted), site, now)
        grows = request.kind in ("grow", "move")
        return {"size": vcluster.size + len(granted)} if grows else {}
    until = now + vcluster.lease_time
    if request.starts_at is None:  # else its node-hours were checked when it was reserved
        until = min(until, _until(tx, owner, len(granted), until, site, now))
    types = Counter(node.type_id or 0 for node in granted)
    return {
        "state": VclusterState.ACTIVE,
        "leased_at": now,
        "expires_at": until,
        "warned": leases.begun(until - now, site.policy),
        "creation_size": entitlements.creation_size(tx, vcluster, types, plan.sharing, guarantees),
    }


def _began(vcluster: Vcluster, now: float) -> notice_texts.NoticeText:
    """Return the notice to the group of a vcluster whose lease begins now."""
    cut = (vcluster.expires_at or 0.0) < now + vcluster.lease_time
    return notice_texts.lease_began(vcluster, cut=cut)


def check_hours(
    tx: Tx, vcluster: Vcluster, request: Request, owner: Group, count: int, site: Site, now: float
) -> None:
    """Raise `Refused` if the group's remaining node-hours are too few for the request."""
    if vcluster.state == VclusterState.PENDING and request.starts_at is None:
        _until(tx, owner, count, now + vcluster.lease_time, site, now)
    elif request.kind == "grow" and request.starts_at is None:
        end = leases.end(vcluster, now)
        node_hours.check(tx, owner, count, end, now, field="size", waits=False)


def _until(tx: Tx, owner: Group, count: int, asked: float, site: Site, now: float) -> float:
    """Return the end of a lease that begins now: `asked`, or earlier if the group's node-hours are
    used up before. Raise `Refused` if the lease would end before its nodes could be of use."""
    found = node_hours.bound(tx, owner, count, asked, now)
    if found is None:
        return asked
    if found.end < now + site.policy.turnaround:
        node_hours.check(tx, owner, count, asked, now, field="lease", waits=False)
    return found.end


def wake_time(tx: Tx, count: int, site: Site) -> float:
    """Return how many seconds `count` more nodes have to wake up in, given the nodes that are
    waking already; 0.0 for no nodes."""
    return _wake_time(node_counts.waking(tx) + count, site) if count else 0.0


def _wake_time(waking: int, site: Site) -> float:
    return reserve_pool.wake_deadline(site.energy, waking) * site.policy.patience


# ---------------------------------------------------------------- many requests at once


def candidates(plan: PassPlan, site: Site) -> node_picks.FreeCandidates:
    """Return the free nodes that the plan's grants take their nodes from, in all transactions."""
    keys = {pool_key(share.free_nodes) for one in plan.grants for share in one.shares}
    return node_picks.FreeCandidates(keys, len(site.subnets) > 1)


def give_all(
    tx: Tx,
    granted: Sequence[RequestGrant],
    candidates: node_picks.FreeCandidates,
    plan: PassPlan,
    site: Site,
    now: float,
) -> Result[list[int]]:
    """Give many requests their nodes, with the same result as `give` for one after the other.
    Return the ids of requests that are left to `give`: nothing was written for these."""
    asked = {
        one.id: one
        for one in requests.lock_rows(tx, {one.request_id for one in granted})
        if one.state == RequestState.PENDING
    }
    holders = vclusters.lock(tx, {one.vcluster_id for one in asked.values()})
    if watermarks.version(tx, watermarks.RESERVED, lock=True) != plan.version:
        raise nodes.Changed("what reservations in advance leave to others has changed")
    spoken_for = vcms.enrolled(tx, holders)
    plain, left = [], []
    for one in granted:
        if (request := asked.get(one.request_id)) is not None:
            holder = holders.get(request.vcluster_id)
            if holder is None or holder.id in spoken_for or not _is_plain(request, holder):
                left.append(request.id)
            else:
                plain.append(one)
    if not plain:
        return Result(left)
    batch = _GrantBatch(tx, plain, candidates, holders, plan, site, now)
    left += [one.request_id for one in plain if not batch.give(asked[one.request_id], one.shares)]
    effects = batch.write()
    candidates.keep(batch.free)
    return Result(left, effects)


def _is_plain(request: Request, holder: Vcluster) -> bool:
    alive = holder.state in (VclusterState.PENDING, VclusterState.ACTIVE)
    dated = request.source_id is not None or request.starts_at is not None
    return alive and holder.drain_until is None and not dated


class _GrantBatch:
    """Grants in one transaction: rows that were read for all of them, and rows to write.

    free  nodes that were picked and are not given yet
    """

    def __init__(
        self,
        tx: Tx,
        plain: Sequence[RequestGrant],
        candidates: node_picks.FreeCandidates,
        holders: dict[int, Vcluster],
        plan: PassPlan,
        site: Site,
        now: float,
    ) -> None:
        self._tx, self._plan, self._site, self._now = tx, plan, site, now
        self._holders = holders
        wanted: Counter[node_kinds.FreeKey] = Counter()
        for share in (share for one in plain for share in one.shares):
            wanted[pool_key(share.free_nodes)] += share.count
        self.free = candidates.pick(tx, wanted)
        self._guarantees = entitlements.guaranteed(tx)
        self._groups = {one.id: one for one in groups.every(tx)}
        self._documents = templates.for_matching(
            tx, {share.template_id for one in plain for share in one.shares}
        )
        self._hostnames = vclusters.free_hostnames(tx, holders)
        blocks = block_rows.of_each(tx, holders)
        self._room = {one: sum(block.room for block in each) for one, each in blocks.items()}
        self._waking = node_counts.waking(tx)
        self._granted: list[int] = []
        self._admitted: list[tuple[Vcluster, Vcluster, dict[str, Any]]] = []
        self._began: list[tuple[Vcluster, Group, notice_texts.NoticeText]] = []
        self._taken: list[holding.Taken] = []
        self._moves: list[nodes.NodeMove] = []
        self._effects: set[Effect] = set()

    def give(self, request: Request, shares: Sequence[Share]) -> bool:
        """Grant the request and return True, or return False to leave it to the function `give`.
        Then nothing was written, except blocks of addresses that the vcluster needs anyway."""
        holder = self._holders[request.vcluster_id]
        owner = self._groups[holder.group_id]
        seats = self._next_seats(shares)
        chosen = [node for node, _ in seats]
        waking = self._waking + sum(node.state == NodeState.OFF for node in chosen)
        slow = self._now + _wake_time(waking, self._site)
        steps = [
            _first_step(
                node,
                Assignment(share.template_id, self._documents[share.template_id], owner.id),
                holder,
                slow,
            )
            for node, share in seats
        ]
        columns = None
        if len(seats) == sum(share.count for share in shares) and not any(
            step.event is NodeEvent.WIPE_ORDERED for step in steps
        ):
            columns = self._admit(request, holder, owner, chosen)
        if columns is None:
            for node, share in reversed(seats):
                self.free[pool_key(share.free_nodes)].appendleft(node)
            return False
        admitted = self._holders[holder.id] = replace(holder, **columns)
        if columns:
            self._admitted.append((holder, admitted, columns))
        if holder.state == VclusterState.PENDING:
            self._began.append((admitted, owner, _began(admitted, self._now)))
        if self._guarantees or owner.hours_limit is not None:  # checks of the next grant read these
            self._write_vclusters()
        self._waking = waking
        for (node, share), step in zip(seats, steps, strict=True):
            self._take(node, share, step, request, admitted, owner)
        self._granted.append(request.id)
        # the next vcluster's creation size depends on the nodes held of types that are apart
        if self._guarantees and self._plan.sharing.apart:
            self.write()
        return True

    def _next_seats(self, shares: Sequence[Share]) -> list[Seat]:
        """Take free nodes for the shares, fewer than wanted if too few are left; return each node
        with its share."""
        return [
            (free.popleft(), share)
            for share in shares
            for free in [self.free[pool_key(share.free_nodes)]]
            for _ in range(min(share.count, len(free)))
        ]

    def _admit(
        self, request: Request, holder: Vcluster, owner: Group, chosen: Sequence[Node]
    ) -> dict[str, Any] | None:
        """Return what `_admission` does, and claim the blocks of addresses that the nodes need;
        None where the group's node-hours or the subnet's addresses are too few."""
        size = holder.size + (len(chosen) if request.kind == "grow" else 0)
        try:
            columns = _admission(
                self._tx,
                holder,
                request,
                owner,
                chosen,
                self._guarantees,
                self._plan,
                self._site,
                self._now,
            )
            if self._room.get(holder.id, 0) < size:
                address_blocks.extend(self._tx, holder, size, self._site, now=self._now)
                self._room[holder.id] = block_rows.room(self._tx, holder.id)
        except Refused:
            return None
        return columns

    def _take(
        self,
        node: Node,
        share: Share,
        step: Step,
        request: Request,
        vcluster: Vcluster,
        owner: Group,
    ) -> None:
        hostname = next(self._hostnames[vcluster.id])
        held = holding.held_by(
            vcluster.id, request.id, share.position, share.template_id, hostname, self._now
        )
        values = dict(step.columns)
        if step.event is not NodeEvent.WOKEN:
            document = self._documents[share.template_id]
            values["wipe"] = transitions.wipe_for(node, document, owner)
        power = step.power if step.power and node.power_driver != "none" else ""
        if power:
            values |= {"power_wanted": power, "power_seq": node.power_seq + 1}
        values = held | transitions.changes(
            node,
            step.event,
            now=self._now,
            patience=self._site.policy.patience,
            columns=values,
        )
        moved = nodes.changed(node, values)
        self._taken.append(holding.Taken(node, vcluster, share.template_id, hostname))
        self._moves.append(nodes.NodeMove(node, moved, values, step.event, step.cause, power))

    def write(self) -> tuple[Effect, ...]:
        """Write the grants that are not written yet; return the services to wake."""
        if self._granted:
            self._write_grants(self._moves)
            for each in (self._granted, self._began, self._taken, self._moves):
                each.clear()
        return tuple(self._effects)

    def _write_grants(self, moves: Sequence[nodes.NodeMove]) -> None:
        tx, now = self._tx, self._now
        core_requests.grant_all(tx, self._granted, now)
        self._write_vclusters()
        notices.tell_all(tx, self._began, now)
        nodes.set_states(tx, moves, ACTOR, now)
        holding.follow(tx, self._taken, now)
        booted = [one.moved.id for one in moves if one.moved.state == NodeState.BOOT]
        holding.set_installed(tx, booted, now)
        sessions.forget_all(tx, [one.moved.id for one in moves if one.power])
        woken = [one.moved for one in moves if one.event is NodeEvent.WOKEN]
        switch_ports.leave_all(tx, woken, now)
        captured = captures.of_nodes(tx, [one.node.id for one in moves])
        for one in moves:
            if one.node.id in captured:
                held = replace(one.node, vcluster_id=one.moved.vcluster_id)
                transitions.note_capture(tx, held, one.event, one.cause, now)
            self._effects.update(transitions.wakes(one.node, one.moved))

    def _write_vclusters(self) -> None:
        vclusters.change_all(self._tx, self._admitted, self._now)
        self._admitted.clear()
