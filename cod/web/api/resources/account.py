"""The caller's own account: profile, keys, sessions, tokens; sign-in of programs; the site's tokens
and the audit."""

from __future__ import annotations

import json
import secrets
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from cod import model
from cod.flows.people import audit, first_steps, people, signin, sshkeys, tokens
from cod.model import Listed
from cod.pool import Tx
from cod.web.api.models import (
    Body,
    DnsLabel,
    Email,
    Line,
    Paged,
    Password,
    Reply,
    ReplyOf,
    Seconds,
)
from cod.web.api.resources.invitations import Accept, Accepted
from cod.web.api.resources.people import (
    KEYS,
    KeyAdd,
    KeyReply,
    Membership,
    SessionsEnded,
    UserReply,
    by_act,
    given_fields,
)
from cod.web.api.routes import (
    ADMINS,
    ANYBODY,
    Call,
    Flow,
    Names,
    Shaped,
    as_it_is,
    listed,
    named_route,
    number,
    numbered_route,
    paged,
    route,
)
from cod.web.signin.service import SignIn

TokenName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,29}$")]


class Myself(Reply):
    """The caller's own account. `user` is null where the caller is no person."""

    name: str
    admin: bool
    writes: bool
    user: UserReply | None
    groups: list[Membership]

    @classmethod
    def of_who(cls, who: model.Who, user: model.User | None, roles: list[model.Member]) -> Myself:
        """Return the reply for the caller, with the known facts about the caller's user."""
        return cls.read_from(
            who,
            user=UserReply.of(user) if user else None,
            groups=[Membership.of(each) for each in roles],
        )


class ProfilePatch(Body):
    """Changes to one's own profile."""

    full_name: Line | None = None
    email: Email | None = None


class SignInBody(Body):
    """Name and password, for a token."""

    name: Annotated[str, Field(max_length=200)]
    password: Password
    token: TokenName = Field(description="what to call the token")
    scope: Literal["read", "write"] = "write"
    group: DnsLabel | Literal[""] = ""
    lifetime: Seconds | None = Field(default=43_200.0, description="seconds; null: for ever")


class PasswordChange(Body):
    """A new password, with the old one as a proof."""

    old: Password
    new: Password


class SessionReply(ReplyOf[model.WebSession]):
    """A browser that is signed in."""

    id: int
    created_at: float
    last_seen: float
    expires_at: float
    address: str
    browser: str


class FirstStepReply(ReplyOf[model.FirstStep], whole=True):
    """A step of the checklist: 'key' (you have an SSH key), 'template' (there is one for you),
    'request' (you requested a virtual cluster), 'nodes' (one of yours had all its nodes)."""


class TokenMake(Body):
    """A token of one's own. `lifetime` in seconds; null: for ever. `group`: only for that group's
    things. The scope 'calendar' is only for the address of the calendar feed,
    /calendar.ics?token=TOKEN."""

    name: TokenName
    scope: Literal["read", "write", "calendar"] = "write"
    group: DnsLabel | Literal[""] = ""
    lifetime: Seconds | None = None


class SiteToken(Body):
    """A token with the rights of an administrator of the site, or with the right to read only.
    'metrics': only to read metrics and the nodes that a monitoring system should watch; 'calendar':
    only for the site's calendar feed, /calendar.ics?token=TOKEN. `lifetime` in seconds; null: for
    ever."""

    name: TokenName
    scope: Literal["read", "admin", "metrics", "calendar"] = "read"
    lifetime: Seconds | None = None


class TokenReply(Reply):
    """A token: its name and its rights."""

    name: str
    scope: str
    group: str | None
    created_at: float
    expires_at: float | None

    @classmethod
    def of(cls, parts: tuple[model.ApiToken, str | None]) -> TokenReply:
        """Return the reply from the row and its group's name."""
        return cls.read_from(parts[0], group=parts[1])


class TokenMade(Reply):
    """A new token. The token itself is shown this once."""

    name: str
    token: str


