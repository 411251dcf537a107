"""A checked call of the API: who may make it and how often, its conditions, its flow, its row in
the audit, and its answer. The REST API and the portal share this code, so that the portal can do
nothing that the API cannot.

Conditions are those that a request puts on a change: `Idempotency-Key`; `If-Match` and
`If-None-Match` (RFC 9110). A thing's tag is a digest of the reply that shows it: two replies with
the same tag are equal to the byte. `web.api.things` has the thing that a route is about.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any, Generic, ParamSpec, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool

from cod.flows import replies, views
from cod.flows.people.access import (
    Change,
    RequiredRight,
    current,
    guarded,
    has_run,
    noted,
    tried,
)
from cod.flows.replies import Repeated
from cod.model import Refused, Result, Right, Who
from cod.pool import Tx
from cod.web.api import routes
from cod.web.api.context import Context
from cod.web.api.models import Filtered, faults_of
from cod.web.api.routes import (
    B,
    Call,
    Flow,
    N,
    Names,
    Q,
    Route,
    V,
    matched,
    named,
    unquoted_in,
)
from cod.web.api.things import THINGS
from cod.web.http.errors import MEASURES_ONLY, READS_ONLY, HttpProblem
from cod.web.http.request import as_json, fits, tag, unquoted

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
RATE, BURST = 1.0, 30.0  # costly requests of one person: per second, and at once

# ------------------------------------------------ who may call, and how often


def permit(route: Route, who: Who) -> None:
    """Raise `HttpProblem` (403) if the route is closed to this kind of caller: tokens that may only
    read, tokens of monitoring systems, all but the local administrator."""
    if (route.changes or route.secret) and not who.writes:
        raise HttpProblem(403, "forbidden", READS_ONLY)
    if who.measures and not (route.measures or route.open):
        raise HttpProblem(403, "forbidden", MEASURES_ONLY)
    if route.local and not who.local:
        raise HttpProblem(
            403,
            "forbidden",
            "only the local administrator may do that, on the server's own UNIX socket",
        )


def spend(context: Context, who: Who) -> None:
    """Count a costly request of `who`. Raises `HttpProblem` (429) if the ration is used up. The
    local administrator, who could stop the server as well, has no ration."""
    now = context.clock()
    if not who.local and not context.costly.of(who.name, now, RATE, BURST).take(now):
        raise HttpProblem(
            429,
            "slow_down",
            f"this costs the server much: at most {BURST:.0f} at once and {RATE:.0f} a second"
            " are answered to one person; try again in some seconds",
            wait=1,
        )


def ration(context: Context, who: Who) -> dict[str, str]:
    """Return the headers that say what is left of `who`'s ration of costly requests; no headers if
    `who` has no ration, or has sent no costly request yet. RateLimit-Reset is the time in seconds
    until the ration is whole."""
    if who.local or who.name not in context.costly:
        return {}
    now = context.clock()
    level = context.costly.of(who.name, now, RATE, BURST).level(now)
    return {
        "RateLimit-Limit": f"{BURST:.0f}",
        "RateLimit-Remaining": str(int(level)),
        "RateLimit-Reset": str(ceil((BURST - level) / RATE)),
    }


def count_change(context: Context, who: Who) -> None:
    """Count a change of `who`, who is a person with all their tokens, or a token of the site.
    Raises `HttpProblem` (429) beyond the changes a minute that the site allows (0: no limit).
    Callers who have not signed in are limited by other rules."""
    a_minute = context.site.current.policy.changes
    person = who.name if who.user_id is None else str(who.user_id)
    if who.local or person == "nobody" or not a_minute:
        return
    now = context.clock()
    if not context.changes.of(f"{person} {a_minute}", now, a_minute / 60, a_minute).take(now):
        raise HttpProblem(
            429,
            "slow_down",
            f"one person makes at most {a_minute} changes in a minute here; try again in some"
            " seconds",
            wait=ceil(60 / a_minute),
        )


# ------------------------------------------------ the question


def checked(model: type[M], values: Any) -> M:
    """Return `values` as an instance of `model`. Raises `HttpProblem` (422) with all faults, and
    with the first field at fault as its `field`."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = faults_of(error)
        first = next(iter(faults))
        raise HttpProblem(422, "invalid", faults[first], first or None, faults) from None


def question(
    context: Context,
    who: Who,
    names: Names,
    body: Any = None,
    query: Any = None,
    key: str | None = None,
    host: str = "",
) -> Call[Any, Any, Any]:
    """Return the checked request to a route, with what the route may need of this server.

    key   the client's Idempotency-Key. A request without one gets a random key, because a flow
          whose commit has an unknown outcome is run again
    host  the name and port by which a browser reached this server
    """
    return Call(
        site=context.site.current,
        now=context.clock(),
        who=who,
        images=context.images,
        names=names,
        body=body,
        query=query,
        key=key or secrets.token_hex(16),
        webhook_key=context.webhook_key,
        authority=context.authority,
        consoles=context.consoles,
        settings=context.settings,
        database=context.database(),
        host=host,
        fingerprint=context.fingerprint(),
    )


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
        if self.key is not None and route.is_keyed:
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
        shown = THINGS[route.method, route.path].get
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


NONE = Conditions()


# ------------------------------------------------ its flow


