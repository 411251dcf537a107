"""Notices to groups, and the state of their deliveries."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import Field, model_validator

from cod import model, notice_texts
from cod.choices import DeliveryState, NoticeMail
from cod.flows.notices import mail_choices, notices, reading
from cod.flows.notices.notices import host
from cod.web.api.models import Body, Chosen, OneOrSeveral, Paged, Reply, ReplyOf
from cod.web.api.routes import ANYBODY, listed, number, numbered_route, paged, route, see

ADMINISTRATORS = "the site's administrators"


class NoticeQuery(Paged):
    group: str | None = Field(default=None, max_length=63)
    vcluster: str | None = Field(default=None, max_length=63)
    kind: Annotated[str | None, OneOrSeveral(notice_texts.KINDS)] = Field(
        default=None, max_length=200
    )
    above: int | None = Field(
        default=None, ge=0, le=2**62, description="those with ids after this one"
    )
    sort: Literal["id", "-id"] = "-id"


class SendReply(Reply):
    """A delivery. `to`: the webhook's host, or addresses. `error`: the last error; for mail that
    was delivered, the recipients who were refused."""

    channel: str
    to: str
    state: DeliveryState
    attempts: int
    next_at: float | None
    done_at: float | None
    error: str

    @classmethod
    def of(cls, send: model.Send) -> SendReply:
        """Return the reply from the row. A webhook's URL may be a secret, and is not shown."""
        to = (
            host((send.channel, send.target))
            if send.channel == "webhook"
            else send.target or ADMINISTRATORS
        )
        return cls.read_from(send, to=to, next_at=send.next_at if send.done_at is None else None)


class DeliveryQuery(Paged):
    state: DeliveryState | None = None
    channel: Literal["webhook", "email"] | None = None
    sort: Literal["id", "-id"] = "-id"


class DeliveryReply(SendReply):
    """A delivery to a group, of a notice, or of events (`kind` vcluster-events or node-events)."""

    id: int
    notice: int
    at: float
    kind: str
    subject: str

    @classmethod
    def of_pair(cls, pair: tuple[model.Send, model.Notice]) -> DeliveryReply:
        """Return the reply from the two rows."""
        send, notice = pair
        return cls.read_from(SendReply.of(send), notice, id=send.id, notice=notice.id)


class NoticeReply(Reply):
    """A notice. `group` is null if it is for the site's administrators.

    link  path of the portal's page on which something can be done about it; empty: there is none
    """

    id: int
    at: float
    kind: str
    group: str | None
    vcluster: str | None
    subject: str
    about: str
    link: str
    deliveries: list[SendReply]

    @classmethod
    def of(cls, view: model.NoticeView) -> NoticeReply:
        deliveries = [SendReply.of(each) for each in view.sends]
        return cls.read_from(view.notice, view, deliveries=deliveries)


class UnreadReply(ReplyOf[reading.Unread], whole=True):
    """Number of notices that you have not read, at most 100: those to you, to your groups and, if
    you are an administrator, to administrators."""


class NoticesRead(Body):
    """Notices to mark as read: single ones, or all up to one."""

    ids: list[Annotated[int, Field(ge=1, le=2**62)]] = Field(
        default=[], max_length=1000, description="single ones"
    )
    until: int | None = Field(
        default=None, ge=0, le=2**62, description="all up to the one with this id"
    )

    @model_validator(mode="after")
    def _one(self) -> NoticesRead:
        if bool(self.ids) == (self.until is not None):
            raise ValueError("name ids or until")
        return self


class MailChoiceReply(ReplyOf[mail_choices.MailChoice], whole=True):
    """Your choice of mail for a kind of notices: 'default' (to the addresses that the group or the
    site names), 'at-once', 'daily' (in one mail) or 'never'. `stays` says why its mail cannot be
    turned off; empty: it can."""

    mail: NoticeMail


_MAIL_CHOICES = listed(MailChoiceReply, "The kinds of notices that you can have.")


class MailChoicePut(Body):
    """Your choice of mail for one kind of notices."""

    kind: Annotated[str, Field(max_length=16)]
    mail: Chosen[NoticeMail]


class MailChoicesPut(Body):
    """Kinds of notices whose mail changes; other kinds stay as they are."""

    choices: list[MailChoicePut] = Field(max_length=200)


NOTICES = (
    route(
        "GET /notices",
        ANYBODY,
        "List notices",
        lambda a: partial(
            notices.every,
            page=a.query.page,
            groups=a.who.groups,
            group=a.query.group,
            vcluster=a.query.vcluster,
            kind=a.query.kind,
            above=a.query.above,
        ),
        reply=paged(NoticeReply, "Notices, the newest first."),
        query=NoticeQuery,
    ),
    numbered_route(
        "GET /notices/{id}",
        see("notice"),
        "Show a notice and how its deliveries stand",
        lambda a: partial(notices.one, notice_id=number(a.names.id)),
        reply=NoticeReply,
    ),
    route(
        "GET /me/notices",
        ANYBODY,
        "Count the notices that you have not read",
        lambda a: partial(reading.count, who=a.who),
        reply=UnreadReply,
    ),
    route(
        "POST /me/notices/read",
        ANYBODY,
        "Note that you have read notices",
        lambda a: partial(reading.mark, who=a.who, ids=a.body.ids, until=a.body.until),
        reply=UnreadReply,
        body=NoticesRead,
        idle=lambda left: True,  # the audit need not have a row when somebody reads notices
    ),
    route(
        "GET /me/notices/mail",
        ANYBODY,
        "List which notices come to you by mail",
        lambda a: partial(mail_choices.mine, who=a.who),
        reply=_MAIL_CHOICES,
    ),
    route(
        "PATCH /me/notices/mail",
        ANYBODY,
        "Choose which notices come to you by mail",
        lambda a: partial(
            mail_choices.choose,
            who=a.who,
            chosen={each.kind: each.mail for each in a.body.choices},
            now=a.now,
        ),
        reply=_MAIL_CHOICES,
        body=MailChoicesPut,
        action="notice mail",
    ),
)
