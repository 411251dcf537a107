"""Events of nodes and vclusters, for groups that have them posted to their webhooks.

A mark is the row of a history up to which events were posted: `marks.at` holds the row's id.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Table, and_, func, select

from cod.model import Group
from cod.store import tables as t
from cod.store import watermarks
from cod.store.engine import Tx
from cod.store.notices import events
from cod.store.people import groups

KINDS = ("vclusters", "nodes")
_MOST = 1000  # rows at a time


class Happened(NamedTuple):
    """A row of a history, and the event to post about it to each group that it concerns, by group
    id."""

    id: int
    at: float
    events: dict[int, dict[str, Any]]


def readers(tx: Tx) -> dict[str, list[Group]]:
    """Return, for each of `KINDS`, the groups that have such events posted."""
    recipients = [
        group for group in groups.every(tx) if group.webhook and group.events != ("notices",)
    ]
    return {kind: [group for group in recipients if kind in group.events] for kind in KINDS}


def mark(tx: Tx, kind: str) -> int | None:
    """Return the id of the row up to which events were posted; None if no group has any posted
    yet."""
    found = watermarks.at(tx, _name(kind))
    return None if found is None else int(found)


def newest(tx: Tx, kind: str) -> int:
    """Return the id of the newest row in the history of events of this kind; 0: it is empty."""
    return tx.scalar(select(func.max(_TABLES[kind].c.id))) or 0


def begin(tx: Tx, kind: str) -> None:
    """Post events from now on, without past ones."""
    watermarks.move(tx, _name(kind), None, float(newest(tx, kind)))


def move(tx: Tx, kind: str, before: int, after: int) -> bool:
    """Move the mark to the row that was posted last; return False when another server has moved it
    meanwhile."""
    return watermarks.move(tx, _name(kind), float(before), float(after))


def end(tx: Tx, kind: str) -> None:
    """Stop posting events of that kind."""
    watermarks.forget(tx, _name(kind))


def _name(kind: str) -> str:
    return f"posted {kind}"


_TABLES: dict[str, Table] = {"vclusters": t.vcluster_history, "nodes": t.node_history}


def ids_after(tx: Tx, kind: str, row: int) -> list[int]:
    """Return the ids above `row` in the history of events of this kind, in ascending order."""
    return events.ids_after(tx, _TABLES[kind], row)


def happened(tx: Tx, kind: str, after: int, until: int) -> list[Happened]:
    """Return the events of the rows after `after` and up to `until`, oldest first, of at most
    `_MOST` rows."""
    id_ = _TABLES[kind].c.id
    return (_nodes if kind == "nodes" else _vclusters)(tx, and_(id_ > after, id_ <= until))


def _vclusters(tx: Tx, where: ColumnElement[bool]) -> list[Happened]:
    h, v = t.vcluster_history.c, t.vclusters.c
    query = (
        select(v.group_id, h.id, h.at, v.name, h.event, h.state, h.size, h.expires_at)
        .join_from(t.vcluster_history, t.vclusters, h.vcluster_id == v.id)
        .where(where)
        .order_by(h.id)
        .limit(_MOST)
    )
    names = ("id", "at", "vcluster", "event", "state", "size", "expires_at")
    return [
        Happened(row[1], row[2], {row[0]: dict(zip(names, row[1:], strict=True))})
        for row in tx.execute(query)
    ]


def _nodes(tx: Tx, where: ColumnElement[bool]) -> list[Happened]:
    """Return the nodes' events, each with the vcluster that the node left, if any: the row has only
    the vcluster after the event."""
    h, n, v = t.node_history.c, t.nodes.c, t.vclusters.alias()
    query = (
        select(
            v.c.group_id,
            _left(),
            h.id,
            h.at,
            n.name,
            h.event,
            h.from_state,
            h.to_state,
            v.c.name,
            h.cause,
            h.vcluster_id,
        )
        .join_from(t.node_history, t.nodes, h.node_id == n.id)
        .outerjoin(v, h.vcluster_id == v.c.id)
        .where(where)
        .order_by(h.id)
        .limit(_MOST)
    )
    rows = tx.execute(query).all()
    left = {
        row[0]: (row[1], row[2])
        for row in tx.execute(
            select(t.vclusters.c.id, t.vclusters.c.group_id, t.vclusters.c.name).where(
                t.vclusters.c.id.in_({row[1] for row in rows if row[1] is not None})
            )
        )
    }
    return [
        Happened(row[2], row[3], _events_by_group(row, *left.get(row[1], (None, None))))
        for row in rows
    ]


_NODE_EVENT = ("id", "at", "node", "event", "from_state", "to_state", "vcluster", "cause")


def _events_by_group(
    row: Any, group_left: int | None, left: str | None
) -> dict[int, dict[str, Any]]:
    """Return the event for the group that holds the node now, and the event for the group that held
    it before. Neither event names the other group."""
    event = dict(zip(_NODE_EVENT, row[2:10], strict=True)) | {"left": None}
    events = {} if row[0] is None else {row[0]: event}
    if group_left is None or row[1] == row[10]:
        return events
    if group_left == row[0]:
        return {row[0]: event | {"left": left}}
    elsewhere = {} if row[0] is None else {"vcluster": None, "cause": "it went to somebody else"}
    return events | {group_left: event | elsewhere | {"left": left}}


def _left() -> ColumnElement[Any]:
    """Return the subquery for the vcluster that held the node before a row of the history."""
    h, before = t.node_history.c, t.node_history.alias()
    query = select(before.c.vcluster_id).where(before.c.node_id == h.node_id, before.c.id < h.id)
    return query.order_by(before.c.id.desc()).limit(1).correlate(t.node_history).scalar_subquery()
