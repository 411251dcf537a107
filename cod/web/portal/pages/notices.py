"""Pages about notices to groups, and their deliveries."""

from __future__ import annotations

from typing import Any

from cod import notice_texts
from cod.flows.notices import notices, reading
from cod.flows.people import groups
from cod.pool import Tx
from cod.web.api.resources.notices import NOTICES, NoticeQuery, NoticeReply
from cod.web.api.routes import ANYBODY, Names, Numbered, number, see
from cod.web.portal.page import Page, PageCall, act

KINDS = {name: kind.about for name, kind in notice_texts.KINDS.items()}


def _list(tx: Tx, ask: PageCall[Names, NoticeQuery]) -> dict[str, Any]:
    found: Any = NOTICES[0].call(ask)(tx)
    return {
        "found": found,
        "fresh": reading.among(tx, ask.who, [one.notice.id for one in found]),
        "newest": reading.newest(tx),
        "groups": groups.every(tx, ask.who.groups),
        "kinds": KINDS,
        "remedy": notice_texts.remedy,
    }


def _one(tx: Tx, ask: PageCall[Numbered]) -> dict[str, Any]:
    found = notices.one(tx, notice_id=number(ask.names.id))
    return {
        "view": found,
        "n": found.notice,
        "fresh": reading.among(tx, ask.who, [found.notice.id]),
        "sends": NoticeReply.of(found).deliveries,
        "kinds": KINDS,
        "remedy": notice_texts.remedy,
    }


PAGES = (
    Page("/notices", "notices.html", _list, ANYBODY, NoticeQuery),
    Page("/notices/{id}", "notice.html", _one, see("notice"), nav="/notices"),
)
ACTIONS = (
    act(
        "/notices/read",
        "POST /me/notices/read",
        "/notices",
        "All notices up to here are read.",
    ),
    act(
        "/notices/{id}/read",
        "POST /me/notices/read",
        "/notices/{id}",
        "The notice is read.",
        body=lambda fields: {"ids": [number(fields.one("ids"))]},
        names=lambda names, fields: {},
    ),
)
