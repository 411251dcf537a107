"""The overview: for the person's groups, what they have, what is in progress, and which requests
wait and why; for administrators also the state of the site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cod.flows import views
from cod.flows.notices import notices
from cod.flows.people import first_steps
from cod.model import Page as Part
from cod.pool import Tx
from cod.states import NodeState
from cod.web.api.routes import Call
from cod.web.portal.formatting import by_word
from cod.web.portal.page import Page, act

SOONEST = Part(limit=12, sort="expires_at")
FEW = Part(limit=8)
MOST = 50  # nodes in progress that are shown


def _overview(tx: Tx, ask: Call) -> dict[str, Any]:
    groups = ask.who.groups
    mine = {
        "vclusters": views.vcluster_list(tx, page=SOONEST, groups=groups),
        "under_way": views.under_way(tx, groups, MOST),
        "waiting": views.request_list(tx, page=FEW, state="pending", groups=groups),
        "notices": notices.every(tx, page=FEW, groups=groups),
    }
    if not ask.who.admin:
        return mine | {"site_stands": None}
    return (
        mine | _stands(views.standing(tx), ask.now) | {"groupless": first_steps.without_group(tx)}
    )


def _own(tx: Tx, ask: Call) -> dict[str, Any]:
    return {
        "to_ask": first_steps.to_ask(tx, ask.who),
        "steps": first_steps.checklist(tx, who=ask.who),
    }


def _stands(found: views.Standing, now: float) -> dict[str, Any]:
    manager = found.manager
    return {
        "site_stands": found,
        "pool": sorts(found.pool),
        "managed": manager is not None and float(manager["expires_at"]) > now,
    }


def sorts(pool: Mapping[str, int]) -> list[tuple[str, str, int, float]]:
    """Return (word, colour, nodes, start of its part of a bar from 0 to 100) for each word for
    states. Words without nodes are left out, and so are retired nodes."""
    counted = by_word({state: count for state, count in pool.items() if state != NodeState.RETIRED})
    total, begun, parts = sum(count for _, _, count, _ in counted), 0, []
    for what, colour, count, _ in counted:
        parts.append((what, colour, count, round(100 * begun / total, 3)))
        begun += count
    return parts


PAGES = (Page("/", "overview.html", _overview, shared=True, own=_own),)
ACTIONS = (
    act("/checklist/dismiss", "DELETE /me/checklist", "/", "The first steps are dismissed."),
)
