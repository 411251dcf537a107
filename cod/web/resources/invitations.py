"""Invitations and links for a new password."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from cod.flows.people import invitation_mail, invitations
from cod.flows.people.signin import digest
from cod.model import Invitation
from cod.net.notify.invitation_mail import send_link
from cod.web.models import Body, Email, Line, Password, Reply, RoleName, Seconds, Secret
from cod.web.routes import ADMINS, ANYBODY, Call, Flow, listed, manage, number, route


class Invite(Body):
    """Whom to invite. `lifetime` in seconds; null: the site's."""

    role: RoleName = "member"
    email: Email = ""
    lifetime: Seconds | None = None
    mail: bool = Field(default=False, description="send the link to `email`")


class SiteInvite(Body):
    """Whom to invite to the site, into no group."""

    email: Email = ""
    lifetime: Seconds | None = None
    mail: bool = False


class Renew(Body):
    """How long the link is good for, in seconds; null: the site's."""

    lifetime: Seconds | None = None
    mail: bool = False


class InvitationReply(Reply):
    """A link that can still be used. `user`: it sets a new password for that one."""

    id: int
    group: str | None
    role: str
    user: str | None
    email: str
    invited_by: str
    created_at: float
    expires_at: float


class InvitationList(Reply):
    """Links that can still be used, the newest first."""

    items: list[InvitationReply]


class Invited(InvitationReply):
    """A new link, shown this once. Its secret is behind the '#': browsers do not send that. `mailed`: to `email`;
    `unsent` says why not. `fingerprint`: SHA-256 of the web server's certificate, hex, by which a browser that warns of
    it can be told that it is the right one; empty: it has none of its own."""

    link: str
    mailed: bool
    unsent: str
    fingerprint: str = ""


class Accept(Body):
    """What a link is accepted with. For a new password `name` and the rest are not looked at."""

    secret: Secret
    password: Password
    name: Annotated[str, Field(max_length=32)] = ""
    full_name: Line = ""
    email: Email = ""


class Accepted(Reply):
    """Whose account it is."""

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


def linked(make: Any, ask: Call, **wanted: Any) -> Flow:
    """A flow that makes an invitation; its value is (the row, the link)."""
    secret = secrets.token_urlsafe(32)
    link = f"{_reached(ask)}{INVITATION_PAGE}#{secret}"

    def linked(tx: Any) -> tuple[Invitation, str]:
        if ask.body.mail:
            invitation_mail.count(tx, who=ask.who, rules=ask.site.signin, now=ask.now)
        return make(tx, digest=digest(secret), lifetime=getattr(ask.body, "lifetime", None),
                    rules=ask.site.signin, who=ask.actor, now=ask.now, **wanted), link

    return linked


def _reached(ask: Call) -> str:
    """Return where others reach the portal: as the site file says, else as the browser of who invites has reached it.
    The host's own name, which nobody else may know, is the last resort.

    A letter is the site's own word: no part of it is taken from the question, whose Host anybody can write.
    """
    rules = ask.site.signin
    here = ask.host.partition(":")[0].strip("[]") if not ask.host.startswith("[") else ask.host[1:].partition("]")[0]
    sent = ask.body.mail and rules.url  # where `url` is not known nothing is sent
    if rules.named or sent or not here or here == "localhost" or here == "::1" or here.startswith("127."):
        return rules.url
    return f"https://{ask.host}"


def told(ask: Call, made: tuple[Invitation, str]) -> Invited:
    """In a thread: the link, sent by mail where that is wanted."""
    row, link = made
    unsent = _mailed(ask, row, link) if ask.body.mail else ""
    return Invited(**InvitationReply.model_validate(row).model_dump(), link=link,
                     mailed=ask.body.mail and not unsent, unsent=unsent, fingerprint=ask.fingerprint)


def _mailed(ask: Call, row: Invitation, link: str) -> str:
    site = ask.site.name
    if not ask.site.signin.url:
        return "it is not known where browsers reach this site: see signin.url in the site file"
    if row.user:
        return send_link(ask.site, row.email, "a new password", _RESET.format(user=row.user, site=site, link=link),
                         ask.now)
    into = f", into the group {row.group} as {row.role}" if row.group else ""
    about = _LETTER.format(by=row.invited_by.partition(":")[2], site=site, into=into, link=link)
    return send_link(ask.site, row.email, "an invitation", about, ask.now)


INVITATIONS = (
    route("GET", "/invitations", ANYBODY, "List links that can still be used: of groups that one owns",
          lambda a: partial(invitations.every, groups=a.who.owns, now=a.now),
          shape=listed(InvitationList, InvitationReply.model_validate), reply=InvitationList),
    route("POST", "/invitations", ADMINS, "Invite somebody to the site",
          lambda a: linked(invitations.invite, a, email=a.body.email), work=told, reply=Invited,
          body=SiteInvite, status=201, secret=True, makes="/invitations/{id}"),
    route("POST", "/groups/{name}/invitations", manage("group"), "Invite somebody into a group",
          lambda a: linked(invitations.invite, a, group=a.names["name"], role=a.body.role, email=a.body.email),
          work=told, reply=Invited, body=Invite, status=201, secret=True, makes="/invitations/{id}"),
    route("DELETE", "/invitations/{id}", manage("invitation", "id"), "Take a link back",
          lambda a: partial(invitations.revoke, invitation_id=number(a.names["id"])), status=204),
    route("POST", "/users/{name}/password-link", ADMINS, "Make a link by which a user sets a new password",
          lambda a: linked(invitations.renew, a, user=a.names["name"]), work=told, reply=Invited,
          body=Renew, status=201, secret=True),
)
