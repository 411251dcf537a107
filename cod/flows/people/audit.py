"""The audit: changes and their authors, for users who may see them."""

from __future__ import annotations

import json
from dataclasses import replace

from cod.model import AuditRow, Listed, Page
from cod.policy.people.audit import for_owners
from cod.store.engine import Tx
from cod.store.people import audit


def every(
    tx: Tx,
    page: Page,
    groups: frozenset[int] | None,
    group: str | None = None,
    actor: str | None = None,
    action: str | None = None,
    thing: str | None = None,
    since: float | None = None,
    until: float | None = None,
) -> Listed[AuditRow]:
    """Return a page of the audit, the newest row first; only rows of `groups` (None: all rows). For
    the filters see `store.people.audit.every`."""
    rows = audit.every(
        tx,
        page,
        groups,
        group=group,
        actor=actor,
        action=action,
        thing=thing,
        since=since,
        until=until,
    )
    return (
        rows
        if groups is None
        else rows.each(lambda row: replace(row, before=_open(row.before), after=_open(row.after)))
    )


def now_called(tx: Tx, kind: str, name: str) -> str:
    """Return the present name of the thing of that kind that was once called `name`; '' if it was
    not renamed."""
    found, at = "", 0
    while step := audit.renamed(tx, kind, found or name, at):
        at, found = step
    return found


def _open(text: str) -> str:
    return json.dumps(for_owners(json.loads(text)), ensure_ascii=False) if text else ""
