"""The frame of a change. It consists of the conditions that a request puts on the change
(`Idempotency-Key`; `If-Match` and `If-None-Match`, RFC 9110), the thing that the change is about
(`Location`, the thing's tag after the change, the OpenAPI document's links), and the change's row
in the audit.

A route that makes a thing says where the thing is (`Route.makes`). Other routes change the thing
that their own path names. A thing's tag is a digest of the reply that shows it: two replies with
the same tag are equal to the byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Generic
from urllib.parse import quote

from pydantic import BaseModel, Field

from cod.flows import replies
from cod.flows.people.access import (
    Change,
    DryRun,
    RequiredRight,
    StoppedWork,
    current,
    guarded,
)
from cod.model import Refused, Result, Right, Who
from cod.pool import Tx
from cod.web.api.models import Query, ReplyOf
from cod.web.api.resources import ROUTE_MAP, ROUTES
from cod.web.api.routes import Call, Flow, Route, V, matched, named, unquoted_in
from cod.web.http.errors import HttpProblem
from cod.web.http.representations import encoded, fits, tag
from cod.web.http.request import unquoted


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions on a request, beside its route and body.

    key       digest of the caller's name and `Idempotency-Key`; None: the client sent no key
    question  digest of the whole request
    match     the tags in `If-Match`; None: the header is missing
    unmatch   the header `If-None-Match`; None: it is missing
    tells     the answer has the tag of the thing that was changed
    dry_run   nothing is changed: the answer is a `DryRun`
    """

    key: str | None = None
    question: str = ""
    match: frozenset[str] | None = None
    unmatch: str | None = None
    tells: bool = False
    dry_run: bool = False

    def around(self, route: Route, ask: Call, flow: Flow) -> Flow:
        """Return the route's flow under these conditions. Raises `HttpProblem` (412) if a tag is
        required of a thing that has none."""
        match = self.match
        if match == frozenset("*") and not route.puts:
            match = None  # the flow itself refuses if the thing does not exist
        if route.changes and (match is not None or self.unmatch is not None):
            flow = partial(replies.unchanged, flow=flow, holds=self._holds(route, ask, match))
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

    def _holds(self, route: Route, ask: Call, match: frozenset[str] | None) -> Callable[[Tx], bool]:
        """Return the check whether the thing still has a tag of `match` and none of `unmatch`."""
        shown = resource_get(route)
        if shown is None or shown.shape is None:
            sentence = "what is changed here has no tag that If-Match or If-None-Match could name"
            raise HttpProblem(412, "changed", sentence)
        seeing = asked_to_see(shown, ask)
        look: Flow = shown.call(seeing)
        if not _own_claims(route, ask):  # no claim has checked that the caller may see it
            look = partial(guarded, flow=look, who=ask.who, claims=shown.claims(seeing))

        def holds(tx: Tx) -> bool:
            try:
                body = encoded(shown.shown(look(tx), ask.who))
            except Refused:
                if not route.puts:
                    raise
                return match is None  # the thing does not exist, or not for this caller
            if fits(self.unmatch, body):
                raise HttpProblem(412, "changed", "it is as If-None-Match has it: look at it")
            return match is None or not match.isdisjoint(("*", tag(body)))

        return holds


def _kept(route: Route, who: Who, value: Any) -> str:
    """Return the answer to store for repetitions of the request; '' if it has a secret, or no
    body."""
    if route.shape is None or route.secret:
        return ""
    value = value.value if isinstance(value, Result) else value
    done = value.body if isinstance(value, Answered) else encoded(route.shown(value, who))
    return done.decode()


class DryRunQuery(Query):
    """Query string that every change takes."""

    dry_run: bool = Field(
        default=False,
        description="Change nothing, and answer 200 with a `DryRunReply`: what would change, and"
        " whose work would stop. What the change would be refused for, this is, too",
    )


class StoppedWorkReply(ReplyOf[StoppedWork], whole=True):
    """Nodes in use of a virtual cluster whose work would stop."""

    nodes: list[str]


class DryRunReply(ReplyOf[DryRun], whole=True):
    """Effect that a change would have: values before and after, as the audit stores them (null for
    a thing that does not exist), and the work that would stop."""

    stops: list[StoppedWorkReply]


