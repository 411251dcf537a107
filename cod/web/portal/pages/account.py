"""One's own account: name and address, password, SSH keys, browsers that are signed in, tokens for
programs."""

from __future__ import annotations

from typing import Any

from cod.flows.people import people, signin, sshkeys, tokens
from cod.pool import Tx
from cod.quantity import read_span
from cod.web.api.routes import Call
from cod.web.portal.formatting import count
from cod.web.portal.page import Action, Page, api, to

PATH = "/account"


def _account(tx: Tx, ask: Call) -> dict[str, Any]:
    return {
        "myself": people.me(tx, ask.who),
        "keys": sshkeys.mine(tx, ask.who),
        "tokens": tokens.mine(tx, ask.who),
        "sessions": signin.every(tx, who=ask.who, rules=ask.site.signin, now=ask.now),
    }


def _ended(ask: Call, reply: Any) -> str:
    return "The new password is set" + (
        f"; {count(reply.ended, 'other browser')} signed out." if reply.ended else "."
    )


def _action(path: str, method: str, route: str, said: str, **rest: Any) -> Action:
    return Action(
        PATH + path,
        api(method, route),
        page=PATH,
        then=to(PATH),
        said=lambda ask, reply: said,
        **rest,
    )


PAGES = (Page(PATH, "account.html", _account),)
ACTIONS: tuple[Action, ...] = (
    _action("/profile", "PATCH", "/me", "Your account is changed."),
    Action(PATH + "/password", api("PUT", "/me/password"), page=PATH, then=to(PATH), said=_ended),
    _action(
        "/keys",
        "POST",
        "/me/keys",
        "The key is added. Nodes that are installed from now on let it in.",
        hides=("key",),
    ),
    _action("/keys/{id}/remove", "DELETE", "/me/keys/{id}", "The key is deleted."),
    _action("/sessions/{id}/end", "DELETE", "/me/sessions/{id}", "That browser is signed out."),
    Action(
        PATH + "/sessions/end",
        api("DELETE", "/me/sessions"),
        page=PATH,
        then=to("/sign-in"),
        said=lambda ask, reply: "All your sessions are ended.",
    ),
    _action(
        "/tokens", "POST", "/me/tokens", "", convert={"lifetime": read_span}, shows="token.html"
    ),
    _action("/tokens/{name}/remove", "DELETE", "/me/tokens/{name}", "The token is revoked."),
)
