"""Who changed what, for those who may know."""

from __future__ import annotations

from typing import Any

from cod.model import AuditRow, Listed, Page
from cod.store import audit
from cod.store.engine import Tx


def every(tx: Tx, page: Page, groups: frozenset[int] | None, **filters: Any) -> Listed[AuditRow]:
    """A part of the audit, the newest first; of `groups` alone (None: all). `filters`: see `store.audit.every`."""
    return audit.every(tx, page, groups, **filters)
