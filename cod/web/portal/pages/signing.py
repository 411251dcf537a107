"""Pages for signing in and out, and for the links of invitations."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from cod.model import Refused
from cod.pool import Tx
from cod.web.api.models import Query
from cod.web.api.routes import Names
from cod.web.http import sessions
from cod.web.http.errors import problem_of
from cod.web.portal.answers import Answer, PageRequest, redirect
from cod.web.portal.forms import Fields
from cod.web.portal.front import Portal, filled
from cod.web.portal.links import is_local
from cod.web.portal.page import Action, Page, PageCall, SessionAction

SIGNED_OUT = "You are signed out."


class SignInQuery(Query):
    """Page to go to after signing in: a path of this site."""

    back: str = Field(default="/", max_length=2000)


def _sign_in_page(tx: Tx, ask: PageCall[Names, SignInQuery]) -> dict[str, Any]:
    return {"back": ask.query.back if is_local(ask.query.back) else "/"}


async def _sign_in(portal: Portal, asked: PageRequest, fields: Fields) -> Answer:
    cookie = await portal.context.signin.sign_in(
        fields.one("name").strip(),
        fields.one("password"),
        address=asked.address,
        browser=_browser(asked),
    )
    back = fields.one("back", "/")
    return _begun(cookie, back if is_local(back) else "/", "")


async def _sign_out(portal: Portal, asked: PageRequest, fields: Fields) -> Answer:
    await portal.context.signin.sign_out(asked.visit.cookie, address=asked.address)
    answer = redirect(
        "/sign-in", sessions.flash(SIGNED_OUT), sessions.cookie(sessions.SESSION, "", 0)
    )
    answer.headers["Clear-Site-Data"] = '"cache", "storage"'
    return answer


# ---------------------------------------------------------------- another site's word


async def _leave(portal: Portal, asked: PageRequest, fields: Fields) -> Answer:
    """Send the browser to the provider. A cookie keeps the values that must be the same when the
    browser comes back."""
    back = fields.one("back", "/")
    url, visit = await portal.context.signin.oidc_begin(back if is_local(back) else "/")
    return redirect(url, sessions.cookie(sessions.AWAY, visit, 600, strict=False))


async def _return(portal: Portal, asked: PageRequest, fields: Fields) -> Answer:
    """Finish a sign-in at the OpenID Connect provider, and return a page that opens the page
    requested before. A redirect does not work here: browsers send no SameSite=Strict cookie after a
    redirect that began at another site."""
    found = sessions.cookies(asked.header("cookie")).get(sessions.AWAY, "")
    query = {name: values[0] for name, values in fields.values.items()}
    cookie, back = await portal.context.signin.oidc_finish(
        query, found, address=asked.address, browser=_browser(asked)
    )
    answer = portal.rendered(asked, "signed-in.html", back=back if is_local(back) else "/")
    answer.cookies += [
        sessions.cookie(sessions.SESSION, cookie),
        sessions.cookie(sessions.VISIT, "", 0),
        sessions.cookie(sessions.AWAY, "", 0, strict=False),
    ]
    return answer


# ---------------------------------------------------------------- links


async def _look(portal: Portal, asked: PageRequest, fields: Fields) -> Answer:
    """Show the page of a link, given its code. A person types the code, or the script takes it from
    the address's fragment, which browsers never send."""
    code = fields.one("code").strip().rpartition("#")[2]
    link = await portal.context.signin.invitation(code)
    return portal.rendered(asked, "invited.html", link=link, code=code)


async def _accept(portal: Portal, asked: PageRequest, fields: Fields) -> Answer:
    """Make the account, or set the new password. Faults are shown on the same page, with what was
    typed."""
    code = fields.one("code")
    link = await portal.context.signin.invitation(code)
    try:
        cookie = await portal.context.signin.accept(
            code,
            password=fields.one("password"),
            name=fields.one("name").strip(),
            full_name=fields.one("full_name").strip(),
            email=fields.one("email").strip(),
            address=asked.address,
            browser=_browser(asked),
        )
    except Refused as refused:
        wrong = problem_of(refused)
        return portal.rendered(
            asked,
            "invited.html",
            link=link,
            code=code,
            status=wrong.status,
            form=filled(asked, fields, wrong),
        )
    return _begun(cookie, "/", "Your new password is set." if link.user else "Welcome.")


async def _join(portal: Portal, asked: PageRequest, fields: Fields) -> Answer:
    assert asked.visit.who is not None  # strangers have been redirected to the sign-in page
    link = await portal.context.signin.join(fields.one("code"), asked.visit.who)
    return redirect("/", sessions.flash(f"You are now {link.role} of {link.group}."))


# ---------------------------------------------------------------- sessions


def _browser(asked: PageRequest) -> str:
    return (asked.header("user-agent") or "")[:200]


def _begun(cookie: str, path: str, message: str) -> Answer:
    """Return the answer that begins a session. Its cookie is always new, never one that the browser
    had before."""
    answer = redirect(
        path, sessions.cookie(sessions.SESSION, cookie), sessions.cookie(sessions.VISIT, "", 0)
    )
    if message:
        answer.cookies.append(sessions.flash(message))
    return answer


PAGES = (
    Page("/sign-in", "sign-in.html", _sign_in_page, query=SignInQuery, public=True),
    Page("/invitation", "invitation.html", lambda tx, ask: {}, public=True),
)
ACTIONS: tuple[Action | SessionAction, ...] = (
    SessionAction("/sign-in", "/sign-in", _sign_in, public=True),
    SessionAction("/sign-in/oidc/begin", "/sign-in", _leave, public=True, get=True),
    SessionAction("/sign-in/oidc", "/sign-in", _return, public=True, get=True),
    SessionAction("/sign-out", "/", _sign_out),
    SessionAction("/invitation", "/invitation", _look, public=True),
    SessionAction("/invitation/accept", "/invitation", _accept, public=True),
    SessionAction("/invitation/join", "/invitation", _join),
)
