"""Node-hours of a month: they bound leases, and groups are told when most are used.

`policy.sharing.node_hours` has the rules.
"""

from __future__ import annotations

from cod import notice_texts
from cod.core import notices
from cod.model import Group, Refused
from cod.policy.nodes import energy_accounting
from cod.policy.scheduler import leases
from cod.policy.sharing import node_hours
from cod.policy.sharing.node_hours import HOUR, Bound, Use
from cod.states import VclusterState
from cod.store.engine import Tx
from cod.store.nodes import energy
from cod.store.scheduler import requests, vclusters


def bound(
    tx: Tx, group: Group, nodes: int, until: float, now: float, *, without: int | None = None
) -> Bound | None:
    """Return how the group's node-hours bound a lease of `nodes` more nodes from now on; None if
    the lease can last `until` then.

    without  id of a vcluster whose present lease does not count, because the lease replaces it
    """
    if group.hours_limit is None:
        return None
    states = [VclusterState.PENDING, VclusterState.ACTIVE]
    own = {one.id: one for one in vclusters.every(tx, states, group.id)}
    uses = [
        Use(one.size, now, one.drain_until or one.expires_at or now + leases.LONGEST)
        for one in own.values()
        if one.state == VclusterState.ACTIVE and one.id != without
    ]
    for one in requests.dated(tx):
        if one.vcluster_id in own and one.starts_at is not None and one.duration is not None:
            start = max(one.starts_at, now)
            uses.append(Use(sum(each.count for each in one.tuples), start, start + one.duration))
    return node_hours.bound(
        group.hours_limit,
        used(tx, group, now),
        uses,
        nodes,
        min(until, now + leases.LONGEST),
        now,
    )


def check(
    tx: Tx,
    group: Group,
    nodes: int,
    until: float,
    now: float,
    *,
    field: str,
    without: int | None = None,
    waits: bool = True,
) -> None:
    """Raise `Refused` if the group's remaining node-hours are too few for a lease.

    waits  do not refuse if the group has used up its node-hours: the request waits for next month
    """
    if group.hours_limit is None or (waits and used(tx, group, now) >= group.hours_limit):
        return
    if found := bound(tx, group, nodes, until, now, without=without):
        raise Refused(
            "conflict", node_hours.sentence(group.hours_limit, found, nodes, until, now), field
        )


def tell(tx: Tx, group: Group, before: int, hours: float, now: float, ends: float) -> None:
    """Tell the group if it has used 80 or 100 % of its node-hours of the month that ends at `ends`,
    and was not told so before. `before` is the percentage of the last time, as
    `policy.sharing.node_hours.reached` returns it."""
    part = node_hours.reached(group.hours_limit, hours)
    if part > before and group.hours_limit is not None:
        text = notice_texts.node_hours(group.name, part, hours, group.hours_limit, ends)
        notices.add(tx, **text, group_id=group.id, now=now)


def used(tx: Tx, group: Group, now: float) -> float:
    """Return the node-hours that the group has used in this month."""
    month = energy_accounting.month(now)
    return energy.node_seconds(tx, month, [group.id]).get(group.id, 0.0) / HOUR
