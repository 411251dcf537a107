"""The page that shows where groups stand: shares, usage that fades, guarantees and limits."""

from __future__ import annotations

from typing import Any

from cod.flows.scheduler import shares, usage
from cod.pool import Tx
from cod.web.api.routes import ANYBODY, Call
from cod.web.portal.page import Page
from cod.web.portal.pages.timeline import DAY, SHOWN, chart


def _shares(tx: Tx, ask: Call) -> dict[str, Any]:
    held = usage.held(
        tx,
        since=ask.now - 30 * DAY,
        until=ask.now,
        by="group",
        limit=SHOWN,
        groups=ask.who.groups,
        now=ask.now,
    )
    return {
        "found": shares.every(tx, only=ask.who.groups, site=ask.site, now=ask.now),
        "ranked": ask.site.policy.fair_half_life > 0,
        "rule": ask.site.policy.fair,
        "half_life": ask.site.policy.fair_half_life,
        "chart": chart(held, "Nodes held by group"),
    }


PAGES = (Page("/shares", "shares.html", _shares, ANYBODY),)
