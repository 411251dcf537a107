"""Notices to groups and to the site's administrators, by each channel that they have, and to people
by e-mail as they chose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any

from cod import notice_texts
from cod.choices import NoticeMail
from cod.model import Group, Notice, Vcluster
from cod.policy import notice_delivery
from cod.store.engine import Tx
from cod.store.notices import mail_choices, notices
from cod.store.notices.mail_choices import Chooser
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
    """Add a notice for a group (None: for the site's administrators), and return it. The texts come
    from `cod.notice_texts`; delivery follows the commit (`flows.notices.notices`)."""
    chosen = mail_choices.choosers(tx, kind, group_id)
    targets = [(EMAIL, ADMINISTRATORS)]
    if group_id is not None:
        targets = _targets(groups.get(tx, group_id), kind, chosen)
    notice = notices.add(
        tx,
        targets + _at_once(chosen),
        kind=kind,
        group_id=group_id,
        vcluster_id=vcluster_id,
        subject=subject,
        about=about,
        link=link,
        now=now,
    )
    _collect(tx, notice, chosen)
    return notice


def tell(tx: Tx, vcluster: Vcluster, text: notice_texts.NoticeText, now: float) -> Notice:
    """Add a notice about the vcluster for its group, and return it."""
    return add(tx, **text, group_id=vcluster.group_id, vcluster_id=vcluster.id, now=now)


def tell_people(
    tx: Tx,
    vcluster: Vcluster,
    text: notice_texts.NoticeText,
    people: Sequence[tuple[int, str]],
    now: float,
) -> Notice:
    """Send people, given by id and address, a notice about a vcluster by e-mail, unless they chose
    otherwise. The vcluster's group sees the notice among its own."""
    columns = {"group_id": vcluster.group_id, "vcluster_id": vcluster.id}
    chosen = [
        Chooser(*one, mail_choices.of(tx, one[0]).get(text["kind"], NoticeMail.AT_ONCE), False)
        for one in people
    ]
    notice = notices.add(tx, _at_once(chosen), now=now, **text, **columns)
    _collect(tx, notice, chosen)
    return notice


def tell_all(
    tx: Tx, recipients: Sequence[tuple[Vcluster, Group, notice_texts.NoticeText]], now: float
) -> None:
    """Add notices about vclusters for their groups. Notices that are not sent anywhere are written
    with one statement."""
    rows: list[dict[str, Any]] = []
    choosers = cache(partial(mail_choices.choosers, tx))  # groups are few
    for vcluster, group, text in recipients:
        if _targets(group, text["kind"]) or choosers(text["kind"], group.id):
            tell(tx, vcluster, text, now)
        else:
            rows.append({**text, "group_id": group.id, "vcluster_id": vcluster.id, "at": now})
    notices.add_all(tx, rows)


def _targets(group: Group, kind: str, chosen: Sequence[Chooser] = ()) -> list[tuple[str, str]]:
    """Return the channels of a group for notices of that kind, with their targets."""
    webhook = group.webhook if "notices" in group.events or kind == "test" else ""
    email = group.email
    if gone := left_out(chosen):
        email = ", ".join(notice_delivery.without(notice_delivery.addresses(email), gone))
    channels = (WEBHOOK, webhook), (EMAIL, email)
    return [(channel, target) for channel, target in channels if target]


def left_out(chosen: Iterable[Chooser]) -> set[str]:
    """Return addresses to which the group or the site need not send the notice, because their
    owners have chosen how they get it. A person who does not manage the group or the site could
    have entered somebody else's address: it is left out only if the notice goes there at once."""
    return {each.email for each in chosen if each.manages or each.mail is NoticeMail.AT_ONCE}


def _at_once(chosen: Iterable[Chooser]) -> list[tuple[str, str]]:
    emails = dict.fromkeys(each.email for each in chosen if each.mail is NoticeMail.AT_ONCE)
    return [(EMAIL, email) for email in emails]


def _collect(tx: Tx, notice: Notice, chosen: Iterable[Chooser]) -> None:
    daily = [each.user_id for each in chosen if each.mail is NoticeMail.DAILY]
    mail_choices.collect(tx, notice.id, daily)
