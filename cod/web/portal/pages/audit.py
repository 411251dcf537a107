"""The audit's page. Administrators see all changes, and owners of a group those of their group."""

from __future__ import annotations

from functools import partial
from typing import Any

from cod.pool import Tx
from cod.web.api.resources.account import AuditQuery, AuditReply, audited
from cod.web.api.routes import Names
from cod.web.portal.formatting import audit_value
from cod.web.portal.page import Page, PageCall


def _audit(tx: Tx, ask: PageCall[Names, AuditQuery]) -> dict[str, Any]:
    rows = audited(ask)(tx)
    return {"rows": rows.each(lambda row: (found := AuditReply.of(row), differences(found)))}


def differences(row: AuditReply) -> list[tuple[str, str, str]]:
    """Return (name, before, after) of each value that the change has changed; '' for no value."""
    before, after = row.before or {}, row.after or {}
    text = partial(audit_value, in_bytes=row.action.startswith(("image", "upload", "volume")))
    return [
        (name, text(name, before.get(name)), text(name, after.get(name)))
        for name in {**before, **after}
    ]


PAGES = (Page("/audit", "audit.html", _audit, query=AuditQuery),)
