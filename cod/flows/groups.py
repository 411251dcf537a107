"""Groups, as the site's administrator sees them."""

from __future__ import annotations

from cod.model import Group, Refused
from cod.store import groups
from cod.store.engine import Tx


def every(tx: Tx) -> list[Group]:
    """All groups, by name."""
    return groups.every(tx)


def create(
    tx: Tx, name: str, *, priority: int, default_lease: float | None, max_lease: float | None, now: float
) -> Group:
    """A new group; leases in seconds, None for the site's default and for no limit."""
    if groups.by_name(tx, name):
        raise Refused("conflict", f"there is a group {name!r} already", "name")
    return groups.add(tx, name, now, priority=priority, default_lease=default_lease, max_lease=max_lease)
