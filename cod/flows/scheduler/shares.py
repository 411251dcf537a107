"""What groups may hold and are sure of: set by administrators, and shown with where each group
stands.

The planner, the acts and what is shown here all reckon by `policy.sharing.entitlements`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cod.core import node_hours as core_node_hours
from cod.model import Effect, Group, Refused, Result, Site
from cod.policy.nodes import energy_accounting
from cod.policy.sharing import entitlements, node_hours, turns
from cod.policy.sharing.shares import dominant
from cod.policy.sharing.turns import DAY
from cod.store.engine import Tx
from cod.store.nodes import energy, types
from cod.store.people import groups
from cod.store.scheduler import node_counts, vclusters

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class GroupShare:
    """A group's entitlements, and where it stands.

    parent       the group that it is a subgroup of; None: of none
    share        of the whole site, 0 to 1; `share_nodes`: in nodes, rounded down; None: shares are
                 off
    guaranteed_from  when it can call in all that it is guaranteed, as leases of other groups end;
                 None: the site has too few nodes
    node_limit   nodes at once; None: no limit; `type_limits` by the type's name
    hours_limit  node-hours in a month; None: no limit; `hours_used`: of this month
    usage        node-hours, weighted by the types' costs, that have not faded
    ratio        of its share to its usage, or to its dominant share; None: shares are off, or it
                 has used nothing
    factor, rank  by the site's rule, the best factor is 1 and the best rank is 1; None: shares are
                  off
    ranked       groups that are
    held         nodes that its vclusters hold
    recent_hours  node-hours that it used in the last 14 days
    evenness     Jain's index of what the groups with shares used in these days for each unit of
                 their shares, 1 at best; None: shares are off, or nothing was used
    """

    group: str
    priority: int
    parent: str | None
    shares: float
    share: float | None
    share_nodes: int | None
    guarantee: int
    guaranteed_from: float | None
    node_limit: int | None
    type_limits: Mapping[str, int]
    hours_limit: float | None
    hours_used: float
    usage: float | None
    ratio: float | None
    factor: float | None
    rank: int | None
    ranked: int
    held: int
    recent_hours: float
    evenness: float | None


def every(
    tx: Tx, *, only: frozenset[int] | None = None, site: Site, now: float
) -> list[GroupShare]:
    """Return where groups stand, the best rank first; `only` those with these ids (None: all)."""
    there = groups.every(tx)
    nodes = sum(node_counts.by_type(tx).values())
    limits = groups.type_limits(tx)
    used = energy.node_seconds(tx, energy_accounting.month(now), [group.id for group in there])
    entitled = entitlements.of(there, site.policy, nodes, limits, used, now=now)
    standings = entitlements.standings(there, site.policy)
    if site.policy.fair == "dominant":
        of_types = vclusters.held_by_groups_and_types(tx)
        standings = dominant(standings, of_types, node_counts.by_type(tx))
    held: Counter[int] = Counter()
    for _state, _type, group_id, count, _vcluster in energy.nodes(tx):
        held[group_id] += count
    recent = energy.node_seconds(tx, int(now // DAY) - 13, [group.id for group in there])
    evenness = turns.evenness(
        {
            one: recent.get(one, 0.0) / standing.share
            for one, standing in standings.items()
            if standing.share
        }
    )
    names = {group.id: group.name for group in there}
    guarantees = {group.id: group.guarantee for group in there if group.guarantee}
    floors = vclusters.floors(tx)
    kinds = {each.id: each.name for each in types.every(tx)}
    found = []
    for group in there:
        if only is not None and group.id not in only:
            continue
        standing, own = standings.get(group.id), entitled.get(group.id)
        found.append(
            GroupShare(
                group.name,
                group.priority,
                names.get(group.parent_id or 0),
                group.shares,
                None if standing is None else standing.share,
                own.share if own else None,
                group.guarantee,
                entitlements.guaranteed_from(group.id, guarantees, floors, nodes, now),
                own.limit if own else None,
                {kinds[one]: count for one, count in limits.get(group.id, {}).items()},
                group.hours_limit,
                used.get(group.id, 0.0) / HOUR,
                None if standing is None else (group.faded_usage or 0.0) / HOUR,
                standing.ratio if standing and math.isfinite(standing.ratio) else None,
                None if standing is None else standing.factor,
                None if standing is None else standing.rank,
                len(standings),
                held[group.id],
                recent.get(group.id, 0.0) / HOUR,
                evenness,
            )
        )
    return sorted(found, key=lambda one: (one.rank or 0, one.group))


def one(tx: Tx, name: str, *, site: Site, now: float) -> GroupShare:
    """Return where a group stands. Raises `Refused`."""
    group = groups.named(tx, name)
    return every(tx, only=frozenset({group.id}), site=site, now=now)[0]


def change(
    tx: Tx, name: str, changes: Mapping[str, Any], *, site: Site, now: float
) -> Result[GroupShare]:
    """Change a group's shares, guarantee, limits (`type_limits` all at once) or parent, by the
    fields of `GroupShare`.

    Nothing is taken from a group whose limit becomes lower than what it holds. Raises `Refused`.
    """
    group = groups.named(tx, name)
    columns = dict(changes)
    if "parent" in columns:
        columns["parent_id"] = _parent(tx, group, columns.pop("parent"))
    if "type_limits" in columns:
        limits = columns.pop("type_limits")
        known = {each.name: each.id for each in types.every(tx)}
        if unknown := sorted(limits.keys() - known.keys()):
            raise Refused("not_found", f"there is no node type {unknown[0]!r}", "type_limits")
        groups.limit_types(tx, group.id, {known[name]: most for name, most in limits.items()})
    if columns.get("guarantee"):
        _check_guarantee(tx, group, columns["guarantee"])
    groups.change(tx, group.id, **columns)
    if "hours_limit" in columns:
        month = energy_accounting.month(now)
        hours = energy.node_seconds(tx, month, [group.id]).get(group.id, 0.0) / HOUR
        before = node_hours.reached(group.hours_limit, hours)
        core_node_hours.tell(tx, groups.get(tx, group.id), before, hours, now)
    return Result(one(tx, name, site=site, now=now), (Effect("wake", "manager"),))


def _parent(tx: Tx, group: Group, name: str | None) -> int | None:
    if name is None:
        return None
    parent = groups.named(tx, name, "parent")
    if parent.id == group.id:
        raise Refused("invalid", "a group is no subgroup of itself", "parent")
    if parent.parent_id is not None:
        raise Refused(
            "invalid", f"group {name} is a subgroup itself: subgroups are one level deep", "parent"
        )
    if any(other.parent_id == group.id for other in groups.every(tx)):
        raise Refused(
            "conflict", f"group {group.name} has subgroups: subgroups are one level deep", "parent"
        )
    return parent.id


def _check_guarantee(tx: Tx, group: Group, guarantee: int) -> None:
    """Refuse what the site cannot keep."""
    others = sum(other.guarantee for other in groups.every(tx) if other.id != group.id)
    nodes = sum(node_counts.by_type(tx).values())
    if guarantee + others > nodes:
        raise Refused(
            "conflict",
            f"the site has {nodes} nodes, and {others} of them are guaranteed to other groups: "
            f"{max(0, nodes - others)} are left to guarantee",
            "guarantee",
        )
