"""Notices, and the deliveries that they are to have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from sqlalchemy import insert, select

from cod.model import Group, Notice
from cod.store import groups
from cod.store import tables as t
from cod.store.engine import Tx, new_id

_n = t.notices.c
_NOTICE = [_n[field.name] for field in fields(Notice)]

WEBHOOK, EMAIL = "webhook", "email"
ADMINISTRATORS = ""
"""The target of mail for whom the site file names as administrators when it is delivered."""


def add(
    tx: Tx, *, kind: str, group_id: int | None, vcluster_id: int | None = None, subject: str, about: str, now: float
) -> Notice:
    """Tell a group (None: the site's administrators) something, by each channel that it has. For texts see
    `policy.notices`; delivery follows the commit (`flows.notices`)."""
    values = dict(at=now, kind=kind, group_id=group_id, vcluster_id=vcluster_id, subject=subject, about=about)
    notice_id = new_id(tx.execute(insert(t.notices).values(values)))
    targets = _targets(groups.get(tx, group_id)) if group_id is not None else [(EMAIL, ADMINISTRATORS)]
    for channel, target in targets:
        tx.execute(insert(t.notice_sends).values(notice_id=notice_id, channel=channel, target=target, next_at=now))
    return get(tx, notice_id)


def _targets(group: Group) -> Sequence[tuple[str, str]]:
    return [(channel, target) for channel, target in ((WEBHOOK, group.webhook), (EMAIL, group.email)) if target]


def get(tx: Tx, notice_id: int) -> Notice:
    """The notice with that id, as another row names it."""
    return Notice(*tx.execute(select(*_NOTICE).where(_n.id == notice_id)).one())
