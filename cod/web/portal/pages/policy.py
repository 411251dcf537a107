"""The page with the site's rules, and with the actions that the resource manager would take now by
them."""

from __future__ import annotations

from typing import Any

from cod.choices import Wipe
from cod.flows.scheduler import plan
from cod.pool import Tx
from cod.web.api.routes import ADMINS, Call
from cod.web.portal.page import Page


def _policy(tx: Tx, ask: Call) -> dict[str, Any]:
    return {
        "planned": plan.preview(tx, site=ask.site, now=ask.now),
        "rules": ask.site.policy,
        "wipes": Wipe.abouts(),
        "reserve": ask.site.energy,
        "kinds": ask.site.types,
    }


PAGES = (Page("/policy", "policy.html", _policy, ADMINS),)
