"""All that the manager's pass reads, in one go, as rows: two scenes are equal when a pass would see the same.

`pulse` says beforehand, at the price of a few look-ups, whether somebody has done something since the last pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select

from cod.model import NodeType, Policy, Reclaim
from cod.states import ReclaimState, RequestState, VclusterState
from cod.store import census, groups, reclaims, requests, templates, types, vclusters
from cod.store import tables as t
from cod.store.engine import Tx


class Scene(NamedTuple):
    """The site at one moment.

    priorities  of groups, by id
    coming      see `census.coming`; `site`: nodes of each type; `pending`: of vclusters that have not ended
    templates   documents by id, of those that pending requests name
    deserted    ids of vclusters that can end
    """

    types: list[NodeType]
    priorities: dict[int, int]
    free: list[census.Free]
    coming: dict[tuple[census.Kind, int, bool], int]
    held: list[census.Held]
    site: dict[int, int]
    live: list[vclusters.Live]
    pending: list[requests.Pending]
    reclaims: list[Reclaim]
    templates: dict[int, str]
    deserted: list[int]


def read(
    tx: Tx, policy: Policy, *, many: bool, idle_since: float, now: float, before: Scene | None = None
) -> Scene:
    """What is there now. `many`, `idle_since`: see `census`; `before`: an earlier scene, whose requests are known."""
    kept = census.kept(tx, idle_since)
    live = vclusters.live(tx)
    there = {one.id for one in live}
    known = {one.id: one.tuples for one in before.pending} if before else {}
    pending = [one for one in requests.pending(tx, known) if one.vcluster_id in there]
    named = {one.template_id for request in pending for one in request.tuples}
    return Scene(
        types=types.every(tx),
        priorities={group.id: group.priority for group in groups.every(tx)},
        free=census.free(tx, kept, many, idle_since),
        coming=census.coming(tx, kept, many),
        held=census.held(tx, kept, many, policy, now),
        site=census.by_type(tx),
        live=live,
        pending=pending,
        reclaims=reclaims.open_(tx),
        templates=templates.documents(tx, named),
        deserted=[vcluster.id for vcluster in vclusters.deserted(tx)],
    )


def pulse(tx: Tx) -> tuple[object, ...]:
    """Changes whenever somebody has done something that the manager may have to act on."""
    v, r, c = t.vclusters.c, t.node_requests.c, t.reclaims.c
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
    )
    return tuple(tx.execute(select(*(part.scalar_subquery() for part in parts))).one())
