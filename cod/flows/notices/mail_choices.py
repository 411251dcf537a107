"""A person's choices of mail by kind of notices, and the daily mails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cod import notice_texts
from cod.choices import NoticeMail
from cod.model import Refused, Who
from cod.policy import notice_delivery
from cod.policy.people import rights
from cod.store import watermarks
from cod.store.engine import Tx
from cod.store.notices import mail_choices, notices
from cod.store.people import people

AT_A_TIME = 100  # people whose daily mail is written in one transaction


@dataclass(frozen=True, slots=True)
class MailChoice:
    """A person's choice of mail for a kind of notices.

    stays  a sentence that says why its mail cannot be turned off; '': it can
    """

    kind: str
    about: str
    mail: NoticeMail
    stays: str


def mine(tx: Tx, who: Who) -> list[MailChoice]:
    """Return the choices of the user `who`, for each kind of notices that the user can get. Raises
    `Refused`."""
    chosen = mail_choices.of(tx, rights.user_of(who))
    return [
        MailChoice(name, kind.about, chosen.get(name, NoticeMail.DEFAULT), kind.stays)
        for name, kind in notice_texts.for_person(who.admin).items()
    ]


def choose(tx: Tx, *, who: Who, chosen: Mapping[str, NoticeMail], now: float) -> list[MailChoice]:
    """Store when the user `who` gets kinds of notices by mail; return all choices of the user.
    Raises `Refused`."""
    user_id, kinds = rights.account(who), notice_texts.for_person(who.admin)
    watermarks.one_at_a_time(tx, "mail choices")
    for name, mail in chosen.items():
        if name not in kinds:
            raise Refused("invalid", f"there are no notices of kind {name!r} for you", "choices")
        if kinds[name].stays and mail in (NoticeMail.DAILY, NoticeMail.NEVER):
            raise Refused("conflict", f"{name} comes at once: {kinds[name].stays}", "choices")
    user = people.get(tx, user_id)
    if not (user and user.email) and set(chosen.values()) - {NoticeMail.DEFAULT}:
        raise Refused("conflict", "your account has no e-mail address: add one first", "choices")
    before = mail_choices.of(tx, user_id)
    changes = {
        name: mail
        for name, mail in chosen.items()
        if mail is not before.get(name, NoticeMail.DEFAULT)
    }
    mail_choices.put(tx, user_id, changes, now)
    return mine(tx, who)


# ---------------------------------------------------------------- daily mails


def digests_due(tx: Tx, hour: int, now: float) -> bool:
    """Return whether `send_digests` has something to do."""
    return mail_choices.waits(tx, notice_delivery.digest_before(now, hour))


def send_digests(tx: Tx, hour: int, now: float) -> int:
    """Write the daily mails that are due, which are delivered like notices; return how many. If
    several servers do this at once, one writes the mails and the others find none due."""
    watermarks.one_at_a_time(tx, "mail choices")
    before = notice_delivery.digest_before(now, hour)
    return sum(
        _send_digest(tx, user_id, before, now)
        for user_id in mail_choices.waiting(tx, before, AT_A_TIME)
    )


def _send_digest(tx: Tx, user_id: int, before: float, now: float) -> bool:
    waiting = mail_choices.take(tx, user_id, before)
    user = people.get(tx, user_id)
    if not waiting or user is None or not user.able or not user.email:
        return False
    text = notice_texts.digest(notices.DIGEST, waiting)
    # a row with `events` is not listed among the notices that others see
    owner = {"group_id": None, "vcluster_id": None, "events": "[]"}
    notices.add(tx, [(notices.EMAIL, user.email)], now=now, **text, **owner)
    return True
