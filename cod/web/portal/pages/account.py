"""The page of one's own account: name and address, password, SSH keys, signed-in browsers, and
tokens for programs."""

from __future__ import annotations

from typing import Any

from cod.choices import NoticeMail
from cod.flows.notices import mail_choices
from cod.flows.people import people, signin, sshkeys, tokens
from cod.flows.people.access import FEED
from cod.pool import Tx
from cod.quantity import read_span
from cod.web.api.resources.account import TokenMake
from cod.web.api.routes import Call
from cod.web.portal import forms
from cod.web.portal.formatting import count
from cod.web.portal.page import Page, act, to

PATH = "/account"


def _account(tx: Tx, ask: Call) -> dict[str, Any]:
    return {
        "myself": people.me(tx, ask.who),
        "keys": sshkeys.mine(tx, ask.who),
        "tokens": tokens.mine(tx, ask.who),
        "sessions": signin.every(tx, who=ask.who, rules=ask.site.signin, now=ask.now),
        "mail": mail_choices.mine(tx, ask.who),
        "digest_hour": f"{ask.site.notices.digest_hour:02d}",
        "when": [(each.value, each.about) for each in NoticeMail],
    }


def _ended(ask: Call, reply: Any) -> str:
    return "The new password is set" + (
        f"; {count(reply.ended, 'other browser')} signed out." if reply.ended else "."
    )


PAGES = (Page(PATH, "account.html", _account),)
ACTIONS = (
    act(PATH + "/profile", "PATCH /me", PATH, "Your account is changed."),
    act(PATH + "/notices", "PATCH /me/notices/mail", PATH, "Your choice is saved."),
    act(PATH + "/password", "PUT /me/password", PATH, _ended),
    act(
        PATH + "/keys",
        "POST /me/keys",
        PATH,
        "The key is added. Nodes that are installed from now on let it in.",
        hides=("key",),
    ),
    act(PATH + "/keys/{id}/remove", "DELETE /me/keys/{id}", PATH, "The key is deleted."),
    act(
        PATH + "/sessions/{id}/end",
        "DELETE /me/sessions/{id}",
        PATH,
        "That browser is signed out.",
    ),
    act(
        PATH + "/sessions/end",
        "DELETE /me/sessions",
        PATH,
        "All your sessions are ended.",
        then=to("/sign-in"),
    ),
    act(
        PATH + "/tokens",
        "POST /me/tokens",
        PATH,
        convert={"lifetime": read_span},
        shows="token.html",
    ),
    act(
        PATH + "/feeds",
        "POST /me/tokens",
        PATH,
        body=lambda fields: forms.body_of(TokenMake, fields, {}) | {"scope": FEED},
        shows="feed.html",
    ),
    act(PATH + "/tokens/{name}/remove", "DELETE /me/tokens/{name}", PATH, "The token is revoked."),
)
