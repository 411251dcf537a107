"""Limits and guarantees of groups: set by administrators, and shown with each group's use.

The planner, the acts and the views here all compute with `policy.sharing.entitlements`.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

from cod.core import entitlements as core_entitlements
from cod.core import node_hours as core_node_hours
from cod.model import Effect, Group, Refused, Result, Site, TypeTerms
from cod.policy import usage_buckets
from cod.policy.nodes import energy_accounting
from cod.policy.scheduler.snapshot import ANYTHING, OTHERS, Sharing
from cod.policy.sharing import (
    entitlements,
    node_hours,
    recorded_demand,
    site_use,
    turns,
    users,
)
from cod.policy.sharing.shares import dominant, faded
from cod.policy.sharing.turns import DAY
from cod.states import UNAPPROVED, NodeState
from cod.store import watermarks
from cod.store.engine import Tx, trial
from cod.store.nodes import energy, types
from cod.store.people import groups, user_usage
from cod.store.scheduler import maintenance, node_counts, requests, usage, vclusters

HOUR = 3600.0
MOST_RECORDED = 20_000  # requests that are simulated for a preview
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class TypeShare:
    """A group's entitlement to nodes of a type that is shared apart from all others.

    shares  None: the group's shares of the site hold for this type, too
    The other fields are as in `GroupShare`
    """

    type: str
    shares: float | None
    share_nodes: int | None
    guarantee: int
    guaranteed_from: float | None
    held: int


@dataclass(frozen=True, slots=True)
class GroupShare:
    """A group's entitlements, usage and rank.

    parent       the group that it is a subgroup of; None: of none
    share        of the whole site, 0 to 1; `share_nodes`: in nodes, rounded down; None: shares are
                 off
    guaranteed_from  when the group can have all nodes that it is guaranteed, once leases of other
                 groups have ended; None: the site has too few nodes
    node_limit   nodes at once; None: no limit; `type_limits` by the type's name
    types        types that are shared apart: `guarantee` and `share` are of nodes of other types
    hours_limit  node-hours in a month; None: no limit; `hours_used`: of this month
    usage        node-hours, weighted by the types' costs, of which older ones have faded
    ratio        of the group's share to its usage, or to its dominant share; None: shares are off,
                 or the group has used nothing
    factor, rank  by the site's rule, the best factor is 1 and the best rank is 1; None: shares are
                  off
    ranked       number of groups that have a rank
    held         nodes that the group's vclusters hold
    recent_hours  node-hours that the group used in the last 14 days
    evenness     Jain's index of the node-hours that groups used in these days for each unit of
                 their shares, 1 at best; None: shares are off, or nothing was used
    user_shares  the group's requests are ranked by the usage of their users
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
    types: tuple[TypeShare, ...]
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
    user_shares: bool


@dataclass(frozen=True, slots=True)
class UserShare:
    """A user's share and usage in a group that has users' shares.

    user    '' stands for the unknown creators of vclusters
    share   of the group, 0 to 1
    usage   node-hours, weighted by the types' costs, of which older ones have faded
    ratio   of the share to the usage; None: the user has used nothing, or shares are off
    rank    1 is the best, equals have the same; None: shares are off, or users are not ranked
    """

    user: str
    shares: float
    share: float
    usage: float
    ratio: float | None
    rank: int | None


