"""Telling groups and the site's administrators what happened, by each channel that they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cod import notice_texts
from cod.model import Group, Notice, Vcluster
from cod.store.engine import Tx
from cod.store.notices import notices
from cod.store.notices.notices import ADMINISTRATORS, EMAIL, WEBHOOK
from cod.store.people import groups


def add(
    tx: Tx,
    *,
    kind: str,
    group_id: int | None,
    vcluster_id: int | None = None,
    subject: str,
    about: str,
    link: str = "",
    now: float,
) -> Notice:
    """Tell a group (None: the site's administrators) something. For texts see `cod.notice_texts`;
    delivery follows the commit (`flows.notices.notices`)."""
    targets = [(EMAIL, ADMINISTRATORS)]
    if group_id is not None:
        targets = _targets(groups.get(tx, group_id), kind)
    return notices.add(
        tx,
        targets,
        kind=kind,
        group_id=group_id,
        vcluster_id=vcluster_id,
        subject=subject,
        about=about,
        link=link,
        now=now,
    )


def tell(tx: Tx, vcluster: Vcluster, said: notice_texts.NoticeText, now: float) -> Notice:
    """Tell the vcluster's group something about it."""
    return add(tx, **said, group_id=vcluster.group_id, vcluster_id=vcluster.id, now=now)


def tell_people(
    tx: Tx, vcluster: Vcluster, said: notice_texts.NoticeText, emails: Sequence[str], now: float
) -> Notice:
    """Tell people, by e-mail, something about a vcluster; its group sees it among its notices."""
    columns = {"group_id": vcluster.group_id, "vcluster_id": vcluster.id}
    return notices.add(tx, [(EMAIL, one) for one in emails], now=now, **said, **columns)


def tell_all(
    tx: Tx, told: Sequence[tuple[Vcluster, Group, notice_texts.NoticeText]], now: float
) -> None:
    """Tell the groups of vclusters something, each in its order."""
    rows: list[dict[str, Any]] = []
    for vcluster, group, said in told:
        if _targets(group, said["kind"]):
            tell(tx, vcluster, said, now)
        else:
            rows.append({**said, "group_id": group.id, "vcluster_id": vcluster.id, "at": now})
    notices.add_all(tx, rows)


def _targets(group: Group, kind: str) -> list[tuple[str, str]]:
    """Return the channels of a group for notices of that kind, with their targets."""
    webhook = group.webhook if "notices" in group.events or kind == "test" else ""
    channels = (WEBHOOK, webhook), (EMAIL, group.email)
    return [(channel, target) for channel, target in channels if target]
