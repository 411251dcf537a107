"""Conditions that a request puts on its answer: `Idempotency-Key`, `If-Match`, `If-None-Match` (RFC
9110).

A thing's tag is a digest of the reply that shows it: two replies with the same tag are equal to the
byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Generic, Protocol, TypeGuard, runtime_checkable

from pydantic import BaseModel, Field

from cod.flows import replies
from cod.flows.people import access
from cod.model import Result, Who
from cod.web.api.models import Query, ReplyOf
from cod.web.api.resources import ROUTES
from cod.web.api.routes import Call, Flow, Route, V, named
from cod.web.http.errors import HttpProblem
from cod.web.http.representations import as_json, tag

CSV = "text/csv; charset=utf-8; header=present"
TEXT = "text/plain; charset=utf-8"


def encoded(reply: BaseModel | None) -> bytes:
    """Return a reply as it is sent; nothing where there is none."""
    if reply is None:
        return b""
    try:
        return reply.model_dump_json(by_alias=True).encode()
    except ValueError:  # half of a surrogate pair, in a text from somewhere
        return as_json(reply.model_dump(mode="python", by_alias=True))


def wants_csv(reply: BaseModel | None, query: Any, accept: str) -> TypeGuard[HasCsv]:
    """Return whether to send the reply as a table: the question says so, or `Accept` names nothing
    else."""
    if not isinstance(reply, HasCsv):
        return False
    asked = getattr(query, "format", None)
    return asked == "csv" if asked else "text/csv" in accept and "json" not in accept


def wants_text(reply: BaseModel | None, query: Any) -> TypeGuard[HasText]:
    """Return whether to send the reply as plain text, because the question says so."""
    return isinstance(reply, HasText) and getattr(query, "format", None) == "text"


@runtime_checkable
class HasCsv(Protocol):
    """A reply that can be a table, too."""

    def csv(self) -> str:
        """Return the table, as RFC 4180 has it."""


@runtime_checkable
class HasText(Protocol):
    """A reply that can be plain text, too."""

    def as_text(self) -> str:
        """Return the text."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a request wants besides its answer.

    key       the client's, made nobody else's; None: it gave none
    question  digest of the whole request
    match     the tags in `If-Match`; None: there was none
    tells     its answer has the tag of what was changed
    dry_run   nothing is changed: the answer is a `DryRun`
    """

    key: str | None = None
    question: str = ""
    match: frozenset[str] | None = None
    tells: bool = False
    dry_run: bool = False

    def around(self, route: Route, ask: Call, flow: Flow) -> Flow:
        """Return the route's flow under these conditions. Raises `HttpProblem` (412) where the
        thing has no tag."""
        if route.changes and self.match is not None and self.match != {"*"}:
            shown = resource_get(route)
            if shown is None or shown.shape is None:
                raise HttpProblem(
                    412, "changed", "what is changed here has no tag that If-Match could name"
                )
            look: Flow = shown.call(asked_to_see(shown, ask))
            flow = partial(
                replies.unchanged,
                flow=flow,
                wanted=self.match,
                now=ask.now,
                current=lambda tx: tag(encoded(shown.shown(look(tx), ask.who))),
            )
        if self.key is not None and keyed(route):
            flow = partial(
                replies.once,
                flow=flow,
                key=self.key,
                question=self.question,
                status=route.status,
                body=partial(_kept, route, ask.who),
                now=ask.now,
            )
        return flow


class DryRunQuery(Query):
    """What the query string of any change may have."""

    dry_run: bool = Field(
        default=False,
        description="Change nothing, and answer 200 with a `DryRunReply`: what would change, and"
        " whose work would stop. What the change would be refused for, this is, too",
    )


class StoppedWorkReply(ReplyOf[access.StoppedWork], whole=True):
    """Nodes in use of a virtual cluster whose work would stop."""

    nodes: list[str]


class DryRunReply(ReplyOf[access.DryRun], whole=True):
    """What a change would do: values as they are and as they would be, null for a thing that is not
    there, as the audit would have them; and whose work would stop."""

    stops: list[StoppedWorkReply]


@dataclass(frozen=True, slots=True)
class Answered(Generic[V]):
    """What a change has led to: the flow's value; the reply made of it (None: `Route.work` makes
    one, or there is nothing to say), and its bytes; the entity tag of the thing that was changed,
    as it is after the change ('': it has none)."""

    value: V
    reply: BaseModel | None
    body: bytes
    tag: str


def can_be_tried(route: Route) -> bool:
    """Return whether `dry_run` means anything to that route: all that it changes is in the
    database, in one transaction."""
    return route.changes and route.act is None and not route.upload


def keyed(route: Route) -> bool:
    """Return whether `Idempotency-Key` means anything to that route."""
    # what is slow and no secret changes nothing that lasts
    slow = route.work is not None and not route.secret
    return route.changes and route.method == "POST" and not slow and route.act is None


@cache
def resource_get(route: Route) -> Route | None:
    """Return the route that shows the thing that this one changes; None: there is none."""
    parts = route.path.split("/")
    for length in range(len(parts), 0, -1):
        path = "/".join(parts[:length])
        for each in ROUTES:
            if each.method == "GET" and each.path == path:
                return each if "{" in path else None
    return None


def asked_to_see(shown: Route, ask: Call, names: Mapping[str, str] | None = None) -> Call:
    """Return the question for the thing that `shown` shows, asked by the one who asks `ask`.
    `names`: of its path, if they are not in the question's own."""
    query: Any = None if shown.query is None else shown.query()
    nobody: Any = None
    return replace(
        ask, names=named(shown.path, names or ask.names.texts()), body=nobody, query=query
    )


def _kept(route: Route, who: Who, value: Any) -> str:
    """Return the answer as it is kept: secrets are not."""
    if route.shape is None or route.secret:
        return ""
    value = value.value if isinstance(value, Result) else value
    done = value.body if isinstance(value, Answered) else encoded(route.shown(value, who))
    return done.decode()
