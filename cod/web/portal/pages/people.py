"""Pages about the site's users, for administrators: a list with their roles, and links for new
users."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Any

from cod.flows.people import invitations, people, sshkeys
from cod.model import Right, User
from cod.pool import Tx
from cod.quantity import read_span
from cod.web.api.resources.people import UserQuery
from cod.web.api.routes import ADMINS, Named, Names, in_parts
from cod.web.portal.page import Page, PageCall, act, to
from cod.web.portal.record_fields import body_by, columns_of, settings_of

LISTED = {"name", "full_name", "email", "created_at", "directory", "uid"}


def _users(tx: Tx, ask: PageCall[Names, UserQuery]) -> dict[str, Any]:
    users = in_parts(
        people.every,
        ask.query.page,
        lambda one: (one.name, one.full_name, one.email),
        name=attrgetter("name"),
        created_at=attrgetter("created_at"),
    )
    return {
        "users": users(tx),
        "links": invitations.every(tx, groups=None, now=ask.now),
        "more": columns_of(User, ask, LISTED),
        "directory": bool(ask.site.signin.ldap.url),
    }


def _user(tx: Tx, ask: PageCall[Named]) -> dict[str, Any]:
    user, roles = people.one(tx, ask.names.name)
    return {
        "user": user,
        "roles": roles,
        "settings": settings_of(user, Right.ADMIN),
        "keys": sshkeys.of_user(tx, user.name),
    }


def _compared(reply: Any) -> str:
    """Return a sentence about the changes that a comparison with the directory has made."""
    parts = (
        (reply.added, "new"),
        (reply.gone, "gone"),
        (reply.back, "back"),
        (reply.changed, "with other roles"),
        (reply.held, "unchanged, because too many would lose their rights at once"),
    )
    return "; ".join(f"{len(names)} {what}" for names, what in parts if names) or "nothing new"


_USER = "/people/{name}"
_SHOWN = "link.html"

PAGES = (
    Page("/people", "people.html", _users, ADMINS, query=UserQuery),
    Page(_USER, "user.html", _user, ADMINS, nav="/people"),
)
ACTIONS = (
    act("/people", "POST /users", "/people", shows=_SHOWN),
    act(
        "/people/sync",
        "POST /users/sync",
        "/people",
        lambda ask, reply: f"Compared with the directory: {_compared(reply)}.",
    ),
    act(
        "/people/invite",
        "POST /invitations",
        "/people",
        shows=_SHOWN,
        convert={"lifetime": read_span},
    ),
    act(
        "/people/invitations/{id}/revoke",
        "DELETE /invitations/{id}",
        "/people",
        "The link is revoked.",
    ),
    act(
        "/people/{name}/change",
        "PATCH /users/{name}",
        _USER,
        "{reply.name} is changed.",
        body=partial(body_by, User, Right.ADMIN),
    ),
    act(
        "/people/{name}/delete",
        "DELETE /users/{name}",
        _USER,
        "{ask.names.name} is deleted.",
        then=to("/people"),
    ),
    act(
        "/people/{name}/sign-out",
        "DELETE /users/{name}/sessions",
        _USER,
        "{ask.names.name} is signed out everywhere.",
    ),
    act(
        _USER + "/keys",
        "POST /users/{name}/keys",
        _USER,
        "The key is added. Nodes that are installed from now on let it in.",
        hides=("key",),
    ),
    act(
        _USER + "/keys/{id}/remove",
        "DELETE /users/{name}/keys/{id}",
        _USER,
        "The key is deleted.",
    ),
    act(
        "/people/{name}/link",
        "POST /users/{name}/password-link",
        _USER,
        shows=_SHOWN,
        convert={"lifetime": read_span},
    ),
)
