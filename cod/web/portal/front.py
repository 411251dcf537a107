"""The portal's front: finds the page or the action for a request, and renders its outcome."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from http.client import responses
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from cod import data
from cod.flows import views
from cod.flows.nodes import hold
from cod.flows.notices import reading
from cod.flows.people import audit
from cod.flows.people.access import guarded, offered
from cod.flows.replies import Repeated
from cod.model import Refused, Right, SingleRight, Who
from cod.pool import Tx
from cod.web.api import calls, routes
from cod.web.api.calls import NONE, Conditions
from cod.web.api.context import Context
from cod.web.api.routes import Call, Names, Route, named
from cod.web.http import sessions
from cod.web.http.errors import HttpProblem, problem_of
from cod.web.http.request import tag, tags, unquoted
from cod.web.http.sessions import check_host, same_origin
from cod.web.portal import assets, links, manual, nav
from cod.web.portal.answers import Answer, PageRequest, redirect
from cod.web.portal.forms import Fields, Form, body_of
from cod.web.portal.page import Action, Page, SessionAction
from cod.web.portal.render import environment
from cod.web.portal.shared_loads import SharedLoads

# Statuses with which a form is shown again. With 404 a field names a thing that does not exist. If
# the page itself does not exist, loading it will show that.
AGAIN = {401, 404, 409, 412, 413, 422, 429, 503}
# Text that differs in parts with equal content: tokens of forms, and how long ago something was,
# which the page's script keeps up to date by itself.
_EACH_TIME = re.compile(
    rb"""(name="(?:csrf|once)"\s+value=")[^"]*|(<time [^>]*>)[^<]*(?=</time>)"""
)
NOBODY = Who("nobody", writes=False)
_COUNTED: Page = Page(nav.COUNTS, "", lambda tx, ask: {}, shared=True)
"""The page whose load gives the numbers of the navigation alone, for all pages."""

T = TypeVar("T", Page, Action | SessionAction)
log = logging.getLogger("cod.portal")


class Portal:
    """The portal: pages and actions on `context`."""

    def __init__(
        self, context: Context, pages: tuple[Page, ...], actions: tuple[Action | SessionAction, ...]
    ) -> None:
        self.context, self.pages = context, pages
        self._by_get = [each for each in actions if isinstance(each, SessionAction) and each.get]
        self.actions = tuple(each for each in actions if each not in self._by_get)
        web = data.path("web")
        widgets = data.built("widgets")
        self.assets = assets.Assets(web / "assets", *([widgets] if widgets else []))
        self.templates = environment(web / "templates", self.assets)
        self.manual = manual.Manual(data.built("manual"))
        served = [page.path for page in pages]
        self._nav = {admin: nav.entries(served, admin=admin) for admin in (False, True)}
        self._loads = SharedLoads(context)

    async def answer(self, asked: PageRequest, refused: HttpProblem | None = None) -> Answer:
        """Return the answer to a request for the portal. `refused` is the refusal, if the request
        was refused before it reached the portal."""
        try:
            if refused:
                raise refused
            check_host(asked.header("host"), self.context.names)
            return await self._found(asked)
        except Exception as error:
            return self._problem(asked, problem_of(error))

    async def _found(self, asked: PageRequest) -> Answer:
        if asked.path.startswith("/assets/") and asked.method == "GET":
            return self._asset(asked)
        if f"{asked.path}/".startswith(f"{manual.ROOT}/") and asked.method == "GET":
            return self.manual.answer(asked)
        if asked.method == "POST":
            return await self._post(asked)
        action = next((each for each in self._by_get if each.path == asked.path), None)
        if action is not None and asked.method == "GET":
            return await action.opened(self, asked, Fields.of(asked.query))
        page, names = self._page(asked.path)
        if page is None:
            raise HttpProblem(404, "not_found", "No such page.")
        if asked.method != "GET":
            raise HttpProblem(405, "method_not_allowed", f"{asked.method} is not possible here.")
        if asked.visit.who is None and not page.public:
            return self._to_sign_in(asked)
        try:
            return await self._shown(asked, page, names)
        except Refused as refused:
            return redirect(await self._new_address(asked, page, names, refused))

    async def _new_address(
        self, asked: PageRequest, page: Page, names: Mapping[str, str], refused: Refused
    ) -> str:
        """Return the address of the page of a thing that was renamed. Raises `refused` if there is
        no such thing, or the caller may not see it."""
        kind = page.path.split("/")[1].removesuffix("s")  # as in `web.api.things`
        if refused.code == "not_found" and names.keys() == {"name"}:
            new = await self.context.pool.read(
                partial(audit.now_called, kind=kind, name=names["name"])
            )
            with suppress(Refused):
                if new:
                    await self._shown(asked, page, {"name": new})
                    return links.changed(page.path.format(name=new), asked.query)
        raise refused

    def _page(self, path: str) -> tuple[Page | None, dict[str, str]]:
        return _fitting(self.pages, path)

    def _asset(self, asked: PageRequest) -> Answer:
        found = self.assets.get(asked.path.removeprefix("/assets/"))
        if found is None:
            raise HttpProblem(404, "not_found", "No such file.")
        return assets.answer(asked, found, {"Cache-Control": "public, max-age=31536000, immutable"})

    def _to_sign_in(self, asked: PageRequest) -> Answer:
        back = links.changed(asked.path, asked.query)
        return redirect(links.url("sign-in", back=None if back == "/" else back))

    # ------------------------------------------------ pages

    async def _shown(
        self,
        asked: PageRequest,
        page: Page,
        names: Mapping[str, str],
        status: int = 200,
        form: Form | None = None,
        **more: Any,
    ) -> Answer:
        pairs = _pairs(asked.query)
        part = pairs.pop("part", "")
        query = (
            None
            if page.query is None
            else calls.checked(page.query, pairs if asked.method == "GET" else {})
        )
        ask = self._ask(asked, named(page.path, names), query=query)
        loaded, is_stale = await self._loaded(asked, page, ask, part, is_shared=form is None)
        values = self._context(asked, page.nav or page.path, form) | {"ask": ask} | loaded | more
        # The address that a form was sent to shows no page: live parts are fetched from the page's
        # own address.
        values["home"] = (
            links.changed(asked.path, asked.query)
            if asked.method == "GET"
            else links.fill(page.path, names)
        )
        if not part:
            return self._rendered(asked, page.template, values, status)
        answer = self._parts(asked, page, part, values, status)
        if is_stale:
            answer.headers["X-Live-Again"] = "1"
        return answer

    async def _loaded(
        self,
        asked: PageRequest,
        page: Page,
        ask: Call[Any, Any, Any],
        part: str,
        *,
        is_shared: bool,
    ) -> tuple[dict[str, Any], bool]:
        """Return the variables that a page loads, and whether newer ones exist. `is_shared`: live
        parts may have those that were loaded for another person."""
        # the caller's rights can be outdated only if a body arrived after they were read
        fresh = not asked.body
        read = partial(guarded, who=ask.who, claims=page.claims(ask), fresh=fresh)
        if part == nav.COUNTS:  # the same for all pages: nothing of this one is read
            page, ask = _COUNTED, replace(ask, names=Names(), query=None)
        if part and page.shared and is_shared:
            own = await self.context.pool.read(partial(read, flow=partial(_own, page, ask)))
            heard = re.fullmatch(r"[0-9]{1,18}", asked.header("x-live-heard") or "")
            shared, is_stale = await self._loads.of(page, ask, int(heard[0]) if heard else 0)
            return {**shared, **own}, is_stale
        at = self.context.hub.page_start()  # before the read, which finds all up to there
        loaded = await self.context.pool.read(partial(read, flow=partial(_dated, page, ask)))
        return {**loaded, "follow_from": at}, False

    def _parts(
        self, asked: PageRequest, page: Page, part: str, values: dict[str, Any], status: int
    ) -> Answer:
        """Return blocks of a page, without those that the browser has already. A single block is
        returned as it is; of several, each is in a `template` element with its tag. Raises
        `HttpProblem`."""
        wanted = list(dict.fromkeys(part.split(",")))
        template = self.templates.get_template(page.template)
        if not {*wanted} <= {nav.COUNTS, *template.blocks}:
            raise HttpProblem(404, "not_found", "No such part of this page.")
        texts = {
            name: json.dumps(values["nav_counts"])
            if name == nav.COUNTS
            else "".join(template.blocks[name](template.new_context(values | {"part": name})))
            for name in wanted
        }
        headers = {"X-Live-Apart": f"{self.context.hub.apart():.1f}"}
        if values["last_event"] is not None:
            headers["X-Live-After"] = str(values["last_event"])
        # tags differ by session, because the tokens of another session's forms are refused
        session = asked.visit.who and asked.visit.who.session
        tag_of = {
            name: tag(_EACH_TIME.sub(rb"\1\2", f"{session} {name}\n{text}".encode()))
            for name, text in texts.items()
        }
        known = tags(asked.header("if-none-match") or "")
        new = {name: text for name, text in texts.items() if tag_of[name] not in known}
        if status == 200 and not new:
            return Answer(304, headers=headers)
        if len(wanted) == 1:
            (name,) = texts
            return Answer(status, texts[name].encode(), headers=headers | {"ETag": tag_of[name]})
        text = "".join(
            f'<template data-of="{name}" data-tag="{tag_of[name][1:-1]}">{text}</template>'
            for name, text in new.items()
        )
        return Answer(status, text.encode(), headers=headers)

    def _ask(
        self, asked: PageRequest, names: Names, body: Any = None, query: Any = None, key: str = ""
    ) -> Call:
        who, host = asked.visit.who or NOBODY, asked.header("host") or ""
        return calls.question(self.context, who, names, body, query, key, host)

    def _context(self, asked: PageRequest, place: str, form: Form | None = None) -> dict[str, Any]:
        """Return the variables that every template gets; see `web.portal`."""
        visit = asked.visit
        csrf = cache(visit.csrf)  # one token for all forms of an answer

        def forms(path: str, mark: str = "") -> Form:
            made = form if form and form.path == path else Form(path, csrf(), secrets.token_hex(16))
            return replace(made, mark=mark)

        return {
            "me": visit.who,
            "user": visit.session and visit.session.user,
            "site": self.context.site.current,
            "now": self.context.clock(),
            "path": asked.path,
            "place": place,
            "nav": self._nav[visit.who.admin] if visit.who else [],
            "nav_counts": {},
            "flash": visit.flash,
            "forms": forms,
            "here": partial(links.changed, asked.path, asked.query),
            "csrf": csrf,
            "home": "",
            "part": "",
            "last_event": None,
            "follow_from": None,
            "site_hold": None,
            "unread": 0,
            "can": partial(_can, visit.who),
            "reply": None,
        }

    def _rendered(
        self,
        asked: PageRequest,
        template: str,
        values: dict[str, Any],
        status: int,
        *,
        secret: bool = False,
    ) -> Answer:
        text = self.templates.get_template(template).render(values)
        answer = Answer(status, text.encode(), secret=secret)
        if asked.visit.fresh:
            answer.cookies.append(sessions.cookie(sessions.VISIT, asked.visit.token))
        if asked.visit.flash:
            answer.cookies.append(sessions.flash(""))
        return answer

    def rendered(
        self,
        asked: PageRequest,
        template: str,
        place: str = "",
        form: Form | None = None,
        status: int = 200,
        **values: Any,
    ) -> Answer:
        """Return a rendered template as the answer to a POST, for replies that are shown once, such
        as secrets."""
        context = self._context(asked, place, form)
        return self._rendered(asked, template, context | values, status, secret=True)

    async def page_with(
        self, asked: PageRequest, path: str, form: Form, status: int = 200
    ) -> Answer:
        """Return the page at `path` with this form filled in, as the answer to a POST."""
        page, names = self._page(path)
        assert page is not None
        return await self._shown(asked, page, names, status, form)

    # ------------------------------------------------ actions

    async def _post(self, asked: PageRequest) -> Answer:
        action, names = _fitting(self.actions, asked.path)
        if action is None:
            known = self._page(asked.path)[0] is not None
            raise (
                HttpProblem(405, "method_not_allowed", "This page has no form.")
                if known
                else HttpProblem(404, "not_found", "No such page.")
            )
        fields = Fields.read(asked.body, asked.header("content-type") or "")
        self._genuine(asked, fields)
        if asked.visit.who is None and not (isinstance(action, SessionAction) and action.public):
            return self._to_sign_in(asked)
        if isinstance(action, Action):
            fields = action.edit(fields)
        try:
            if isinstance(action, SessionAction):
                return await action.opened(self, asked, fields)
            return await self._done(asked, action, names, fields)
        except Exception as error:
            wrong = problem_of(error)
        if wrong.status in AGAIN:
            return await self._again(asked, action, names, fields, wrong)
        raise wrong

    def _genuine(self, asked: PageRequest, fields: Fields) -> None:
        """Raise `HttpProblem` (403) unless the form comes from a page of this site that was shown
        to this browser."""
        if not same_origin(asked.header) or not asked.visit.proves(fields.one("csrf")):
            raise HttpProblem(
                403,
                "form_expired",
                "This form is too old, or does not come from this site. Go back, load the page"
                " again and repeat what you did.",
            )

    async def _done(
        self, asked: PageRequest, action: Action, names: Mapping[str, str], fields: Fields
    ) -> Answer:
        route, who = action.route, asked.visit.who
        assert who is not None
        calls.permit(route, who)
        model = route.body or route.query
        values = (
            action.body(fields)
            if action.body
            else body_of(model, fields, action.convert)
            if model
            else None
        )
        checked = calls.checked(model, values) if model else None
        key = _key(who, asked.path, fields)
        conditions = NONE if action.again else Conditions(key, key)
        ask = self._ask(
            asked,
            named(route.path, action.names(names, fields)),
            checked if route.body else None,
            None if route.body else checked,
            key,
        )
        value = await calls.carry_out(self.context, route, ask, conditions)
        reply = (
            _before(route, value)
            if isinstance(value, Repeated)
            else await calls.reply(self.context, route, ask, value)
        )
        if action.again:
            return await self._again(asked, action, names, fields, None, reply=reply)
        self._loads.clear()
        log.info("%s %s: %s", who.name, asked.method, route.summary)
        ask = replace(ask, names=named(action.path, names))
        if action.shows:
            return self.rendered(asked, action.shows, action.page, ask=ask, reply=reply)
        message = action.message(ask, reply)
        return redirect(action.then(ask, reply), *([sessions.flash(message)] if message else []))

    async def _again(
        self,
        asked: PageRequest,
        action: Action | SessionAction,
        names: Mapping[str, str],
        fields: Fields,
        wrong: HttpProblem | None,
        **more: Any,
    ) -> Answer:
        """Return the form's page again, with the typed text. The page shows what is wrong with the
        form, or the reply to an action that changes nothing."""
        path = links.fill(action.page, names)
        page, page_names = self._page(unquoted(path))
        if page is None:
            raise wrong or HttpProblem(404, "not_found", "No such page.")
        hides = action.hides if isinstance(action, Action) else ()
        kept = {
            name: [] if name in hides and "PRIVATE KEY" in "".join(texts) else texts
            for name, texts in fields.values.items()
        }
        form = filled(asked, Fields(kept), wrong)
        if isinstance(action, Action) and action.again:
            form.path = links.fill(action.again, names)
        return await self._shown(
            asked, page, page_names, wrong.status if wrong else 200, form, **more
        )

    # ------------------------------------------------ what went wrong

    def _problem(self, asked: PageRequest, wrong: HttpProblem) -> Answer:
        title = responses.get(wrong.status, "Error")
        values = self._context(asked, "") | {
            "status": wrong.status,
            "title": title,
            "detail": wrong.detail,
        }
        return self._rendered(asked, "error.html", values, wrong.status)


def _fitting(among: Iterable[T], path: str) -> tuple[T | None, dict[str, str]]:
    """Return the first page or action whose pattern matches the path, and the values of the names
    in the path."""
    for each in among:
        names = routes.matched(each.path, path)
        if names is not None:
            return each, names
    return None, {}


def _dated(page: Page, ask: Call, tx: Tx) -> dict[str, Any]:
    """Return what a page loads, how many notices are unread, the numbers of the navigation, and the
    last transition that the page knows. Administrators are told on each page that the site is
    held."""
    shared = {
        "last_event": views.last_event(tx),
        "nav_counts": {} if page.public else views.attention(tx, groups=ask.who.groups),
        "site_hold": hold.counts(tx) if ask.who.admin else None,
        "unread": reading.unread(tx, ask.who),
    }
    return {**shared, **page.load(tx, ask), **_own(page, ask, tx)}


def _own(page: Page, ask: Call, tx: Tx) -> Mapping[str, Any]:
    return {} if page.own is None else page.own(tx, ask)


def _can(who: Who | None, right: str, group_id: int | None = None, single: str = "") -> bool:
    own = SingleRight(single) if single else None
    return who is not None and offered(who, Right(right), group_id, own)


def filled(asked: PageRequest, fields: Fields, wrong: HttpProblem | None = None) -> Form:
    """Return the sent form with these fields, to be shown again."""
    errors = (wrong.faults or {"": wrong.detail}) if wrong else {}
    return Form(
        asked.path,
        asked.visit.csrf(),
        secrets.token_hex(16),
        fields,
        errors,
        remedies=wrong.remedies if wrong else (),
    )


def _pairs(query: str) -> dict[str, str]:
    """Return a query string's parameters, without empty ones. Raises `HttpProblem`."""
    try:
        return dict(parse_qsl(query, errors="strict", max_num_fields=50))
    except ValueError:
        raise HttpProblem(
            400,
            "bad_query",
            "The address cannot be read: what follows its question mark should be UTF-8, and at"
            " most 50 parameters.",
        ) from None


def _key(who: Who, path: str, fields: Fields) -> str:
    """Return the idempotency key of a form. A form that one user sends twice with the same fields
    has the same key both times, and is carried out once."""
    pairs = sorted((name, values) for name, values in fields.values.items() if name != "csrf")
    return hashlib.sha256(f"{who.name}\0{path}\0{pairs}".encode(errors="replace")).hexdigest()


def _before(route: Route, value: Repeated) -> Any:
    """Return the reply that was given when the form was first sent."""
    if route.reply is None:
        return None
    if not value.body:
        raise HttpProblem(
            409,
            "shown_once",
            "This was done when the form was sent first; what it made was a secret, which is shown"
            " once.",
        )
    return route.reply.model_validate_json(value.body)
