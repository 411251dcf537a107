"""The page of a held site: nodes whose machines contradict the database, with both accounts."""

from __future__ import annotations

from typing import Any

from cod.flows.nodes import hold
from cod.pool import Tx
from cod.states import OWN_SYSTEM, StoryVerdict
from cod.web.api.routes import ADMINS, Call
from cod.web.portal.page import Page, act

MOST = 200  # nodes that are shown


def _hold(tx: Tx, ask: Call) -> dict[str, Any]:
    found = hold.show(tx)
    by = {verdict: found.of(verdict) for verdict in StoryVerdict}
    return {
        "found": found,
        "differ": by[StoryVerdict.DIFFERS][:MOST],
        "silent": by[StoryVerdict.SILENT][:MOST],
        "own_system": OWN_SYSTEM,
        "counts": {verdict.value: len(nodes) for verdict, nodes in by.items()},
    }


PAGES = (Page("/hold", "hold.html", _hold, ADMINS, nav="/faults"),)
ACTIONS = (
    act("/hold/end", "POST", "/hold", "The hold of the site is over."),
    act("/hold/wake", "POST", "/hold", "Silent nodes are being switched on."),
    act("/hold/decide", "POST", "/hold", "Decided."),
)
