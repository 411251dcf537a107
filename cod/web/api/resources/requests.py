"""Requests for nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from cod import model
from cod.flows import views
from cod.flows.scheduler import moves, requests
from cod.model import AskedNodes, AskedTuple, Refused, Result, set_names
from cod.states import RequestState
from cod.web.api.models import (
    REVISION,
    Body,
    CreateOf,
    OneOrSeveral,
    Paged,
    Reply,
    ReplyOf,
    Requirements,
    Seconds,
)
from cod.web.api.resources import moves as moving
from cod.web.api.resources.energy import Moment
from cod.web.api.routes import (
    ANYBODY,
    Call,
    Flow,
    Named,
    named_route,
    number,
    numbered_route,
    paged,
    route,
    see,
    use,
)


class TupleAsk(Body):
    """One (count, attributes, template). '' means the value that the vcluster was created with."""

    count: int = Field(ge=1, le=100_000)
    attributes: Requirements = ""
    template: str = Field(default="", max_length=REVISION)


def length(lease: float | None, starts_at: float | None, ends_at: float | None) -> float | None:
    """Return the seconds of a lease that is requested by its length, or by its start and its end;
    None: the group's default. Raises `Refused`."""
    if ends_at is None:
        return lease
    if starts_at is None or lease is not None:
        raise Refused(
            "invalid",
            "an end belongs to a start, and stands in place of the lease's length",
            "ends_at",
        )
    if ends_at <= starts_at:
        raise Refused("invalid", "the end is not after the start", "ends_at")
    return ends_at - starts_at


Kind = Literal["create", "grow", "replace", "move"]


class RequestQuery(Paged):
    vcluster: str | None = Field(default=None, max_length=63)
    group: str | None = Field(default=None, max_length=63)
    state: Annotated[str | None, OneOrSeveral(RequestState)] = Field(
        default=None, max_length=200, description="one, or several with commas between"
    )
    kind: Kind | None = None
    sort: Literal["id", "-id", "priority", "-priority"] = "-id"


class RequestSubmit(CreateOf[AskedNodes]):
    """Nodes that a vcluster needs in addition to its present ones."""

    tuples: list[TupleAsk] = Field(min_length=1, max_length=100)
    spread: bool = Field(
        default=False, description="the nodes of one tuple may be of several types and blocks"
    )
    wait: bool = Field(
        default=True, description="false: it is rejected if it cannot be met at once"
    )
    starts_at: Moment = Field(
        default=None,
        description=(
            "reserves the nodes in advance: seconds since the epoch; null: as soon as possible"
        ),
    )
    duration: Seconds | None = Field(
        default=None,
        description=(
            "of a reservation in advance: seconds for which the "
            "vcluster's lease lasts from its start on, at least"
        ),
    )
    before: float | None = Field(
        default=None,
        ge=0,
        le=1e11,
        allow_inf_nan=False,
        description=(
            "in place of a start: the best one is chosen after which `duration` is over by then, "
            "in seconds since the epoch"
        ),
    )


class TupleReply(Reply):
    """One (count, attributes, template) of a request."""

    count: int
    attributes: str
    template: str


class RequestRetry(Body):
    """Another attempt of a stopped request. `template`: name or name@revision for its nodes; '':
    the same as before."""

    template: str = Field(default="", max_length=REVISION)


class RequestChange(Body):
    """Smaller request for a vcluster that waits for its first nodes. `count`: at most so many
    nodes; `spread`: as in RequestSubmit; null: unchanged."""

    count: int = Field(ge=1, le=100_000)
    spread: bool | None = None


class ExpectedReply(ReplyOf[model.ExpectedStart], whole=True):
    """Expected start of a waiting request, as forecast at `told_at`.

    at  null: there is no forecast; `why` has the reason
    sooner_nodes, sooner_at  with `sooner_nodes` nodes the request would start by `sooner_at`; null:
                             nothing is known
    """


