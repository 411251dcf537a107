"""Leases and reservations of groups, present and recent ones, for the calendar feed."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import func, or_, select, true

from cod.store import tables as t
from cod.store.engine import Tx

_v, _r = t.vclusters.c, t.node_requests.c


class LeasedVcluster(NamedTuple):
    """A vcluster, with its group's name."""

    id: int
    name: str
    group: str
    size: int
    created_at: float
    leased_at: float | None
    expires_at: float | None
    ended_at: float | None

    @property
    def began(self) -> float | None:
        """Return when the lease began; None if the vcluster has no lease yet."""
        known = self.leased_at or self.created_at
        return None if self.leased_at is None and self.expires_at is None else known


class Booked(NamedTuple):
    """A reservation in advance, and its number of nodes. `decided_at` is None while it waits."""

    id: int
    vcluster_id: int
    kind: str
    state: str
    starts_at: float
    duration: float
    submitted_at: float
    decided_at: float | None
    nodes: int


def leased(tx: Tx, groups: frozenset[int] | None, since: float, limit: int) -> list[LeasedVcluster]:
    """Return the newest `limit` vclusters of those groups (None: of all groups) that are live or
    ended at `since` or later, the newest first."""
    own = true() if groups is None else _v.group_id.in_(groups)
    found = (
        select(
            _v.id,
            _v.name,
            t.groups.c.name,
            _v.size,
            _v.created_at,
            _v.leased_at,
            _v.expires_at,
            _v.ended_at,
        )
        .join(t.groups, t.groups.c.id == _v.group_id)
        .where(own, or_(_v.ended_at.is_(None), _v.ended_at > since))
        .order_by(_v.id.desc())
        .limit(limit)
    )
    return [LeasedVcluster(*row) for row in tx.execute(found)]


def booked(tx: Tx, groups: frozenset[int] | None, since: float, limit: int) -> list[Booked]:
    """Return the newest `limit` reservations for vclusters of those groups (None: of all groups)
    that are undecided or were decided at `since` or later, the newest first."""
    own = true() if groups is None else _v.group_id.in_(groups)
    count = (
        select(func.sum(t.request_tuples.c.count))
        .where(t.request_tuples.c.request_id == _r.id)
        .scalar_subquery()
    )
    found = (
        select(
            _r.id,
            _r.vcluster_id,
            _r.kind,
            _r.state,
            _r.starts_at,
            func.coalesce(_r.duration, 0.0),
            _r.submitted_at,
            _r.decided_at,
            func.coalesce(count, 0),
        )
        .join(t.vclusters, _v.id == _r.vcluster_id)
        .where(
            own,
            _r.starts_at.is_not(None),
            or_(_r.decided_at.is_(None), _r.decided_at > since),
        )
        .order_by(_r.id.desc())
        .limit(limit)
    )
    return [Booked(*row) for row in tx.execute(found)]