class AuditQuery(Paged):
    group: str | None = Field(default=None, max_length=63)
    actor: str | None = Field(default=None, max_length=80, description="user:NAME, token:NAME …")
    action: str | None = Field(
        default=None, max_length=40, description="its beginning: 'vcluster', 'sign-in failed'"
    )
    thing: str | None = Field(default=None, max_length=200)
    since: float | None = Field(default=None, description="seconds since the epoch")
    until: float | None = None
    sort: Literal["id", "-id"] = "-id"


class AuditReply(ReplyOf[model.AuditRow], whole=True):
    """A change, and who made it. `before` and `after` have the values that differ; null if there
    are none."""

    action: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @classmethod
    def of(cls, row: model.AuditRow) -> AuditReply:
        own = {key: getattr(row, key) for key in cls.model_fields}
        return cls(
            **own | {key: json.loads(own[key]) if own[key] else None for key in ("before", "after")}
        )


async def _new_password(service: SignIn, ask: Call[Names, PasswordChange]) -> SessionsEnded:
    ended = await service.change_password(
        ask.who,
        ask.body.old.get_secret_value(),
        ask.body.new.get_secret_value(),
        keep=ask.who.session,
    )
    return SessionsEnded(ended=ended)


def _made(
    ask: Call[Names, TokenMake | SiteToken],
    make: partial[model.ApiToken] | partial[tuple[model.ApiToken, str | None]],
) -> Flow[TokenMade]:
    """Return a flow that makes a token. The flow's value has the token's secret, which is shown
    once."""
    secret = f"cod_{secrets.token_urlsafe(32)}"

    def made(tx: Tx) -> TokenMade:
        found = make(
            tx,
            token=secret,
            now=ask.now,
            lifetime=ask.body.lifetime,
            name=ask.body.name,
            scope=ask.body.scope,
        )
        return TokenMade(
            name=(found if isinstance(found, model.ApiToken) else found[0]).name, token=secret
        )

    return made


_TOKENS = "Tokens, by name."

ME = (
    route(
        "GET /me",
        ANYBODY,
        "Show your account, and your roles in groups",
        lambda a: lambda tx: Myself.of_who(a.who, *people.me(tx, a.who)),
        reply=as_it_is(Myself),
    ),
    route(
        "PATCH /me",
        ANYBODY,
        "Change your name or address",
        lambda a: (
            lambda tx: Myself.of_who(a.who, *people.set_profile(tx, a.who, given_fields(a.body)))
        ),
        reply=as_it_is(Myself),
        body=ProfilePatch,
        action="profile change",
    ),
    route(
        "PUT /me/password",
        ANYBODY,
        "Change your password; your other browsers are signed out",
        lambda a: by_act,
        act=_new_password,
        reply=as_it_is(SessionsEnded),
        body=PasswordChange,
    ),
    route(
        "GET /me/sessions",
        ANYBODY,
        "List your browser sessions",
        lambda a: partial(signin.every, who=a.who, rules=a.site.signin, now=a.now),
        reply=listed(SessionReply, "Browsers, the newest first."),
    ),
    route(
        "DELETE /me/sessions",
        ANYBODY,
        "Sign out everywhere",
        lambda a: partial(signin.end, who=a.who),
        reply=Shaped(SessionsEnded, lambda count: SessionsEnded(ended=count)),
    ),
    numbered_route(
        "DELETE /me/sessions/{id}",
        ANYBODY,
        "End a browser session",
        lambda a: partial(signin.end, who=a.who, session_id=number(a.names.id)),
    ),
    route(
        "GET /me/keys",
        ANYBODY,
        "List your SSH keys",
        lambda a: partial(sshkeys.mine, who=a.who),
        reply=KEYS,
    ),
    numbered_route(
        "GET /me/keys/{id}",
        ANYBODY,
        "Show one of your SSH keys",
        lambda a: partial(sshkeys.one, who=a.who, key_id=number(a.names.id)),
        reply=KeyReply,
    ),
    route(
        "POST /me/keys",
        ANYBODY,
        "Add an SSH key; nodes without SSSD let it in from their next installation on",
        lambda a: partial(sshkeys.add, who=a.who, line=a.body.key, name=a.body.name, now=a.now),
        reply=KeyReply,
        body=KeyAdd,
        makes="/me/keys/{id}",
    ),
    numbered_route(
        "DELETE /me/keys/{id}",
        ANYBODY,
        "Remove an SSH key",
        lambda a: partial(sshkeys.remove, who=a.who, key_id=number(a.names.id)),
    ),
    route(
        "GET /me/checklist",
        ANYBODY,
        "List your first steps, until all are done",
        lambda a: partial(first_steps.checklist, who=a.who),
        reply=listed(
            FirstStepReply,
            "The steps in order; none once all are done, or the checklist is dismissed.",
        ),
    ),
    route(
        "DELETE /me/checklist",
        ANYBODY,
        "Dismiss the checklist of your first steps",
        lambda a: partial(first_steps.dismiss, who=a.who, now=a.now),
    ),
    route(
        "GET /me/tokens",
        ANYBODY,
        "List your tokens",
        lambda a: partial(tokens.mine, who=a.who),
        reply=listed(TokenReply, _TOKENS),
    ),
    route(
        "POST /me/tokens",
        ANYBODY,
        "Create a token with your rights",
        lambda a: _made(a, partial(tokens.make, who=a.who, group=a.body.group)),
        reply=as_it_is(TokenMade),
        body=TokenMake,
        secret=True,
        makes="/me/tokens/{name}",
    ),
    named_route(
        "DELETE /me/tokens/{name}",
        ANYBODY,
        "Revoke one of your tokens",
        lambda a: partial(tokens.drop, who=a.who, name=a.names.name),
    ),
)


