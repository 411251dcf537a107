"""Execution of a checked request. The REST API and the portal share this code, so that the portal
can do nothing that the API cannot."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel, ValidationError
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool

from cod.flows import views
from cod.flows.people.access import guarded, has_run, noted, tried
from cod.flows.replies import Repeated
from cod.model import Result, Who
from cod.web.api import routes
from cod.web.api.changes import Answered, Conditions, answered, change, seen_change
from cod.web.api.context import Context
from cod.web.api.models import Filtered, faults_of
from cod.web.api.routes import B, Call, Flow, N, Names, Q, Route, V
from cod.web.http.errors import MEASURES_ONLY, READS_ONLY, HttpProblem

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
NONE = Conditions()


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
        host=host,
        fingerprint=context.fingerprint(),
    )


async def carry_out(
    context: Context, route: Route[N, B, Q, V], ask: Call[N, B, Q], conditions: Conditions = NONE
) -> V | Answered[V] | Repeated:
    """Return the value of the route's flow, once the flow is committed and its effects are on their
    way. Return a `Repeated` if the same request was made before under the same key. Some routes
    have more than one flow: see `Route.act`."""
    if route.dear:
        context.rate_limits.spend(ask.who)
    if route.changes:
        context.rate_limits.change(ask.who, context.site.current.policy.changes)
    if route.act is not None:
        return await route.act(context.signin, ask)
    if route.before is not None:
        ask = replace(
            ask, prepared=await context.rate_limits.turn.run(in_thread, context, route.before, ask)
        )
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
