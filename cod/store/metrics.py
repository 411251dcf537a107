"""The counts of rows behind the metrics of `cod.web.api.metrics`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Column, Integer, and_, case, func, literal, select, union_all
from sqlalchemy import cast as sql_cast
from sqlalchemy.sql.elements import ColumnElement

from cod.store import tables as t
from cod.store.engine import Tx


def counts(tx: Tx) -> list[tuple[str, str, int]]:
    """Return (what, label, count): nodes by state, bindings by kind, requests by state … in one
    statement."""
    p = t.switch_ports.c
    port_state = case(
        (p.given_up.is_(True), literal("given up")),
        (p.applied_seq != p.seq, literal("pending")),
        (p.seq > 0, literal("applied")),
        else_=literal("untouched"),
    )
    v = t.volumes.c
    volume_state = case(
        (and_(v.applied != v.sequence, v.told.is_(True)), literal("trouble")),
        (v.applied != v.sequence, literal("pending")),
        else_=literal("applied"),
    )
    parts: Iterable[tuple[str, ColumnElement[Any] | Column[Any], Any]] = (
        ("nodes", t.nodes.c.state, None),
        ("bindings", t.bindings.c.kind, t.bindings.c.state.in_(("bound", "offered"))),
        ("requests", t.node_requests.c.state, None),
        ("vclusters", t.vclusters.c.state, None),
        ("images", t.images.c.state, None),
        ("conflicts", t.conflicts.c.kind, None),
        ("power_actions", literal("open"), t.power_actions.c.done_at.is_(None)),
        ("switch_ports", port_state, t.switch_ports.c.mac.is_not(None)),
        ("volumes", volume_state, None),
        ("sessions", literal("open"), None),
    )
    n = t.nodes.c
    rate = select(
        literal("disk_bytes_per_second"), n.state, sql_cast(func.sum(n.progress_rate), Integer)
    )
    tables = {"sessions": t.sessions, "power_actions": t.power_actions}
    selects = []
    for what, label, where in parts:
        query = select(literal(what), label, sql_cast(func.count(), Integer))
        query = query.select_from(tables[what]) if what in tables else query.group_by(label)
        selects.append(query if where is None else query.where(and_(where)))
    selects.append(rate.where(n.progress_total > 0).group_by(n.state))
    return [(what, label, count) for what, label, count in tx.execute(union_all(*selects))]