class RequestReply(ReplyOf[model.RequestView]):
    """A request for nodes.

    move      for kind 'move': the vcluster whose nodes move, and the progress; else null
    expected  when the request is expected to start; null: it does not wait, or there is no forecast
              yet
    """

    id: int
    vcluster: str
    kind: Kind
    state: RequestState
    starts_at: float | None
    tuples: list[TupleReply]
    move: moving.MoveReply | None = None
    expected: ExpectedReply | None = None

    @classmethod
    def of(cls, view: model.RequestView, /) -> RequestReply:
        own = dict(zip(cls.described, cls.read(view), strict=False))
        tuples = [
            TupleReply(count=each.count, attributes=each.attributes, template=name)
            for each, name in zip(view.request.tuples, view.templates, strict=True)
        ]
        if view.start is not None:
            own["expected"] = ExpectedReply.model_validate(view.start)
        if view.request.source_id is not None:
            own["move"] = moving.MoveReply.of(view)
        return cls(**own, tuples=tuples)


def tuples(asked: Sequence[TupleAsk]) -> list[AskedTuple]:
    """Return tuples in the form that flows take."""
    return [AskedTuple(each.count, each.attributes, each.template) for each in asked]


_ALSO_SET = set_names(AskedNodes)


def _nodes_wanted(ask: Call[Named, RequestSubmit]) -> Flow[Result[model.RequestView]]:
    body = ask.body
    asked = AskedNodes(
        tuples(body.tuples),
        spread=body.spread,
        wait=body.wait,
        starts_at=body.starts_at,
        duration=body.duration,
        before=body.before,
        **{name: getattr(body, name) for name in _ALSO_SET},
    )
    return partial(
        requests.submit, context=ask.context, vcluster=ask.names.name, asked=asked, possible=True
    )


REQUESTS = (
    route(
        "GET /requests",
        ANYBODY,
        "List requests for nodes",
        lambda a: partial(
            views.request_list,
            page=a.query.page,
            groups=a.who.groups,
            vcluster=a.query.vcluster,
            state=a.query.state,
            group=a.query.group,
            kind=a.query.kind,
        ),
        reply=paged(RequestReply, "Requests, the newest first."),
        query=RequestQuery,
    ),
    numbered_route(
        "GET /requests/{id}",
        see("request"),
        "Show a request and why it waits",
        lambda a: partial(views.request, request_id=number(a.names.id), groups=a.who.groups),
        reply=RequestReply,
    ),
    named_route(
        "POST /vclusters/{name}/requests",
        use("vcluster"),
        "Ask for more nodes: all of the tuples, or nothing",
        _nodes_wanted,
        reply=RequestReply,
        body=RequestSubmit,
        status=202,
        makes="/requests/{id}",
    ),
    numbered_route(
        "DELETE /requests/{id}",
        use("request"),
        "Withdraw a request that waits",
        lambda a: partial(
            requests.withdraw,
            request_id=number(a.names.id),
            reason=f"withdrawn by {a.actor}",
            now=a.now,
            seen=a.who.groups,
        ),
        reply=RequestReply,
    ),
    numbered_route(
        "POST /requests/{id}/change",
        use("request"),
        "Ask for fewer nodes, or other types, for a vcluster that waits for its first",
        lambda a: partial(
            requests.change,
            request_id=number(a.names.id),
            count=a.body.count,
            spread=a.body.spread,
            now=a.now,
            seen=a.who.groups,
        ),
        reply=RequestReply,
        body=RequestChange,
        status=202,
        makes="/requests/{id}",
    ),
    numbered_route(
        "PUT /requests/{id}/watch",
        see("request"),
        "Have yourself told by e-mail when a request is decided",
        lambda a: partial(
            requests.watch, context=a.context, request_id=number(a.names.id), on=True
        ),
        reply=RequestReply,
    ),
    numbered_route(
        "DELETE /requests/{id}/watch",
        see("request"),
        "Be told no more when a request is decided",
        lambda a: partial(
            requests.watch, context=a.context, request_id=number(a.names.id), on=False
        ),
        reply=RequestReply,
    ),
    numbered_route(
        "POST /requests/{id}/retry",
        use("request"),
        "Try a stopped request again, with another template if one is given",
        lambda a: partial(
            requests.retry,
            request_id=number(a.names.id),
            template=a.body.template,
            seen=a.who.groups,
        ),
        reply=RequestReply,
        body=RequestRetry,
    ),
    named_route(
        "POST /vclusters/{name}/moves",
        moving.claims,
        "Move nodes to another vcluster; the reply is its request",
        lambda a: partial(
            moves.start,
            context=a.context,
            source=a.names.name,
            target=a.body.to,
            count=a.body.nodes,
            within=a.body.within,
            only=a.body.types,
        ),
        reply=RequestReply,
        body=moving.MoveStart,
        status=202,
        makes="/requests/{id}",
    ),
)
