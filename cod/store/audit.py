"""Who changed what: rows are written and read, never changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import insert, select

from cod.model import AuditRow, Who
from cod.store import tables as t
from cod.store.engine import Tx

_a = t.audit.c


def add(
    tx: Tx, *, actor: str, address: str = "", action: str, thing: str = "", group_id: int | None = None,
    before: Mapping[str, Any] | None = None, after: Mapping[str, Any] | None = None, now: float,
) -> None:
    """Put down that somebody did something. `before` and `after`: what changed, without secrets; None: nothing."""
    tx.execute(insert(t.audit).values(
        at=now, actor=actor[:80], address=address[:45], action=action[:40], thing=thing[:200], group_id=group_id,
        before=_json(before), after=_json(after)))


def by(tx: Tx, who: Who, action: str, thing: str, *, now: float, **rest: Any) -> None:
    """The same for one who asks."""
    add(tx, actor=who.name, address=who.address, action=action, thing=thing, now=now, **rest)


def every(
    tx: Tx, *, groups: frozenset[int] | None = None, group: str | None = None, actor: str | None = None,
    action: str | None = None, thing: str | None = None, since: float | None = None, until: float | None = None,
    before: int | None = None, limit: int = 100,
) -> list[AuditRow]:
    """Rows, the newest first; of those `groups` alone (None: all, the site's too).

    actor, thing  exactly; action: its first words; since, until: seconds since the epoch; before: only smaller ids
    """
    query = select(_a.id, _a.at, _a.actor, _a.address, _a.action, _a.thing, t.groups.c.name, _a.before, _a.after)
    query = query.select_from(t.audit).outerjoin(t.groups, t.groups.c.id == _a.group_id)
    wanted = {
        "groups": _a.group_id.in_(groups or ()), "group": t.groups.c.name == group, "actor": _a.actor == actor,
        "action": _a.action.startswith(action or "", autoescape=True), "thing": _a.thing == thing,
        "since": _a.at >= since, "until": _a.at < until, "before": _a.id < before}
    given = dict(groups=groups, group=group, actor=actor, action=action, thing=thing, since=since, until=until,
                 before=before)
    query = query.where(*(condition for key, condition in wanted.items() if given[key] is not None))
    return [AuditRow(*row) for row in tx.execute(query.order_by(_a.id.desc()).limit(limit)).tuples()]


def _json(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str, sort_keys=True)
