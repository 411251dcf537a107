"""The site's rules, and what the resource manager would do now by them."""

from __future__ import annotations

from functools import partial

from cod.flows.scheduler import plan
from cod.web.portal.page import Loading, Page, together
from cod.web.routes import ADMINS, Call


def _policy(ask: Call) -> Loading:
    return together(planned=partial(plan.preview, site=ask.site, now=ask.now), rules=lambda tx: ask.site.policy,
                    reserve=lambda tx: ask.site.energy, kinds=lambda tx: ask.site.types)


PAGES = (Page("/policy", "policy.html", _policy, ADMINS),)