def every(
    tx: Tx, *, only: frozenset[int] | None = None, site: Site, now: float
) -> list[GroupShare]:
    """Return the groups' entitlements, usage and ranks, the best rank first; of the groups with the
    ids `only` (None: of all)."""
    every_group = groups.every(tx)
    limits = groups.type_limits(tx)
    used = energy.node_seconds(
        tx, energy_accounting.month(now), [group.id for group in every_group]
    )
    by_type = entitlements.ByType(groups.type_terms(tx), node_counts.by_type(tx))
    nodes = sum(by_type.site.values())
    entitled = entitlements.of(
        every_group, site.policy, nodes, limits, used, now=now, by_type=by_type
    )
    standings = entitlements.standings(every_group, site.policy)
    if site.policy.fair == "dominant":
        of_types = vclusters.held_by_groups_and_types(tx)
        standings = dominant(standings, of_types, node_counts.by_type(tx))
    held: Counter[int] = Counter()
    of_type: Counter[tuple[int, int]] = Counter()
    for _state, type_id, group_id, count, _vcluster in energy.nodes(tx):
        held[group_id] += count
        of_type[group_id, type_id] += count
    recent = energy.node_seconds(tx, int(now // DAY) - 13, [group.id for group in every_group])
    evenness = turns.evenness(
        {
            one: recent.get(one, 0.0) / standing.share
            for one, standing in standings.items()
            if standing.share
        }
    )
    names = {group.id: group.name for group in every_group}
    sure = _Guarantees(tx, frozenset(by_type.apart), by_type.site, now)
    kinds = {each.id: each.name for each in types.every(tx)}
    found = []
    for group in every_group:
        if only is not None and group.id not in only:
            continue
        standing, own = standings.get(group.id), entitled.get(group.id, ANYTHING)
        terms = by_type.terms.get(group.id, {})
        apart = (
            TypeShare(
                type=kinds[one],
                shares=terms.get(one, TypeTerms()).shares,
                share_nodes=own.of(one).share,
                guarantee=own.of(one).guarantee,
                guaranteed_from=sure.since(one, group.id),
                held=of_type[group.id, one],
            )
            for one in by_type.apart
        )
        found.append(
            GroupShare(
                group=group.name,
                priority=group.priority,
                parent=names.get(group.parent_id or 0),
                shares=group.shares,
                share=standing.share if standing else None,
                share_nodes=own.share,
                guarantee=group.guarantee,
                guaranteed_from=sure.since(OTHERS, group.id),
                node_limit=own.limit,
                type_limits={kinds[one]: n for one, n in limits.get(group.id, {}).items()},
                types=tuple(apart),
                hours_limit=group.hours_limit,
                hours_used=used.get(group.id, 0.0) / HOUR,
                usage=(group.faded_usage or 0.0) / HOUR if standing else None,
                ratio=standing.ratio if standing and math.isfinite(standing.ratio) else None,
                factor=standing.factor if standing else None,
                rank=standing.rank if standing else None,
                ranked=len(standings),
                held=held[group.id],
                recent_hours=recent.get(group.id, 0.0) / HOUR,
                evenness=evenness,
                user_shares=group.user_shares,
            )
        )
    return sorted(found, key=lambda one: (one.rank or 0, one.group))


def of_users(tx: Tx, name: str, *, site: Site, now: float) -> list[UserShare]:
    """Return the shares and usage of a group's users, the best rank first. Raises `Refused`."""
    group = groups.named(tx, name)
    accounts = user_usage.of_groups(tx, [group.id])
    asking = {who for who in user_usage.creators(tx, [group.id]).values() if group.user_shares}
    accounts = users.with_users(accounts, asking)
    half_life = site.policy.fair_half_life
    found = users.standings(accounts, half_life if group.user_shares else 0.0, now).get(
        group.id, {}
    )
    names = user_usage.names(tx, [one.user_id for one in accounts])
    whole = sum(one.shares for one in accounts)
    lines = []
    for one in accounts:
        standing = found.get(one.user_id)
        usage = faded(one.faded_usage, now - one.faded_at, half_life) if half_life > 0 else 0.0
        lines.append(
            UserShare(
                names.get(one.user_id, ""),
                one.shares,
                one.shares / whole if whole else 0.0,
                usage / HOUR,
                None if standing is None or math.isinf(standing.ratio) else standing.ratio,
                None if standing is None else standing.rank,
            )
        )
    return sorted(lines, key=lambda one: (one.rank or 0, one.user))


class _Guarantees:
    """Times from which groups can have all nodes that they are guaranteed. A pool is a type that is
    shared apart, or `OTHERS`: all other types."""

    def __init__(self, tx: Tx, apart: frozenset[int], site: Mapping[int, int], now: float) -> None:
        self._now, self._sharing = now, Sharing(site=site, apart=apart)
        self._guaranteed = core_entitlements.guaranteed(tx)
        self._floors: dict[int, list[tuple[int, int, float]]] = defaultdict(list)
        for pool, owner, size, ends in core_entitlements.floors_of(tx, apart):
            self._floors[pool].append((owner, size, ends))

    def since(self, pool: int, group_id: int) -> float | None:
        """Return when a group can have all nodes of the pool that it is guaranteed; None: the site
        has too few nodes."""
        return entitlements.guaranteed_from(
            group_id,
            self._guaranteed.get(pool, {}),
            self._floors[pool],
            self._sharing.nodes(pool),
            self._now,
        )


def one(tx: Tx, name: str, *, site: Site, now: float) -> GroupShare:
    """Return a group's entitlements, usage and rank. Raises `Refused`."""
    group = groups.named(tx, name)
    return every(tx, only=frozenset({group.id}), site=site, now=now)[0]


PRIORITIES = ("higher", "equal", "lower")
NOT_IN_SERVICE = UNAPPROVED | {NodeState.QUARANTINED, NodeState.RETIRED}


@dataclass(frozen=True, slots=True)
class UsedSpan:
    """Average numbers of nodes in the day that begins at `at`, as far as it was counted: the
    group's own, those of groups of higher, equal and lower priority, and free ones."""

    at: float
    own: float
    higher: float
    equal: float
    lower: float
    free: float


@dataclass(frozen=True, slots=True)
class GroupUse:
    """A group's part of the site's use, and the parts of others.

    sentence  the explanation, for people; `changes`: what would let the group use more
    days      the oldest first
    """

    group: str
    own: float
    share: float | None
    others: tuple[site_use.OthersPart, ...]
    free: float
    sentence: str
    changes: tuple[str, ...]
    days: tuple[UsedSpan, ...]


def used(tx: Tx, name: str, *, site: Site, now: float, days: int = 30) -> GroupUse:
    """Return which parts of the site a group used, other groups used, and nobody used, in the last
    `days` days. Raises `Refused`."""
    standing = one(tx, name, site=site, now=now)
    since = now - days * DAY
    starts = usage_buckets.starts(since, now, usage_buckets.DAYS)
    order = {
        each.name: "own" if each.name == name else _priority(each.priority, standing.priority)
        for each in groups.every(tx)
    }
    sums: dict[str, dict[int, float]] = defaultdict(lambda: dict.fromkeys(starts, 0.0))
    holders: dict[str, set[str]] = defaultdict(set)
    for holder, start, seconds in usage.held(
        tx, usage_buckets.DAYS, starts[0], starts[-1], "group", None
    ):
        part = order.get(holder, "equal")
        sums[part][start] += seconds
        if seconds:
            holders[part].add(holder)
    node_seconds = dict.fromkeys(starts, 0.0)
    for state, start, seconds in usage.by_state(tx, usage_buckets.DAYS, starts[0], starts[-1]):
        if state not in NOT_IN_SERVICE:
            node_seconds[start] += seconds
    counted = watermarks.at(tx, watermarks.POOL) or now
    taken = {at: sum(sums[part][at] for part in ("own", *PRIORITIES)) for at in starts}
    free = {at: max(0.0, node_seconds[at] - taken[at]) for at in starts}
    whole = sum(taken.values()) + sum(free.values()) or 1.0
    found = site_use.SiteUse(
        name,
        days * DAY,
        sum(sums["own"].values()) / whole,
        tuple(
            site_use.OthersPart(part, len(holders[part]), sum(sums[part].values()) / whole)
            for part in PRIORITIES
        ),
        sum(free.values()) / whole,
        standing.share,
    )
    waiting = requests.waiting(tx, groups.named(tx, name).id)
    bounds = site_use.GroupNow(
        standing.held,
        standing.node_limit,
        waiting,
        standing.hours_used,
        standing.hours_limit,
    )
    return GroupUse(
        name,
        found.own,
        found.share,
        found.others,
        found.free,
        site_use.sentence(found),
        tuple(site_use.changes(found, bounds)),
        tuple(
            UsedSpan(
                at,
                sums["own"][at] / length,
                sums["higher"][at] / length,
                sums["equal"][at] / length,
                sums["lower"][at] / length,
                free[at] / length,
            )
            for at in starts
            if (length := min(DAY, counted - at)) > 0
        ),
    )


def _priority(priority: int, own: int) -> str:
    return "equal" if priority == own else "higher" if priority > own else "lower"


def settings(tx: Tx, name: str | None = None) -> dict[str, dict[str, Any]]:
    """Return what administrators have set for each group, by its name, in the fields that `change`
    takes; with a `name`, only for the group of that name."""
    chosen = groups.every(tx, name=name)
    only = chosen[0].id if name is not None and chosen else None
    limits, terms = groups.type_limits(tx, only), groups.type_terms(tx, only)
    names, kinds = groups.names(tx), types.names(tx)
    found = {}
    for group in chosen:
        own = {kinds[one]: each for one, each in terms.get(group.id, {}).items()}
        found[group.name] = {
            "shares": group.shares,
            "guarantee": group.guarantee,
            "node_limit": group.node_limit,
            "type_limits": {kinds[one]: count for one, count in limits.get(group.id, {}).items()},
            "type_guarantees": {
                kind: each.guarantee for kind, each in own.items() if each.guarantee
            },
            "type_shares": {
                kind: each.shares for kind, each in own.items() if each.shares is not None
            },
            "hours_limit": group.hours_limit,
            "parent": names[group.parent_id] if group.parent_id is not None else None,
            "user_shares": group.user_shares,
        }
    return found


def change(
    tx: Tx, name: str, changes: Mapping[str, Any], *, site: Site, now: float
) -> Result[GroupShare]:
    """Change a group's shares, guarantee, limits (`type_limits` all at once), parent or users'
    shares, by the fields of `GroupShare`. Raises `Refused`.

    A group keeps its nodes if its limit becomes lower than their number.
    """
    group = groups.named(tx, name)
    columns = dict(changes)
    promised = core_entitlements.promised(tx)
    if "parent" in columns:
        columns["parent_id"] = _parent(tx, group, columns.pop("parent"))
    if "type_limits" in columns:
        groups.limit_types(tx, group.id, _types(tx, columns.pop("type_limits"), "type_limits"))
    _give_types(tx, group, columns)
    groups.change(tx, group.id, **columns)
    if columns.get("user_shares") is False:
        user_usage.forget(tx, group.id)
    _check_guarantees(tx, group, promised, set(changes))
    if "hours_limit" in columns:
        month = energy_accounting.month(now)
        hours = energy.node_seconds(tx, month, [group.id]).get(group.id, 0.0) / HOUR
        before = node_hours.reached(group.hours_limit, hours)
        ends = energy_accounting.month_end(now)
        core_node_hours.tell(tx, groups.get(tx, group.id), before, hours, now, ends)
    return Result(one(tx, name, site=site, now=now), (Effect("wake", "manager"),))


def preview(
    tx: Tx, name: str, changes: Mapping[str, Any], days: int, *, site: Site, now: float
) -> bytes:
    """Return the simulator's input (`service.share_preview`), as JSON, to show what the `change`
    would have led to in the last `days` days. Raises `Refused`."""
    before, since = settings(tx), now - days * DAY
    groups.named(tx, name)
    asked = requests.recorded(tx, since, now, MOST_RECORDED)
    nodes = node_counts.by_type_and_block(tx)
    if not asked or not nodes:
        missing = "requests" if nodes else "nodes in service"
        raise Refused(
            "conflict", f"the site had no {missing} in the last {days} days to simulate", "days"
        )
    if len(asked) == MOST_RECORDED:
        raise Refused(
            "conflict",
            f"the site had {MOST_RECORDED} requests or more in the last {days} days, too many to"
            " simulate: name fewer days",
            "days",
        )
    with trial(tx):
        change(tx, name, changes, site=site, now=now)
        after = settings(tx)
    kinds, every_group = types.every(tx), groups.every(tx)
    known = [each.name for each in kinds if each.id in nodes]
    own, others = (recorded_demand.group_tables(every_group, one, known) for one in (before, after))
    question = {
        "scenario": recorded_demand.scenario(
            kinds, nodes, asked, own, site, days, now, maintenance.recorded(tx, since, now)
        ),
        "groups": others,
    }
    return json.dumps(question).encode()


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


def _types(tx: Tx, values: Mapping[str, Number], field: str) -> dict[int, Number]:
    """Return the values, which are given by types' names, by the types' ids."""
    known = {name: type_id for type_id, name in types.names(tx).items()}
    if unknown := sorted(values.keys() - known.keys()):
        raise Refused("not_found", f"there is no node type {unknown[0]!r}", field)
    return {known[name]: value for name, value in values.items()}


def _give_types(tx: Tx, group: Group, columns: dict[str, Any]) -> None:
    """Store the group's guarantees and shares of single types from `columns`, and remove them from
    `columns`. Where `columns` has no guarantees or no shares, these stay as they are."""
    terms = groups.type_terms(tx, group.id).get(group.id, {})
    sure = {one: each.guarantee for one, each in terms.items()}
    weights = {one: each.shares for one, each in terms.items() if each.shares is not None}
    if "type_guarantees" in columns:
        sure = _types(tx, columns.pop("type_guarantees"), "type_guarantees")
    if "type_shares" in columns:
        weights = _types(tx, columns.pop("type_shares"), "type_shares")
    terms = {one: TypeTerms(sure.get(one, 0), weights.get(one)) for one in sure.keys() | weights}
    groups.give_types(tx, group.id, terms)


def _check_guarantees(
    tx: Tx, group: Group, before: Sequence[core_entitlements.Promised], fields: Set[str]
) -> None:
    """Raise `Refused` if the site has too few nodes for its guarantees, unless it had too few by as
    many nodes `before`."""
    for one in core_entitlements.promised(tx):
        excess = one.guarantees.total() - one.nodes
        was = [each.guarantees.total() - each.nodes for each in before if each.pool == one.pool]
        if excess <= 0 or excess <= max(was, default=0):
            continue
        others = one.guarantees.total() - one.guarantees[group.id]
        raise Refused(
            "conflict",
            f"the site has {one.nodes} {one.what}, and {others} of them are guaranteed to other"
            f" groups: {max(0, one.nodes - others)} are left to guarantee",
            "type_guarantees" if "type_guarantees" in fields else "guarantee",
        )
