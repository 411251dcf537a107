"""The answer to a request to the REST API: the route, the flow, the reply or the problem.

Every answer that is not a success is a problem document (RFC 9457).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from pydantic import BaseModel

from cod.flows.replies import Repeated
from cod.model import Upload, Who
from cod.web import openapi
from cod.web.calls import carry_out, checked, permit, reply
from cod.web.conditions import (
    CSV,
    TEXT,
    Conditions,
    Tagged,
    as_json,
    encoded,
    fits,
    gzips,
    packed_tag,
    tag,
    tags,
    wants_csv,
    wants_text,
)
from cod.web.context import Context
from cod.web.errors import HttpProblem
from cod.web.events import EventStream
from cod.web.locations import place
from cod.web.models import NoQuery, Nothing
from cod.web.portal import sessions
from cod.web.portal.answers import SECURITY, Answer, PageRequest, check_host, same_origin
from cod.web.portal.front import Portal
from cod.web.resources import ROUTES
from cod.web.resources.server import EventQuery
from cod.web.routes import Route, find, number, unquoted
from cod.web.streaming import shown
from cod.web.uploads import tus
from cod.web.uploads.form import FormRequest

TITLES = {one.value: one.phrase for one in HTTPStatus} | {460: "Checksum Mismatch"}  # the last one is of tus
WORTH_PACKING = 1400  # bytes: what fits into one packet comes no sooner for being smaller
FASTEST = 1  # of zlib's levels: a large list is packed while others wait
log = logging.getLogger("cod.api")


class ApiRequest(FormRequest):
    """One request, answered when it is all there. `portal`: of pages and forms; None: there are none on this port."""

    def __init__(self, context: Context, portal: Portal | None, channel: Any) -> None:
        super().__init__(context, channel)
        self.portal = portal

    async def _answer(self) -> None:
        if self.portal and self._is_form():
            return self._send_page(await self._form_answer(self._asked()))
        if self.portal and is_page(self.path) and self.getHeader("authorization") is None:
            return self._send_page(await self.portal.answer(self._asked(), self._refusal))
        try:
            if wrong := self._refusal or (self._stranger if not self._is_open() else None):
                raise wrong
            await self._dispatch(self._who or Who("nobody", address=self.address))
        except HttpProblem as wrong:
            self._problem(wrong)
        except Exception as error:
            self._problem(tus.wrong(error, self._upload))

    async def _dispatch(self, who: Who) -> None:
        if self.session:
            self._check_script()
        path, method = unquoted(self.path.decode("latin-1")), self._verb()
        is_metrics = path == "/metrics"
        if not path.startswith(openapi.PREFIX + "/") and not is_metrics:
            raise HttpProblem(404, "not_found", f"there is nothing here; the API is below {openapi.PREFIX}/")
        path = path.removeprefix(openapi.PREFIX)
        route, names, methods = find(ROUTES, method, path)
        if route is not None:
            return await self._run(route, names, who)
        other = self._others(who).get(path)
        if other is not None and method == "GET":
            return await other()
        allowed = ["GET"] if other is not None else methods
        if not allowed:
            raise HttpProblem(404, "not_found", "there is no such resource; see /api/v1/openapi.json")
        allowed += [*(["HEAD"] if "GET" in allowed else []), "OPTIONS"]
        self._headers["Allow"] = ", ".join(allowed)
        if method == "OPTIONS":
            return self._send(204, b"")
        raise HttpProblem(405, "method_not_allowed", f"{method} is not possible here, only {', '.join(allowed)}")

    def _others(self, who: Who) -> dict[str, Callable[[], Awaitable[None]]]:
        """What can be read and is no route of the table, by path."""
        found: dict[str, Callable[[], Awaitable[None]]] = {
            "/openapi.json": self._document, "/events": partial(self._events, who),
            "/metrics": partial(self._metrics, who)}
        return found

    async def _metrics(self, who: Who) -> None:
        if not who.admin:
            raise HttpProblem(403, "forbidden", "only the site's administrators may do that")
        self._query(None)
        self._send_text(200, await self.context.metrics(), "text/plain; version=0.0.4; charset=utf-8")

    async def _document(self) -> None:
        self._query(None)
        self._send_tagged(as_json(openapi.document()))

    def _is_open(self) -> bool:
        """Is it asked without a token, of a route for those who have not signed in yet?"""
        path = unquoted(self.path.decode("latin-1")).removeprefix(openapi.PREFIX)
        route = find(ROUTES, self._verb(), path)[0]
        return route is not None and route.open and self.getHeader("authorization") is None

    def _check_script(self) -> None:
        """Raise `HttpProblem` unless what a browser asks for by its cookie comes from a page of ours."""
        check_host(self.getHeader("host"), self.context.names)
        visit = sessions.visit(self.session, self.getHeader("cookie"))
        genuine = same_origin(self.getHeader) and visit.proves(self.getHeader("x-csrf-token") or "")
        if self._verb() != "GET" and not genuine:
            raise HttpProblem(403, "form_expired", "a browser's script should send X-CSRF-Token, from a page of this "
                              "site")

    async def _run(self, route: Route, names: dict[str, str], who: Who) -> None:
        if self._piece is not None:
            return await self._end_piece(self._piece, who)
        permit(route, who)
        context = self.context
        conditions = self._conditions(who)
        body = self._body(route)
        if route.upload:
            self._check_upload(route, body)
        ask = self._ask(route, who, names, body, self._query(route.query), conditions.key)
        try:
            value = await carry_out(context, route, ask, conditions)
        finally:
            if route.dear:
                self._headers |= context.rations.told(who)
        if isinstance(value, Repeated):
            return self._repeat(route, names, value)
        if isinstance(value, Tagged):
            value = self._note_tag(value)
        if isinstance(value, Upload):
            value = await self._about_upload(route, value)
        said = await reply(context, route, ask, value)
        self._locate(route, names, said)
        if said is None:
            return self._send(204, b"")
        if route.method != "GET":
            return self._send_text(route.status, encoded(said), secret=route.secret)
        if wants_csv(said, ask.query, self.getHeader("accept") or ""):
            return self._send_tagged(said.csv().encode(), CSV, route.secret)
        if wants_text(said, ask.query):
            return self._send_tagged(said.as_text().encode(), TEXT, route.secret)
        return self._send_tagged(encoded(said), secret=route.secret)

    def _note_tag(self, value: Tagged) -> Any:
        if value.tag:
            self._headers["ETag"] = value.tag
        return value.value

    def _locate(self, route: Route, names: dict[str, str], said: Any) -> None:
        """Say where the thing is that was made, or will be as was asked."""
        path = place(route, names, said) if route.status in (201, 202) else ""
        if path:
            self._headers["Location"] = openapi.PREFIX + path

    def _send_tagged(self, body: bytes, kind: str = "application/json", secret: bool = False) -> None:
        """The answer to a GET; or, where the client has it already, nothing."""
        self._headers["ETag"] = tag(body)
        if fits(self.getHeader("if-none-match"), body):
            return self._send(304, b"")
        return self._send_text(200, body, kind, secret)

    def _send_text(self, status: int, body: bytes, kind: str = "application/json", secret: bool = False) -> None:
        """An answer, by gzip where the client takes that. Not to a browser's session, nor with a secret in it: who can
        make a browser ask, and sees the length of the answer, would learn what is in it."""
        if len(body) >= WORTH_PACKING and not secret and self.session is None:
            self._headers["Vary"] = "Accept-Encoding"
            if gzips(self.getHeader("accept-encoding") or ""):
                body = gzip.compress(body, FASTEST, mtime=0)
                self._headers["Content-Encoding"] = "gzip"
                if status == 200 and "ETag" in self._headers and self._verb() == "GET":
                    self._headers["ETag"] = packed_tag(self._headers["ETag"])
        self._send(status, body, kind)

    def _repeat(self, route: Route, names: dict[str, str], before: Repeated) -> None:
        self._headers["Idempotency-Replayed"] = "true"
        if route.reply is not None and not before.body:
            raise HttpProblem(409, "shown_once", "this was done when it was asked first; what it made was a secret, "
                              "which is "
                              "shown once")
        self._locate(route, names, json.loads(before.body) if before.body else None)
        self._send_text(before.status, before.body.encode())

    async def _events(self, who: Who) -> None:
        query = self._query(EventQuery)
        if self.method == b"HEAD":
            return self._send(200, b"", "text/event-stream")
        if refusal := self.context.hub.refusal(who):
            raise HttpProblem(503, "busy", refusal)
        last = self.getHeader("last-event-id") or ""
        return await EventStream(self.context.hub, self, who, self.caller).start(
            number(last) if query.after is None and last else query.after)

    # ------------------------------------------------ pages

    def _asked(self) -> PageRequest:
        path, _, query = self.uri.decode("latin-1").partition("?")
        return PageRequest(self._verb(), unquoted(path), query, self.getHeader, _whole(self.content),
                           sessions.visit(self.session, self.getHeader("cookie")), self.address)

    def _send_page(self, answer: Answer) -> None:
        self._headers |= SECURITY | answer.headers
        for line in answer.cookies:
            self.responseHeaders.addRawHeader("Set-Cookie", line)
        self._send(answer.status, answer.body, answer.kind)

    # ------------------------------------------------ reading the question

    def _conditions(self, who: Who) -> Conditions:
        """The client's key in a form that fits a column and is nobody else's. Where it gives none the flow still gets
        one, because a flow whose commit has an unknown outcome is run again."""
        key, match = self.getHeader("idempotency-key"), self.getHeader("if-match")
        told = [(self.getHeader(name) or "").encode(errors="replace") for name in tus.CREATION]
        question = hashlib.sha256(b"\n".join([self.method, self.uri, *told, _whole(self.content)])).hexdigest()
        own = None if key is None else hashlib.sha256(f"{who.name}\n{key}".encode(errors="replace")).hexdigest()
        return Conditions(own, question, None if match is None else tags(match), tells=True)

    def _body(self, route: Route) -> BaseModel | None:
        if route.upload and route.body is None:
            return None
        if route.body is None and not _whole(self.content).strip():
            return None
        if self._told_by_headers(route):
            return self._creation(route)
        if (self.getHeader("content-type") or "application/json").partition(";")[0].strip() != "application/json":
            raise HttpProblem(415, "unsupported_media_type", "the body should be application/json")
        try:
            values = json.loads(_whole(self.content))
        except (ValueError, RecursionError) as error:
            raise HttpProblem(400, "bad_json", f"the body is not JSON: {error}") from None
        body: BaseModel = checked(route.body or Nothing, values)
        return body

    def _query(self, query: type[BaseModel] | None) -> Any:
        try:
            pairs = parse_qsl(self.uri.partition(b"?")[2].decode(), keep_blank_values=True, max_num_fields=50)
        except ValueError:
            raise HttpProblem(400, "bad_query", "the query string cannot be read") from None
        names = [name for name, _ in pairs]
        if twice := {name: "stands twice" for name in names if names.count(name) > 1}:
            raise HttpProblem(422, "invalid", "stands twice", next(iter(twice)), twice)
        return checked(query or NoQuery, dict(pairs))

    # ------------------------------------------------ writing the answer

    def _problem(self, wrong: HttpProblem) -> None:
        if wrong.status == 401:
            self._headers["WWW-Authenticate"] = "Bearer"
        self._headers |= wrong.headers()
        body = {"type": f"urn:cod:problem:{wrong.code}", "title": TITLES.get(wrong.status, ""),
                "status": wrong.status, "detail": wrong.detail, "code": wrong.code}
        if wrong.field:
            body["field"] = wrong.field
        if wrong.status == 422 and wrong.faults:
            body["errors"] = [{"field": field, "detail": detail} for field, detail in wrong.faults.items()]
        self._send(wrong.status, as_json(body), "application/problem+json", wrong.detail)

    def _send(self, status: int, body: bytes, kind: str = "application/json", why: str = "") -> None:
        self._note(status, why)
        if self._gone:
            return
        out: Any = self
        out.setResponseCode(status, phrase(status).encode())
        if status not in (204, 304):
            self._headers |= {"Content-Type": kind, "Content-Length": str(len(body))}
        for name, value in self._headers.items():
            out.setHeader(name, value)
        if self.method != b"HEAD":
            out.write(body)
        out.finish()

    def _note(self, status: int, why: str) -> None:
        quiet = status < 400 and (self.method in (b"GET", b"HEAD") or self._piece is not None)
        log.log(
            logging.DEBUG if quiet else logging.INFO, "%s %s %s: %d in %.0f ms%s",
            self._who.name if self._who else "nobody", self.method.decode("latin-1"), shown(self.path), status,
            1000 * (self.context.reactor.seconds() - self._started), f": {why}" if why else "")


def phrase(status: int) -> str:
    """What a status is called. (Twisted's own list ends with RFC 2616: it has no 422.)"""
    try:
        return HTTPStatus(status).phrase
    except ValueError:  # 460 is the tus protocol's
        return "Checksum Mismatch" if status == 460 else "Unknown"


def is_page(path: bytes) -> bool:
    """Is this the path of a page or an asset, not of the API?"""
    return not path.startswith(openapi.PREFIX.encode() + b"/") and path not in (b"/metrics", b"/api", b"/api/")


def _whole(content: Any) -> bytes:
    content.seek(0)
    body: bytes = content.read()
    return body
