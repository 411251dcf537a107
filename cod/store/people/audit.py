"""The audit: rows are written and read, and never changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from operator import eq, ge, lt
from typing import Any

from sqlalchemy import insert, or_, select

from cod.model import ALL, AuditRow, Listed, Page, Who
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.paging import having, page_of
from cod.store.rows import Rows, theirs

_a = t.audit.c
_ROWS = Rows(
    AuditRow,
    t.audit,
    elsewhere={"group": t.groups.c.name},
    source=t.audit.outerjoin(t.groups, t.groups.c.id == _a.group_id),
)


def add(
    tx: Tx,
    *,
    actor: str,
    address: str = "",
    action: str,
    thing: str = "",
    group_id: int | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    run: str | None = None,
    now: float,
) -> None:
    """Add a row to the audit: an actor's change of a thing. `before` and `after`: the fields that
    changed, without secrets; None: none. `run`: see `has_run`."""
    tx.execute(
        insert(t.audit).values(
            at=now,
            actor=actor[:80],
            address=address[:45],
            action=action[:40],
            thing=thing[:200],
            group_id=group_id,
            before=_json(before),
            after=_json(after),
            run=run,
        )
    )


def by(tx: Tx, who: Who, action: str, thing: str, *, now: float, **rest: Any) -> None:
    """Add a row for what the client `who` did."""
    add(tx, actor=who.name, address=who.address, action=action, thing=thing, now=now, **rest)


def has_run(tx: Tx, run: str, now: float) -> bool:
    """Return whether a row was added at `now` under the key `run`. Waits for a transaction that has
    added such a row and has not ended."""
    query = select(_a.id).where(_a.at == now, _a.run == run).with_for_update(read=True)
    return tx.scalar(query) is not None


def every(
    tx: Tx,
    page: Page = ALL,
    groups: frozenset[int] | None = None,
    *,
    group: str | None = None,
    actor: str | None = None,
    action: str | None = None,
    thing: str | None = None,
    since: float | None = None,
    until: float | None = None,
) -> Listed[AuditRow]:
    """Return a page of the rows, the newest first; only those of `groups` (None: all rows, also
    those of no group).

    actor   exactly, or without its kind: 'carla' finds 'user:carla'; thing: exactly
    action  its first words; since, until: seconds since the epoch
    """
    name = t.groups.c.name
    query = _ROWS.select.where(
        *theirs(_a.group_id, groups), *having(page.q, _a.actor, _a.action, _a.thing)
    )
    compared: list[tuple[Any, Any, Callable[[Any, Any], Any]]] = [
        (name, group, eq),
        (_a.thing, thing, eq),
        (_a.at, since, ge),
        (_a.at, until, lt),
    ]
    query = query.where(*(by(column, value) for column, value, by in compared if value is not None))
    if actor is not None:
        any_kind = [] if ":" in actor else [_a.actor.endswith(f":{actor}", autoescape=True)]
        query = query.where(or_(_a.actor == actor, *any_kind))
    if action is not None:
        query = query.where(_a.action.startswith(action, autoescape=True))
    found = page_of(tx, query, page, {"id": _a.id}, "-id", _a.id)
    return found.each(_ROWS.read)


def disown(tx: Tx, group_id: int) -> None:
    """Make the rows of a removed group the site's, so that only administrators see them."""
    _ROWS.set_where(tx, _a.group_id == group_id, group_id=None)


def was_deleted(tx: Tx, user: str) -> bool:
    """Return whether the audit has a row about the deletion of a user of that name."""
    return _ROWS.exists(tx, _a.action == "user delete", _a.thing == user)


def renamed(tx: Tx, kind: str, name: str, since: int = 0) -> tuple[int, str] | None:
    """Return the newest row after `since` that renamed a thing of that kind from `name`, and the
    new name; None if there is no such row."""
    query = select(_a.id, _a.after).where(
        _a.action == f"{kind} change",
        _a.thing == name,
        _a.after.contains('"name": '),
        _a.id > since,
    )
    for row, after in tx.execute(query.order_by(_a.id.desc())):
        if new := json.loads(after).get("name"):
            return row, str(new)
    return None


def _json(value: Mapping[str, Any] | None) -> str:
    return (
        "" if value is None else json.dumps(value, ensure_ascii=False, default=str, sort_keys=True)
    )
