"""Rows of the overview: the pool, the nodes at work, and the server that manages the site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select

from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import theirs


def pool(tx: Tx) -> dict[str, int]:
    """Return the number of nodes in each state."""
    query = select(t.nodes.c.state, func.count()).group_by(t.nodes.c.state)
    return {row[0]: row[1] for row in tx.execute(query)}


def set_aside(tx: Tx, state: str, limit: int) -> list[Mapping[str, Any]]:
    """Return (name, since, reason) of nodes in that state, as dictionaries, the newest there
    first."""
    n = t.nodes.c
    query = (
        select(n.name, n.since, n.reason)
        .where(n.state == state)
        .order_by(n.since.desc())
        .limit(limit)
    )
    return [dict(row._mapping) for row in tx.execute(query)]


def under_way(tx: Tx, groups: frozenset[int] | None, limit: int) -> list[Mapping[str, Any]]:
    """Return nodes held by vclusters of these groups (None: all groups) that are in the trampoline,
    or being erased, installed, booted, captured or tested: node, hostname, state, since, vcluster,
    done, total, rate (bytes, bytes a second), phase."""
    n, v = t.nodes.c, t.vclusters.c
    query = (
        select(
            n.name.label("node"),
            n.hostname,
            n.state,
            n.since,
            v.name.label("vcluster"),
            n.progress_done.label("done"),
            n.progress_total.label("total"),
            n.progress_rate.label("rate"),
            n.progress_phase.label("phase"),
        )
        .join_from(t.nodes, t.vclusters, n.vcluster_id == v.id)
        .where(
            n.state.in_(("trampoline", "wipe", "prime", "boot", "capture", "burnin")),
            *theirs(v.group_id, groups),
        )
        .order_by(v.name, n.name)
        .limit(limit)
    )
    return [dict(row._mapping) for row in tx.execute(query)]


def claim(tx: Tx, name: str) -> Mapping[str, Any] | None:
    """Return owner and expires_at of the claim; None if it was never taken."""
    query = select(t.claims.c.owner, t.claims.c.expires_at).where(t.claims.c.name == name)
    row = tx.execute(query).one_or_none()
    return None if row is None else dict(row._mapping)
