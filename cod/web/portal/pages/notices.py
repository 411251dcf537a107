"""Pages about notices: what groups have been told, and how that went."""

from __future__ import annotations

from functools import partial
from typing import Any

from cod import notice_texts
from cod.flows.notices import notices
from cod.pool import Tx
from cod.web.portal.page import Action, Loading, Page, PageCall, together
from cod.web.portal.pages.wizard import own_groups
from cod.web.resources.notices import NoticeQuery, NoticeReply
from cod.web.routes import ANYBODY, Names, Numbered, number, see


def _list(ask: PageCall[Names, NoticeQuery]) -> Loading:
    return together(
        found=partial(notices.every, page=ask.query.page, groups=ask.who.groups, **ask.query.filters),
        groups=partial(own_groups, who=ask.who), kinds=lambda tx: notice_texts.KINDS,
        remedies=lambda tx: notice_texts.REMEDIES)


def _one(ask: PageCall[Numbered]) -> Loading:
    def load(tx: Tx) -> dict[str, Any]:
        found = notices.one(tx, notice_id=number(ask.names.id))
        return {"view": found, "n": found.notice, "sends": NoticeReply.of(found).deliveries,
                "kinds": notice_texts.KINDS,
                "remedies": notice_texts.REMEDIES}

    return load


PAGES = (
    Page("/notices", "notices.html", _list, ANYBODY, NoticeQuery),
    Page("/notices/{id}", "notice.html", _one, see("notice"), nav="/notices"),
)
ACTIONS: tuple[Action, ...] = ()
