"""Invitations and links for a new password."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Annotated

from pydantic import Field

from cod.flows.people import invitation_mail, invitations
from cod.flows.people.access import RequiredRight, digest
from cod.model import Invitation, Right, Role, SingleRight
from cod.net.notify.invitation_mail import send_link
from cod.pool import Tx
from cod.web.api.models import (
    Body,
    Chosen,
    Email,
    Line,
    Password,
    Reply,
    ReplyOf,
    Seconds,
    Secret,
)
from cod.web.api.routes import (
    ADMINS,
    ANYBODY,
    Call,
    Flow,
    Named,
    Names,
    Worked,
    listed,
    manage,
    named_route,
    number,
    numbered_route,
    route,
)


class LinkBody(Body):
    """A request whose answer has a link."""

    mail: bool = Field(default=False, description="send the link by e-mail, too")


class Renew(LinkBody):
    """New lifetime of the link, in seconds; null: the site's."""

    lifetime: Seconds | None = None


class SiteInvite(Renew):
    """Invitation to the site, into no group."""

    email: Email = ""


class Invite(SiteInvite):
    """Invitation into a group. `lifetime` in seconds; null: the site's."""

    role: Chosen[Role] = Role.MEMBER


class InvitationReply(ReplyOf[Invitation]):
    """A link that can still be used. `user`: the user who sets a new password by the link; null: it
    invites."""

    id: int
    group: str | None
    role: str
    user: str | None
    email: str
    invited_by: str
    created_at: float
    expires_at: float


class Invited(InvitationReply):
    """A new link, shown this once. Its secret is after the '#', which browsers do not send.
    `mailed`: the link was sent to `email`; `unsent`: why it was not. `fingerprint`: SHA-256 of the
    web server's certificate, hex, with which a person can check the certificate that a browser
    warns of; empty: the server has no certificate of its own."""

    link: str
    mailed: bool
    unsent: str
    fingerprint: str = ""


class Accept(Body):
    """Acceptance of a link. A link for a new password ignores `name` and the fields after it."""

    secret: Secret
    password: Password
    name: Annotated[str, Field(max_length=32)] = ""
    full_name: Line = ""
    email: Email = ""


class Accepted(Reply):
    """User whose account the link belongs to."""

    user: str


INVITATION_PAGE = "/invitation"
_LETTER = """\
{by} invites you to {site}{into}. Open this link, once, within its time:

{link}

If you did not expect this, do nothing.
"""
_RESET = """\
Open this link, once, within its time, to set the password of {user} at {site}:

{link}

If you did not expect this, tell an administrator.
"""


def linked(make: partial[Invitation], ask: Call[Names, LinkBody]) -> Flow[tuple[Invitation, str]]:
    """Return a flow that makes an invitation; its value is (the row, the link)."""
    secret = secrets.token_urlsafe(32)
    link = f"{_reached(ask)}{INVITATION_PAGE}#{secret}"

    def linked(tx: Tx) -> tuple[Invitation, str]:
        if ask.body.mail:
            invitation_mail.count(tx, who=ask.who, rules=ask.site.signin, now=ask.now)
        return (
            make(tx, digest=digest(secret), rules=ask.site.signin, who=ask.actor, now=ask.now),
            link,
        )

    return linked


def _reached(ask: Call[Names, LinkBody]) -> str:
    """Return the address at which others reach the portal: that in the site file, or else the
    address that the inviting person's browser used. The last resort is the host's own name, which
    others may not know.

    A letter never has the address from the request, because anybody can write any Host header.
    """
    rules = ask.site.signin
    here = (
        ask.host.partition(":")[0].strip("[]")
        if not ask.host.startswith("[")
        else ask.host[1:].partition("]")[0]
    )
    sent = ask.body.mail and rules.url  # where `url` is not known nothing is sent
    if (
        rules.named
        or sent
        or not here
        or here == "localhost"
        or here == "::1"
        or here.startswith("127.")
    ):
        return rules.url
    return f"https://{ask.host}"


def invited(ask: Call[Names, LinkBody], made: tuple[Invitation, str]) -> Invited:
    """Return the new link, after sending it by mail if the request wants that. Runs in a thread."""
    row, link = made
    unsent = _mailed(ask, row, link) if ask.body.mail else ""
    return Invited(
        id=row.id,
        group=row.group,
        role=row.role,
        user=row.user,
        email=row.email,
        invited_by=row.invited_by,
        created_at=row.created_at,
        expires_at=row.expires_at,
        link=link,
        mailed=ask.body.mail and not unsent,
        unsent=unsent,
        fingerprint=ask.fingerprint,
    )


def _mailed(ask: Call, row: Invitation, link: str) -> str:
    site = ask.site.name
    if not ask.site.signin.url:
        return "it is not known where browsers reach this site: see signin.url in the site file"
    if row.user:
        return send_link(
            ask.site,
            row.email,
            "a new password",
            _RESET.format(user=row.user, site=site, link=link),
            ask.now,
        )
    into = f", into the group {row.group} as {row.role}" if row.group else ""
    about = _LETTER.format(by=row.invited_by.partition(":")[2], site=site, into=into, link=link)
    return send_link(ask.site, row.email, "an invitation", about, ask.now)


def _invites(ask: Call[Named, Invite]) -> list[RequiredRight]:
    """Return the rights of owners of the group, and of users with the single right to invite, who
    give their own role at most."""
    name, role = ask.names.name, ask.body.role
    if role == "owner":
        return [RequiredRight(Right.MANAGE, "group", name)]
    own = Right.USE if role == "member" else Right.SEE
    invites = RequiredRight(Right.MANAGE, "group", name, SingleRight.INVITE)
    return [invites, RequiredRight(own, "group", name)]


INVITATIONS = (
    route(
        "GET /invitations",
        ANYBODY,
        "List valid links of groups that you own",
        lambda a: partial(invitations.every, groups=a.who.owns, now=a.now),
        reply=listed(InvitationReply, "Links that can still be used, the newest first."),
    ),
    route(
        "POST /invitations",
        ADMINS,
        "Invite a person to the site",
        lambda a: linked(
            partial(invitations.invite, email=a.body.email, lifetime=a.body.lifetime), a
        ),
        reply=Worked(Invited, invited),
        body=SiteInvite,
        secret=True,
        makes="/invitations/{id}",
    ),
    named_route(
        "POST /groups/{name}/invitations",
        _invites,
        "Invite a person into a group",
        lambda a: linked(
            partial(
                invitations.invite,
                group=a.names.name,
                role=a.body.role,
                email=a.body.email,
                lifetime=a.body.lifetime,
            ),
            a,
        ),
        reply=Worked(Invited, invited),
        body=Invite,
        secret=True,
        makes="/invitations/{id}",
    ),
    numbered_route(
        "DELETE /invitations/{id}",
        manage("invitation"),
        "Take a link back",
        lambda a: partial(invitations.revoke, invitation_id=number(a.names.id)),
    ),
    named_route(
        "POST /users/{name}/password-link",
        ADMINS,
        "Create a link for setting a new password",
        lambda a: linked(
            partial(invitations.renew, user=a.names.name, lifetime=a.body.lifetime), a
        ),
        reply=Worked(Invited, invited),
        body=Renew,
        status=201,
        secret=True,
    ),
)
