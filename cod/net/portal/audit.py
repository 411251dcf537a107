"""Who changed what: for the site's administrators all of it, for a group's owners what is their group's."""

from __future__ import annotations

import json
from typing import Any

from cod.flows import audit
from cod.net.bodies import AuditQuery, AuditReply
from cod.net.portal.pages import Page
from cod.net.routes import Ask, Flow


def _audit(ask: Ask) -> Flow:
    def load(tx: Any) -> dict[str, Any]:
        rows = audit.every(tx, page=ask.query.page, groups=ask.who.owns, **ask.query.filters)
        return {"rows": rows.each(lambda row: (found := AuditReply.of(row), differences(found)))}

    return load


def differences(row: AuditReply) -> list[tuple[str, str, str]]:
    """(what, before, after) of everything that the change has changed; '' for what was not there."""
    before, after = row.before or {}, row.after or {}
    return [(name, _text(before.get(name)), _text(after.get(name))) for name in {**before, **after}]


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


PAGES = (Page("/audit", "audit.html", _audit, query=AuditQuery),)
