"""Routes about whoever asks: their account, keys, sessions, tokens; signing in by programs; the site's tokens; the
audit."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

from cod.flows.people import audit, people, signin, sshkeys, tokens
from cod.model import Refused
from cod.web import bodies as b
from cod.web.routes import ADMINS, ANYBODY, Call, Flow, listed, number, route
from cod.web.table.people import said

# ---------------------------------------------------------------- oneself


def _me(ask: Call) -> Flow:
    return lambda tx: b.Myself.of_who(ask.who, *people.me(tx, ask.who))


def _changed(ask: Call) -> Flow:
    return lambda tx: b.Myself.of_who(ask.who, *people.set_profile(tx, ask.who, said(ask.body)))


async def _new_password(door: Any, ask: Call) -> b.SessionsEnded:
    ended = await door.change_password(ask.who, ask.body.old.get_secret_value(), ask.body.new.get_secret_value(),
                                       keep=ask.who.session)
    return b.SessionsEnded(ended=ended)


def _made(ask: Call, make: Any, **wanted: Any) -> Flow:
    """A flow that makes a token; its value is what is shown once."""
    secret = f"cod_{secrets.token_urlsafe(32)}"

    def made(tx: Any) -> b.TokenMade:
        row = make(tx, token=secret, now=ask.now, lifetime=ask.body.lifetime, name=ask.body.name,
                   scope=ask.body.scope, **wanted)
        return b.TokenMade(name=getattr(row, "name", None) or row[0].name, token=secret)

    return made


ME = (
    route("GET", "/me", ANYBODY, "Show who asks, and what they are in which groups", _me,
          shape=lambda me: me, reply=b.Myself),
    route("PATCH", "/me", ANYBODY, "Change one's name or address", _changed, shape=lambda me: me, reply=b.Myself,
          body=b.ProfilePatch, action="profile change"),
    route("PUT", "/me/password", ANYBODY, "Set a new password, by the old one; other browsers are signed out",
          lambda a: _by_act, act=_new_password, reply=b.SessionsEnded, body=b.PasswordChange),
    route("GET", "/me/sessions", ANYBODY, "List the browsers that one is signed in with",
          lambda a: partial(signin.every, who=a.who, rules=a.site.signin, now=a.now),
          shape=listed(b.SessionList, b.SessionReply.model_validate), reply=b.SessionList),
    route("DELETE", "/me/sessions", ANYBODY, "Sign out everywhere", lambda a: partial(signin.end, who=a.who),
          shape=lambda count: b.SessionsEnded(ended=count), reply=b.SessionsEnded),
    route("DELETE", "/me/sessions/{id}", ANYBODY, "Sign one browser out",
          lambda a: partial(signin.end, who=a.who, session_id=number(a.names["id"])), status=204),
    route("GET", "/me/keys", ANYBODY, "List one's SSH keys", lambda a: partial(sshkeys.mine, who=a.who),
          shape=listed(b.KeyList, b.KeyReply.model_validate), reply=b.KeyList),
    route("GET", "/me/keys/{id}", ANYBODY, "Show one of them",
          lambda a: partial(sshkeys.one, who=a.who, key_id=number(a.names["id"])), reply=b.KeyReply),
    route("POST", "/me/keys", ANYBODY, "Add an SSH key; nodes that are primed from now on let it in",
          lambda a: partial(sshkeys.add, who=a.who, line=a.body.key, name=a.body.name, now=a.now),
          reply=b.KeyReply, body=b.KeyAdd, status=201, makes="/me/keys/{id}"),
    route("DELETE", "/me/keys/{id}", ANYBODY, "Remove an SSH key",
          lambda a: partial(sshkeys.remove, who=a.who, key_id=number(a.names["id"])), status=204),
    route("GET", "/me/tokens", ANYBODY, "List one's tokens", lambda a: partial(tokens.mine, who=a.who),
          shape=listed(b.TokenList, b.TokenReply.of), reply=b.TokenList),
    route("POST", "/me/tokens", ANYBODY, "Make a token that may do what one may oneself",
          lambda a: _made(a, tokens.make, who=a.who, group=a.body.group), shape=lambda made: made,
          reply=b.TokenMade, body=b.TokenMake, status=201, secret=True, makes="/me/tokens/{name}"),
    route("DELETE", "/me/tokens/{name}", ANYBODY, "Make one of one's tokens worthless",
          lambda a: partial(tokens.drop, who=a.who, name=a.names["name"]), status=204),
)

# ---------------------------------------------------------------- coming in


def _by_act(tx: Any) -> None:
    raise Refused("conflict", "this is not done in one transaction")  # such routes have an `act`


async def _token(door: Any, ask: Call) -> b.TokenMade:
    wanted = {"name": ask.body.token, "scope": ask.body.scope, "group": ask.body.group, "lifetime": ask.body.lifetime}
    name, secret = await door.token(ask.body.name, ask.body.password.get_secret_value(), wanted,
                                    address=ask.who.address)
    return b.TokenMade(name=name, token=secret)


async def _accepted(door: Any, ask: Call) -> b.Accepted:
    user = await door.accepted(
        ask.body.secret.get_secret_value(), password=ask.body.password.get_secret_value(), name=ask.body.name,
        full_name=ask.body.full_name, email=ask.body.email, address=ask.who.address)
    return b.Accepted(user=user.name)


DOORS = (
    route("POST", "/sign-in", ANYBODY, "Have a token for name and password", lambda a: _by_act, act=_token,
          reply=b.TokenMade, body=b.SignInBody, status=201, secret=True, open=True, makes="/me/tokens/{name}"),
    route("POST", "/invitations/accept", ANYBODY, "Make the account that a link is for, or set its new password",
          lambda a: _by_act, act=_accepted, reply=b.Accepted, body=b.Accept, open=True),
)

# ---------------------------------------------------------------- the site's tokens, the audit

SITE = (
    route("GET", "/tokens", ADMINS, "List the site's tokens", lambda a: tokens.every,
          shape=listed(b.TokenList, lambda row: b.TokenReply.of((row, None))), reply=b.TokenList),
    route("POST", "/tokens", ADMINS, "Make a token that acts as the site's administrator",
          lambda a: _made(a, tokens.create), shape=lambda made: made, reply=b.TokenMade, body=b.SiteToken,
          status=201, secret=True, makes="/tokens/{name}"),
    route("DELETE", "/tokens/{name}", ADMINS, "Make a token worthless, the site's or a user's",
          lambda a: partial(tokens.revoke, name=a.names["name"]), status=204),
    route("GET", "/audit", ANYBODY, "List who changed what: in groups that one owns, or all",
          lambda a: partial(audit.every, page=a.query.page, groups=a.who.owns, **a.query.filters),
          shape=listed(b.AuditList, b.AuditReply.of), reply=b.AuditList, query=b.AuditQuery),
)