async def carry_out(
    context: Context, route: Route[N, B, Q, V], ask: Call[N, B, Q], conditions: Conditions = NONE
) -> V | Answered[V] | Repeated:
    """Return the value of the route's flow, once the flow is committed and its effects are on their
    way. Return a `Repeated` if the same request was made before under the same key. Some routes
    have more than one flow: see `Route.act`."""
    if route.dear:
        spend(context, ask.who)
    if route.changes:
        count_change(context, ask.who)
    if route.act is not None:
        return await route.act(context.signin, ask)
    if route.before is not None:
        prepared = await context.turn.run(in_thread, context, route.before, ask)
        ask = replace(ask, prepared=prepared)
    flow: Flow[Any] = route.call(ask)
    if isinstance(ask.query, Filtered):
        flow = partial(views.filtered, flow=flow, filters=ask.query.filters, groups=ask.who.groups)
    run = secrets.token_hex(16)
    if conditions.dry_run:
        trying = partial(tried, who=ask.who, change=seen_change(route, ask), now=ask.now)
        flow = partial(trying, flow=flow)
    elif route.changes:
        noting = partial(noted, who=ask.who, change=change(route, ask), now=ask.now, run=run)
        flow = partial(noting, flow=flow)
        if conditions.tells and not route.upload:
            flow = answered(route, ask, flow)
    flow = conditions.around(route, ask, flow)
    flow = partial(guarded, flow=flow, who=ask.who, claims=route.claims(ask))
    value: Any = await (
        context.pool.run_once(partial(has_run, run=run, now=ask.now), flow)
        if route.changes
        else context.pool.read(flow)
    )
    if isinstance(value, Result):
        context.wake(value.effects)
        value = value.value
    outcome: V | Answered[V] | Repeated = value
    return outcome


async def reply(
    context: Context, route: Route[N, B, Q, V], ask: Call[N, B, Q], value: V
) -> BaseModel | None:
    """Return the reply for the flow's value; None if the route sends no body."""
    if route.simulated:
        question: Any = value
        value = await context.simulator.answer(question)
    if route.work is not None:
        worked = await in_thread(context, route.work, ask, value)
        return routes.open_to(worked, ask.who)
    return route.shown(value, ask.who)


def in_thread(
    context: Context, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> Deferred[T]:
    """Run `work`, which is slow, in a thread of the reactor's pool."""
    reactor = context.reactor
    return deferToThreadPool(reactor, reactor.getThreadPool(), work, *args, **kwargs)


# ------------------------------------------------ the answer


def encoded(reply: BaseModel | None) -> bytes:
    """Return a reply as the bytes of JSON; no bytes for None."""
    if reply is None:
        return b""
    try:
        return reply.model_dump_json(by_alias=True).encode()
    except ValueError:  # a text has half of a surrogate pair
        return as_json(reply.model_dump(mode="python", by_alias=True))


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
    shown = THINGS[route.method, route.path].get
    assert shown is not None
    try:
        shown.call(asked_to_see(shown, ask))(tx)
    except Refused:
        return True
    return False


def _tag(tx: Tx, route: Route, ask: Call, reply: BaseModel | None, body: bytes) -> str:
    shown = THINGS[route.method, route.path].shown_by
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
    path = THINGS[route.method, route.path].path
    if not path or not all(map(values.get, re.findall(r"\{(\w+)\}", path))):
        return ""
    return re.sub(
        r"\{(\w+)\}", lambda found: quote(values[found[1]], safe="@" + unquoted_in(path)), path
    )


# ------------------------------------------------ the change in the audit


def change(route: Route, ask: Call) -> Change:
    """Return the description of the change for the audit, which uses it once the route's flow has
    run."""
    thing = THINGS[route.method, route.path]
    claims, shown = _own_claims(route, ask), thing.get
    if not claims and shown is not None and all(c.right is Right.ANY for c in route.claims(ask)):
        # A route for anybody leaves the rights to other routes: its change belongs to the group of
        # the thing that its path names. A change for administrators alone (a user's name, a node's
        # BMC) belongs to no group.
        claims = _own_claims(shown, asked_to_see(shown, ask))
    return Change(
        thing.action,
        " ".join(ask.names.texts().values()),
        claims[0] if claims else RequiredRight(Right.ANY),
        _look(route, ask),
        _values(ask.body or ask.query),
        lambda value: {} if route.shape is None else _values(route.shape(value)),
        route.idle,
    )


def asked_to_see(shown: Route, ask: Call, names: Mapping[str, str] | None = None) -> Call:
    """Return the request for `shown`, the route that shows the thing, by the caller of `ask`.
    `names` are the names in the path of `shown`, if they differ from those of `ask`."""
    query: Any = None if shown.query is None else shown.query()
    nobody: Any = None
    return replace(
        ask, names=named(shown.path, names or ask.names.texts()), body=nobody, query=query
    )


def _own_claims(route: Route, ask: Call) -> list[RequiredRight]:
    """Return the rights on particular things that the route itself requires."""
    return [each for each in route.claims(ask) if each.kind]


def seen_change(route: Route, ask: Call) -> Change:
    """Return the description of the change without the values of a thing that the caller may change
    but not see."""
    noted, shown = change(route, ask), THINGS[route.method, route.path].get
    if noted.look is None or shown is None:
        return noted
    claims = shown.claims(asked_to_see(shown, ask))
    return replace(noted, look=partial(guarded, flow=noted.look, who=ask.who, claims=claims))


def _look(route: Route, ask: Call) -> Callable[[Any], Mapping[str, Any]] | None:
    shown = THINGS[route.method, route.path].get
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
