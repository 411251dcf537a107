"""One request to the REST API: its body as it arrives, who asks, the route, the flow, the reply or the problem.

Every answer that is not a success is a problem document (RFC 9457). A body is JSON of at most `JSON_LIMIT` bytes, or,
where the route takes an upload, a file that goes to disk as it arrives, and only once the token is known to be good.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from pydantic import BaseModel, ValidationError
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.threads import deferToThreadPool
from twisted.web import http

from cod import states
from cod.model import Refused, Result
from cod.net import openapi
from cod.net.bodies import EventQuery
from cod.net.events import MOST, EventStream
from cod.net.routes import Ask, Route, find, number
from cod.net.table import ROUTES
from cod.pool import Pool

if TYPE_CHECKING:
    from cod.net.api import Api

JSON_LIMIT = 2**20
SWALLOWED = 2**24  # bytes of a body that is refused, read on so that the client can hear why
STATUS = {"invalid": 422, "not_found": 404, "conflict": 409, "forbidden": 403}

log = logging.getLogger("cod.api")


class Wrong(Exception):
    """The request cannot be answered: HTTP status, stable code, a sentence, the part of the input that is meant."""

    def __init__(self, status: int, code: str, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.field = status, code, detail, field


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `local`: through the UNIX socket."""

    actor: str
    writes: bool
    local: bool