def can_be_tried(route: Route) -> bool:
    """Return whether the route supports `dry_run`: all its changes are in the database, in one
    transaction."""
    return route.changes and route.act is None and not route.upload


def keyed(route: Route) -> bool:
    """Return whether the route supports `Idempotency-Key`."""
    # routes with slow work change nothing that lasts, unless they make a secret
    slow = route.work is not None and not route.secret
    return route.changes and route.method == "POST" and not slow and route.act is None


# ------------------------------------------------ the thing


@cache
def resource_get(route: Route) -> Route | None:
    """Return the route that shows the thing that `route` changes; None if there is none."""
    parts = route.path.split("/")
    for length in range(len(parts), 0, -1):
        path = "/".join(parts[:length])
        for each in ROUTES:
            if each.method == "GET" and each.path == path:
                return each if "{" in path else None
    return None


def asked_to_see(shown: Route, ask: Call, names: Mapping[str, str] | None = None) -> Call:
    """Return the request for `shown`, the route that shows the thing, by the caller of `ask`.
    `names` are the names in the path of `shown`, if they differ from those of `ask`."""
    query: Any = None if shown.query is None else shown.query()
    nobody: Any = None
    return replace(
        ask, names=named(shown.path, names or ask.names.texts()), body=nobody, query=query
    )


@cache
def pattern(route: Route) -> str:
    """Return the path of the thing that a change is about, with names in braces; '' if there is no
    such thing."""
    if route.makes:
        return route.makes
    shown = resource_get(route)
    if shown is not None:
        return shown.path
    same = route.method in ("PATCH", "PUT") and any(
        each.method == "GET" and each.path == route.path for each in ROUTES
    )
    return route.path if same else ""


@cache
def shown_by(route: Route) -> Route | None:
    """Return the route that shows the thing after the change; None if there is none."""
    path = pattern(route)
    return ROUTE_MAP.find("GET", path)[0] if path else None


def place(
    route: Route, names: Mapping[str, str], reply: BaseModel | Mapping[str, Any] | None
) -> str:
    """Return the thing's path below the API's prefix; '' if it has none.

    names  the values of the names in the request's path
    reply  the answer's body, which names what was made
    """
    values = dict(names)
    if route.makes:
        fields = reply if isinstance(reply, Mapping) else {} if reply is None else dict(reply)
        values |= {key: str(value) for key, value in fields.items()}
    path = pattern(route)
    if not path or not all(map(values.get, re.findall(r"\{(\w+)\}", path))):
        return ""
    return re.sub(
        r"\{(\w+)\}", lambda found: quote(values[found[1]], safe="@" + unquoted_in(path)), path
    )


@dataclass(frozen=True, slots=True)
class Answered(Generic[V]):
    """Outcome of a change.

    value   the flow's value
    reply   the reply made from the value; None: the route sends no body, or `Route.work` makes the
            reply
    body    the reply as bytes
    tag     the entity tag of the thing after the change; '': it has none
    status  the HTTP status
    """

    value: V
    reply: BaseModel | None
    body: bytes
    tag: str
    status: int


def answered(route: Route, ask: Call, flow: Flow) -> Flow:
    """Return the route's flow with its value as an `Answered`. The reply and the tag are read in
    the transaction of the change, because a later read might see somebody else's change."""

    def with_answer(tx: Tx) -> Any:
        status = 201 if route.puts and _missing(tx, route, ask) else route.status
        done = flow(tx)
        value = done.value if isinstance(done, Result) else done
        reply = route.shown(value, ask.who)
        body = encoded(reply)
        after = Answered(value, reply, body, _tag(tx, route, ask, reply, body), status)
        return replace(done, value=after) if isinstance(done, Result) else after

    return with_answer


def _missing(tx: Tx, route: Route, ask: Call) -> bool:
    """Return whether the thing that a PUT's path names does not exist."""
    shown = resource_get(route)
    assert shown is not None
    try:
        shown.call(asked_to_see(shown, ask))(tx)
    except Refused:
        return True
    return False


