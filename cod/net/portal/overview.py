"""The overview: what the groups of who looks have, what is under way, what waits and why."""

from __future__ import annotations

from functools import partial

from cod.flows import views
from cod.net.portal.pages import Action, Page, together
from cod.net.routes import Ask, Flow


def _overview(ask: Ask) -> Flow:
    groups = ask.who.groups
    return together(
        vclusters=partial(views.vcluster_list, groups=groups),
        waiting=partial(views.request_list, state="queued", groups=groups),
    )


PAGES = (Page("/", "overview.html", _overview),)
ACTIONS: tuple[Action, ...] = ()
