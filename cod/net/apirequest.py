"""The answer to a request to the REST API: the route, the flow, the reply or the problem.

Every answer that is not a success is a problem document (RFC 9457).
"""

from __future__ import annotations

import hashlib
import json
import logging
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from pydantic import BaseModel

from cod.flows.replies import Repeated
from cod.model import Upload, Who
from cod.net import openapi, tus
from cod.net.apibody import Wrong, shown
from cod.net.apicondition import CSV, TEXT, Conditions, as_json, encoded, fits, tag, tags, wants_csv, wants_text
from cod.net.apirun import carry_out, checked, permit, reply
from cod.net.bodies import EventQuery
from cod.net.events import EventStream
from cod.net.formupload import FormRequest
from cod.net.portal import visits
from cod.net.portal.answers import SECURITY, Answer, Asked, check_host, same_origin
from cod.net.routes import Route, find, number, unquoted
from cod.net.table import ROUTES

TITLES = {one.value: one.phrase for one in HTTPStatus} | {460: "Checksum Mismatch"}  # the last one is of tus
log = logging.getLogger("cod.api")


class ApiRequest(FormRequest):
    """One request, answered when it is all there."""

    async def _answer(self) -> None:
        if self.api.portal and self._is_form():
            return self._send_page(await self._form_answer(self._asked()))
        if self.api.portal and is_page(self.path) and self.getHeader("authorization") is None:
            return self._send_page(await self.api.portal.answer(self._asked(), self._refusal))
        try:
            if wrong := self._refusal or (self._stranger if not self._is_open() else None):
                raise wrong
            await self._dispatch(self._who or Who("nobody", address=self.address))
        except Wrong as wrong:
            self._problem(wrong)
        except Exception as error:
            self._problem(tus.wrong(error, self._upload))

    async def _dispatch(self, who: Who) -> None:
        if self.session:
            self._check_script()
        path, method = unquoted(self.path.decode("latin-1")), self._verb()
        if path == "/metrics" and method == "GET" and self.api.metrics:
            if not who.admin:
                raise Wrong(403, "forbidden", "only the site's administrators may do that")
            return self._send(200, await self.api.metrics(), "text/plain; version=0.0.4; charset=utf-8")
        if not path.startswith(openapi.PREFIX + "/"):
            raise Wrong(404, "not_found", f"there is nothing here; the API is below {openapi.PREFIX}/")
        path = path.removeprefix(openapi.PREFIX)
        if path == "/openapi.json" and method == "GET":
            return self._send(200, as_json(openapi.document()))
        if path == "/events" and method == "GET":
            return await self._events(who)
        if method == "OPTIONS" and tus.is_here(path):
            return self._send(204, b"")
        route, names, methods = find(ROUTES, method, path)
        if route is None:
            raise self._no_route(method, methods)
        return await self._run(route, names, who)

    def _is_open(self) -> bool:
        """Is it asked without a token, of a route for those who have not signed in yet?"""
        path = unquoted(self.path.decode("latin-1")).removeprefix(openapi.PREFIX)
        route = find(ROUTES, self._verb(), path)[0]
        return route is not None and route.open and self.getHeader("authorization") is None

    def _check_script(self) -> None:
        """Raise `Wrong` unless what a browser asks for by its cookie comes from a page of ours."""
        check_host(self.getHeader("host"), self.api.names)
        visit = visits.visit(self.session, self.getHeader("cookie"))
        genuine = same_origin(self.getHeader) and visit.proves(self.getHeader("x-csrf-token") or "")
        if self._verb() != "GET" and not genuine:
            raise Wrong(403, "form_expired", "a browser's script should send X-CSRF-Token, from a page of this site")

    def _no_route(self, method: str, methods: list[str]) -> Wrong:
        if not methods:
            return Wrong(404, "not_found", "there is no such resource; see /api/v1/openapi.json")
        self._headers["Allow"] = ", ".join(methods)
        return Wrong(405, "method_not_allowed", f"{method} is not possible here, only {', '.join(methods)}")

    async def _run(self, route: Route, names: dict[str, str], who: Who) -> None:
        if self._piece is not None:
            return await self._end_piece(self._piece, who)
        permit(route, who)
        api = self.api
        conditions = self._conditions(who)
        body = self._body(route)
        if route.upload:
            self._check_upload(route, body)
        ask = self._ask(who, names, body, self._query(route.query), conditions.key)
        value = await carry_out(api, route, ask, conditions)
        if isinstance(value, Repeated):
            return self._repeat(route, value)
        if isinstance(value, Upload):
            value = await self._about_upload(route, value)
        said = await reply(api, route, ask, value)
        if said is None:
            return self._send(204, b"")
        if wants_csv(said, ask.query, self.getHeader("accept") or ""):
            return self._send_reply(route, said.csv().encode(), CSV)
        if wants_text(said, ask.query):
            return self._send_reply(route, said.as_text().encode(), TEXT)
        return self._send_reply(route, encoded(said))

    def _send_reply(self, route: Route, body: bytes, kind: str = "application/json") -> None:
        """Or, where the client has it already, nothing."""
        if route.method != "GET":
            return self._send(route.status, body)
        self._headers["ETag"] = tag(body)
        if fits(self.getHeader("if-none-match"), body):
            return self._send(304, b"")
        return self._send(200, body, kind)

    def _repeat(self, route: Route, before: Repeated) -> None:
        self._headers["Idempotency-Replayed"] = "true"
        if route.reply is not None and not before.body:
            raise Wrong(409, "shown_once", "this was done when it was asked first; what it made was a secret, which is "
                        "shown once")
        if route.upload:
            self._headers["Location"] = tus.location(json.loads(before.body)["id"])
        self._send(before.status, before.body.encode())

    async def _events(self, who: Who) -> None:
        query = self._query(EventQuery)
        if self.method == b"HEAD":
            return self._send(200, b"", "text/event-stream")
        if refusal := self.api.hub.refusal(who):
            raise Wrong(503, "busy", refusal)
        last = self.getHeader("last-event-id") or ""
        return await EventStream(self.api.hub, self, who, lambda: self.api.caller(self)).start(
            number(last) if query.after is None and last else query.after)

    # ------------------------------------------------ pages

    def _asked(self) -> Asked:
        path, _, query = self.uri.decode("latin-1").partition("?")
        return Asked(self._verb(), unquoted(path), query, self.getHeader, _whole(self.content),
                     visits.visit(self.session, self.getHeader("cookie")), self.address)

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
        return Conditions(own, question, None if match is None else tags(match))

    def _body(self, route: Route) -> BaseModel | None:
        if route.body is None:
            return None
        if self._told_by_headers(route):
            return self._creation(route)
        if (self.getHeader("content-type") or "application/json").partition(";")[0].strip() != "application/json":
            raise Wrong(415, "unsupported_media_type", "the body should be application/json")
        try:
            values = json.loads(_whole(self.content))
        except (ValueError, RecursionError) as error:
            raise Wrong(400, "bad_json", f"the body is not JSON: {error}") from None
        return checked(route.body, values)

    def _query(self, query: type[BaseModel] | None) -> Any:
        if query is None:
            return None
        try:
            pairs = parse_qsl(self.uri.partition(b"?")[2].decode(), keep_blank_values=True, max_num_fields=50)
        except ValueError:
            raise Wrong(400, "bad_query", "the query string cannot be read") from None
        return checked(query, dict(pairs))

    # ------------------------------------------------ writing the answer

    def _problem(self, wrong: Wrong) -> None:
        if wrong.status == 401:
            self._headers["WWW-Authenticate"] = "Bearer"
        if wrong.wait:
            self._headers["Retry-After"] = str(wrong.wait)
        body = {"type": f"urn:cod:problem:{wrong.code}", "title": TITLES.get(wrong.status, ""),
                "status": wrong.status, "detail": wrong.detail, "code": wrong.code}
        if wrong.field:
            body["field"] = wrong.field
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
            1000 * (self.api.real_reactor.seconds() - self._started), f": {why}" if why else "")


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