def _tag(tx: Tx, route: Route, ask: Call, reply: BaseModel | None, body: bytes) -> str:
    shown = shown_by(route)
    if route.ends or shown is None or shown.shape is None:
        return ""
    if shown.work or shown.secret or shown.upload:
        return ""
    if shown.shape == route.shape:  # the reply is the same as that of a GET of the thing
        return tag(body)
    path = place(route, ask.names.texts(), reply)
    names = matched(shown.path, unquoted(path)) if path else None
    if names is None:
        return ""
    try:
        now = replace(ask, who=current(tx, ask.who))  # a new group's owner
        found = shown.call(asked_to_see(shown, now, names))(tx)
    except Refused:  # the thing no longer exists after the change
        return ""
    return tag(encoded(shown.shown(found, now.who)))


def links(route: Route, operation_id: Callable[[Route], str]) -> dict[str, Any]:
    """Return OpenAPI's links from an answer to the operation that shows the thing."""
    path, shown = pattern(route), shown_by(route)
    if shown is None:
        return {}
    source = "$response.body#/{}" if route.makes else "$request.path.{}"
    parameters = {}
    for given, wanted in zip(path.split("/"), shown.path.split("/"), strict=True):
        if wanted.startswith("{"):  # one value, or, as in NAME@REVISION, a text with several
            single = re.fullmatch(r"\{(\w+)\}", given)
            parameters[wanted[1:-1]] = (
                source.format(single[1])
                if single
                else re.sub(r"\{(\w+)\}", lambda found: "{" + source.format(found[1]) + "}", given)
            )
    return {
        "thing": {
            "operationId": operation_id(shown),
            "parameters": parameters,
            "description": "What was made or changed",
        }
    }


# ------------------------------------------------ the audit

_VERBS = {"POST": "create", "PUT": "set", "PATCH": "change", "DELETE": "delete"}


def action(route: Route) -> str:
    """Return the name of the route's change in the audit, in two words: 'vcluster create',
    'vcluster resize', 'member set'.

    The last fixed part of the path is the verb, unless it is a plural. After a plural the method
    says what is done to one of the things.
    """
    if route.action:
        return route.action
    fixed = [part for part in route.path.strip("/").split("/") if not part.startswith("{")]
    fixed = fixed[1:] if fixed[0] == "me" and len(fixed) > 1 else fixed
    *before, last = fixed
    if route.method == "POST" and before and not last.endswith("s"):
        return f"{before[-1].removesuffix('s')} {last}"
    return f"{last.removesuffix('s')} {_VERBS[route.method]}"


def change(route: Route, ask: Call) -> Change:
    """Return the description of the change for the audit, which uses it once the route's flow has
    run."""
    claims, shown = _own_claims(route, ask), resource_get(route)
    if not claims and shown is not None and all(c.right is Right.ANY for c in route.claims(ask)):
        # A route for anybody leaves the rights to other routes: its change belongs to the group of
        # the thing that its path names. A change for administrators alone (a user's name, a node's
        # BMC) belongs to no group.
        claims = _own_claims(shown, asked_to_see(shown, ask))
    return Change(
        action(route),
        " ".join(ask.names.texts().values()),
        claims[0] if claims else RequiredRight(Right.ANY),
        _look(route, ask),
        _values(ask.body or ask.query),
        lambda value: {} if route.shape is None else _values(route.shape(value)),
        route.idle,
    )


def _own_claims(route: Route, ask: Call) -> list[RequiredRight]:
    """Return the rights on particular things that the route itself requires."""
    return [each for each in route.claims(ask) if each.kind]


def seen_change(route: Route, ask: Call) -> Change:
    """Return the description of the change without the values of a thing that the caller may change
    but not see."""
    noted, shown = change(route, ask), resource_get(route)
    if noted.look is None or shown is None:
        return noted
    claims = shown.claims(asked_to_see(shown, ask))
    return replace(noted, look=partial(guarded, flow=noted.look, who=ask.who, claims=claims))


def _look(route: Route, ask: Call) -> Callable[[Any], Mapping[str, Any]] | None:
    shown = resource_get(route)
    if shown is None or shown.shape is None:
        return None
    if route.makes and not route.makes.startswith(shown.path.partition("{")[0]):
        return None  # the new thing is in another collection, and the reply describes it
    if shown.audit_view is not None:
        audit_view = shown.audit_view(ask)
        return lambda tx: _values(audit_view(tx))
    shape, flow = shown.shape, shown.call(asked_to_see(shown, ask))
    return lambda tx: _values(shape(flow(tx)))


def _values(model: Any) -> Mapping[str, Any]:
    return {} if model is None else dict(model.model_dump(mode="json"))
