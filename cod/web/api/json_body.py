"""The API's answer to a request whose body is in memory: route, flow, reply."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Protocol, TypeGuard, runtime_checkable
from urllib.parse import parse_qsl

from pydantic import BaseModel

from cod.flows.people.access import DryRun
from cod.flows.replies import Repeated
from cod.model import Who
from cod.web.api import openapi
from cod.web.api.calls import (
    Answered,
    Conditions,
    carry_out,
    checked,
    encoded,
    permit,
    place,
    question,
    ration,
    reply,
)
from cod.web.api.context import Context
from cod.web.api.event_texts import position_of
from cod.web.api.events import EventStream
from cod.web.api.models import NoQuery, Nothing
from cod.web.api.resources import ROUTE_MAP
from cod.web.api.resources.server import DryRunQuery, DryRunReply, EventQuery
from cod.web.api.routes import Q, Route, named
from cod.web.http.errors import MEASURES_ONLY, HttpProblem, problem_of
from cod.web.http.request import PREFIX, MemoryBody, WebRequest, as_json, tags, unquoted

CSV = "text/csv; charset=utf-8; header=present"
TEXT = "text/plain; charset=utf-8"


class JsonBody(MemoryBody):
    """The body of a request to one of the API's routes, or to a path beside the table of routes,
    such as /metrics.

    route    the route for the request's method and path; None if there is none
    names    the values of the names in the path
    methods  the methods that the path has; without a route for the request's method, the others
    """

    def __init__(self, request: WebRequest, context: Context) -> None:
        super().__init__(request)
        self.context = context
        self.route, self.names, self.methods = ROUTE_MAP.find(request.verb, request.api_path)

    async def answer(self) -> None:
        """Answer the request by its route, or as one of the paths beside the table of routes."""
        request = self.request
        self.check_sender()
        try:
            await self._dispatch(request.permitted(self.route is not None and self.route.open))
        except Exception as error:
            request.problem(self.wrong(error))

    def wrong(self, error: Exception) -> HttpProblem:
        """Return the problem document that the client is sent for an exception."""
        return problem_of(error)

    async def _dispatch(self, who: Who) -> None:
        request = self.request
        if self.route is not None:
            return await self.run(self.route, who)
        path = request.api_path or unquoted(request.path.decode("latin-1"))
        if not request.api_path and path != "/metrics":
            raise HttpProblem(
                404, "not_found", f"there is nothing here; the API is below {PREFIX}/"
            )
        # these can be read, but are not in the table of routes
        is_other = path in ("/openapi.json", "/events", "/metrics")
        if is_other and request.verb == "GET":
            return await self._other(path, who)
        allowed = ["GET"] if is_other else self.methods
        if not allowed:
            raise HttpProblem(
                404, "not_found", "there is no such resource; see /api/v1/openapi.json"
            )
        allowed += [*(["HEAD"] if "GET" in allowed else []), "OPTIONS"]
        request.headers["Allow"] = ", ".join(allowed)
        if request.verb == "OPTIONS":
            return request.send(204, b"")
        raise HttpProblem(
            405,
            "method_not_allowed",
            f"{request.verb} is not possible here, only {', '.join(allowed)}",
        )

    async def _other(self, path: str, who: Who) -> None:
        request, context = self.request, self.context
        if who.measures and path != "/metrics":
            raise HttpProblem(403, "forbidden", MEASURES_ONLY)
        if path == "/events":
            return await self._events(self.query(EventQuery), who)
        if path == "/metrics" and not (who.admin or who.measures):
            raise HttpProblem(403, "forbidden", "only the site's administrators may do that")
        self.query(NoQuery)
        if path == "/metrics":
            return request.send_text(
                200, await context.metrics(), "text/plain; version=0.0.4; charset=utf-8"
            )
        return request.send_tagged(as_json(openapi.document()))

    async def _events(self, query: EventQuery, who: Who) -> None:
        request, hub = self.request, self.context.hub
        if request.method == b"HEAD":
            return request.send(200, b"", "text/event-stream")
        if refusal := hub.refusal(who):
            raise HttpProblem(503, "busy", refusal)
        # a browser that connects again repeats the address, and has heard more since
        last = request.getHeader("last-event-id") or query.after or ""
        after = position_of(last)
        if last and after is None:
            raise HttpProblem(422, "invalid", "Last-Event-ID is no position", "Last-Event-ID")
        if request.gone:  # nobody would tell the stream so
            return None
        return await EventStream(hub, request, who, request.caller).start(after)

    # ------------------------------------------------ a route

    async def run(self, route: Route, who: Who) -> None:
        """Carry out the route, and send its reply."""
        request, context = self.request, self.context
        permit(route, who)
        asked, dry_run = self._pairs(), False
        if route.can_be_tried:
            options = {name: asked.pop(name) for name in DryRunQuery.model_fields if name in asked}
            dry_run = checked(DryRunQuery, options).dry_run
        conditions = self._conditions(who, dry_run)
        ask = question(
            context,
            who,
            named(route.path, self.names),
            self.model(route),
            checked(route.query or NoQuery, asked),
            conditions.key,
        )
        try:
            value = await carry_out(context, route, ask, conditions)
        finally:
            if route.dear:
                request.headers |= ration(context, who)
        if isinstance(value, DryRun):
            return request.send_text(200, encoded(DryRunReply.of(value)))
        if isinstance(value, Repeated):
            return self._repeat(route, value)
        done = value if isinstance(value, Answered) else None
        status = done.status if done else route.status
        if done and done.tag:
            request.headers["ETag"] = done.tag
        if done and route.work is None:
            answer, body = done.reply, done.body
        else:
            value = await self.after_commit(route, done.value if done else value)
            answer, body = await reply(context, route, ask, value), b""
        self._locate(route, status, answer)
        if answer is None:
            return request.send(204, b"")
        if route.method != "GET":
            return request.send_text(status, body or encoded(answer), secret=route.secret)
        if wants_csv(answer, ask.query, request.getHeader("accept") or ""):
            return request.send_tagged(answer.csv().encode(), CSV, route.secret)
        if wants_text(answer, ask.query):
            return request.send_tagged(answer.as_text().encode(), TEXT, route.secret)
        return request.send_tagged(encoded(answer), secret=route.secret)

    async def after_commit(self, route: Route, value: Any) -> Any:
        """Return the value to show, given the value of the committed flow."""
        return value

    def _locate(self, route: Route, status: int, answer: Any) -> None:
        """Set `Location` to the path of the thing that was made or will be made."""
        path = place(route, self.names, answer) if status in (201, 202) else ""
        if path:
            self.request.headers["Location"] = PREFIX + path

    def _repeat(self, route: Route, before: Repeated) -> None:
        self.request.headers["Idempotency-Replayed"] = "true"
        if route.reply is not None and not before.body:
            raise HttpProblem(
                409,
                "shown_once",
                "this was done when it was asked first; what it made was a secret, "
                "which is shown once",
            )
        self._locate(route, before.status, json.loads(before.body) if before.body else None)
        self.request.send_text(before.status, before.body.encode())

    # ------------------------------------------------ reading the question

    def digested(self) -> bytes:
        """Return the headers that can replace the body in an upload's creation; here, for all other
        requests, none."""
        return b"\n"

    def _conditions(self, who: Who, dry_run: bool) -> Conditions:
        """Return the request's conditions.

        The client's key is hashed with the caller's name, so that it fits a column and cannot meet
        another caller's key. A request without a key still gives its flow one (`calls.question`),
        because a flow whose commit has an unknown outcome is run again.
        """
        request = self.request
        key, match = request.getHeader("idempotency-key"), request.getHeader("if-match")
        content = b"\n".join([request.method, request.uri, self.digested(), self.content])
        own = (
            None
            if key is None or dry_run  # a stored answer of a dry run would pass for the change's
            else hashlib.sha256(f"{who.name}\n{key}".encode(errors="replace")).hexdigest()
        )
        return Conditions(
            own,
            hashlib.sha256(content).hexdigest(),
            None if match is None else tags(match),
            request.getHeader("if-none-match"),
            tells=not dry_run,
            dry_run=dry_run,
        )

    def model(self, route: Route) -> BaseModel | None:
        """Return the body as an instance of the route's model. Raises `HttpProblem`."""
        if route.body is None and not self.content.strip():
            return None
        kind = self.request.getHeader("content-type") or "application/json"
        if kind.partition(";")[0].strip() != "application/json":
            raise HttpProblem(415, "unsupported_media_type", "the body should be application/json")
        try:
            values = json.loads(self.content)
        except (ValueError, RecursionError) as error:
            raise HttpProblem(400, "bad_json", f"the body is not JSON: {error}") from None
        body: BaseModel = checked(route.body or Nothing, values)
        return body

    def query(self, query: type[Q]) -> Q:
        """Return the query string as an instance of `query`. Raises `HttpProblem`."""
        return checked(query, self._pairs())

    def _pairs(self) -> dict[str, str]:
        """Return the values of the query string by name. Raises `HttpProblem`."""
        try:
            pairs = parse_qsl(
                self.request.uri.partition(b"?")[2].decode(),
                keep_blank_values=True,
                max_num_fields=50,
            )
        except ValueError:
            raise HttpProblem(400, "bad_query", "the query string cannot be read") from None
        names = [name for name, _ in pairs]
        if twice := {name: "stands twice" for name in names if names.count(name) > 1}:
            raise HttpProblem(422, "invalid", "stands twice", next(iter(twice)), twice)
        return dict(pairs)


# ------------------------------------------------ other forms of a reply


def wants_csv(reply: BaseModel | None, query: Any, accept: str) -> TypeGuard[HasCsv]:
    """Return whether to send the reply as a CSV table: the query says `format=csv`, or it says no
    format and `Accept` names CSV but not JSON."""
    if not isinstance(reply, HasCsv):
        return False
    asked = getattr(query, "format", None)
    return asked == "csv" if asked else "text/csv" in accept and "json" not in accept


def wants_text(reply: BaseModel | None, query: Any) -> TypeGuard[HasText]:
    """Return whether to send the reply as plain text: the query says `format=text`."""
    return isinstance(reply, HasText) and getattr(query, "format", None) == "text"


@runtime_checkable
class HasCsv(Protocol):
    """A reply that can also be sent as a table."""

    def csv(self) -> str:
        """Return the reply as a table in CSV (RFC 4180)."""


@runtime_checkable
class HasText(Protocol):
    """A reply that can also be sent as plain text."""

    def as_text(self) -> str:
        """Return the text."""
