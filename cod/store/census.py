"""What the resource manager counts: free nodes, nodes on their way back, all nodes by type. Few columns, many rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import and_, func, or_, select

from cod.states import Disk, NodeState, RequestState, VclusterState
from cod.store import tables as t
from cod.store.engine import Tx

_n = t.nodes.c
_FREE = and_(
    _n.vcluster_id.is_(None), _n.released == 0, _n.type_id.is_not(None),
    # What no switch can wake stays asleep until somebody presses its button.
    or_(_n.state == NodeState.INACTIVE, and_(_n.state == NodeState.OFF, _n.power_driver != "none")))
_COMING = and_(
    _n.vcluster_id.is_(None), _n.type_id.is_not(None),
    _n.state.in_((NodeState.TRAMPOLINE, NodeState.WIPE, NodeState.CAPTURE)))
_NOT_OURS = (NodeState.NEW, NodeState.REGISTERING, NodeState.RETIRED)


def free(tx: Tx) -> list[Any]:
    """Nodes that nobody holds and that can be had now: rows (id, generation, type_id, state, template, group).

    template, group  what a cached disk holds and for whom; None for other disks
    """
    query = select(_n.id, _n.generation, _n.type_id, _n.state, _n.disk, _n.cached_template_id, _n.cached_group_id)
    return [(*row[:4], *(row[5:] if row.disk == Disk.CACHED else (None, None)))
            for row in tx.execute(query.where(_FREE))]


def coming(tx: Tx) -> list[Any]:
    """Nodes that are on their way back to the reserve: rows (id, type_id)."""
    return list(tx.execute(select(_n.id, _n.type_id).where(_COMING)))


def by_type(tx: Tx) -> dict[int, int]:
    """How many nodes the site has of each type, whoever holds them; those set aside count, they can be restored."""
    query = select(_n.type_id, func.count()).where(_n.type_id.is_not(None), _n.state.not_in(_NOT_OURS))
    return {row[0]: row[1] for row in tx.execute(query.group_by(_n.type_id))}


def by_holder(tx: Tx, vcluster_ids: Iterable[int]) -> dict[int, dict[int, int]]:
    """How many nodes of each type those vclusters hold."""
    query = select(_n.vcluster_id, _n.type_id, func.count()).where(_n.vcluster_id.in_(list(vcluster_ids)))
    held: dict[int, dict[int, int]] = {}
    for vcluster_id, type_id, count in tx.execute(query.group_by(_n.vcluster_id, _n.type_id)):
        held.setdefault(vcluster_id, {})[type_id] = count
    return held


def subnets(tx: Tx) -> dict[int, str]:
    """The subnet that each node was last seen booting on, by node id, where that is known."""
    b = t.bindings.c
    query = (select(_n.id, b.subnet).join_from(t.nodes, t.bindings, b.mac == _n.boot_mac)
             .where(b.kind == "boot").order_by(b.expires_at))
    return {row[0]: row[1] for row in tx.execute(query)}


def pulse(tx: Tx, now: float) -> tuple[object, ...]:
    """Changes whenever there may be something for the manager to do. Cheap: a few index look-ups."""
    v, r = t.vclusters.c, t.node_requests.c
    parts = (
        select(func.max(t.node_history.c.id)),
        select(func.max(r.id)),
        select(func.count()).where(r.state == RequestState.PENDING),
        select(func.count()).where(v.state == VclusterState.RELEASING),
        select(func.count()).where(v.state == VclusterState.ACTIVE, v.expires_at <= now),
    )
    return tuple(tx.execute(select(*(part.scalar_subquery() for part in parts))).one())