class ApiRequest(http.Request):
    """One request on a connection of `api`."""

    channel: Any
    content: Any

    def __init__(self, api: Api, channel: Any) -> None:
        super().__init__(channel)
        self.api = api
        self._started = api.real_reactor.seconds()
        self._upload: Path | None = None
        self._refusal: Wrong | None = None
        self._caller: Caller | None = None
        self._received = 0
        self._limit = JSON_LIMIT
        self._gone = False
        self._headers = {"Cache-Control": "no-store"}
        self._authentic: Deferred[None] | None = None
        self.notifyFinish().addErrback(self._lost)

    def _lost(self, _reason: Any) -> None:
        self._gone = True
        self._forget_upload()

    # ------------------------------------------------ the body, as it arrives

    def gotLength(self, length: int | None) -> None:
        """The headers are there: decide where the body goes, and find out who asks before any file is written."""
        self.content = BytesIO()
        self._authentic = ensureDeferred(self._authenticate())
        if self.getHeader("content-type") == "application/octet-stream":
            self._limit = self.api.upload_limit
            self.channel.pauseProducing()
            self._authentic.addCallback(self._open_upload)
        if length is not None and length > self._limit:
            self._refuse(Wrong(413, "too_large", f"the body may have at most {self._limit} bytes"))

    async def _authenticate(self) -> None:
        try:
            self._caller = await self.api.caller(self)
        except Wrong as wrong:
            self._refuse(wrong)
        except Exception as error:
            self._refuse(_unexpected(error))

    def _open_upload(self, _none: None) -> None:
        if self._refusal is None and not self._gone:
            self._upload = self.api.incoming / secrets.token_hex(16)
            self.api.uploading.add(self._upload)
            with contextlib.suppress(FileExistsError):
                self.api.incoming.mkdir(mode=0o700, parents=True)
            early, self.content = self.content, open(self._upload, "xb")  # noqa: SIM115 (closed in `process`)
            self.content.write(early.getvalue())
        if not self._gone:
            self.channel.resumeProducing()

    def handleContentChunk(self, data: bytes) -> None:
        """A piece of the body."""
        self._received += len(data)
        if self._received > self._limit:
            self._refuse(Wrong(413, "too_large", f"the body may have at most {self._limit} bytes"))
        if self._refusal is None:
            try:
                self.content.write(data)
            except OSError as error:
                self._refuse(Wrong(507, "no_space", f"the upload cannot be kept: {error.strerror}"))
        elif self._received > SWALLOWED:
            self.channel.loseConnection()

    def _refuse(self, wrong: Wrong) -> None:
        self._refusal = self._refusal or wrong
        self._forget_upload()
        self.content = BytesIO()

    def _forget_upload(self) -> None:
        if self._upload is not None:
            self.content.close()
            self._upload.unlink(missing_ok=True)
            self._let_go()

    def _let_go(self) -> None:
        if self._upload is not None:
            self.api.uploading.discard(self._upload)
            self._upload = None

    # ------------------------------------------------ the answer

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """The whole request is there. Unlike Twisted's own, this one looks into no form: bodies are JSON or files."""
        self.method, self.uri, self.clientproto = command, path, version
        self.path = path.partition(b"?")[0]
        assert self._authentic is not None
        self._authentic.addCallback(lambda _none: ensureDeferred(self._answer()))
        self._authentic.addErrback(self._broken)

    async def _answer(self) -> None:
        try:
            if self._refusal:
                raise self._refusal
            assert self._caller is not None
            await self._dispatch(self._caller)
        except Wrong as wrong:
            self._problem(wrong)
        except Exception as error:
            self._problem(_unexpected(error))

    def _broken(self, failure: Any) -> None:
        log.error("the answer to %s could not be sent", _shown(self.path), exc_info=failure.value)
        if not self._gone and not self.finished:
            self.channel.loseConnection()

    async def _dispatch(self, caller: Caller) -> None:
        path = "/".join(unquote(part, errors="replace") for part in self.path.decode("latin-1").split("/"))
        method = {b"HEAD": "GET"}.get(self.method, self.method.decode("latin-1"))
        if path == "/metrics" and method == "GET" and self.api.metrics:
            return self._send(200, await self.api.metrics(), "text/plain; version=0.0.4; charset=utf-8")
        if not path.startswith(openapi.PREFIX + "/"):
            raise Wrong(404, "not_found", f"there is nothing here; the API is below {openapi.PREFIX}/")
        path = path.removeprefix(openapi.PREFIX)
        if path == "/openapi.json" and method == "GET":
            return self._send(200, _json(openapi.document()))
        if path == "/events" and method == "GET":
            return await self._events()
        route, names, methods = find(ROUTES, method, path)
        if route is None:
            raise self._no_route(method, methods)
        return await self._run(route, names, caller)

    def _no_route(self, method: str, methods: list[str]) -> Wrong:
        if not methods:
            return Wrong(404, "not_found", "there is no such resource; see /api/v1/openapi.json")
        self._headers["Allow"] = ", ".join(methods)
        return Wrong(405, "method_not_allowed", f"{method} is not possible here, only {', '.join(methods)}")

    async def _run(self, route: Route, names: dict[str, str], caller: Caller) -> None:
        if route.changes and not caller.writes:
            raise Wrong(403, "forbidden", "this token may only read")
        if route.local and not caller.local:
            raise Wrong(403, "forbidden", "only the local administrator may do that, on the server's own UNIX socket")
        api = self.api
        ask = Ask(api.site, api.clock(), caller.actor, api.images, names, self._body(route), self._query(route.query),
                  self._finished_upload(route), self.getHeader("idempotency-key"))
        value = await (api.pool.run if route.changes else api.pool.read)(route.call(ask))
        if route.upload:
            self._let_go()  # a row names it now
        if isinstance(value, Result):
            self.api.wake(value.effects)
            value = value.value
        if route.work is not None:
            reply = await deferToThreadPool(api.real_reactor, api.real_reactor.getThreadPool(), route.work, ask, value)
        elif route.shape is None:
            return self._send(204, b"")
        else:
            reply = route.shape(value)
        return self._send(route.status, _json(reply.model_dump(mode="json")))

    async def _events(self) -> None:
        query = self._query(EventQuery)
        if len(self.api.streams) >= MOST:
            raise Wrong(503, "busy", f"{MOST} clients follow the events already; try again later")
        last = self.getHeader("last-event-id") or ""
        await EventStream(self.api, self).start(number(last) if query.after is None and last else query.after)

    # ------------------------------------------------ reading the question

    def _body(self, route: Route) -> BaseModel | None:
        if route.body is None:
            return None
        if (self.getHeader("content-type") or "application/json").partition(";")[0].strip() != "application/json":
            raise Wrong(415, "unsupported_media_type", "the body should be application/json")
        self.content.seek(0)
        try:
            values = json.loads(self.content.read())
        except (ValueError, RecursionError) as error:
            raise Wrong(400, "bad_json", f"the body is not JSON: {error}") from None
        return _checked(route.body, values)

    def _query(self, query: type[BaseModel] | None) -> Any:
        if query is None:
            return None
        try:
            pairs = parse_qsl(self.uri.partition(b"?")[2].decode(), keep_blank_values=True, max_num_fields=50)
        except ValueError:
            raise Wrong(400, "bad_query", "the query string cannot be read") from None
        return _checked(query, dict(pairs))

    def _finished_upload(self, route: Route) -> Path | None:
        if not route.upload:
            return None
        if self._upload is None:
            raise Wrong(415, "unsupported_media_type", "the body should be application/octet-stream")
        self.content.flush()
        os.fsync(self.content.fileno())
        self.content.close()
        return self._upload

    # ------------------------------------------------ writing the answer

    def _problem(self, wrong: Wrong) -> None:
        if wrong.status == 401:
            self._headers["WWW-Authenticate"] = "Bearer"
        body = {"type": f"urn:cod:problem:{wrong.code}", "title": http.RESPONSES.get(wrong.status, b"").decode(),
                "status": wrong.status, "detail": wrong.detail, "code": wrong.code}
        if wrong.field:
            body["field"] = wrong.field
        self._send(wrong.status, _json(body), "application/problem+json", wrong.detail)

    def _send(self, status: int, body: bytes, kind: str = "application/json", why: str = "") -> None:
        self._forget_upload()
        self._note(status, why)
        if self._gone:
            return
        out: Any = self
        out.setResponseCode(status)
        if status != 204:
            self._headers |= {"Content-Type": kind, "Content-Length": str(len(body))}
        for name, value in self._headers.items():
            out.setHeader(name, value)
        if self.method != b"HEAD":
            out.write(body)
        out.finish()

    def _note(self, status: int, why: str) -> None:
        quiet = status < 400 and self.method in (b"GET", b"HEAD")
        log.log(
            logging.DEBUG if quiet else logging.INFO, "%s %s %s: %d in %.0f ms%s",
            self._caller.actor if self._caller else "nobody", self.method.decode("latin-1"), _shown(self.path), status,
            1000 * (self.api.real_reactor.seconds() - self._started), f": {why}" if why else "")


def _shown(path: bytes) -> str:
    """A path for the log: one line, not for ever. The query string stays out."""
    return ascii(path[:200].decode("latin-1"))[1:-1]


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")


def _checked(model: type[BaseModel], values: Any) -> BaseModel:
    """`values` as `model`. Raises `Wrong` (422) that names the first field at fault."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise Wrong(422, "invalid", first["msg"].removeprefix("Value error, "), field or None) from None


def _unexpected(error: Exception) -> Wrong:
    """What a flow raised, as the client sees it: a rule's sentence; a late event; the database away; a bug."""
    if isinstance(error, Refused):
        return Wrong(STATUS.get(error.code, 422), error.code, error.sentence, error.field or None)
    if isinstance(error, states.WrongEvent):
        return Wrong(409, "conflict", str(error))
    if Pool.is_away(error):
        return Wrong(503, "unavailable", "the database does not answer; try again")
    log.error("a bug: %s", error, exc_info=error)
    return Wrong(500, "internal", "a bug in COD; the server's log has the details")
