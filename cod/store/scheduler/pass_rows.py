"""All rows that the manager's pass reads. Two results are equal if passes over them are the same.

`pulse` tells beforehand, by a few look-ups, whether something has happened since the last pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select

from cod.model import Group, GroupUser, MaintenanceWindow, NodeType, Reclaim, TypeTerms
from cod.states import ReclaimState, RequestState, VclusterState
from cod.store import tables as t
from cod.store import watermarks
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import energy, types
from cod.store.people import groups, user_usage
from cod.store.scheduler import maintenance, node_counts, node_kinds, reclaims, requests, vclusters
from cod.store.scheduler.row_digest import digest

_COUNTS = ("free", "coming", "held", "site", "reclaimed")
"""Fields of `PassRows` that are read again if nodes have changed."""


class Digests(NamedTuple):
    """Digests of the longest lists: an equal digest means an equal list. None: unknown.

    nodes     of all nodes of a type and their reservations, with all that affects their counts
    requests  of vclusters that have not ended, and of pending requests
    reclaims  of the open ones
    """

    nodes: tuple[object, ...] | None = None
    requests: tuple[object, ...] | None = None
    reclaims: tuple[object, ...] | None = None

    def same(self, name: str, before: PassRows) -> bool:
        """Return whether the list that the digest `name` stands for is known to be unchanged."""
        own = getattr(self, name)
        return own is not None and own == getattr(before.digests, name)


class PassRows(NamedTuple):
    """The site at one moment.

    groups     by id; `type_limits`, `type_terms` of them by the type's id; `used`: node-seconds of
               the month so far, of groups that have a limit
    coming     see `node_counts.coming`; `site`: nodes of each type; `pending`: of vclusters that
               have not ended
    templates  documents by id, of the templates that pending requests name
    deserted   ids of vclusters that can end
    version    of the reservations in advance (`watermarks.RESERVED`)
    expected   nodes that may turn out to be of any type
    users      of the groups that have users' shares
    windows    maintenance windows that are not over; `reclaimed`: the windows of the nodes that
               reclaims have chosen, by the reclaim's id
    """

    types: list[NodeType]
    groups: dict[int, Group]
    type_limits: dict[int, dict[int, int]]
    type_terms: dict[int, dict[int, TypeTerms]]
    used: dict[int, float]
    free: list[node_counts.Free]
    coming: dict[node_counts.Coming, int]
    held: list[node_counts.Held]
    site: dict[int, int]
    live: list[vclusters.Live]
    pending: list[requests.Pending]
    reclaims: list[Reclaim]
    templates: dict[int, str]
    deserted: list[int]
    version: float
    digests: Digests
    expected: int
    users: list[GroupUser]
    windows: list[MaintenanceWindow]
    reclaimed: dict[int, int]


def read(
    tx: Tx,
    by: node_counts.AssignedBy,
    *,
    many: bool,
    idle_since: float,
    month: int,
    before: PassRows | None = None,
    apart: node_kinds.Apart = node_kinds.TOGETHER,
    times: bool = False,
    again: bool = False,
) -> PassRows:
    """Return the rows for a pass.

    month   the first day of the month whose used node-hours are read
    before  an earlier result: its lists that have not changed, and its tuples of requests, are not
            read again
    again   a later pass will give the result as its `before`

    `by`, `many`, `idle_since`, `apart` and `times` are explained in `node_counts`. With `before` or
    `again`, the transaction must read one moment (`engine.of_one_moment`): otherwise a change that
    is undone between the reading of a digest and of its rows would stay unseen.
    """
    # first: what is read later is as new, or newer
    version = watermarks.version(tx, watermarks.RESERVED)
    digests = Digests()
    if before or again:
        lists = [vclusters.live_rows(), requests.pending_rows()]
        digests = Digests(requests=_of(tx, *lists), reclaims=_of(tx, reclaims.open_rows()))
    live, pending, named = _requests(tx, digests, before)
    times = times or any(one.starts_at is not None for one in pending)
    if before or again:
        nodes = _of(
            tx,
            node_counts.held_nodes(by, apart),
            node_counts.reserve_nodes(idle_since, apart),
            node_counts.reserved(),
        )
        # the counts also depend on these
        by_rules = many, apart, times, tuple(one.id for one in live if one.preemptible)
        digests = digests._replace(nodes=nodes and (*nodes, *by_rules))
    owners = {group.id: group for group in groups.every(tx)}
    limited = [group.id for group in owners.values() if group.hours_limit is not None]
    sharing = [group.id for group in owners.values() if group.user_shares]
    counts: dict[str, Any]
    if before and digests.same("nodes", before):
        counts = {name: getattr(before, name) for name in _COUNTS}
    else:
        kept = node_counts.kept(tx, idle_since, apart)
        held = node_counts.held(tx, kept, many, by, apart)
        counts = {
            "free": node_counts.free(tx, kept, many, idle_since, apart),
            "coming": node_counts.coming(tx, kept, many, apart, times),
            "held": held,
            "site": node_counts.by_type(tx, held),
            "reclaimed": node_counts.reclaimed(tx) if apart.windows else {},
        }
    return PassRows(
        **counts,
        types=types.every(tx),
        groups=owners,
        type_limits=groups.type_limits(tx),
        type_terms=groups.type_terms(tx),
        used=energy.node_seconds(tx, month, limited) if limited else {},
        live=live,
        pending=pending,
        reclaims=(
            before.reclaims if before and digests.same("reclaims", before) else reclaims.open_(tx)
        ),
        templates=templates.for_matching(tx, named),
        deserted=[vcluster.id for vcluster in vclusters.deserted(tx)],
        version=version,
        digests=digests,
        expected=node_counts.expected(tx),
        users=user_usage.of_groups(tx, sharing) if sharing else [],
        windows=maintenance.open_(tx),
    )


def _of(tx: Tx, *lists: Select[Any]) -> tuple[object, ...] | None:
    """Return the digests of the lists; None if the database computes none."""
    found = tuple(digest(tx, one) for one in lists)
    return None if None in found else found


def _requests(
    tx: Tx, digests: Digests, before: PassRows | None
) -> tuple[list[vclusters.Live], list[requests.Pending], Iterable[int]]:
    """Return the live vclusters, their pending requests, and the templates that these name."""
    if before and digests.same("requests", before):
        return before.live, before.pending, before.templates
    live = vclusters.live(tx)
    live_ids = {one.id for one in live}
    known = {one.id: one.tuples for one in before.pending} if before else {}
    pending = [one for one in requests.pending(tx, known) if one.vcluster_id in live_ids]
    return live, pending, {one.template_id for request in pending for one in request.tuples}


def isolated_waits(tx: Tx) -> bool:
    """Return whether a request for an isolated vcluster is pending."""
    r, v = t.node_requests.c, t.vclusters.c
    query = select(r.id).join_from(t.vclusters, t.node_requests, r.vcluster_id == v.id)
    waits = v.live_name.is_not(None), v.isolated, r.state == RequestState.PENDING
    return tx.scalar(query.where(*waits).limit(1)) is not None


def windows_planned(tx: Tx) -> bool:
    """Return whether any node is in a maintenance window."""
    return tx.scalar(select(t.maintenance_nodes.c.node_id).limit(1)) is not None


def pulse(tx: Tx) -> tuple[object, ...]:
    """Return numbers that change whenever something has happened that the manager may have to act
    on."""
    return tuple(tx.execute(_PULSE).one())


def _pulse() -> Select[Any]:
    v, r, c = t.vclusters.c, t.node_requests.c, t.reclaims.c
    w = t.maintenance_windows.c
    live = v.live_name.is_not(None)
    parts: Iterable[Select[Any]] = (
        select(func.max(t.node_history.c.id)),
        select(func.max(r.id)),
        select(func.count()).where(r.state == RequestState.PENDING),
        select(func.count()).where(live),
        select(func.count()).where(v.state == VclusterState.RELEASING),
        select(func.sum(v.expires_at)).where(live),
        select(func.count(v.drain_until)).where(live),
        select(func.max(c.id)),
        select(func.sum(c["count"] - c.given)).where(c.state == ReclaimState.OPEN),
        select(func.count()).select_from(t.reservations),
        select(func.count()).select_from(t.maintenance_nodes),
        select(func.sum(func.coalesce(w.begins_at, 0) + func.coalesce(w.ends_at, 0))),
    )
    return select(*(part.scalar_subquery() for part in parts))


_PULSE = _pulse()
