"""Notices: their deliveries, and reading them.

A delivery is claimed, tried, and closed or put off. If the server dies in between, its claim runs
out and the delivery is tried again: a notice is delivered at least once. After a target has not
answered, all deliveries to it pause, so a dead webhook costs one attempt at a time, however many
wait for it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from cod import notice_texts
from cod.choices import NoticeFormat
from cod.core import notices
from cod.model import ALL, Effect, Listed, Notice, NoticeView, Page, Refused, Result, Send
from cod.policy import notice_delivery as policy
from cod.policy.notice_delivery import Target, addresses, host, may_reach, without
from cod.store import lists
from cod.store.engine import Tx
from cod.store.notices import mail_choices
from cod.store.notices import notices as store
from cod.store.people import groups

__all__ = [
    "Delivery",
    "Target",
    "addresses",
    "claim",
    "every",
    "failed",
    "host",
    "may_reach",
    "one",
    "succeeded",
    "test",
    "without",
]  # decisions of policy that edges ask for pass through here


@dataclass(frozen=True, slots=True)
class Delivery:
    """A claimed delivery with its notice.

    group     name of the group; None: the site's administrators
    turn      how often the secret of the group's webhook was changed
    form      the format that the webhook expects
    left_out  addresses in the site file to which the notice is not sent, because the
              administrators chose so
    """

    send: Send
    notice: Notice
    group: str | None
    vcluster: str | None
    turn: int = 0
    form: NoticeFormat = NoticeFormat.JSON
    left_out: frozenset[str] = frozenset()

    @property
    def to(self) -> Target:
        """Return channel and target."""
        return self.send.channel, self.send.target

    @property
    def whom(self) -> str:
        """Return the recipients, as the last line of a mail names them."""
        if self.notice.kind == store.DIGEST:
            return "you, as your account says"
        return "the site's administrators" if self.group is None else f"group {self.group}"


# ---------------------------------------------------------------- delivering


def claim(
    tx: Tx, server: str, running: Collection[Target], now: float, lease: float
) -> list[Delivery]:
    """Claim due deliveries for `lease` seconds. `running`: targets to which this server is
    delivering at the moment."""
    due = {
        (channel, target): send_id
        for channel, target, send_id in store.due(tx, now, 10 * policy.AT_ONCE)
    }
    claimed = []
    for target in policy.pick(due, running):
        send = store.claim(tx, due[target], server, now, now + lease)
        if send is not None:
            view = store.every(tx, notice_id=send.notice_id)[0]
            group_id = view.notice.group_id
            delivery = Delivery(send, view.notice, view.group, view.vcluster)
            if group_id is not None:
                group = groups.get(tx, group_id)
                delivery = replace(delivery, turn=group.webhook_turn, form=group.webhook_format)
            elif delivery.to == (store.EMAIL, store.ADMINISTRATORS):
                delivery = replace(delivery, left_out=_left_out(tx, view.notice))
            claimed.append(delivery)
    return claimed


def _left_out(tx: Tx, notice: Notice) -> frozenset[str]:
    """Return the addresses of administrators who had chosen, before the notice was written, to get
    such notices in other ways or not at all."""
    kind = notice_texts.KINDS.get(notice.kind)
    if kind is None or kind.stays:
        return frozenset()
    chosen = mail_choices.choosers(tx, notice.kind, None, since=notice.at)
    return frozenset(notices.left_out(chosen))


def succeeded(tx: Tx, delivery: Delivery, remark: str, now: float) -> None:
    """Record that a notice was delivered; `remark`: to whom it was not ('': to all)."""
    store.close(tx, delivery.send, now, True, remark)


def failed(
    tx: Tx, delivery: Delivery, error: str, lasting: bool, dead: bool, now: float
) -> float | None:
    """Record a failed delivery; return when the next try is, or None when the notice is given up.

    lasting   trying again is of no use
    dead      the target did not answer: all other deliveries to the webhook (or through the mail
              server) pause as long
    """
    send, channel = delivery.send, delivery.send.channel
    whole = send.target if channel == store.WEBHOOK else None
    pause = None if lasting else policy.retry_after(send.attempts, now - delivery.notice.at)
    if pause is None:
        store.close(tx, send, now, False, error)
        if dead:
            store.give_up(tx, channel, whole, now - policy.GIVEN_UP, now, error)
        return None
    if store.again(tx, send, now + pause, error) and dead:
        store.rest(tx, channel, whole, now + pause)
    return now + pause


# ---------------------------------------------------------------- reading and testing


every = lists.notices


def one(tx: Tx, notice_id: int) -> NoticeView:
    """Return one notice with its deliveries. Raises `Refused`."""
    found = store.every(tx, notice_id=notice_id)
    if not found:
        raise Refused("not_found", f"there is no notice {notice_id}", "id")
    return found[0]


def deliveries(
    tx: Tx, *, group: str, page: Page = ALL, state: str | None = None, channel: str | None = None
) -> Listed[tuple[Send, Notice]]:
    """Return the deliveries to a group, made or due, the newest first. Raises `Refused`."""
    return lists.deliveries(
        tx, page, groups.named(tx, group, "group").id, state=state, channel=channel
    )


def again(tx: Tx, *, group: str, send_id: int, now: float) -> Result[tuple[Send, Notice]]:
    """Deliver a notice once more, by the same channel to its present target. Return the new
    delivery and the notice. Raises `Refused`."""
    found = groups.named(tx, group, "group")
    before = store.sent(tx, send_id, found.id)
    if before is None:
        raise Refused("not_found", f"there is no delivery {send_id} to group {group}", "id")
    target = found.webhook if before.channel == store.WEBHOOK else found.email
    if not target:
        raise Refused("conflict", f"group {group} has no {before.channel} now", "id")
    if before.done_at is None:
        raise Refused("conflict", "it is still tried", "id")
    made = store.sent(tx, store.send(tx, before.notice_id, before.channel, target, now), found.id)
    assert made is not None
    return Result((made, store.get(tx, before.notice_id)), (Effect("wake", "notices"),))


def test(tx: Tx, group: str, actor: str, now: float) -> Result[NoticeView]:
    """Send the group a test notice, and return it. Raises `Refused`, also if the group has no
    channel."""
    found = groups.named(tx, group, "group")
    if not (found.email or found.webhook):
        raise Refused(
            "conflict",
            f"group {group} has neither e-mail addresses nor a webhook: say in its settings "
            "how it is told things",
            "group",
        )
    notice = notices.add(tx, **notice_texts.test(group, actor), group_id=found.id, now=now)
    return Result(one(tx, notice.id), (Effect("wake", "notices"),))
