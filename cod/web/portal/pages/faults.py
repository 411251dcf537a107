"""The page about what outside of COD does not do its part, and about the site's servers."""

from __future__ import annotations

from typing import Any

from cod.flows import servers
from cod.flows.nodes import faults
from cod.pool import Tx
from cod.web.api.routes import ADMINS, Call
from cod.web.portal.page import Page


def _faults(tx: Tx, ask: Call) -> dict[str, Any]:
    found = faults.every(tx, now=ask.now)
    return {
        "lasting": [each for each in found if each.ended is None],
        "over": [each for each in found if each.ended is not None],
        "kinds": faults.KINDS,
        "servers": servers.every(tx, now=ask.now).items,
    }


PAGES = (Page("/faults", "faults.html", _faults, ADMINS),)