async def _token(service: SignIn, ask: Call[Names, SignInBody]) -> TokenMade:
    wanted = {
        "name": ask.body.token,
        "scope": ask.body.scope,
        "group": ask.body.group,
        "lifetime": ask.body.lifetime,
    }
    name, secret = await service.token(
        ask.body.name, ask.body.password.get_secret_value(), wanted, address=ask.who.address
    )
    return TokenMade(name=name, token=secret)


async def _accepted(service: SignIn, ask: Call[Names, Accept]) -> Accepted:
    user = await service.accepted(
        ask.body.secret.get_secret_value(),
        password=ask.body.password.get_secret_value(),
        name=ask.body.name,
        full_name=ask.body.full_name,
        email=ask.body.email,
        address=ask.who.address,
    )
    return Accepted(user=user.name)


DOORS = (
    route(
        "POST /sign-in",
        ANYBODY,
        "Create a token with name and password",
        lambda a: by_act,
        act=_token,
        reply=as_it_is(TokenMade),
        body=SignInBody,
        secret=True,
        open=True,
        makes="/me/tokens/{name}",
    ),
    route(
        "POST /invitations/accept",
        ANYBODY,
        "Use a link: create the account, or set the new password",
        lambda a: by_act,
        act=_accepted,
        reply=as_it_is(Accepted),
        body=Accept,
        open=True,
    ),
)


def audited(ask: Call[Names, BaseModel, AuditQuery]) -> Flow[Listed[model.AuditRow]]:
    """Return the flow that lists the requested changes."""
    return partial(
        audit.every,
        page=ask.query.page,
        groups=ask.who.owns,
        group=ask.query.group,
        actor=ask.query.actor,
        action=ask.query.action,
        thing=ask.query.thing,
        since=ask.query.since,
        until=ask.query.until,
    )


SITE = (
    route(
        "GET /tokens",
        ADMINS,
        "List the site's tokens",
        lambda a: tokens.every,
        reply=listed(Shaped(TokenReply, lambda row: TokenReply.of((row, None))), _TOKENS),
    ),
    route(
        "POST /tokens",
        ADMINS,
        "Create a token with an administrator's rights",
        lambda a: _made(a, partial(tokens.create)),
        reply=as_it_is(TokenMade),
        body=SiteToken,
        secret=True,
        makes="/tokens/{name}",
    ),
    named_route(
        "DELETE /tokens/{name}",
        ADMINS,
        "Revoke a token, the site's or a user's",
        lambda a: partial(tokens.revoke, name=a.names.name),
    ),
    route(
        "GET /audit",
        ANYBODY,
        "List changes: of groups that you own; for administrators, all",
        audited,
        reply=paged(AuditReply, "Changes, the newest first."),
        query=AuditQuery,
    ),
)
