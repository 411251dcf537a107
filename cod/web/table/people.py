"""Routes about people: users, members of groups, invitations."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from cod.flows.people import invitation_mail, invitations, people, sshkeys
from cod.flows.people.access import Claim
from cod.flows.people.signin import digest
from cod.model import Invitation, Right
from cod.net.notify.invitation_mail import send_link
from cod.web import bodies as b
from cod.web.routes import ADMINS, ANYBODY, Call, Flow, in_parts, listed, manage, number, route, see

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

# ---------------------------------------------------------------- links


def _linked(make: Any, ask: Call, **wanted: Any) -> Flow:
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


def _told(ask: Call, made: tuple[Invitation, str]) -> b.Invited:
    """In a thread: the link, sent by mail where that is wanted."""
    row, link = made
    unsent = _mailed(ask, row, link) if ask.body.mail else ""
    return b.Invited(**b.InvitationReply.model_validate(row).model_dump(), link=link,
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


def _added(ask: Call) -> Flow:
    """A new user, and the link by which they set their password."""
    told = ask.body.model_dump(exclude={"mail"})
    link = _linked(invitations.renew, ask, user=ask.body.name)

    def add(tx: Any) -> Any:
        people.create(tx, now=ask.now, **told)
        return link(tx)

    return add


INVITATIONS = (
    route("GET", "/invitations", ANYBODY, "List links that can still be used: of groups that one owns",
          lambda a: partial(invitations.every, groups=a.who.owns, now=a.now),
          shape=listed(b.InvitationList, b.InvitationReply.model_validate), reply=b.InvitationList),
    route("POST", "/invitations", ADMINS, "Invite somebody to the site",
          lambda a: _linked(invitations.invite, a, email=a.body.email), work=_told, reply=b.Invited,
          body=b.SiteInvite, status=201, secret=True, makes="/invitations/{id}"),
    route("POST", "/groups/{name}/invitations", manage("group"), "Invite somebody into a group",
          lambda a: _linked(invitations.invite, a, group=a.names["name"], role=a.body.role, email=a.body.email),
          work=_told, reply=b.Invited, body=b.Invite, status=201, secret=True, makes="/invitations/{id}"),
    route("DELETE", "/invitations/{id}", manage("invitation", "id"), "Take a link back",
          lambda a: partial(invitations.revoke, invitation_id=number(a.names["id"])), status=204),
    route("POST", "/users/{name}/password-link", ADMINS, "Make a link by which a user sets a new password",
          lambda a: _linked(invitations.renew, a, user=a.names["name"]), work=_told, reply=b.Invited,
          body=b.Renew, status=201, secret=True),
)

# ---------------------------------------------------------------- users and members


def said(body: Any) -> dict[str, Any]:
    """What a patch names; null says nothing."""
    return {key: value for key, value in body.model_dump(exclude_unset=True).items() if value is not None}


def _in_group(ask: Call) -> Sequence[Claim]:
    """A member, for those who may see the group."""
    return (Claim(Right.SEE, "group", ask.names["name"]),)


def _sets(ask: Call) -> Sequence[Claim]:
    """The owners of the group; that it may be without one is an administrator's word."""
    forced = (Claim(Right.ADMIN),) if ask.body.force else ()
    return (Claim(Right.MANAGE, "group", ask.names["name"]), *forced)


def _removes(ask: Call) -> Sequence[Claim]:
    """The owners of the group; whoever is in it may leave."""
    leaves = ask.who.person == ask.names["user"] and ask.who.only is None
    return (Claim(Right.SEE if leaves else Right.MANAGE, "group", ask.names["name"]),)


USERS = (
    route("GET", "/users", ANYBODY, "List users: those one is in a group with, or all",
          lambda a: in_parts(partial(people.every, groups=a.who.groups), a.query.page,
                             lambda one: (one.name, one.full_name, one.email), name=attrgetter("name"),
                             created_at=attrgetter("created_at")),
          shape=listed(b.UserList, b.UserReply.of), reply=b.UserList, query=b.UserQuery),
    route("GET", "/users/{name}", see("user"), "Show a user",
          lambda a: partial(people.one, name=a.names["name"], groups=a.who.groups), reply=b.UserInFull),
    route("POST", "/users", ADMINS, "Make a user, and a link by which they set their password", _added, work=_told,
          reply=b.Invited, body=b.UserCreate, status=201, secret=True, makes="/users/{user}"),
    route("PATCH", "/users/{name}", ADMINS, "Change a user; one who is disabled is signed out everywhere at once",
          lambda a: partial(people.change, name=a.names["name"], changes=said(a.body), now=a.now),
          reply=b.UserInFull, body=b.UserPatch),
    route("DELETE", "/users/{name}", ADMINS, "Delete a user for good, with their sessions, tokens, keys and roles",
          lambda a: partial(people.delete, name=a.names["name"]), status=204),
    route("DELETE", "/users/{name}/sessions", ADMINS, "Sign a user out everywhere",
          lambda a: partial(people.end_sessions, name=a.names["name"]),
          shape=lambda count: b.SessionsEnded(ended=count), reply=b.SessionsEnded),
)
MEMBERS = (
    route("GET", "/groups/{name}/members", see("group"), "List the members of a group",
          lambda a: partial(people.members, group=a.names["name"]),
          shape=listed(b.MemberList, b.MemberReply.model_validate), reply=b.MemberList),
    route("GET", "/groups/{name}/members/{user}", _in_group, "Show what somebody is in a group",
          lambda a: partial(people.member, group=a.names["name"], user=a.names["user"]), reply=b.MemberReply),
    route("PUT", "/groups/{name}/members/{user}", _sets, "Make somebody owner, member or viewer of a group",
          lambda a: partial(people.set_role, group=a.names["name"], user=a.names["user"], enlist=a.who.admin,
                            **a.body.model_dump()),
          reply=b.MemberReply, body=b.MemberSet),
    route("DELETE", "/groups/{name}/members/{user}", _removes, "Take somebody out of a group",
          lambda a: partial(people.remove, group=a.names["name"], user=a.names["user"]), status=204),
    route("GET", "/groups/{name}/keys", see("group"), "List the SSH keys that the nodes of a group's vclusters let in",
          lambda a: partial(sshkeys.of_group, group=a.names["name"]),
          shape=listed(b.GroupKeyList, b.GroupKey.of), reply=b.GroupKeyList),
)
