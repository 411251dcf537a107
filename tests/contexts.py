"""What flows take beside what is asked of them."""

from __future__ import annotations

from collections.abc import Iterable

from cod.model import FlowContext, Role, Site, Who


def flow_context(
    site: Site,
    now: float,
    actor: str = "test",
    *,
    key: str | None = None,
    user_id: int | None = None,
    seen: Iterable[int] | None = None,
) -> FlowContext:
    """Return the context of a flow for `actor`, who sees the groups in `seen`; None: all."""
    roles = dict.fromkeys(seen or (), Role.VIEWER)
    who = Who(actor, admin=seen is None, user_id=user_id, roles=roles)
    return FlowContext(site, now, who, key)
